"""The command `campaign status`: the progress of a campaign."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from campaign.cli.options import Number, format_option, request_options
from campaign.cli.terminal import TextTable, clear, say, show, show_json, warn
from campaign.common.files import is_locked, read_json, read_json_lines
from campaign.common.paths import Results, lease_id
from campaign.lease.campaign_leases import Site
from campaign.lease.journal import Journal
from campaign.plan.cost import Estimate
from campaign.plan.dag import read_plan
from campaign.plan.missing_runs import read_known
from campaign.plan.plan import Plan, PlannedLease, time_words
from campaign.plan.request import PlanRequest
from campaign.report.campaign_summary import missing_reasons
from campaign.report.sections.race import race_lines
from campaign.run.preflight import missing_inputs
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.slurm.parse import SlurmJob
from campaign.slurm.poll import Poll
from campaign.spec.race import RaceDocument, read_race
from campaign.spec.record import Store
from campaign.spec.run_numbers import runs_of


@click.command()
@request_options("selection")
@click.option(
    "--all", "everything", is_flag=True, help="Of the whole campaign, also where only a part of it was run last."
)
@click.option("--watch", type=Number(1), is_flag=False, flag_value=10.0, metavar="[SECONDS]", show_default=False,
              help="Show it again every so many seconds (10), until all is measured.")  # fmt: skip
@format_option("table", "json")
def status(request: PlanRequest, everything: bool, watch: float | None, style: str) -> None:
    """Show the progress of a campaign: what is done, what is running, and what failed so far.

    Without --where, only the runs that the last 'campaign run' or 'snakemake' requested are shown. 'campaign summary' shows the
    findings.
    """
    while True:
        found = _read_status(request if everything else _asked_last(request), watch)
        if style == "json":
            show_json(found)
        else:
            if watch:
                clear()
            _show(found)
        is_racing = found["race"] and not found["race"]["ended"]
        if not watch or (found["runs_done"] == found["runs"] and not is_racing):
            return
        time.sleep(watch)


def _asked_last(asked: PlanRequest) -> PlanRequest:
    """Fill in version label, excluded hosts, selection and race of the last run where the request has none."""
    file = asked.load().file
    written = read_json(Results(asked.results, file.name).plan_document)
    asked = replace(asked, version=asked.version or file.version or written.get("version"))
    asked = replace(asked, without_hosts=asked.without_hosts or written.get("without_hosts") or None)
    if asked.where is not None:
        return asked
    until = "best" if Results(asked.results, file.name).race.exists() else None
    return replace(asked, where=written.get("where"), until=until)


def _read_status(request: PlanRequest, interval_s: float | None) -> dict[str, Any]:
    """Return the status of a campaign as a JSON-serialisable document."""
    plan = read_plan(request, allow_unfit=True, checked=False)
    results = Results(request.results, plan.campaign.name)
    jobs = _read_jobs(plan, results, interval_s)
    race = read_race(results.race) if request.until else None
    return {
        "campaign": plan.campaign.name,
        "source": str(request.campaign),
        "where": request.where,
        "race": race.model_dump(mode="json") if race else None,
        "leases": _describe_leases(plan, results, jobs),
        "runs": plan.runs,
        "runs_done": plan.runs - plan.missing,
        "left": _left(plan),
        "outcomes": _outcomes(plan, results),
        "excluded_hosts": {
            host: {"why": why, "file": str(ExcludedHosts(results.slurm).path(host))}
            for host, why in ExcludedHosts(results.slurm).current().items()
        },
        "fenced_devices": [
            {"system": part.system.name, "device": fence.device, "words": fence.words()}
            for part in plan.campaign.parts
            for fence in Site(part.system, results.root).fenced.current()
        ],
        "missing_inputs": missing_inputs(plan.campaign),
        "unfit": dict(plan.unfit),
        "not_measured": missing_reasons(results.directory, tried=True) if results.plan_document.exists() else [],
        "slurm_problem": jobs.problem,
    }


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Jobs of leases as they were submitted, and as Slurm shows them.

    submitted: by name of the lease; shown: by id of the job; problem: reason that Slurm does not answer, '' if it does.
    """

    submitted: Mapping[str, submitted_jobs.Submitted]
    shown: Mapping[str, SlurmJob]
    problem: str


def _read_jobs(plan: Plan, results: Results, interval_s: float | None) -> _Jobs:
    """Read the jobs of the plan's leases. Slurm is asked only if there are any."""
    jobs = {lease.name: submitted_jobs.read(results, lease.name) for lease in plan.leases}
    submitted = {name: job for name, job in jobs.items() if job}
    if not submitted:
        return _Jobs(submitted, {}, "")
    poll_s = min(system.slurm.poll_s for system in plan.campaign.systems.values())
    shown, problem = _queue(results, interval_s and poll_s)
    return _Jobs(submitted, shown, problem)


def _describe_leases(plan: Plan, results: Results, jobs: _Jobs) -> list[dict[str, Any]]:
    """Return one document per lease: its runs, state, job, and last run."""
    last_runs = {line["lease"]: f"{line['what']}: {line['status']}" for line in read_json_lines(results.progress)[0]}
    documents = []
    for lease in plan.leases:
        job = jobs.submitted.get(lease.name)
        documents.append(
            {
                "lease": lease.name,
                "runs": lease.runs,
                "runs_done": lease.runs - lease.missing,
                "state": _describe_job(job, jobs.shown) if job else _describe_state(plan, results, lease),
                "job": job and job.job_id,
                "last_run": last_runs.get(lease.name),
            }
        )
    return documents


