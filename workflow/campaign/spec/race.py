"""How a race for the best configuration stands (`race/1`): plan/race.json of the results.

`campaign run --until best` writes it anew before each block of compositions and at the end. It follows from the records alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import require_json, write_json
from campaign.spec.fields import ClosedModel


class RaceCandidate(ClosedModel):
    """A configuration that may be the best for a workload, with its best batch so far."""

    configuration: str
    """Name of the configuration."""
    batch: int | None = None
    """Batch with the best mean; null where no run is valid yet."""
    value: float | None = None
    """Mean of the campaign's metric; null where no run is valid yet."""
    low: float | None = None
    """Lower bound of its 95 % interval; null without an interval."""
    high: float | None = None
    """Upper bound of its 95 % interval; null without an interval."""


class WorkloadRace(ClosedModel):
    """The race for one workload, precision and set of options."""

    about: str
    """Workload, precision and options, such as 'bert, fp32'."""
    best: str = ""
    """Configuration that is shown to be within the tolerance of the best; empty where none is."""
    block: int | None = None
    """Block after which that was shown; null where it was not."""
    candidates: tuple[RaceCandidate, ...] = ()
    """Configurations that may be within the tolerance of the best, the best mean first; empty where all failed."""
    note: str = ""
    """What keeps candidates from being told apart, beside their number of compositions; empty for nothing."""


class DroppedConfiguration(ClosedModel):
    """A configuration that is within the tolerance of the best for no workload."""

    configuration: str
    """Name of the configuration."""
    reason: str
    """Why, in words, where it comes closest."""


class RaceDocument(ClosedModel):
    """What a race has measured, dropped and decided, and which block is measured next."""

    schema_version: Literal["race/1"] = "race/1"
    """Version of this format."""
    within_pct: float = Field(gt=0, lt=100)
    """Tolerance: a configuration that is at most so many percent below the best is as good as the best."""
    where: str | None = None
    """Expression that selects the cells of the race."""
    unit: str = ""
    """Unit of the campaign's metric."""
    blocks: int
    """Compositions of each configuration that the campaign plans."""
    ended: bool
    """Whether nothing more is to be measured."""
    compositions: dict[str, int]
    """Compositions of each configuration that are measured, the block that is measured next included."""
    compositions_planned: int
    """Compositions of all configurations that the whole campaign has."""
    workloads: tuple[WorkloadRace, ...] = ()
    """One race for each workload, precision and set of options; empty before two compositions."""
    dropped: tuple[DroppedConfiguration, ...] = ()
    """Configurations that are out of every race, in the order in which they were dropped."""

    @property
    def decided(self) -> bool:
        """Whether a best configuration is named for every workload."""
        return bool(self.workloads) and all(each.best for each in self.workloads)


def read_race(path: Path) -> RaceDocument | None:
    """Return the race of a results directory; None if there is none. Raises RecordError if the file is damaged."""
    if not path.exists():
        return None
    remedy = "delete it; the next 'campaign run --until best' writes it from the records"
    try:
        return RaceDocument.model_validate(require_json(path, remedy))
    except ValidationError as error:
        raise RecordError(f"{path}: {format_first_error(error, 'the file')}; {remedy}") from error


def write_race(path: Path, race: RaceDocument) -> None:
    """Write the race of a results directory, whole or not at all."""
    write_json(path, race.model_dump(mode="json"), indent=1)
