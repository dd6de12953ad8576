"""Repeated measurement of runs that have a record (`campaign redo`). Their records are moved into superseded/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from campaign.common.errors import ConfigError
from campaign.common.files import is_locked
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.control_runs import collect_references
from campaign.plan.matrix import expand_matrix
from campaign.plan.plan import format_lease_name
from campaign.plan.selection import HOST_NAME, list_axis_names
from campaign.spec.cell import Cell
from campaign.spec.expression import Expression, parse_expression
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import RunKey, get_composition_number, get_number_in_composition
from campaign.spec.superseded import RecordedHosts, list_superseded, read_recorded_hosts, supersede_records

RUN_NAMES = ("cell", "composition", "run", "repetition", "status")
"""Names that `campaign redo --where` can use in addition to the axes and `host`: id of the cell, numbers and status of a run."""


def find_matching_runs(
    campaign: Campaign, results: Results, expression: str | None, *, failed_only: bool = False
) -> list[RunKey]:
    """Return the recorded runs that match an expression over axes, `host` and properties of runs.

    Raises ConfigError if no record matches, or if a lease of these runs is being measured.

    Args:
        campaign: campaign of the runs.
        results: results of the campaign.
        expression: expression that selects runs; None for all runs.
        failed_only: leave out runs whose status is ok.
    """
    store = RecordStore(results.directory)
    holds = _parse_run_expression(campaign, expression) if expression is not None else None
    # The matrix selects cells by axes and hosts only. Its own messages explain which value has no cell.
    matrix = (
        expand_matrix(campaign, expression, hosts=RecordedHosts(store))
        if holds is None or not holds.names & {*RUN_NAMES} - list_axis_names(campaign)
        else expand_matrix(campaign)
    )
    recorded_runs: dict[str, list[int]] = {}
    for cell_id, repetition in store.list_keys(include_implied=False):
        recorded_runs.setdefault(cell_id, []).append(repetition)
    runs = [
        (cell.id, repetition)
        for cell in matrix.cells
        for repetition in sorted(recorded_runs.get(cell.id, ()))
        if (holds is None or _is_matching(holds, cell, repetition, store))
        and not (failed_only and store.read_latest(cell.id, repetition).status == "ok")
    ]
    if not runs:
        run_kind = "failed run" if failed_only else "run"
        condition = "" if expression is None else f" that matches {expression}"
        raise ConfigError(f"no {run_kind}{condition} has a record; 'campaign run' measures runs without a record")
    runs += _find_reference_runs(campaign, matrix.cells, runs, recorded_runs)
    cells = {cell.id: cell for cell in matrix.cells}
    selected_runs = [(cells[name], run) for name, run in runs if name in cells]
    for lease in sorted(
        {format_lease_name(campaign.protocol, cell, get_composition_number(run)) for cell, run in selected_runs}
    ):
        if is_locked(results.measure_lock_file(lease)) or is_locked(results.driver_lock_file(lease)):
            raise ConfigError(
                f"lease {lease} is being measured, so its records cannot be moved; wait until 'campaign status' shows it "
                "as complete, then run the same command again"
            )
    return runs


def _parse_run_expression(campaign: Campaign, expression: str) -> Expression | None:
    """Parse an expression over axes, `host` and properties of runs. Return None if it names axes only."""
    names = list_axis_names(campaign)
    parsed_expression = parse_expression(expression, {*names, HOST_NAME, *RUN_NAMES}, "--where")
    return parsed_expression if parsed_expression.names - names else None


def _is_matching(expression: Expression, cell: Cell, repetition: int, store: RecordStore) -> bool:
    """Return whether the recorded run of a cell matches an expression, on any of its hosts. Axes hide other names."""
    properties = {
        "cell": cell.id,
        "composition": get_composition_number(repetition),
        "run": get_number_in_composition(repetition),
        "repetition": repetition,
    }
    if "status" in expression.names:
        properties["status"] = store.read_latest(cell.id, repetition).status
    hosts = read_recorded_hosts(store.path(cell.id, repetition)) if HOST_NAME in expression.names else ("",)
    return any(expression({**properties, HOST_NAME: host, **cell.axes()}) for host in hosts)


def _find_reference_runs(
    campaign: Campaign,
    cells_to_redo: Sequence[Cell],
    runs: Sequence[RunKey],
    recorded_runs: Mapping[str, Sequence[int]],
) -> list[RunKey]:
    """Return the reference runs of those compositions whose other runs are all measured again."""
    if campaign.protocol.reference is None:
        return []
    cells_by_reference: dict[str, list[Cell]] = {}
    for cell in expand_matrix(campaign, None, {cell.configuration.name for cell in cells_to_redo}).cells:
        for reference in collect_references(campaign, [cell]):
            cells_by_reference.setdefault(reference, []).append(cell)
    selected_runs, reference_runs = set(runs), []
    for reference, cells in cells_by_reference.items():
        recorded = {(cell.id, run) for cell in cells for run in recorded_runs.get(cell.id, ())}
        kept_compositions = {get_composition_number(run) for _, run in recorded - selected_runs}
        emptied_compositions = {get_composition_number(run) for _, run in recorded & selected_runs} - kept_compositions
        reference_runs += [
            (reference, run)
            for run in sorted(recorded_runs.get(reference, ()))
            if get_composition_number(run) in emptied_compositions
        ]
    return reference_runs


def move_records_for_redo(results: Results, expression: str, runs: Sequence[RunKey]) -> None:
    """Move the records of these runs into superseded/. An earlier interrupted move is completed first."""
    store = RecordStore(results.directory)
    for earlier_move in list_superseded(results.directory):
        if earlier_move.where == expression:
            earlier_move.move_remaining(store)
    if remaining := [run for run in runs if store.path(*run).exists()]:
        supersede_records(store, remaining, where=expression)