def _describe_job(job: submitted_jobs.Submitted, shown: Mapping[str, SlurmJob]) -> str:
    """Describe the state of a submitted job: 'running on host1', 'is no longer in the queue'."""
    slurm_job = shown.get(job.job_id)
    return _where(slurm_job) if slurm_job and job.is_shown_by(slurm_job) else "is no longer in the queue"


def _describe_state(plan: Plan, results: Results, lease: PlannedLease) -> str:
    """Describe the state of a lease without a job: 'measuring', 'complete', 'failed: ...'."""
    if is_locked(results.driver_lock(lease.name)):
        return "measuring"
    if is_locked(results.measure_lock(lease.name)):
        return "composing, releasing or waiting"
    if not lease.missing:
        return "complete"
    failure = _failure(plan, results, lease)
    if failure:
        return f"failed: {failure}"
    return "does not fit" if lease.configuration.name in plan.unfit else "to do"


def _failure(plan: Plan, results: Results, lease: PlannedLease) -> str:
    """Return why a lease failed, or an empty string if it did not.

    The journal of the lease is read as well, because a campaign that was killed has written no manifest.
    """
    of_system = "" if plan.campaign.part else lease.configuration.system
    if stops := read_json(results.site_check(lease.configuration.system)).get("stops"):
        return "; ".join(stops)
    if reason := read_json(results.manifest(lease.name, of_system)).get("reason"):
        return str(reason)
    journal = Journal(results.journals(lease.configuration.system), lease_id(results, lease.name))
    return journal.cause if journal.state == "LEAKED" or journal.document()["obtained"] is None else ""


def _left(plan: Plan) -> dict[str, Any]:
    """Return the forecast for the runs without a record, as a JSON-serialisable document with seconds and device-hours."""
    low_s, high_s = plan.interval(plan.wall_s)
    words = f"{plan.unknown.words()}; {plan.unknown.advice()}" if plan.unknown else ""
    hours = plan.device_hours
    return {"expected_s": plan.wall_s, "low_s": low_s, "high_s": high_s, "device_hours": hours, "unknown": words}


def _outcomes(plan: Plan, results: Results) -> dict[str, int]:
    """Count the planned runs that have a record, by status, the most frequent status first."""
    wanted = {(cell.id, r) for lease in plan.leases for cell in lease.cells for r in runs_of(cell.settings)}
    store = Store(results.directory)
    measured = read_known(store, skip_implied=plan.campaign.protocol.skip_implied).measured
    return dict(Counter(str(store.read(*key).status) for key in measured & wanted).most_common())


def _show(found: Mapping[str, Any]) -> None:
    """Print the status document."""
    if found["slurm_problem"]:
        say(f"Slurm does not answer ({found['slurm_problem']}); the states are those of its last answer")
    rows = [(each["lease"], f"{each['runs_done']}/{each['runs']}", _words(each)) for each in found["leases"]]
    show(TextTable(f"Campaign {found['campaign']}", ["lease", "runs done", "state"], rows))
    tally = ", ".join(f"{count} {outcome}" for outcome, count in found["outcomes"].items()) or "none yet"
    failed = found["runs_done"] - found["outcomes"].get("ok", 0) - found["outcomes"].get("implied", 0)
    where = found["where"]
    part = f" of the part that was asked for last (where {where}; --all shows the whole campaign)" if where else ""
    if found["race"]:
        say("\n".join(race_lines(RaceDocument.model_validate(found["race"]))))
    say(f"{found['runs_done']} of {found['runs']} runs{part} have a record: {tally}")
    if failed > 0 or found["not_measured"]:
        say("\n".join([*found["not_measured"], f"'campaign logs {found['source']}' shows why, and how the logs end"]))
    for name, why in found["unfit"].items():
        say(f"configuration {name} does not fit and cannot be measured: {why}")
    left = found["left"]
    if left["unknown"]:
        say(f"still to measure: {left['unknown']}")
    elif left["expected_s"]:
        words = time_words(Estimate(left["expected_s"], left["low_s"], left["high_s"]))
        say(f"still to measure: {words}, {left['device_hours']:.4g} device-hours expected")
    warn(found["missing_inputs"])
    for host, excluded in found["excluded_hosts"].items():
        say(f"host {host} is excluded: {excluded['why']} (to use it again: rm {excluded['file']})")
    for each in found["fenced_devices"]:
        say(
            f"fenced for a day: {each['words']} ('campaign fabric fences {each['system']} --lift {each['device']}' uses it again)"
        )


def _words(lease: Mapping[str, Any]) -> str:
    """Describe the state of a lease, with its last run if it is measuring."""
    state = lease["state"] if lease["job"] is None else f"job {lease['job']} {lease['state']}"
    if lease["job"] is None and state != "measuring":
        return str(state)
    return f"{state}, {'last: ' + lease['last_run'] if lease['last_run'] else 'no run finished yet'}"


def _where(job: SlurmJob) -> str:
    """Describe the state of a Slurm job, with its hosts or the reason why it waits."""
    return f"{job.state.lower()} " + (f"on {', '.join(job.hosts)}" if job.hosts else f"({job.reason})")


def _queue(results: Results, interval_s: float | None) -> tuple[Mapping[str, SlurmJob], str]:
    """Query this user's Slurm jobs. Return them by id, and the reason if Slurm does not answer.

    Args:
        results: results of the campaign.
        interval_s: poll interval in seconds; None to query Slurm at once.
    """
    poll = Poll(results.slurm, Slurm(results.slurm_calls), interval_s or 1.0)
    snapshot = poll.snapshot(fresh=interval_s is None)
    return snapshot.jobs, "" if snapshot.reachable else snapshot.problem
