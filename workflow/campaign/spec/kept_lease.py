"""Lease documents in a results directory, with the keys that tables and reports read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _OpenModel(BaseModel):
    # Unknown keys, which later versions may add, are kept without validation.
    model_config = ConfigDict(extra="allow")


class _KeptDevice(_OpenModel):
    model: str | None = None
    kind: str | None = None
    local: bool | None = None


class _KeptHost(_OpenModel):
    name: str
    devices: tuple[_KeptDevice, ...] = ()
    storage: tuple[Any, ...] = ()


class _KeptComposition(_OpenModel):
    hosts: tuple[_KeptHost, ...] = ()


class KeptLease(_OpenModel):
    """Document of one use of a lease. Times are Unix seconds, or None if the lease did not reach that state."""

    lease_id: str
    configuration: str
    state: str | None
    lease: str | None = None
    requested_s: float | None = None
    fabric_done_s: float | None = None
    host_visible_s: float | None = None
    ready_s: float | None = None
    driver_began_s: float | None = None
    release_started_s: float | None = None
    released_s: float | None = None
    requested: dict[str, Any] | None = None
    obtained: _KeptComposition | None = None
    leaked: tuple[Any, ...] = ()
    faults: tuple[Any, ...] = ()
    degraded: tuple[Any, ...] = ()
    mismatches: tuple[Any, ...] = ()


def validate_lease(document: Any) -> dict[str, Any]:
    """Return the document unchanged. Raises ValueError if it is not a valid lease document."""
    KeptLease.model_validate(document)
    return dict(document)
