"""Measuring again what ran on certain hosts: `campaign run --where "host == 'host3'"`.

The records of these runs are set aside (`campaign.documents.superseded`), so that they have none, and the campaign goes on
as ever. The same
command after an interruption goes on with what it set aside, and sets nothing aside anew before all of it is measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from campaign import files
from campaign.config.resolve import Campaign
from campaign.documents.expression import Expression
from campaign.documents.record import Store
from campaign.documents.superseded import Key, RecordedHosts, SetAside, all_set_aside, hosts_of, set_aside
from campaign.errors import ConfigError
from campaign.paths import Results
from campaign.plan.matrix import Matrix, expand
from campaign.plan.missing_runs import read_known
from campaign.plan.plan import lease_name
from campaign.plan.selection import HOST, host_expression
from campaign.wording import plural


def redo(campaign: Campaign, results: Results, where: str, *, dry_run: bool) -> list[str]:
    """Set aside what is to be measured again; gives what was done, or with dry_run would be, in words.

    Nothing, where the expression does not name `host`. ConfigError where it selects nothing, or what it selects is being measured.
    """
    holds = host_expression(campaign, where)
    if holds is None:
        return []
    store = Store(results.directory)
    matrix = expand(campaign, where, hosts=RecordedHosts(store))
    if unfinished := _unfinished(campaign, store, matrix, where):
        return [_go_on(unfinished[0], unfinished[1], store, dry_run)]
    runs = _runs(store, matrix, holds)
    if not runs:
        return ["nothing is set aside: the runs on these hosts were set aside before, and measured again elsewhere"]
    _refuse_while_measured(campaign, results, matrix, {cell_id for cell_id, _ in runs})
    cells = len({cell_id for cell_id, _ in runs})
    what = f"{plural(len(runs), 'record')} of {plural(cells, 'cell')}, of runs with {where}"
    if dry_run:
        return [f"would set aside {what}, below {results.directory / 'superseded'}, and measure them again"]
    made = set_aside(store, runs, where=where)
    return [f"set aside {what}: {made.directory}; they are measured again on any host that fits, these included"]


def _runs(store: Store, matrix: Matrix, holds: Expression) -> list[Key]:
    """Runs with a record that touched a host for which the expression holds."""
    present: dict[str, list[int]] = {}
    for cell_id, repetition in store.index(implied=False):
        present.setdefault(cell_id, []).append(repetition)
    return [
        (cell.id, repetition)
        for cell in matrix.cells
        for repetition in sorted(present.get(cell.id, ()))
        if any(holds({**cell.axes(), HOST: host}) for host in hosts_of(store.path(cell.id, repetition)))
    ]


def _unfinished(campaign: Campaign, store: Store, matrix: Matrix, where: str) -> tuple[SetAside, set[Key]] | None:
    """The last time that this was asked for, where runs of it have no record yet; and which."""
    known = read_known(store, skip_implied=campaign.protocol.skip_implied)
    missing = {(cell.id, repetition) for cell, repetition in known.missing(matrix.cells)}
    for each in reversed(all_set_aside(store.results)):
        if each.where == where:
            left = missing & set(each.runs)
            return (each, left) if left else None
    return None


def _go_on(last: SetAside, left: Iterable[Key], store: Store, dry_run: bool) -> str:
    if not dry_run:
        last.complete(store)
    count = plural(len(last.runs), "run")
    return f"going on with what was set aside at {last.when}: {len(set(left))} of {count} have no record yet"


def _refuse_while_measured(campaign: Campaign, results: Results, matrix: Matrix, cells: set[str]) -> None:
    leases = sorted({lease_name(campaign.protocol, cell) for cell in matrix.cells if cell.id in cells})
    for lease in leases:
        if any(files.is_locked(results.work(lease) / name) for name in ("measure.lock", "driver.lock")):
            raise ConfigError(
                f"--where: {lease} is being measured now; records that it counts on are not set aside. Wait until it is over "
                "('campaign status'), then run the same command again"
            )
