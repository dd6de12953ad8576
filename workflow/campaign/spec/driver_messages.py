"""Messages between a campaign and its drivers, JSON files that are validated whenever they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from pydantic import ConfigDict, TypeAdapter

from campaign.common.errors import (
    ArchiveError,
    CampaignError,
    ConfigError,
    FabricError,
    HostFailed,
    LaunchError,
    RecordError,
)
from campaign.common.paths import Results

_ERROR_CLASSES = {
    each.__name__: each
    for each in (CampaignError, ConfigError, FabricError, HostFailed, LaunchError, RecordError, ArchiveError)
}
_FORBID_EXTRA = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class DriverRequest:
    """Request to measure the runs of one lease on one composition. All paths are absolute.

    Attributes:
        lease_plan: file of the lease plan.
        root: directory of all results.
        use: id of this use of the lease, or None if Slurm composes the hosts and the driver detects them.
        composition: obtained hardware (`Composition.document`), or None in the same case.
        mismatches: differences between the obtained and the requested hardware.
        token: random text that identifies the processes and files of this submission, because process and job numbers are
            reused.
        holding: random text that identifies the composition in the same way (`Journal.holding`).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA
    lease_plan: str
    root: str
    campaign: str
    lease: str
    use: str | None
    composition: Mapping[str, Any] | None
    mismatches: tuple[str, ...]
    token: str
    holding: str = ""

    @property
    def results(self) -> Results:
        return Results(Path(self.root), self.campaign)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Parse a request from its document. Raises ValueError if the document is invalid."""
        return cast(Self, _REQUEST_ADAPTER.validate_python(document))


_REQUEST_ADAPTER = TypeAdapter(DriverRequest)


@dataclass(frozen=True)
class _Error:
    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA
    kind: str
    message: str
    hosts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_error(cls, error: CampaignError) -> _Error:
        kind = next(
            error_class.__name__ for error_class in type(error).__mro__ if error_class.__name__ in _ERROR_CLASSES
        )
        return cls(kind, str(error), error.hosts if isinstance(error, HostFailed) else {})

    def to_error(self) -> CampaignError:
        """Return the exception that was recorded. Raises ValueError if its kind is unknown."""
        if (kind := _ERROR_CLASSES.get(self.kind)) is None:
            raise ValueError(f"unknown kind of error {self.kind!r}")
        return HostFailed(self.message, self.hosts) if kind is HostFailed else kind(self.message)


@dataclass(frozen=True)
class _ResultDocument:
    """Document of a `DriverResult`."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA
    measured: list[tuple[str, int]]
    use: str
    error: _Error | None
    began_s: float | None = None


_RESULT_ADAPTER = TypeAdapter(_ResultDocument)


@dataclass
class DriverResult:
    """Result of a driver.

    Attributes:
        measured: cell id and repetition of each run that now has a record.
        use: id of the use of the lease.
        error: error that stopped the driver before all runs had a record, or None.
        began_s: start of the driver in Unix seconds. Before that, its job was in the queue.
    """

    measured: list[tuple[str, int]] = field(default_factory=list)
    use: str = ""
    error: CampaignError | None = None
    began_s: float | None = None

    def document(self) -> dict[str, Any]:
        error = _Error.from_error(self.error) if self.error else None
        return asdict(_ResultDocument(self.measured, self.use, error, self.began_s))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Parse a result from its document. Raises ValueError if the document is invalid."""
        result = _RESULT_ADAPTER.validate_python(document)
        return cls(result.measured, result.use, result.error.to_error() if result.error else None, result.began_s)
