"""Plan of a campaign as a document (`plan/1`), as printed by `campaign plan --json` and written to plan/plan.json."""

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
    """Totals of the whole plan."""

    gone = frozenset({"attached_in_file_order", "attached_at_random", "parts", "assumed"})

    cells: int
    """Number of cells in the matrix."""
    runs: int
    """Number of runs, including those of the reference."""
    runs_without_record: int
    """Number of runs to measure. This is the maximum if the campaign has a target for the interval."""
    runs_without_record_least: int
    """Number of runs that must be measured even if every target is reached early."""
    runs_implied: int
    """Number of runs that will be recorded as `implied` without being started, because smaller batches ran out of memory."""
    cells_without_record: int
    """Number of cells with at least one run to measure."""
    leases: int
    """Number of leases. Each lease is one composition of a configuration."""
    recompositions: int
    """Number of leases to measure for which the fabric must move devices."""
    recompositions_least: int
    """Number of distinct compositions among these leases. No order of leases needs fewer recompositions."""
    attached: int | None = None
    """Number of devices that are attached for the leases to measure. Null if unknown."""
    device_hours: float | None
    """Expected device-hours of the leases to measure. Null if unknown."""
    device_hours_low: float | None
    """Lower bound of the device-hours, derived from the errors of earlier forecasts. Null if unknown."""
    device_hours_high: float | None
    """Upper bound of the device-hours. Null if unknown."""
    host_hours: float | None = None
    """Expected host-hours of the leases to measure. Null if unknown."""
    host_hours_low: float | None = None
    """Lower bound of the host-hours, derived from the errors of earlier forecasts. Null if unknown."""
    host_hours_high: float | None = None
    """Upper bound of the host-hours. Null if unknown."""
    price: float | None = None
    """Price of the device-hours, by the prices in the system file. Null if a price or a duration is unknown."""
    currency: str | None = None
    """Currency of the price. Null without prices, or if the systems have different currencies."""
    wall_s: float | None
    """Expected duration in seconds. Null if unknown."""
    wall_low_s: float | None
    """Lower bound of the duration, derived from the errors of earlier forecasts. Null if unknown."""
    wall_high_s: float | None
    """Upper bound of the duration. Null if unknown."""
    learned_from: str
    """Runs from which the forecast was learned. Empty if there were none."""
    composing_from: str = ""
    """Basis of the forecast of composing times. Empty if nothing is composed or nothing is known."""
    runs_unknown: int = 0
    """Number of runs to measure whose duration is unknown."""
    isolation: str
    """Leases that may be measured at the same time."""


class AxisCounts(VersionedModel):
    """Numbers of cells and runs with one value of an axis."""

    cells: int
    """Number of cells."""
    runs: int
    """Number of runs."""


class RemovedCells(VersionedModel):
    """Cells of the full product that a rule removed."""

    rule: str
    """Expression that excludes the cells, or values that cannot be combined."""
    why: str
    """Reason for the removal."""
    cells: int
    """Number of removed cells."""


class ImpossibleShape(VersionedModel):
    """Shape in a product of lists that cannot exist."""

    shape: str
    """Name of the shape."""
    why: str
    """Reason why it cannot exist."""


class LeaseSummary(VersionedModel):
    """Summary of one lease."""

    gone = frozenset({"composing_low_s", "composing_high_s"})

    lease: str
    """Name of the lease."""
    order: int
    """Position in the order of leases, from 1."""
    configuration: str
    """Name of the configuration to compose."""
    composition: int
    """Number of the composition of this configuration, from 1."""
    devices: str
    """Description of the hosts and devices that the lease holds."""
    cells: int
    """Number of its cells, without the reference."""
    runs: int
    """Number of runs of these cells and of the reference."""
    runs_without_record: int
    """Number of runs to measure. This is the maximum if the campaign has a target for the interval."""
    runs_without_record_least: int
    """Number of runs that must be measured even if every target is reached early."""
    runs_implied: int
    """Number of runs that will be recorded as `implied` without being started, because smaller batches ran out of memory."""
    expected_s: float | None
    """Expected duration in seconds, including composing. Null if unknown."""
    expected_low_s: float | None
    """Lower bound of the expected duration, derived from the errors of earlier forecasts. Null if unknown."""
    expected_high_s: float | None
    """Upper bound of the expected duration. Null if unknown."""
    expected_least_s: float | None
    """Expected duration in seconds with the minimum number of runs. Null if unknown."""
    composing_s: float | None = None
    """Expected duration of composing in seconds. Null if unknown."""
    charge: LeaseCharge | None = None
    """Resources that a site charges for the lease, and the request of its allocation. Null if nothing is to be measured."""
    basis: str
    """Basis of the forecast."""
    attached: int | None = None
    """Number of devices that composing attaches. Null if unknown."""
    run_set: str
    """Hash of the runs, which is part of the manifest's name."""
    document: str
    """Path of the lease plan (`lease-plan/1`), relative to the plan."""


class PlanDocument(VersionedModel):
    """Plan of a campaign, with the order and the expected cost of its leases."""

    gone = frozenset({"order_basis", "budget", "question"})

    schema_version: Literal["plan/1"] = PLAN_SCHEMA
    """Version of this format."""
    campaign: str
    """Name of the campaign."""
    campaign_hash: str
    """Hash of the campaign as used, which is its file name in shared/ of the results."""
    digest: str
    """Hash of the planned runs and settings, without the forecast."""
    system: str
    """Name of the system, or names of several systems joined by ', '."""
    where: str | None
    """Expression that selected the cells."""
    version: str | None = None
    """Label of the installed software when the cells are measured. Null without a label."""
    without_hosts: str = ""
    """Hosts that were left out on request. Configurations that no longer fit are in `removed`."""
    totals: Totals
    """Totals of the whole plan."""
    axes: dict[str, dict[str, AxisCounts]]
    """Numbers of cells and runs by axis and value."""
    cells: tuple[str, ...]
    """Ids of all cells in the order of the matrix."""
    removed: tuple[RemovedCells, ...]
    """Cells that are left out, by rule."""
    impossible: tuple[ImpossibleShape, ...]
    """Shapes that cannot exist."""
    does_not_fit: dict[str, str]
    """Reason by configuration that the system can never compose."""
    notes: tuple[str, ...] = ()
    """Notes on keys of the campaign that have no effect."""
    leases: tuple[LeaseSummary, ...]
    """Leases in the order in which they are measured."""


_REWRITE_HINT = "write it again with 'campaign plan --write'"


def read_plan_document(path: Path) -> dict[str, Any]:
    """Return the document of a plan, of this version or an earlier one. Raises RecordError if the file is not a plan."""
    document = require_json(path, _REWRITE_HINT)
    if document.get("schema_version") != PLAN_SCHEMA or "campaign_hash" not in document:
        raise RecordError(f"{path}: is not a plan ({PLAN_SCHEMA}) of this version; {_REWRITE_HINT}")
    return document


def parse_plan(path: Path, document: dict[str, Any]) -> PlanDocument:
    """Parse the document of a plan of this version. Raises RecordError with the problem if it is invalid.

    Args:
        path: file of the plan, for messages.
        document: content of the file.
    """
    try:
        return PlanDocument.model_validate(document)
    except ValidationError as error:
        raise RecordError(f"{path}: {format_first_error(error, 'the file')}; {_REWRITE_HINT}") from error
