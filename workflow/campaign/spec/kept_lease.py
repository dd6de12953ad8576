"""The document of a lease beside the records that refer to it: what tables and pages read of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    # What later versions add is kept, and not looked into.
    model_config = ConfigDict(extra="allow")


class _KeptDevice(_Open):
    model: str | None = None
    kind: str | None = None
    local: bool | None = None


class _KeptHost(_Open):
    name: str
    devices: tuple[_KeptDevice, ...] = ()
    storage: tuple[Any, ...] = ()


class _KeptComposition(_Open):
    hosts: tuple[_KeptHost, ...] = ()


class KeptLease(_Open):
    """One use of a composition. Times are Unix seconds; null where it did not come to that."""

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


def checked_lease(document: Any) -> dict[str, Any]:
    """The document itself, as it was written; ValueError for one that is not of this form."""
    KeptLease.model_validate(document)
    return dict(document)
