"""Faults that a simulated fabric commits on request: each kind a number of times, counted across processes."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.fabrics.state_file import StateFile
from campaign.files import content_hash

FaultKind = Literal[
    "busy",  # compose or release is refused because the fabric is busy; nothing changes
    "lost_request",  # compose never arrives, and the caller cannot know
    "unknown_outcome",  # compose is done, the reply is lost
    "unknown_release",  # release is done, the reply is lost
    "partial_attach",  # one device is not attached, and the fabric says so
    "short_attach",  # one device is not attached, and the fabric reports success
    "substituted_device",  # another free device of the drawer is attached in place of the one asked for
    "degraded_link",  # a device trains with half its lanes
    "device_never_visible",  # attached, but the host never enumerates it
    "needs_rescan",  # attached, but the host enumerates it only after a rescan
    "device_fails",  # a device breaks `after_s` seconds after it was attached, and stays broken
    "leak",  # one device cannot be released
]


class Fault(BaseModel):
    """One kind of fault, to happen `times` times to what matches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FaultKind = Field(description="what goes wrong")
    times: int = Field(default=1, ge=1, description="how often it happens before it stops")
    lease: str = Field(default="*", description="lease ids that it happens to, as a shell pattern")
    device: str = Field(default="*", description="fabric ids that it happens to, as a shell pattern")
    after_s: float = Field(default=0.0, ge=0, description="device_fails only: seconds from attachment to failure")


class Faults:
    """The faults of one fabric; how often each may still happen is kept in the fabric's state file."""

    def __init__(self, faults: Sequence[Fault], state: StateFile) -> None:
        self._faults = {f"{index}-{content_hash(fault.model_dump(), 8)}": fault for index, fault in enumerate(faults)}
        self._state = state

    def strike(self, kind: FaultKind, lease_id: str, device: str | None = None) -> Fault | None:
        """The fault that happens now, counted as happened; None when nothing goes wrong."""
        matching = {
            key: fault
            for key, fault in self._faults.items()
            if fault.kind == kind
            and fnmatchcase(lease_id, fault.lease)
            and (device is None or fnmatchcase(device, fault.device))
        }
        if not matching:
            return None
        with self._state.change() as state:
            for key, fault in matching.items():
                left = state.faults.get(key, fault.times)
                if left > 0:
                    state.faults[key] = left - 1
                    return fault
        return None
