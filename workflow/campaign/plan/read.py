"""Read the plan of a campaign: its matrix, minus what has a record, placed on its systems, with costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.campaign.open_fabric import PlannedPlacement, fabric_of, placing
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.control_runs import references_of
from campaign.plan.cost import cost_model
from campaign.plan.matrix import Matrix, Removed, expand
from campaign.plan.missing_runs import KnownRuns, implied_cells, read_known, without_damaged
from campaign.plan.oom_frontier import campaign_frontier
from campaign.plan.past_costs import earlier_spread, read_costs
from campaign.plan.plan import Plan, build_plan
from campaign.plan.request import PlanRequest
from campaign.spec.cell import Configuration
from campaign.spec.race import read_race
from campaign.spec.record import Store
from campaign.spec.superseded import RecordedHosts


def read_plan(request: PlanRequest, *, allow_unfit: bool = False, checked: bool = True) -> Plan:
    """Plan a campaign against its records.

    Raises ConfigError if a configuration can never fit the pool.

    Args:
        request: the campaign, and which of its cells.
        allow_unfit: whether a campaign with a configuration that does not fit is planned.
        check_records: whether damaged records count as missing (`drop_damaged_records`).
    """
    campaign = request.load()
    results = Results(request.results, campaign.name)
    store = Store(results.directory)
    matrix = _expand_matrix(campaign, request, results, store)
    known = _read_known_runs(campaign, matrix, store, checked)
    placements = _place_configurations(campaign, matrix, results)
    planned = _drop_unfit(matrix, placements, request.without_hosts) if request.without_hosts else matrix
    costs = read_costs(results, request.learn_from, campaign.path)
    plan = replace(
        build_plan(campaign, planned, known, cost_model(campaign, costs), placements),
        without_hosts=request.without_hosts or "",
        unplanned=0 if request.where else count_unplanned(campaign, matrix, known),
        earlier=earlier_spread(costs, campaign.name, campaign.systems),
    )
    if plan.unfit and not allow_unfit:
        raise ConfigError("\n".join(_list_unfit_messages(plan)))
    return plan


def _expand_matrix(campaign: Campaign, request: PlanRequest, results: Results, store: Store) -> Matrix:
    """Expand the matrix to the requested cells. A race adds the compositions that it has reached."""
    matrix = expand(campaign, request.where, hosts=RecordedHosts(store))
    if not request.until:
        return matrix
    race = read_race(results.race_file)
    return replace(matrix, compositions=race.compositions if race else {})


def _read_known_runs(campaign: Campaign, matrix: Matrix, store: Store, checked: bool) -> KnownRuns:
    """Read which runs have a record, and which runs are implied by those records."""
    known = read_known(store, skip_implied=campaign.protocol.skip_implied)
    known = without_damaged(known, store) if checked else known
    return replace(known, implied=implied_cells(campaign_frontier(campaign, store), matrix.cells, known))


def _place_configurations(campaign: Campaign, matrix: Matrix, results: Results) -> dict[str, PlannedPlacement]:
    """Return the placement of each configuration on its system. A system without configurations is not contacted."""
    by_system: dict[str, dict[str, Configuration]] = {}
    for cell in matrix.cells:
        by_system.setdefault(cell.configuration.system, {})[cell.configuration.name] = cell.configuration
    placements: dict[str, PlannedPlacement] = {}
    for part in campaign.parts:
        if part.part not in by_system:
            continue
        state, file_place = results.system_state_directory(part.part), part.system_source.place("fabric")
        with fabric_of(part.system, state, file_place) as fabric:
            place = placing(fabric, part)
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
    removed = (Removed(f"{name}, without {hosts}", why, counts[name]) for name, why in unfit.items())
    cells = tuple(cell for cell in matrix.cells if cell.configuration.name not in unfit)
    return replace(matrix, cells=cells, removed=(*matrix.removed, *removed))


def count_unplanned(campaign: Campaign, matrix: Matrix, known: KnownRuns) -> int:
    """Count the cells that have records but are no longer in the campaign."""
    measured = {cell_id for cell_id, _ in known.measured}
    planned = {cell.id for cell in matrix.cells} | references_of(campaign, matrix.cells).keys()
    return len(measured - planned)


def _list_unfit_messages(plan: Plan) -> Iterator[str]:
    """Yield one message per configuration that does not fit, with its place in the campaign's file."""
    campaign = plan.campaign
    for name, why in plan.unfit.items():
        place = campaign.place("configurations", campaign.shape_of(name))
        yield (
            f"{place}: configuration {name} does not fit: {why}; remove it, or correct hosts and pool in "
            "the system file"
        )
