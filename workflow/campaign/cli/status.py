"""`campaign status`: progress of a campaign."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from campaign.cli.options import campaign_argument, implied_option, results_option, where_option

if TYPE_CHECKING:
    from campaign.paths import Results
    from campaign.plan.plan import Plan


@click.command()
@campaign_argument
@where_option
@implied_option
@results_option
def status(campaign: Path, where: str | None, run_implied: bool, results: Path) -> None:
    """Show what is done, what is running, and what failed so far."""
    from campaign.plan.dag import Request, read_plan

    asked = Request(campaign, results, where, run_implied=run_implied)
    show_status(read_plan(asked, allow_unfit=True), results)


def show_status(plan: Plan, root: Path) -> None:
    """Print the progress of every lease, what is measured now, and the status of the runs that have a record."""
    from campaign.cli.terminal import Table, say, show
    from campaign.documents.record import Store
    from campaign.paths import Results
    from campaign.plan.missing_runs import read_known
    from campaign.slurm import submitted_jobs
    from campaign.slurm.excluded_hosts import ExcludedHosts

    results = Results(root, plan.campaign.name)
    queued = {lease.name: job.job_id for lease in plan.leases if (job := submitted_jobs.read(results, lease.name))}
    in_slurm = _queue(results) if queued else {}
    rows = []
    for lease in plan.leases:
        if job_id := queued.get(lease.name):
            state = (
                f"job {job_id} {in_slurm.get(job_id, 'is no longer in the queue')}, {_last_run(results, lease.name)}"
            )
        else:
            state = _state(results, lease.name, complete=not lease.missing)
        rows.append((lease.name, f"{lease.runs - lease.missing}/{lease.runs}", state))
    show(Table(f"Campaign {plan.campaign.name}", ["lease", "runs done", "state"], rows))
    wanted = {(cell.id, r) for _, cell in plan.cells for r in range(1, cell.settings.repetitions + 1)}
    store = Store(results.directory)
    measured = read_known(store, skip_implied=plan.campaign.protocol.skip_implied).measured
    outcomes = Counter(store.read(*key).status for key in measured & wanted)
    tally = ", ".join(f"{count} {status}" for status, count in outcomes.most_common()) or "none yet"
    say(f"{plan.runs - plan.missing} of {plan.runs} runs have a record: {tally}")
    excluded = ExcludedHosts(results.slurm)
    for host, why in excluded.read().items():
        say(f"host {host} is excluded: {why} (to use it again: rm {excluded.path(host)})")


def _state(results: Results, lease: str, *, complete: bool) -> str:
    from campaign.files import is_locked

    if is_locked(results.driver_lock(lease)):
        return f"measuring, {_last_run(results, lease)}"
    if is_locked(results.measure_lock(lease)):
        return "composing, releasing or waiting"
    return "complete" if complete else "to do"


def _queue(results: Results) -> dict[str, str]:
    """State of this user's Slurm jobs by id, from one look at the queue."""
    from campaign.cli.terminal import say
    from campaign.slurm.commands import Slurm
    from campaign.slurm.poll import Poll

    snapshot = Poll(results.slurm, Slurm(results.slurm_calls), interval_s=1.0).snapshot(fresh=True)
    if not snapshot.reachable:
        say(f"Slurm does not answer ({snapshot.problem}); the states are those of its last answer")
    return {
        job.job_id: f"{job.state.lower()} on {', '.join(job.hosts)}"
        if job.hosts
        else f"{job.state.lower()} ({job.reason})"
        for job in snapshot.jobs.values()
    }


def _last_run(results: Results, lease: str) -> str:
    from campaign.files import read_json_lines

    mine = [line for line in read_json_lines(results.progress)[0] if line["lease"] == lease]
    return f"last: {mine[-1]['what']}: {mine[-1]['status']}" if mine else "no run finished yet"
