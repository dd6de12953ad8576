"""Tables for the terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from campaign import files
from campaign.documents.record import Store
from campaign.fabrics.protocol import Capabilities, Inventory
from campaign.paths import Results
from campaign.plan.budget import Choice
from campaign.plan.forecast import ASSUMED_COMPOSE_S, ASSUMED_RUN_S
from campaign.plan.needless_runs import read_known
from campaign.plan.plan import Plan, isolation, within
from campaign.plan.plan_table import counts_per_axis
from campaign.plan.repetitions import said
from campaign.slurm import jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.hosts import ExcludedHosts
from campaign.slurm.poll import Poll
from campaign.wording import duration

_ROWS = 60  # a table for eyes; --format tsv has everything

_WIDTH = 140  # where output is not a terminal: wide enough for a plan, still readable in a log

_console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def _table(title: str, *columns: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def _add(table: Table, rows: Sequence[Sequence[object]], most: int = _ROWS) -> None:
    for row in rows[:most]:
        table.add_row(*(Text(str(value)) for value in row))
    if len(rows) > most:
        table.add_row(Text(f"... and {len(rows) - most} more"))


def _show(table: Table) -> None:
    if table.row_count:
        _console.print(table)
        _console.print()


def print_plan(plan: Plan) -> None:
    """The plan as tables: axes, what was removed, leases in order, what does not fit, totals."""
    axes = _table("Cells and runs by axis", "axis", "value", "cells", "runs", numbers=("cells", "runs"))
    rows = [
        (axis, value, n["cells"], n["runs"])
        for axis, values in counts_per_axis(plan).items()
        for value, n in values.items()
    ]
    _add(axes, rows)
    _show(axes)
    removed = _table("Left out", "cells", "rule", "why", numbers=("cells",))
    _add(removed, [(r.cells, r.rule, r.why) for r in plan.removed] + [("-", i.shape, i.why) for i in plan.impossible])
    _show(removed)
    leases = _table("Leases in order", "#", "lease", "composition", "runs", "without record", "expected", "estimate from",
                    numbers=("#", "runs", "without record", "expected"))  # fmt: skip
    _add(leases, [
        (order, lease.name, lease.devices(), lease.runs, _up_to(lease.missing_least, lease.missing),
         f"{duration(lease.expected_s)}{within(lease.expected)}", lease.basis)
        for order, lease in enumerate(plan.leases, 1)
    ])  # fmt: skip
    _show(leases)
    unfit = _table("Does not fit", "configuration", "why")
    _add(unfit, list(plan.unfit.items()))
    _show(unfit)
    if plan.budget:
        _print_choice(plan.budget)
    cells = sum(len(lease.cells) for lease in plan.leases)
    alone = {
        "machine": "one lease at a time",
        "host": "leases on different hosts at once",
        "none": "as the pool allows",
    }
    _console.print(
        f"{cells} cells, {plan.runs} runs, {_up_to(plan.missing_least, plan.missing)} without a record, in "
        f"{len(plan.leases)} leases\n{_repeated(plan)}"
        f"{plan.recompositions} recompositions (at least {plan.recompositions_least} are needed)\n"
        f"expected: {_expected(plan)}; {alone[isolation(plan.campaign)]}\n{_learned(plan)}"
    )


def _expected(plan: Plan) -> str:
    device, wall = plan.forecast.device_s, plan.wall_range_s
    if device.low_s is None or device.high_s is None or wall is None or not device.expected_s:
        return f"{plan.device_hours:.4g} device-hours, {duration(plan.wall_s)}"
    return (
        f"{plan.device_hours:.4g} device-hours ({device.low_s / 3600:.4g} to {device.high_s / 3600:.4g}), "
        f"{duration(plan.wall_s)} ({duration(wall[0])} to {duration(wall[1])})"
    )


def _learned(plan: Plan) -> str:
    if plan.learned_from:
        return f"in brackets: 95 % intervals; learned from {plan.learned_from}"
    return f"assumed: {ASSUMED_RUN_S:g} s a run, {ASSUMED_COMPOSE_S:g} s to compose; there are no earlier runs to learn from"


def _print_choice(choice: Choice) -> None:
    """What a budget pays for, what would be learned, and what is left out."""
    table = _table(
        f"What {choice.budget} pay for",
        "axis",
        "levels",
        "covered",
        "differences known to",
        numbers=("levels", "covered"),
    )
    known = [
        (a.axis, a.levels, a.covered, "-" if a.error_pct is None else f"±{a.error_pct:.2g} %") for a in choice.axes
    ]
    _add(table, known)
    _show(table)
    after = "" if choice.next_cost is None else f"; the next one would cost {choice.next_cost:.3g} more"
    _console.print(
        f"{choice.runs} runs chosen for {choice.cost:.4g} of {choice.budget}; {choice.runs_left_out} runs left out, "
        f"{choice.cells_left_out} cells have none{after}\n"
        f"information on the axes' main effects: {choice.share_pct:.1f} % of what the whole matrix would tell "
        f"({choice.share_before_pct:.1f} % before); errors are standard errors, by the design alone\n",
        soft_wrap=True,
    )


def _up_to(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _repeated(plan: Plan) -> str:
    """How a target makes the number of repetitions differ; empty without one."""
    asked = sorted({
        f"{said(s).replace('-', ' to ')} repetitions, until the 95 % interval is within ±{s.target_half_width_pct:g} % of the mean"
        for _, cell in plan.cells
        if (s := cell.settings).target_half_width_pct is not None
    })  # fmt: skip
    return "".join(f"cells with {words}\n" for words in asked)


def print_inventory(system: str, capabilities: Capabilities, inventory: Inventory) -> None:
    """Hosts, devices and their holders."""
    hosts = _table(
        f"Hosts of {system}", "host", "cores", "memory GiB", "ports", "held by", numbers=("cores", "memory GiB")
    )
    _add(hosts, [(h.name, h.cores, f"{h.memory_gib:g}", ", ".join(h.ports), h.holder or "") for h in inventory.hosts])
    _show(hosts)
    devices = _table("Devices", "device", "kind", "model", "where", "attached to", "state", "health", "held by")
    _add(devices, [
        (d.fabric_id, d.kind, d.model, d.location, d.attached_to or "", d.state, d.health, d.holder or "")
        for d in inventory.devices
    ])  # fmt: skip
    _show(devices)
    checked = "" if capabilities.verified else "UNVERIFIED against a real control plane; "
    _console.print(f"attach: {capabilities.attach_mode}; {checked}{capabilities.note}", soft_wrap=True)


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of equal keys as a table; '(none)' without rows."""
    if not rows:
        _console.print(f"{title}: (none)")
        return
    table = _table(title, *rows[0])
    _add(table, [tuple("" if value is None else value for value in row.values()) for row in rows])
    _show(table)


