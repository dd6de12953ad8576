"""Planning of a campaign against its records: the matrix is expanded, placed on the systems, and costs are estimated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.campaign.open_fabric import PlannedPlacement, make_placement_function, open_system_fabric
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.control_runs import collect_references
from campaign.plan.cost import build_cost_model
from campaign.plan.matrix import Matrix, RemovedByRule, expand_matrix
from campaign.plan.missing_runs import RecordedRuns, drop_damaged_records, find_implied_cells, read_recorded_runs
from campaign.plan.oom_frontier import build_campaign_frontier
from campaign.plan.past_costs import collect_earlier_spread, read_costs
from campaign.plan.plan import Plan, build_plan
from campaign.plan.request import PlanRequest
from campaign.spec.cell import Configuration
from campaign.spec.race import read_race
from campaign.spec.record import RecordStore
from campaign.spec.superseded import RecordedHosts


def read_plan(request: PlanRequest, *, allow_unfit: bool = False, check_records: bool = True) -> Plan:
    """Plan a campaign against its records.

    Raises ConfigError if a configuration can never fit the pool.

    Args:
        request: the campaign, and the selection of its cells.
        allow_unfit: True to plan a campaign even if a configuration does not fit.
        check_records: True if damaged records count as missing (`drop_damaged_records`).
    """
    campaign = request.load_campaign()
    results = Results(request.results, campaign.name)
    store = RecordStore(results.directory)
    matrix = _expand_matrix(campaign, request, results, store)
    recorded = _read_known_runs(campaign, matrix, store, check_records)
    placements = _place_configurations(campaign, matrix, results)
    planned_matrix = _drop_unfit(matrix, placements, request.without_hosts) if request.without_hosts else matrix
    costs = read_costs(results, request.learn_from, campaign.path)
    plan = replace(
        build_plan(campaign, planned_matrix, recorded, build_cost_model(campaign, costs), placements),
        without_hosts=request.without_hosts or "",
        unplanned=0 if request.where else count_unplanned(campaign, matrix, recorded),
        earlier=collect_earlier_spread(costs, campaign.name, campaign.systems),
    )
    if plan.unfit and not allow_unfit:
        raise ConfigError("\n".join(_list_unfit_messages(plan)))
    return plan


def _expand_matrix(campaign: Campaign, request: PlanRequest, results: Results, store: RecordStore) -> Matrix:
    """Expand the matrix to the requested cells. A race adds the compositions that it has reached."""
    matrix = expand_matrix(campaign, request.where, hosts=RecordedHosts(store))
    if not request.until:
        return matrix
    race = read_race(results.race_file)
    return replace(matrix, compositions=race.compositions if race else {})


def _read_known_runs(campaign: Campaign, matrix: Matrix, store: RecordStore, check_records: bool) -> RecordedRuns:
    """Find the runs that have a record, and the runs whose outcome those records imply."""
    recorded = read_recorded_runs(store, skip_implied=campaign.protocol.skip_implied)
    recorded = drop_damaged_records(recorded, store) if check_records else recorded
    return replace(
        recorded, implied=find_implied_cells(build_campaign_frontier(campaign, store), matrix.cells, recorded)
    )


def _place_configurations(campaign: Campaign, matrix: Matrix, results: Results) -> dict[str, PlannedPlacement]:
    """Return the placement of each configuration on its system. A system without configurations is not contacted."""
    by_system: dict[str, dict[str, Configuration]] = {}
    for cell in matrix.cells:
        by_system.setdefault(cell.configuration.system, {})[cell.configuration.name] = cell.configuration
    placements: dict[str, PlannedPlacement] = {}
    for part in campaign.parts:
        if part.part not in by_system:
            continue
        state, file_place = results.system_state_directory(part.part), part.system_source.format_location("fabric")
        with open_system_fabric(part.system, state, file_place) as fabric:
            place = make_placement_function(fabric, part)
            placements |= {name: place(configuration) for name, configuration in by_system[part.part].items()}
    return placements


def _drop_unfit(matrix: Matrix, placements: Mapping[str, PlannedPlacement], hosts: str) -> Matrix:
    """Return the matrix without configurations that do not fit the remaining hosts. They are listed as removed.

    If no configuration fits, the whole matrix is returned, so that the plan gives the reason.
    """
    unfit = {name: placement.unfit for name, placement in placements.items() if placement.unfit}
    if len(unfit) == len(placements):
        return matrix
    counts = Counter(cell.configuration.name for cell in matrix.cells)
    removals = (RemovedByRule(f"{name}, without {hosts}", reason, counts[name]) for name, reason in unfit.items())
    cells = tuple(cell for cell in matrix.cells if cell.configuration.name not in unfit)
    return replace(matrix, cells=cells, removed=(*matrix.removed, *removals))


def count_unplanned(campaign: Campaign, matrix: Matrix, recorded: RecordedRuns) -> int:
    """Count the cells that have records but are no longer in the campaign."""
    measured_ids = {cell_id for cell_id, _ in recorded.measured}
    planned_ids = {cell.id for cell in matrix.cells} | collect_references(campaign, matrix.cells).keys()
    return len(measured_ids - planned_ids)


def _list_unfit_messages(plan: Plan) -> Iterator[str]:
    """Yield one message per configuration that does not fit, with its location in the campaign's file."""
    campaign = plan.campaign
    for name, reason in plan.unfit.items():
        place = campaign.format_location("configurations", campaign.find_shape(name))
        yield (
            f"{place}: configuration {name} does not fit: {reason}; remove it, or correct hosts and pool in "
            "the system file"
        )
