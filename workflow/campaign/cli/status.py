"""The command `campaign status`: the progress of a campaign."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from campaign.cli.options import FiniteNumber, add_request_options, build_format_option
from campaign.cli.terminal import TextTable, clear_screen, print_json, print_tables, print_text, print_warnings
from campaign.common.files import is_locked, read_json, read_json_lines
from campaign.common.paths import Results, lease_id
from campaign.lease.campaign_leases import Site
from campaign.lease.journal import Journal
from campaign.plan.cost import Estimate
from campaign.plan.dag import read_plan
from campaign.plan.missing_runs import read_recorded_runs
from campaign.plan.plan import Plan, PlannedLease, format_time_with_interval
from campaign.plan.request import PlanRequest
from campaign.report.campaign_summary import list_missing_reasons
from campaign.report.sections.race import format_race_lines
from campaign.run.preflight import find_missing_inputs
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.slurm.parse import SlurmJob
from campaign.slurm.poll import QueuePoll
from campaign.spec.host_load import describe_foreign_load
from campaign.spec.race import RaceDocument, read_race
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import list_run_numbers


@click.command()
@add_request_options("selection")
@click.option(
    "--all", "everything", is_flag=True, help="Show the whole campaign, even if only a part of it was run last."
)
@click.option("--watch", type=FiniteNumber(1), is_flag=False, flag_value=10.0, metavar="[SECONDS]", show_default=False,
              help="Refresh at this interval (10 s if no value is given), until everything is measured.")  # fmt: skip
@build_format_option("table", "json")
def status(request: PlanRequest, everything: bool, watch: float | None, style: str) -> None:
    """Show the progress of a campaign: what is done, what is running, and what has failed.

    Without --where, only the runs that the last 'campaign run' or 'snakemake' requested are shown. 'campaign summary' shows the
    findings.
    """
    while True:
        document = _read_status(request if everything else _restore_last_selection(request), watch)
        if style == "json":
            print_json(document)
        else:
            if watch:
                clear_screen()
            _print_status(document)
        is_racing = document["race"] and not document["race"]["ended"]
        if not watch or (document["runs_done"] == document["runs"] and not is_racing):
            return
        time.sleep(watch)


def _restore_last_selection(request: PlanRequest) -> PlanRequest:
    """Fill unset fields of the request with the version label, excluded hosts, selection and race of the last run."""
    file = request.load_campaign().file
    plan_document = read_json(Results(request.results, file.name).plan_file)
    request = replace(request, version=request.version or file.version or plan_document.get("version"))
    request = replace(request, without_hosts=request.without_hosts or plan_document.get("without_hosts") or None)
    if request.where is not None:
        return request
    until = "best" if Results(request.results, file.name).race_file.exists() else None
    return replace(request, where=plan_document.get("where"), until=until)


def _read_status(request: PlanRequest, interval_s: float | None) -> dict[str, Any]:
    """Return the status of a campaign as a JSON-serialisable document."""
    plan = read_plan(request, allow_unfit=True, check_records=False)
    results = Results(request.results, plan.campaign.name)
    jobs = _read_jobs(plan, results, interval_s)
    race = read_race(results.race_file) if request.until else None
    return {
        "campaign": plan.campaign.name,
        "source": str(request.campaign),
        "where": request.where,
        "race": race.model_dump(mode="json") if race else None,
        "leases": _describe_leases(plan, results, jobs),
        "runs": plan.runs,
        "runs_done": plan.runs - plan.missing,
        "left": _forecast_remaining(plan),
        **_summarize_records(plan, results),
        "excluded_hosts": {
            host: {"why": reason, "file": str(ExcludedHosts(results.slurm_state).path(host))}
            for host, reason in ExcludedHosts(results.slurm_state).read_current().items()
        },
        "fenced_devices": [
            {"system": part.system.name, "device": fence.device, "words": fence.describe()}
            for part in plan.campaign.parts
            for fence in Site(part.system, results.root).fenced_devices.read_active()
        ],
        "missing_inputs": find_missing_inputs(plan.campaign),
        "unfit": dict(plan.unfit),
        "not_measured": list_missing_reasons(results.directory, only_tried=True) if results.plan_file.exists() else [],
        "slurm_problem": jobs.problem,
    }


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Jobs of leases as they were submitted, and as Slurm shows them.

    Attributes:
        submitted: submitted jobs by name of the lease.
        shown: jobs that Slurm shows, by job id.
        problem: reason why Slurm does not respond; empty if it does.
    """

    jobs_by_lease: Mapping[str, submitted_jobs.SubmittedJob]
    slurm_jobs_by_id: Mapping[str, SlurmJob]
    problem: str


