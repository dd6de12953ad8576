"""`campaign status`: progress of a campaign."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from campaign.cli.options import Number, format_option, request_options
from campaign.cli.terminal import TextTable, clear, say, show, show_json, warn
from campaign.documents.record import Store
from campaign.documents.run_numbers import runs_of
from campaign.files import is_locked, read_json, read_json_lines
from campaign.lease.campaign_leases import Site, lease_id
from campaign.lease.journal import Journal
from campaign.paths import Results
from campaign.plan.cost.assumption import parse_assumption
from campaign.plan.cost.estimates import Estimate
from campaign.plan.dag import read_plan
from campaign.plan.missing_runs import read_known
from campaign.plan.plan import Plan, PlannedLease, time_words
from campaign.plan.request import PlanRequest
from campaign.report.campaign_summary import missing_reasons
from campaign.run.preflight import missing_inputs
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.slurm.parse import SlurmJob
from campaign.slurm.poll import Poll


@click.command()
@request_options("selection")
@click.option(
    "--all", "everything", is_flag=True, help="Of the whole campaign, also where only a part of it was run last."
)
@click.option("--watch", type=Number(1), is_flag=False, flag_value=10.0, metavar="[SECONDS]", show_default=False,
              help="Show it again every so many seconds (10), until all is measured.")  # fmt: skip
@format_option("table", "json")
def status(asked: PlanRequest, everything: bool, watch: float | None, style: str) -> None:
    """Show the progress of a campaign: what is done, what is running, and what failed so far.

    Without --where, it is of the runs that the last 'campaign run' or 'snakemake' was asked for. 'campaign summary' shows what was
    found.
    """
    while True:
        found = _status(asked if everything else _asked_last(asked), watch)
        if style == "json":
            show_json(found)
        else:
            if watch:
                clear()
            _show(found)
        if not watch or found["runs_done"] == found["runs"]:
            return
        time.sleep(watch)


def _asked_last(asked: PlanRequest) -> PlanRequest:
    """The request with the label and selection of the last run, where it has none of its own."""
    file = asked.load().file
    written = read_json(Results(asked.results, file.name).plan_document)
    asked = replace(asked, version=asked.version or file.version or written.get("version"))
    if assumed := (written.get("totals") or {}).get("assumed"):
        asked = replace(asked, assumed=parse_assumption(assumed))
    asked = replace(asked, without_hosts=asked.without_hosts or written.get("without_hosts") or None)
    return asked if asked.where is not None else replace(asked, where=written.get("where"))


def _status(asked: PlanRequest, interval_s: float | None) -> dict[str, Any]:
    """JSON-able."""
    plan = read_plan(asked, allow_unfit=True, checked=False)
    results = Results(asked.results, plan.campaign.name)
    queued = {lease.name: job for lease in plan.leases if (job := submitted_jobs.read(results, lease.name))}
    in_slurm, problem = (
        _queue(results, interval_s and min(system.slurm.poll_s for system in plan.campaign.systems.values()))
        if queued
        else ({}, "")
    )
    last = {line["lease"]: f"{line['what']}: {line['status']}" for line in read_json_lines(results.progress)[0]}
    leases = []
    for lease in plan.leases:
        job = queued.get(lease.name)
        if job is not None:
            shown = in_slurm.get(job.job_id)
            state = _where(shown) if shown and job.is_shown_by(shown) else "is no longer in the queue"
        elif is_locked(results.driver_lock(lease.name)):
            state = "measuring"
        elif is_locked(results.measure_lock(lease.name)):
            state = "composing, releasing or waiting"
        else:
            why = _failure(plan, results, lease) if lease.missing else ""
            open_state = "does not fit" if lease.configuration.name in plan.unfit else "to do"
            state = (f"failed: {why}" if why else open_state) if lease.missing else "complete"
        leases.append({
            "lease": lease.name, "runs": lease.runs, "runs_done": lease.runs - lease.missing, "state": state,
            "job": job and job.job_id, "last_run": last.get(lease.name),
        })  # fmt: skip
    return {
        "campaign": plan.campaign.name,
        "source": str(asked.campaign),
        "where": asked.where,
        "leases": leases,
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
        "slurm_problem": problem,
    }


def _failure(plan: Plan, results: Results, lease: PlannedLease) -> str:
    """Why a lease has failed; empty where nothing of it has. A campaign that was killed has written no manifest of it."""
    of_system = "" if plan.campaign.part else lease.configuration.system
    if stops := read_json(results.site_check(lease.configuration.system)).get("stops"):
        return "; ".join(stops)
    if reason := read_json(results.manifest(lease.name, of_system)).get("reason"):
        return str(reason)
    journal = Journal(results.journals(lease.configuration.system), lease_id(results, lease.name))
    return journal.cause if journal.state == "LEAKED" or journal.document()["obtained"] is None else ""


def _left(plan: Plan) -> dict[str, Any]:
    """What the runs without a record are expected to take."""
    low_s, high_s = plan.wall_range_s or (None, None)
    unknown = plan.forecast.unknown
    words = f"{unknown.words()}; {unknown.advice()}" if unknown else ""
    hours = plan.device_hours
    return {"expected_s": plan.wall_s, "low_s": low_s, "high_s": high_s, "device_hours": hours, "unknown": words}


def _outcomes(plan: Plan, results: Results) -> dict[str, int]:
    """How often the planned runs ended how."""
    wanted = {(cell.id, r) for lease in plan.leases for cell in lease.cells for r in runs_of(cell.settings)}
    store = Store(results.directory)
    measured = read_known(store, skip_implied=plan.campaign.protocol.skip_implied).measured
    return dict(Counter(str(store.read(*key).status) for key in measured & wanted).most_common())


def _show(found: Mapping[str, Any]) -> None:
    if found["slurm_problem"]:
        say(f"Slurm does not answer ({found['slurm_problem']}); the states are those of its last answer")
    rows = [(each["lease"], f"{each['runs_done']}/{each['runs']}", _words(each)) for each in found["leases"]]
    show(TextTable(f"Campaign {found['campaign']}", ["lease", "runs done", "state"], rows))
    tally = ", ".join(f"{count} {outcome}" for outcome, count in found["outcomes"].items()) or "none yet"
    failed = found["runs_done"] - found["outcomes"].get("ok", 0) - found["outcomes"].get("implied", 0)
    where = found["where"]
    part = f" of the part that was asked for last (where {where}; --all shows the whole campaign)" if where else ""
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
    state = lease["state"] if lease["job"] is None else f"job {lease['job']} {lease['state']}"
    if lease["job"] is None and state != "measuring":
        return str(state)
    return f"{state}, {'last: ' + lease['last_run'] if lease['last_run'] else 'no run finished yet'}"


def _where(job: SlurmJob) -> str:
    return f"{job.state.lower()} " + (f"on {', '.join(job.hosts)}" if job.hosts else f"({job.reason})")


def _queue(results: Results, interval_s: float | None) -> tuple[Mapping[str, SlurmJob], str]:
    """This user's Slurm jobs by id, and why Slurm does not answer; interval_s: between two looks, None: look now."""
    poll = Poll(results.slurm, Slurm(results.slurm_calls), interval_s or 1.0)
    snapshot = poll.snapshot(fresh=interval_s is None)
    return snapshot.jobs, "" if snapshot.reachable else snapshot.problem
