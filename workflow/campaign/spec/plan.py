"""The plan as a document (`plan/1`): what `campaign plan --json` and plan/plan.json say. Its JSON Schema is made from this."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from campaign.common.errors import RecordError, format_first_error
from campaign.common.files import require_json
from campaign.spec.fields import VersionedModel
from campaign.spec.lease_plan import LeaseCharge

PLAN_SCHEMA: Literal["plan/1"] = "plan/1"


class Totals(VersionedModel):
    """The whole plan in numbers."""

    gone = frozenset({"attached_in_file_order", "attached_at_random", "parts", "assumed"})

    cells: int
    """Cells of the matrix."""
    runs: int
    """Runs: cells times their repetitions, and those of the reference."""
    runs_without_record: int
    """Runs that will be measured; at most, where the campaign has a target for their interval."""
    runs_without_record_least: int
    """Runs that will be measured whatever they give."""
    runs_implied: int
    """Runs without a record that are recorded without being started: smaller batches ran out of memory."""
    cells_without_record: int
    """Cells with at least one run that will be measured."""
    leases: int
    """Leases, each one composition of a configuration."""
    recompositions: int
    """Leases still to be measured for which the fabric has to move devices."""
    recompositions_least: int
    """Distinct compositions among them: no order and no sharing could do with fewer."""
    attached: int | None = None
    """Devices that composing attaches for the leases still to be measured; null where that is not known."""
    device_hours: float | None
    """Expected device time of what is to be measured, in hours; null where it is unknown."""
    device_hours_low: float | None
    """Lower end of its interval, by how far earlier forecasts were off; null where it is unknown."""
    device_hours_high: float | None
    """Upper end of it."""
    host_hours: float | None = None
    """Expected host time, in hours; null where it is unknown."""
    host_hours_low: float | None = None
    """Lower end of its interval, by how far earlier forecasts were off; null where it is unknown."""
    host_hours_high: float | None = None
    """Upper end of it."""
    price: float | None = None
    """Price of the device-hours, by the prices of the system file; null where not all of it is known."""
    currency: str | None = None
    """Currency of prices; null without prices, or where systems have several currencies."""
    wall_s: float | None
    """Expected duration, in seconds; null where it is unknown."""
    wall_low_s: float | None
    """Lower end of its interval, by how far earlier forecasts were off; null where it is unknown."""
    wall_high_s: float | None
    """Upper end of it."""
    learned_from: str
    """What the expectations were learned from; empty where there was nothing."""
    composing_from: str = ""
    """What the times of composing rest on; empty where nothing is composed, or nothing is known."""
    runs_unknown: int = 0
    """Runs without a record whose duration is unknown."""
    isolation: str
    """What may be measured at the same time."""


class AxisCounts(VersionedModel):
    """How much of the matrix has one value of an axis."""

    cells: int
    """Cells."""
    runs: int
    """Runs."""


class RemovedCells(VersionedModel):
    """Cells of the full product that a rule removed."""

    rule: str
    """The rule: an expression, or what does not go together."""
    why: str
    """The reason."""
    cells: int
    """How many."""


class ImpossibleShape(VersionedModel):
    """A shape that a product of lists made and that cannot exist."""

    shape: str
    """The shape's name."""
    why: str
    """The reason."""


class LeaseSummary(VersionedModel):
    """One lease."""

    gone = frozenset({"composing_low_s", "composing_high_s"})

    lease: str
    """Name of the lease."""
    order: int
    """Place in the order of measuring, from 1."""
    configuration: str
    """Configuration that is composed."""
    composition: int
    """Which composition of the configuration it is, from 1."""
    devices: str
    """The devices that it takes, in words."""
    cells: int
    """Cells measured on it, without the reference."""
    runs: int
    """Runs of these cells and of the reference."""
    runs_without_record: int
    """Runs that will be measured; at most, where the campaign has a target for their interval."""
    runs_without_record_least: int
    """Runs that will be measured whatever they give."""
    runs_implied: int
    """Runs without a record that are recorded without being started: smaller batches ran out of memory."""
    expected_s: float | None
    """Expected duration in seconds, composing included; null where it is unknown."""
    expected_low_s: float | None
    """Lower end of its interval, by how far earlier forecasts were off; null where it is unknown."""
    expected_high_s: float | None
    """Upper end of it."""
    expected_least_s: float | None
    """Duration in seconds with the fewest runs; null where it is unknown."""
    composing_s: float | None = None
    """Expected duration of composing; null where it is unknown."""
    charge: LeaseCharge | None = None
    """What a site charges for it, and what its allocation asks for; null where nothing is to be measured."""
    basis: str
    """What the expectation rests on."""
    attached: int | None = None
    """Devices that composing attaches; null where that is not known."""
    run_set: str
    """Digest of the runs; part of the manifest's name."""
    document: str
    """File with everything that `campaign measure` needs of the lease, relative to the plan (`lease-plan/1`)."""


class PlanDocument(VersionedModel):
    """An ordered, costed matrix."""

    gone = frozenset({"order_basis", "budget", "question"})

    schema_version: Literal["plan/1"] = PLAN_SCHEMA
    """Version of this format."""
    campaign: str
    """Name of the campaign."""
    campaign_hash: str
    """Hash of the campaign as used; its name in shared/ of the results."""
    digest: str
    """Hash of what is planned, without what is expected of it."""
    system: str
    """Name of the system, or the names of several, joined by ', '."""
    where: str | None
    """Expression that selected the cells."""
    version: str | None = None
    """Label of what is installed when the cells are measured; null without one."""
    without_hosts: str = ""
    """Hosts that were asked to be left out; configurations that no longer fit are in `removed`."""
    totals: Totals
    """The whole plan in numbers."""
    axes: dict[str, dict[str, AxisCounts]]
    """Cells and runs by axis and value."""
    cells: tuple[str, ...]
    """Ids of all cells in the order of the matrix."""
    removed: tuple[RemovedCells, ...]
    """Cells that are left out, by rule."""
    impossible: tuple[ImpossibleShape, ...]
    """Shapes that cannot exist."""
    does_not_fit: dict[str, str]
    """Configurations that the system can never compose, and why."""
    notes: tuple[str, ...] = ()
    """What the campaign asks for in vain."""
    leases: tuple[LeaseSummary, ...]
    """Leases in the order of measuring."""


_AGAIN = "write it again with 'campaign plan --write'"


def plan_json(path: Path) -> dict[str, Any]:
    """The plan in a file, of this version or an earlier one; RecordError: it is none."""
    document = require_json(path, _AGAIN)
    if document.get("schema_version") != PLAN_SCHEMA or "campaign_hash" not in document:
        raise RecordError(f"{path}: is not a plan ({PLAN_SCHEMA}) of this version; {_AGAIN}")
    return document


def parse_plan(path: Path, document: dict[str, Any]) -> PlanDocument:
    """The plan of this version in a file. RecordError says what is wrong with it."""
    try:
        return PlanDocument.model_validate(document)
    except ValidationError as error:
        raise RecordError(f"{path}: {format_first_error(error, 'the file')}; {_AGAIN}") from error
