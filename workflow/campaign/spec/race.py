"""State of a race for the best configuration (`race/1`), in plan/race.json of the results.

`campaign run --until best` writes it before each block of compositions and at the end. It is computed from the records only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import require_json, write_json
from campaign.spec.fields import ClosedModel


class RaceCandidate(ClosedModel):
    """Configuration that may be the best for a workload, with its best batch so far."""

    configuration: str
    """Name of the configuration."""
    batch: int | None = None
    """Batch with the best mean. Null if there is no valid run yet."""
    value: float | None = None
    """Mean of the campaign's metric. Null if there is no valid run yet."""
    low: float | None = None
    """Lower bound of the mean's 95 % interval. Null without an interval."""
    high: float | None = None
    """Upper bound of the mean's 95 % interval. Null without an interval."""


class WorkloadRace(ClosedModel):
    """Race for one workload, precision and set of options."""

    about: str
    """Workload, precision and options, such as 'bert, fp32'."""
    best: str = ""
    """Configuration that was shown to be within the tolerance of the best. Empty if there is none yet."""
    block: int | None = None
    """Block after which this was shown. Null if it was not shown."""
    candidates: tuple[RaceCandidate, ...] = ()
    """Configurations that may be within the tolerance of the best, ordered by their mean. Empty if all failed."""
    note: str = ""
    """Reason, other than the number of compositions, why candidates cannot be distinguished. Empty if there is none."""


class DroppedConfiguration(ClosedModel):
    """Configuration that is outside the tolerance of the best for every workload."""

    configuration: str
    """Name of the configuration."""
    reason: str
    """Reason for the workload in which it comes closest to the best."""


class RaceDocument(ClosedModel):
    """State of a race: its settings, measured compositions, candidates and dropped configurations."""

    schema_version: Literal["race/1"] = "race/1"
    """Version of this format."""
    within_pct: float = Field(gt=0, lt=100)
    """Tolerance in percent. A configuration that is at most this much below the best counts as equally good."""
    where: str | None = None
    """Expression that selects the cells of the race."""
    unit: str = ""
    """Unit of the campaign's metric."""
    blocks: int
    """Number of planned compositions of each configuration."""
    ended: bool
    """True if nothing more is to be measured."""
    compositions: dict[str, int]
    """Number of measured compositions by configuration, including the next block."""
    compositions_planned: int
    """Number of planned compositions of all configurations together."""
    workloads: tuple[WorkloadRace, ...] = ()
    """Races, one for each workload, precision and set of options. Empty before two compositions."""
    dropped: tuple[DroppedConfiguration, ...] = ()
    """Configurations that have left every race, in the order in which they were dropped."""

    @property
    def is_decided(self) -> bool:
        """True if a best configuration was found for every workload."""
        return bool(self.workloads) and all(each.best for each in self.workloads)


def read_race(path: Path) -> RaceDocument | None:
    """Read the state of a race from its file. Returns None if the file is missing. Raises RecordError if it is damaged."""
    if not path.exists():
        return None
    remedy = "delete it, and the next 'campaign run --until best' writes it again from the records"
    try:
        return RaceDocument.model_validate(require_json(path, remedy))
    except ValidationError as error:
        raise RecordError(f"{path}: {format_first_error(error, 'the file')}; {remedy}") from error


def write_race(path: Path, race: RaceDocument) -> None:
    """Write the state of a race to its file atomically."""
    write_json(path, race.model_dump(mode="json"), indent=1)
