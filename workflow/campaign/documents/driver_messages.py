"""What a driver is asked for and what it reports, as plain data: it passes through pickles and files of several processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from campaign.errors import (
    ArchiveError,
    CampaignError,
    ConfigError,
    FabricError,
    HostFailed,
    LaunchError,
    RecordError,
)
from campaign.paths import Results

_ERRORS = {
    each.__name__: each
    for each in (CampaignError, ConfigError, FabricError, HostFailed, LaunchError, RecordError, ArchiveError)
}


@dataclass(frozen=True)
class DriverRequest:
    """The runs of one lease on one composition; paths are absolute.

    lease_plan: file of the lease's plan; root: directory of all results; use: id of this use of the lease; composition: what was
    composed (`Composition.document`); mismatches: how it differs from what was requested. Without use and composition, Slurm has
    the hosts composed for the driver, which finds out.
    """

    lease_plan: str
    root: str
    campaign: str
    lease: str
    use: str | None
    composition: Mapping[str, Any] | None
    mismatches: tuple[str, ...]

    @property
    def results(self) -> Results:
        return Results(Path(self.root), self.campaign)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{**document, "mismatches": tuple(document["mismatches"])})


@dataclass
class DriverResult:
    """How a driver ended. measured: runs that got a record; use: of the lease; error: what stopped it before all runs had one."""

    measured: list[tuple[str, int]] = field(default_factory=list)
    use: str = ""
    error: CampaignError | None = None

    def document(self) -> dict[str, Any]:
        error = None
        if self.error is not None:
            kind = next(each.__name__ for each in type(self.error).__mro__ if each.__name__ in _ERRORS)
            hosts = self.error.hosts if isinstance(self.error, HostFailed) else {}
            error = {"kind": kind, "message": str(self.error), "hosts": hosts}
        return {"measured": [list(key) for key in self.measured], "use": self.use, "error": error}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """KeyError, TypeError: it is no such document."""
        error = None
        if (told := document["error"]) is not None:
            kind = _ERRORS[told["kind"]]
            error = HostFailed(told["message"], told["hosts"]) if kind is HostFailed else kind(told["message"])
        return cls([(str(cell), int(repetition)) for cell, repetition in document["measured"]], document["use"], error)