def _read_jobs(plan: Plan, results: Results, interval_s: float | None) -> _Jobs:
    """Read the jobs of the plan's leases. Slurm is queried only if there are any."""
    jobs = {lease.name: submitted_jobs.read(results, lease.name) for lease in plan.leases}
    jobs_by_lease = {name: job for name, job in jobs.items() if job}
    if not jobs_by_lease:
        return _Jobs(jobs_by_lease, {}, "")
    poll_s = min(system.slurm.poll_s for system in plan.campaign.systems.values())
    slurm_jobs, problem = _query_queue(results, interval_s and poll_s)
    return _Jobs(jobs_by_lease, slurm_jobs, problem)


def _describe_leases(plan: Plan, results: Results, jobs: _Jobs) -> list[dict[str, Any]]:
    """Return one document per lease: its runs, state, job, and last run."""
    last_runs = {
        line["lease"]: f"{line['what']}: {line['status']}" for line in read_json_lines(results.progress_file)[0]
    }
    documents = []
    for lease in plan.leases:
        job = jobs.jobs_by_lease.get(lease.name)
        documents.append(
            {
                "lease": lease.name,
                "runs": lease.runs,
                "runs_done": lease.runs - lease.missing,
                "state": _describe_job(job, jobs.slurm_jobs_by_id) if job else _describe_state(plan, results, lease),
                "job": job and job.job_id,
                "last_run": last_runs.get(lease.name),
            }
        )
    return documents


def _describe_job(job: submitted_jobs.SubmittedJob, slurm_jobs: Mapping[str, SlurmJob]) -> str:
    """Describe the state of a submitted job, e.g. 'running on host1' or 'is no longer in the queue'."""
    slurm_job = slurm_jobs.get(job.job_id)
    return _describe_slurm_job(slurm_job) if slurm_job and job.is_shown_by(slurm_job) else "is no longer in the queue"


def _describe_state(plan: Plan, results: Results, lease: PlannedLease) -> str:
    """Describe the state of a lease without a job, e.g. 'measuring', 'complete' or 'failed: ...'."""
    if is_locked(results.driver_lock_file(lease.name)):
        return "measuring"
    if is_locked(results.measure_lock_file(lease.name)):
        return "composing, releasing or waiting"
    if not lease.missing:
        return "complete"
    failure = _describe_failure(plan, results, lease)
    if failure:
        return f"failed: {failure}"
    return "does not fit" if lease.configuration.name in plan.unfit else "to do"


def _describe_failure(plan: Plan, results: Results, lease: PlannedLease) -> str:
    """Return why a lease failed, or an empty string if it did not.

    The journal of the lease is read as well, because a campaign that was killed has written no manifest.
    """
    system = "" if plan.campaign.part else lease.configuration.system
    if stops := read_json(results.site_check_file(lease.configuration.system)).get("stops"):
        return "; ".join(stops)
    if reason := read_json(results.manifest_file(lease.name, system)).get("reason"):
        return str(reason)
    journal = Journal(results.journals_directory(lease.configuration.system), lease_id(results, lease.name))
    return journal.first_fault if journal.state == "LEAKED" or journal.make_document()["obtained"] is None else ""


def _forecast_remaining(plan: Plan) -> dict[str, Any]:
    """Return the forecast for the runs without a record as a JSON-serialisable document, in seconds and device-hours."""
    low_s, high_s = plan.estimate_interval(plan.wall_s)
    words = f"{plan.unknown.format_summary()}; {plan.unknown.suggest_remedy()}" if plan.unknown else ""
    hours = plan.device_hours
    return {"expected_s": plan.wall_s, "low_s": low_s, "high_s": high_s, "device_hours": hours, "unknown": words}


