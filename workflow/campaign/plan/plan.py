"""Plan of a campaign: its cells in the order of leases, with costs. Pure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from campaign.common.wording import format_duration, pluralize
from campaign.plan.campaign.expand_shapes import Impossible
from campaign.plan.campaign.open_fabric import PlannedPlacement
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.concurrency import estimate_wall_s
from campaign.plan.control_runs import ReferenceCells
from campaign.plan.cost import (
    NO_WORK_FORECAST,
    ChargeCalculator,
    CostModel,
    Estimate,
    LeaseForecastParts,
    LeaseWork,
    UnknownDurations,
    needs_fabric,
)
from campaign.plan.matrix import Matrix, RemovedByRule, hash_run_set
from campaign.plan.missing_runs import RecordedRuns
from campaign.plan.repetitions import estimate_remaining_runs, median_ended_repetitions, min_remaining_runs
from campaign.spec.campaign_file import Protocol
from campaign.spec.cell import Cell, Configuration, Settings
from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.lease_plan import LeaseCharge
from campaign.spec.run_numbers import list_compositions, list_run_numbers, with_composition


@dataclass(frozen=True)
class PlannedLease:
    """One lease with its composition and its cells, whose settings apply to this composition."""

    name: str
    configuration: Configuration
    composition: int
    cells: tuple[Cell, ...]
    digest: str
    runs: int
    missing: int
    min_missing_runs: int
    implied: int
    cells_missing: frozenset[str]
    expected: LeaseForecastParts
    """Expected duration, including composition."""
    expected_least_s: float | None
    repetitions_note: str
    """Assumed number of repetitions per cell, if a target makes it uncertain."""
    work: LeaseWork
    """Work for which the duration is expected."""
    min_work: LeaseWork
    """Work for which the minimum duration is expected."""
    ended_repetitions: Mapping[str, int]
    """Number of repetitions of the cells that a target ended early in this composition, by cell id."""
    charge: LeaseCharge | None = None
    """Charge of a site for the lease, with the request of its allocation; None if nothing has to be measured."""

    @property
    def expected_s(self) -> float | None:
        return self.expected.expected_s

    @property
    def basis(self) -> str:
        """Basis of the expected duration."""
        return f"{self.expected.basis}{self.repetitions_note}"

    @property
    def needs_hardware(self) -> bool:
        """True if the lease has runs that need hardware."""
        return self.missing > self.implied

    @property
    def needs_fabric(self) -> bool:
        return needs_fabric(self.configuration)

    def describe(self, compositions: int) -> str:
        """Describe the job of the lease, such as '1x4-fabric, composition 2 of 3: 2 cells, 4 runs, about 3 min'.

        Args:
            compositions: number of compositions of the campaign.
        """
        head = f"{self.format_title(compositions)}: {pluralize(len(self.cells), 'cell')}"
        if not self.missing:
            return f"{head}, all {self.runs} runs have a record ('campaign redo' measures runs again)"
        runs = pluralize(self.missing, "run")
        if self.min_missing_runs < self.missing:
            runs = f"{self.min_missing_runs} to {runs}"
        total = f" of {self.runs}" if self.missing < self.runs else ""
        implied = f"; {self.implied} skipped, because smaller batches ran out of memory" if self.implied else ""
        return f"{head}, {runs}{total}, {format_expected_time(self.expected)}{implied}"

    def format_title(self, compositions: int) -> str:
        """Format configuration and composition, such as '1x4-fabric, composition 2 of 3'."""
        return f"{self.name.removesuffix(f'.c{self.composition}')}, composition {self.composition} of {compositions}"

    def count_repetitions(self, cell: Cell) -> int:
        """Return the planned number of runs of a cell in the lease, which is the maximum if a target may end the cell."""
        return self.ended_repetitions.get(cell.id, len(list_run_numbers(cell.settings)))

    def describe_devices(self) -> str:
        """Describe the devices of the composition."""
        return self.configuration.describe()


@dataclass(frozen=True)
class Plan:
    """Matrix of a campaign in the order of its leases, with expected durations and costs."""

    campaign: Campaign
    where: str | None
    leases: tuple[PlannedLease, ...]
    removed: tuple[RemovedByRule, ...]
    impossible: tuple[Impossible, ...]
    placements: Mapping[str, PlannedPlacement]
    """Placement of each configuration on its system, by name, as far as it is known."""
    unknown: UnknownDurations
    """Durations that the forecast lacks."""
    factors: tuple[float, float]
    """Factors by which expected durations are multiplied to get both ends of their intervals."""
    factors_from: int = 0
    """Number of ended leases from which the factors were computed."""
    matrix: tuple[Cell, ...] = ()
    """All cells in the order of the axes."""
    learned_from: str = ""
    """Description of the runs from which durations were learned; empty if there are none."""
    composing_from: str = ""
    """Source of the recorded times from which composition times were computed; empty if earlier leases were used."""
    is_race: bool = False
    """True if the plan has only the compositions that a race requests."""
    notes: tuple[str, ...] = ()
    """Notes about settings without effect and devices that were never tested."""
    without_hosts: str = ""
    """Hosts that the user excluded, as written."""
    unplanned: int = 0
    """Number of cells with records that are not (or no longer) in the campaign; 0 if `where` selects a part."""
    earlier: tuple[EarlierSpread, ...] = ()
    """Spread between compositions in other campaigns on the system."""
    warnings: tuple[str, ...] = ()
    """Probable mistakes in the files, with file, line and key."""

    @property
    def cells(self) -> Iterator[tuple[PlannedLease, Cell]]:
        """Pairs of lease and cell, without the reference cells."""
        return ((lease, cell) for lease in self.leases for cell in lease.cells if not cell.reference)

    @property
    def unfit(self) -> dict[str, str]:
        """Reasons why configurations do not fit the pool, by the name of the configuration."""
        return {name: placement.unfit for name, placement in self.placements.items() if placement.unfit}

    @property
    def price(self) -> float | None:
        """Price of the missing runs, or None if a part of the price is unknown."""
        price = _sum_or_none([lease.charge.price for lease in self.leases if lease.charge])
        return None if price is None or not self.campaign.currency else round(price, 2)

    @property
    def cell_count(self) -> int:
        """Number of cells of the matrix. Each may be measured in several leases."""
        return len({cell.id for _, cell in self.cells})

    @property
    def cells_missing(self) -> int:
        """Number of cells with at least one run that has no record."""
        return len(frozenset[str]().union(*(lease.cells_missing for lease in self.leases)))

    @property
    def runs(self) -> int:
        return sum(lease.runs for lease in self.leases)

    @property
    def missing(self) -> int:
        return sum(lease.missing for lease in self.leases)

    @property
    def min_missing_runs(self) -> int:
        """Number of missing runs that must be measured even if every target is reached early."""
        return sum(lease.min_missing_runs for lease in self.leases)

    @property
    def recompositions(self) -> int:
        """Number of unmeasured leases for which the fabric has to move devices."""
        return sum(lease.needs_fabric for lease in self.leases if lease.needs_hardware)

    @property
    def min_recompositions(self) -> int:
        """Number of distinct compositions that need the fabric, which is the minimum for any order of leases."""
        composed_leases = (lease for lease in self.leases if lease.needs_hardware and lease.needs_fabric)
        return len({(lease.configuration.name, lease.composition) for lease in composed_leases})

    @property
    def attached_devices(self) -> int | None:
        """Number of devices that the fabric attaches for the missing runs, or None if unknown."""
        operations = [lease.work.operations for lease in self.leases if lease.missing and lease.needs_fabric]
        known_operations = [
            lease_operations.count("attach") for lease_operations in operations if lease_operations is not None
        ]
        return sum(known_operations) if len(known_operations) == len(operations) else None

    @property
    def device_hours(self) -> float | None:
        """Expected device-hours of the missing runs, or None if unknown."""
        return _sum_or_none([lease.charge.device_hours for lease in self.leases if lease.charge])

    @property
    def host_hours(self) -> float | None:
        """Expected host-hours of the missing runs, or None if unknown."""
        return _sum_or_none([lease.charge.host_hours for lease in self.leases if lease.charge])

    @cached_property
    def wall_s(self) -> float | None:
        """Expected duration (seconds), or None if unknown.

        Leases run one at a time or concurrently, as the isolation permits.
        """
        times = [(lease.configuration, lease.expected_s) for lease in self.leases if lease.missing]
        known_times = [(configuration, seconds) for configuration, seconds in times if seconds is not None]
        return estimate_wall_s(self.campaign, known_times) if len(known_times) == len(times) else None

    def estimate_interval(self, value: float | None) -> tuple[float, float] | tuple[None, None]:
        """Return both ends of the interval of an expected time or cost, assuming that all leases deviate in one direction."""
        low, high = self.factors
        return (None, None) if value is None else (low * value, high * value)


def _sum_or_none(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if len(known_values) == len(values) else None


def format_expected_time(expected: LeaseForecastParts) -> str:
    """Format an expected time with its interval, such as 'about 2 min 0 s (1 min 30 s to 3 min 0 s)', or 'unknown duration'."""
    return "unknown duration" if expected.expected_s is None else f"about {format_time_with_interval(expected)}"


def format_time_with_interval(expected: Estimate) -> str:
    """Format an expected time with its interval, without 'about', or return 'unknown'."""
    if expected.expected_s is None:
        return "unknown"
    if expected.low_s is None or expected.high_s is None or expected.expected_s <= 0:
        return format_duration(expected.expected_s)
    return f"{format_duration(expected.expected_s)} ({format_duration(expected.low_s)} to {format_duration(expected.high_s)})"


def build_plan(
    campaign: Campaign,
    matrix: Matrix,
    recorded: RecordedRuns | None = None,
    costs: CostModel | None = None,
    placements: Mapping[str, PlannedPlacement] | None = None,
) -> Plan:
    """Group the cells into ordered leases and estimate their costs.

    Args:
        campaign: the campaign.
        matrix: its cells.
        recorded: runs that were measured; None for none.
        costs: cost model; None for a model without earlier durations.
        placements: placement of each configuration on its system by name, as far as it is known beforehand.
    """
    recorded, costs, placements = recorded or RecordedRuns(), costs or CostModel({}), placements or {}
    median_repetitions = median_ended_repetitions(recorded.stops.values())
    leases = _sort_leases(
        campaign,
        [
            _plan_lease(name, composition, cells, recorded, median_repetitions, placements)
            for (name, composition), cells in _group_by_lease(campaign, matrix).items()
        ],
    )
    charges = ChargeCalculator(campaign, placements)
    leases = [_add_costs(lease, costs, charges) for lease in leases]
    works = [lease.work for lease in leases]
    names = {lease.configuration.name: None for lease in leases}
    return Plan(
        campaign,
        matrix.where,
        tuple(leases),
        matrix.removed,
        campaign.impossible,
        {name: placements.get(name, PlannedPlacement()) for name in names},
        costs.count_unknown(works),
        costs.factors,
        costs.ratio_count,
        matrix.cells,
        costs.describe_sources(works),
        "; ".join(costs.time_sources),
        is_race=matrix.compositions is not None,
        notes=matrix.notes,
        warnings=(*campaign.warnings, *matrix.warnings),
    )


def _sort_leases(campaign: Campaign, leases: Sequence[PlannedLease]) -> list[PlannedLease]:
    """Sort leases by `protocol.lease_order`: in blocks, each in random order, or in the order of the file."""
    if campaign.protocol.lease_order == "least-recomposition":
        position = {configuration.name: number for number, configuration in enumerate(campaign.configurations)}
        return sorted(leases, key=lambda lease: (position[lease.configuration.name], lease.composition))
    seed = campaign.protocol.seed
    # The random order depends on the names, so that leases keep their place when configurations or compositions are added.
    return sorted(leases, key=lambda lease: (lease.composition, Random(f"{seed}/leases/{lease.name}").random()))


def _add_costs(lease: PlannedLease, costs: CostModel, charges: ChargeCalculator) -> PlannedLease:
    """Return a lease with its expected duration, its minimum duration if targets may end cells, and its charge."""
    forecast = costs.forecast(lease.work)
    min_forecast = costs.forecast(lease.min_work) if lease.min_missing_runs < lease.missing else forecast
    charge = charges(lease.work, forecast) if lease.work.run_count else None
    return replace(lease, expected=forecast, expected_least_s=min_forecast.expected_s, charge=charge)


def format_lease_name(protocol: Protocol, cell: Cell, composition: int = 1) -> str:
    """Format the name of the lease of a cell's composition.

    The name is a valid file name, and consists of the wildcards of the rule `measure`.
    """
    parts = [cell.configuration.name]
    if protocol.lease_per != "configuration":
        parts.append(cell.workload)
    if protocol.lease_per == "cell":
        parts.append(f"b{cell.batch}-{cell.precision}-{cell.id[:8]}")
    return f"{'.'.join(parts)}.c{composition}"


def _group_by_lease(campaign: Campaign, matrix: Matrix) -> dict[tuple[str, int], list[Cell]]:
    """Group the cells by name and composition of their leases.

    Each cell gets its settings for that composition. The reference cell comes last.
    """
    groups: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    settings: dict[tuple[Settings, int], Settings] = {}
    for cell in matrix.cells:
        for composition in list_compositions(cell.settings):
            if not matrix.is_wanted(cell, composition):
                continue
            lease_cell = cell
            if cell.settings.compositions > 1:
                key = cell.settings, composition
                if key not in settings:
                    settings[key] = with_composition(*key)
                lease_cell = replace(cell, settings=settings[key])
            groups[format_lease_name(campaign.protocol, cell, composition), composition].append(lease_cell)
    if campaign.protocol.reference is not None:
        references = ReferenceCells(campaign)
        for (_, composition), group in groups.items():
            group += [
                reference for reference in [references.build_reference(group, composition)] if reference is not None
            ]
    return groups


def _plan_lease(
    name: str,
    composition: int,
    cells: list[Cell],
    recorded: RecordedRuns,
    median_repetitions: int | None,
    placements: Mapping[str, PlannedPlacement],
) -> PlannedLease:
    missing = recorded.list_missing_runs(cells)
    to_start = (
        [(cell, run) for cell, run in missing if cell.id not in recorded.implied] if recorded.implied else missing
    )
    configuration = cells[0].configuration
    placement = placements.get(configuration.name, PlannedPlacement())
    min_runs, probable_runs = _estimate_needed_runs(to_start, median_repetitions)
    repetitions_note = ""
    if len(min_runs) < len(to_start):
        repetitions_note = (
            "; the maximum number of repetitions"
            if median_repetitions is None
            else f"; {median_repetitions} repetitions per cell, as measured so far"
        )
    ended_repetitions = {
        cell.id: count
        for cell in cells
        if (cell.id, composition) in recorded.stops
        and (count := len(recorded.list_planned_runs(cell))) < len(list_run_numbers(cell.settings))
    }
    return PlannedLease(
        name=name,
        configuration=configuration,
        composition=composition,
        cells=tuple(cells),
        digest=hash_run_set(cells),
        runs=sum(ended_repetitions.get(cell.id, len(list_run_numbers(cell.settings))) for cell in cells),
        missing=len(missing),
        min_missing_runs=len(missing) - len(to_start) + len(min_runs),
        implied=len(missing) - len(to_start),
        cells_missing=frozenset(cell.id for cell, _ in missing if not cell.reference),
        expected=NO_WORK_FORECAST,
        expected_least_s=0.0,
        repetitions_note=repetitions_note,
        work=_build_work(configuration, probable_runs, placement),
        min_work=_build_work(configuration, min_runs, placement),
        ended_repetitions=ended_repetitions,
    )


def _estimate_needed_runs(
    missing: list[tuple[Cell, int]], median_repetitions: int | None
) -> tuple[list[tuple[Cell, int]], list[tuple[Cell, int]]]:
    """Return the missing runs that are certainly needed, and those that will probably be needed."""
    if all(cell.settings.target_half_width_pct is None for cell, _ in missing):
        return missing, missing
    min_runs: list[tuple[Cell, int]] = []
    probable_runs: list[tuple[Cell, int]] = []
    for _, group in itertools.groupby(missing, key=lambda run: run[0].id):
        runs = list(group)
        settings = runs[0][0].settings
        min_runs += runs[: min_remaining_runs(settings, len(runs))]
        probable_runs += runs[: estimate_remaining_runs(settings, len(runs), median_repetitions)]
    return min_runs, probable_runs


def _build_work(
    configuration: Configuration, runs: Sequence[tuple[Cell, int]], placement: PlannedPlacement
) -> LeaseWork:
    """Count the runs of each cell. A configuration that does not fit has no work, so that it costs nothing."""
    counts: dict[str, tuple[Cell, int]] = {}
    for cell, _ in () if placement.unfit else runs:
        counts[cell.id] = (cell, counts[cell.id][1] + 1 if cell.id in counts else 1)
    return LeaseWork(configuration, tuple(counts.values()), placement.operations)
