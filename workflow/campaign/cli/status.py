"""`campaign status`: progress of a campaign."""

from __future__ import annotations

from collections import Counter

import click

from campaign.cli.options import request_options
from campaign.cli.terminal import Table, say, show
from campaign.documents.record import Store
from campaign.documents.run_numbers import runs_of
from campaign.files import is_locked, read_json_lines
from campaign.paths import Results
from campaign.plan.dag import Request, read_plan
from campaign.plan.missing_runs import read_known
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.slurm.poll import Poll


@click.command()
@request_options(costs=False)
def status(asked: Request) -> None:
    """Show what is done, what is running, and what failed so far."""
    plan = read_plan(asked, allow_unfit=True)
    results = Results(asked.results, plan.campaign.name)
    queued = {lease.name: job.job_id for lease in plan.leases if (job := submitted_jobs.read(results, lease.name))}
    in_slurm = _queue(results) if queued else {}
    rows = []
    for lease in plan.leases:
        if job_id := queued.get(lease.name):
            said = f"job {job_id} {in_slurm.get(job_id, 'is no longer in the queue')}, {_last_run(results, lease.name)}"
        elif is_locked(results.driver_lock(lease.name)):
            said = f"measuring, {_last_run(results, lease.name)}"
        elif is_locked(results.measure_lock(lease.name)):
            said = "composing, releasing or waiting"
        else:
            said = "to do" if lease.missing else "complete"
        rows.append((lease.name, f"{lease.runs - lease.missing}/{lease.runs}", said))
    show(Table(f"Campaign {plan.campaign.name}", ["lease", "runs done", "state"], rows))
    wanted = {(cell.id, r) for lease in plan.leases for cell in lease.cells for r in runs_of(cell.settings)}
    store = Store(results.directory)
    measured = read_known(store, skip_implied=plan.campaign.protocol.skip_implied).measured
    outcomes = Counter(store.read(*key).status for key in measured & wanted)
    tally = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()) or "none yet"
    say(f"{plan.runs - plan.missing} of {plan.runs} runs have a record: {tally}")
    excluded = ExcludedHosts(results.slurm)
    for host, why in excluded.read().items():
        say(f"host {host} is excluded: {why} (to use it again: rm {excluded.path(host)})")


def _queue(results: Results) -> dict[str, str]:
    """State of this user's Slurm jobs by id, from one look at the queue."""
    snapshot = Poll(results.slurm, Slurm(results.slurm_calls), interval_s=1.0).snapshot(fresh=True)
    if not snapshot.reachable:
        say(f"Slurm does not answer ({snapshot.problem}); the states are those of its last answer")
    return {
        job.job_id: f"{job.state.lower()} " + (f"on {', '.join(job.hosts)}" if job.hosts else f"({job.reason})")
        for job in snapshot.jobs.values()
    }


def _last_run(results: Results, lease: str) -> str:
    mine = [line for line in read_json_lines(results.progress)[0] if line["lease"] == lease]
    return f"last: {mine[-1]['what']}: {mine[-1]['status']}" if mine else "no run finished yet"
