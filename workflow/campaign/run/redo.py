"""Repeated measurement of runs that have a record: `campaign redo --where EXPRESSION`. Their records move into superseded/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from campaign.common.errors import ConfigError
from campaign.common.files import is_locked
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.control_runs import references_of
from campaign.plan.matrix import expand
from campaign.plan.plan import lease_name
from campaign.plan.selection import HOST, host_expression
from campaign.spec.cell import Cell
from campaign.spec.record import Store
from campaign.spec.run_numbers import RunKey, composition_of
from campaign.spec.superseded import RecordedHosts, all_set_aside, hosts_of, set_aside


def matching_runs(campaign: Campaign, results: Results, where: str) -> list[RunKey]:
    """Return the recorded runs that match an expression over axes and `host`.

    Raises ConfigError if no record matches, or if a lease of these runs is being measured.
    """
    store = Store(results.directory)
    matrix = expand(campaign, where, hosts=RecordedHosts(store))
    holds = host_expression(campaign, where)
    present: dict[str, list[int]] = {}
    for cell_id, repetition in store.index(implied=False):
        present.setdefault(cell_id, []).append(repetition)
    runs = [
        (cell.id, repetition)
        for cell in matrix.cells
        for repetition in sorted(present.get(cell.id, ()))
        if holds is None
        or any(holds({**cell.axes(), HOST: host}) for host in hosts_of(store.path(cell.id, repetition)))
    ]
    if not runs:
        raise ConfigError(f"--where: no run with {where} has a record; 'campaign run' measures what has none")
    runs += _references(campaign, matrix.cells, runs, present)
    cells = {cell.id: cell for cell in matrix.cells}
    moved = [(cells[name], run) for name, run in runs if name in cells]
    for lease in sorted({lease_name(campaign.protocol, cell, composition_of(run)) for cell, run in moved}):
        if is_locked(results.measure_lock_file(lease)) or is_locked(results.driver_lock_file(lease)):
            raise ConfigError(
                f"--where: {lease} is being measured now, and its records cannot be moved. Wait until 'campaign status' shows it "
                "as complete, then run the same command again"
            )
    return runs


def _references(
    campaign: Campaign, chosen: Sequence[Cell], runs: Sequence[RunKey], present: Mapping[str, Sequence[int]]
) -> list[RunKey]:
    """Return runs of the reference in compositions all of whose other runs are measured again."""
    if campaign.protocol.reference is None:
        return []
    share: dict[str, list[Cell]] = {}
    for cell in expand(campaign, None, {cell.configuration.name for cell in chosen}).cells:
        for reference in references_of(campaign, [cell]):
            share.setdefault(reference, []).append(cell)
    moved, found = set(runs), []
    for reference, cells in share.items():
        every = {(cell.id, run) for cell in cells for run in present.get(cell.id, ())}
        stay = {composition_of(run) for _, run in every - moved}
        gone = {composition_of(run) for _, run in every & moved} - stay
        found += [(reference, run) for run in sorted(present.get(reference, ())) if composition_of(run) in gone]
    return found


def redo(results: Results, where: str, runs: Sequence[RunKey]) -> None:
    """Move the records of these runs into superseded/. An earlier interrupted move is completed first."""
    store = Store(results.directory)
    for earlier in all_set_aside(results.directory):
        if earlier.where == where:
            earlier.complete(store)
    if left := [run for run in runs if store.path(*run).exists()]:
        set_aside(store, left, where=where)