def print_answer(
    columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[object]], whole: bool = False
) -> None:
    """Rows of a query, all or the first ones; numbers to the right, what is missing empty."""
    numbers = [name for name, kind in zip(columns, types, strict=True) if kind not in ("VARCHAR", "BOOLEAN")]
    table = _table("", *columns, numbers=numbers)
    table.title = None
    _add(table, [[_short_number(value) for value in row] for row in rows], len(rows) if whole else _ROWS)
    if rows:
        _console.print(table)
    _console.print(f"{len(rows)} row{'s' * (len(rows) != 1)}")


def _short_number(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def print_composition(document: Mapping[str, Any]) -> None:
    """What a lease obtained, with the time it took."""
    table = _table(f"{document['lease_id']}", "host", "device", "model", "where")
    for host in document["obtained"]["hosts"]:
        _add(
            table,
            [(host["name"], d["fabric_id"], d["model"], d["location"]) for d in (*host["devices"], *host["storage"])],
        )
    _show(table)
    times = document["times"]
    _console.print(f"composed in {times['ready_s'] - times['requested_s']:.2f} s, {document['operations']} operations")
    for mismatch in document["mismatches"]:
        _console.print(f"differs from the request: {mismatch}", markup=False)


def print_verification(found: Sequence[Mapping[str, Any]]) -> bool:
    """Every held composition; gives whether all is as it should be."""
    if not found:
        _console.print("nothing is held")
    well = True
    for lease in found:
        title = f"{lease['lease']} ({lease['owner']}, campaign {lease['campaign']}, {'live' if lease['live'] else 'WITHOUT OWNER'})"
        table = _table(title, "host", "device", "model", "where", "host sees it", "health")
        _add(table, [
            (d["host"], d["device"], d["model"], d["location"], "yes" if d["host_sees"] else "NO", d["health"])
            for d in lease["devices"]
        ])  # fmt: skip
        _show(table)
        for mismatch in lease["mismatches"]:
            _console.print(f"differs from the request: {mismatch}", markup=False)
        seen = all(d["host_sees"] and d["health"] != "critical" for d in lease["devices"])
        well = well and seen and not lease["mismatches"] and lease["live"]
    return well


def print_status(plan: Plan, root: Path) -> None:
    """Progress of every lease, what runs now, and the outcome of the records."""
    results = Results(root, plan.campaign.name)
    table = _table(f"Campaign {plan.campaign.name}", "lease", "runs done", "state")
    rows = []
    queued = {lease.name: job for lease in plan.leases if (job := jobs.read(results, lease.name))}
    told_by_slurm = _queue(results) if queued else {}
    for lease in plan.leases:
        work = results.work(lease.name)
        if lease.name in queued:
            job_id = queued[lease.name].job_id
            state = (
                f"job {job_id} {told_by_slurm.get(job_id, 'not in the queue any more')}, {_last(results, lease.name)}"
            )
        elif files.is_locked(work / "driver.lock"):
            state = f"measuring, {_last(results, lease.name)}"
        elif files.is_locked(work / "measure.lock"):
            state = "composing, releasing or waiting"
        else:
            state = "complete" if not lease.missing else "to do"
        rows.append((lease.name, f"{lease.runs - lease.missing}/{lease.runs}", state))
    _add(table, rows)
    _show(table)
    wanted = {(cell.id, r) for _, cell in plan.cells for r in range(1, cell.settings.repetitions + 1)}
    store = Store(results.directory)
    outcomes = Counter(store.read(*key).status for key in read_known(plan.campaign, store).measured & wanted)
    told = ", ".join(f"{count} {status}" for status, count in outcomes.most_common()) or "none yet"
    _console.print(f"{plan.runs - plan.missing} of {plan.runs} runs have a record: {told}")
    for host, why in ExcludedHosts(results.slurm).read().items():
        path = results.slurm / "excluded" / f"{host}.json"
        _console.print(f"{host} is left out: {why} ('rm {path}' takes it back)", markup=False, soft_wrap=True)


def _queue(results: Results) -> dict[str, str]:
    """What Slurm says of this person's jobs, by id: one look."""
    snapshot = Poll(results.slurm, Slurm(results.slurm / "commands.jsonl"), interval_s=1.0).snapshot(fresh=True)
    if not snapshot.reachable:
        _console.print(f"Slurm does not answer ({snapshot.problem}); these are its last words", markup=False)
    return {
        job.job_id: f"{job.state.lower()} on {', '.join(job.hosts)}"
        if job.hosts
        else f"{job.state.lower()} ({job.reason})"
        for job in snapshot.jobs.values()
    }


def _last(results: Results, lease: str) -> str:
    mine = [line for line in files.read_json_lines(results.progress)[0] if line["lease"] == lease]
    return f"last: {mine[-1]['what']}: {mine[-1]['status']}" if mine else "no run finished yet"
