"""The commands `campaign measure` and `campaign measured`: measure one lease, and summarise all leases."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from campaign.cli.options import PATH
from campaign.common.errors import CampaignError, LaunchError, RecordError, convert_os_error
from campaign.common.files import make_directory, write_json
from campaign.common.paths import Results
from campaign.common.processes.marked import INVOCATION_VARIABLE
from campaign.common.processes.signals import SignalInterrupt, raise_on_ending_signal
from campaign.common.wording import escape_control_characters
from campaign.run import measure_lease
from campaign.run.driver_supervisor import DriverLeftRunning
from campaign.spec.lease_plan import read_lease_plan


@click.command()
@click.argument("document", type=PATH, metavar="LEASE.json")
@click.option(
    "--results",
    "root",
    type=PATH,
    help="Directory of all results. Default: the one that contains LEASE.json, or 'results'.",
)
@click.option(
    "--manifest",
    type=PATH,
    help="Manifest to write, which lists the measured runs. Default: the lease's file in manifests/ of the results.",
)
@click.option("--log", type=PATH, help="File for messages. Default: the lease's file in logs/ of the results.")
def measure(document: Path, root: Path | None, manifest: Path | None, log: Path | None) -> None:
    """Measure the runs of a lease that have no record: compose, submit a driver, wait, verify, release.

    LEASE.json is a file in plan/leases/, written by 'campaign plan --write' or the workflow. It contains everything needed, so no
    campaign file is read. After an interruption, the same command measures the missing runs. Exits with 1 if runs have no record
    at the end; the manifest gives the reason. If Snakemake started the command, it exits with 0, so that other leases continue.
    """
    plan = read_lease_plan(document)
    results = Results(root or document.absolute().parent.parent.parent.parent, plan.campaign)
    if root is None and results.lease_plans != document.absolute().parent:
        results = Results(Path("results"), plan.campaign)
    out = manifest or results.manifest_file(plan.lease, plan.configuration.system if plan.has_several_systems else "")
    log_path = log or results.logs / "measure" / f"{plan.lease}.log"

    def report(message: str) -> None:
        """Print a message and append it to the log of the lease. Errors of the terminal and the disk are ignored."""
        # A closed terminal or a full disk must not end a measurement.
        with suppress(OSError):
            print(escape_control_characters(message), flush=True)
        with suppress(OSError):
            make_directory(log_path.parent)
            with log_path.open("a", encoding="utf-8") as file:
                file.write(message + "\n")

    try:
        manifest_document = measure_lease.measure_missing_runs(
            plan, results, report, os.environ.get(INVOCATION_VARIABLE, "")
        )
        try:
            write_json(out, manifest_document, indent=1)
        except OSError as error:
            raise convert_os_error(error, out) from error
        # Missing runs must not end Snakemake's DAG. The rule `measured` and the report list them.
        if (missing := len(manifest_document["missing"])) and INVOCATION_VARIABLE not in os.environ:
            reason = manifest_document["reason"] or "run the same command again to measure them"
            raise LaunchError(f"{missing} of {manifest_document['runs']} runs have no record: {reason}")
    except DriverLeftRunning:
        sys.exit(f"{plan.lease}: its job is still in Slurm; run the same command again to continue with it")
    except SignalInterrupt:
        sys.exit(f"{plan.lease}: stopped and released; run the same command again to measure the missing runs")
    except CampaignError as error:
        report(f"error: {error}")
        sys.exit(1)


@click.command()
@click.argument("plan", type=PATH, metavar="PLAN.json")
@click.option("--strict", is_flag=True, help="Exit with 1 if a planned run has no record.")
@click.option("--output", "out", type=PATH, help="Also write the summary to this file.")
@raise_on_ending_signal()
def measured(plan: Path, strict: bool, out: Path | None) -> None:
    """Summarise the runs of a finished plan, and clean up after its leases.

    Jobs that the leases left behind are ended first, and their devices are released. PLAN.json is plan/plan.json of the results.
    """
    from campaign.report.campaign_summary import list_missing_reasons
    from campaign.run.measured_leases import clean_up_after_plan, summarize_plan

    results = Results.from_directory(plan.absolute().parent.parent)
    for problem in clean_up_after_plan(results, plan):
        click.echo(escape_control_characters(problem), err=True)
    summary = summarize_plan(results, plan, list_missing_reasons(results.directory))
    click.echo(escape_control_characters(summary.format_text()))
    if strict and summary.missing:
        raise RecordError(
            "\n".join(["some runs have no record; run the same command again to measure them", *summary.missing])
        )
    if out:
        try:
            out.write_text(summary.format_text() + "\n", encoding="utf-8")
        except OSError as error:
            raise convert_os_error(error, out) from error