def _summarize_records(plan: Plan, results: Results) -> dict[str, Any]:
    """Return the numbers of planned runs with a record by status, the most frequent first, and a sentence on foreign load."""
    planned_runs = {
        (cell.id, r) for lease in plan.leases for cell in lease.cells for r in list_run_numbers(cell.settings)
    }
    store = RecordStore(results.directory)
    measured_runs = read_recorded_runs(store, skip_implied=plan.campaign.protocol.skip_implied).measured
    records = [store.read_latest(*key) for key in measured_runs & planned_runs]
    return {
        "outcomes": dict(Counter(str(record.status) for record in records).most_common()),
        "foreign_load": describe_foreign_load(record.loads for record in records if record.status == "ok"),
    }


def _print_status(document: Mapping[str, Any]) -> None:
    """Print the status document."""
    if document["slurm_problem"]:
        print_text(f"Slurm does not respond ({document['slurm_problem']}); the states are from its last response")
    rows = [
        (entry["lease"], f"{entry['runs_done']}/{entry['runs']}", _format_state(entry)) for entry in document["leases"]
    ]
    print_tables(TextTable(f"Campaign {document['campaign']}", ["lease", "runs done", "state"], rows))
    tally = ", ".join(f"{count} {outcome}" for outcome, count in document["outcomes"].items()) or "none yet"
    failed_count = document["runs_done"] - document["outcomes"].get("ok", 0) - document["outcomes"].get("implied", 0)
    where = document["where"]
    part = f" of the part that was requested last (where {where}; --all shows the whole campaign)" if where else ""
    if document["race"]:
        print_text("\n".join(format_race_lines(RaceDocument.model_validate(document["race"]))))
    print_text(f"{document['runs_done']} of {document['runs']} runs{part} have a record: {tally}")
    if document["foreign_load"]:
        print_text(document["foreign_load"])
    if failed_count > 0 or document["not_measured"]:
        print_text(
            "\n".join(
                [
                    *document["not_measured"],
                    f"'campaign logs {document['source']}' shows the reasons and the ends of the logs",
                ]
            )
        )
    for name, reason in document["unfit"].items():
        print_text(f"configuration {name} does not fit and cannot be measured: {reason}")
    remaining = document["left"]
    if remaining["unknown"]:
        print_text(f"still to measure: {remaining['unknown']}")
    elif remaining["expected_s"]:
        words = format_time_with_interval(Estimate(remaining["expected_s"], remaining["low_s"], remaining["high_s"]))
        print_text(f"still to measure: {words}, {remaining['device_hours']:.4g} device-hours expected")
    print_warnings(document["missing_inputs"])
    for host, exclusion in document["excluded_hosts"].items():
        print_text(f"host {host} is excluded: {exclusion['why']} (to use it again: rm {exclusion['file']})")
    for entry in document["fenced_devices"]:
        print_text(
            f"fenced for a day: {entry['words']} ('campaign fabric fences "
            f"{entry['system']} --lift {entry['device']}' lifts the fence)"
        )


def _format_state(lease: Mapping[str, Any]) -> str:
    """Describe the state of a lease, with its last run if it is measuring."""
    state = lease["state"] if lease["job"] is None else f"job {lease['job']} {lease['state']}"
    if lease["job"] is None and state != "measuring":
        return str(state)
    return f"{state}, {'last: ' + lease['last_run'] if lease['last_run'] else 'no run finished yet'}"


def _describe_slurm_job(job: SlurmJob) -> str:
    """Describe the state of a Slurm job, with its hosts or the reason why it waits."""
    return f"{job.state.lower()} " + (f"on {', '.join(job.hosts)}" if job.hosts else f"({job.reason})")


def _query_queue(results: Results, interval_s: float | None) -> tuple[Mapping[str, SlurmJob], str]:
    """Query this user's Slurm jobs. Return them by id, and the reason if Slurm does not respond.

    Args:
        results: results of the campaign.
        interval_s: poll interval in seconds; None to query Slurm at once.
    """
    poll = QueuePoll(results.slurm_state, SlurmCommands(results.slurm_call_log), interval_s or 1.0)
    snapshot = poll.take_snapshot(fresh=interval_s is None)
    return snapshot.jobs, "" if snapshot.reachable else snapshot.problem
