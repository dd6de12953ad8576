"""The commands `campaign run`, `campaign redo` and `campaign remove`: measure, measure again, and delete results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from campaign.cli.echo import confirm, echo
from campaign.cli.options import (
    CAMPAIGN_FILE,
    FiniteNumber,
    add_request_options,
    add_source_options,
    build_dry_run_option,
)
from campaign.cli.source import find_results
from campaign.common.paths import ROOT, SNAKEFILE, Results
from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.request import PlanRequest
from campaign.plan.selection import parse_host_expression
from campaign.run import redo as redoing
from campaign.run.remove import describe_contents, remove_results
from campaign.run.submitters import submit_command


@click.command()
@add_request_options("selection", "costs", changes_results=True)
@click.option("--profile", help="Snakemake profile: local, slurm or a path. Default: the system's launcher.")
@build_dry_run_option("Only print what would be done.")
@click.option(
    "--submit",
    is_flag=True,
    help="Submit the command itself as a Slurm job of one core, for sites that kill long processes on login nodes.",
)
@click.option(
    "--within",
    type=FiniteNumber(min=0, max=100, min_open=True, max_open=True),
    default=5.0,
    metavar="PERCENT",
    help="Tolerance of --until: a configuration that is at most this far below the best counts as equally good.",
)
@click.argument("snakemake", nargs=-1, type=click.UNPROCESSED)
def run(
    request: PlanRequest, profile: str | None, dry_run: bool, submit: bool, within: float, snakemake: tuple[str, ...]
) -> None:
    """Measure the runs that have no record, and write the report, through Snakemake.

    This is the same as 'snakemake --profile local --config campaign=CAMPAIGN'. Arguments after '--' are passed to Snakemake. After
    an interruption, the same command continues. To measure runs that have a record again, use 'campaign redo' first.

    With --until best, every configuration is composed once per block. After each block, configurations that cannot be within
    --within percent of the best for any workload and precision are dropped. The race ends when the best is known or all blocks are
    measured; the candidates that remain are then listed.
    """
    if str(request.campaign).startswith("-"):  # This is 'campaign run -- OPTIONS', which uses the default campaign.
        request, snakemake = replace(request, campaign=CAMPAIGN_FILE), (str(request.campaign), *snakemake)
    campaign = load_campaign(request.campaign, results=request.results)
    if request.where and parse_host_expression(campaign, request.where) is not None:
        echo(
            "--where only selects cells; to measure the runs on a host again, use "
            f"'campaign redo {request.campaign} --where ..'",
            err=True,
        )
    systems = list(campaign.systems.values())
    name = profile or ("slurm" if all(system.launcher == "slurm" for system in systems) else "local")
    project_profile, package_profile = (root / "profiles" / name for root in (Path.cwd(), ROOT))
    directory = project_profile if (project_profile / "config.yaml").is_file() else package_profile
    base_command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    base_command += ["--profile", str(directory if directory.is_dir() else name), "--directory", str(Path.cwd())]
    base_command.append("--replace-workflow-config")  # A config/config.yaml here may belong to another workflow.

    def build_command(targets: Sequence[str] = ()) -> list[str]:
        """Build the Snakemake command that makes these targets; the default target if there are none."""
        return [
            *base_command,
            *targets,
            *(["-n"] if dry_run else []),
            *snakemake,
            "--config",
            *request.to_snakemake_config(),
        ]

    command = build_command()
    results = Results(request.results, campaign.name)
    if submit:
        if request.until:
            options = [f"--within={within:g}", *([f"--profile={profile}"] if profile else [])]
            command = [
                sys.executable,
                "-P",
                "-m",
                "campaign.cli",
                "run",
                *request.to_arguments(),
                *options,
                "--",
                *snakemake,
            ]
        echo(submit_command(command, results, systems[0].slurm))
        return
    if request.until:
        from campaign.cli.race import evaluate_race, measure_race, print_race  # Imported late, because it loads pandas.

        if dry_run:
            print_race(evaluate_race(request, within))
        else:
            measure_race(request, within, build_command)
    sys.stdout.flush()
    # Ctrl-C must reach Snakemake. A process that waits for Snakemake would kill it.
    os.execv(command[0], command)


@click.command()
@add_source_options(changes_results=True)
@click.option(
    "--where",
    metavar="EXPRESSION",
    help="Runs to measure again: 'batch >= 8', \"host == 'host3'\" or \"status == 'crashed'\". It can name axes, host, status, "
    "composition, run (number in the composition), repetition (number in the tables) and cell (id).",
)
@click.option("--failed", is_flag=True, help="Only runs that failed; valid runs of the same cells keep their records.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@build_dry_run_option("Only print what would be moved.")
def redo(campaign: Path, where: str | None, failed: bool, results: Path, yes: bool, dry_run: bool) -> None:
    """Move matching records into superseded/, so that 'campaign run' measures their runs again.

    Nothing is deleted. superseded/ keeps the records and the expression, and the report states their number.

    \b
    campaign redo my-campaign.yaml --failed
    campaign redo my-campaign.yaml --failed --where "workload == 'bert'"
    """
    if where is None and not failed:
        raise click.UsageError("give --where EXPRESSION, --failed, or both")
    loaded_campaign = load_campaign(campaign, results=results)
    paths = Results(results, loaded_campaign.name)
    runs = redoing.find_matching_runs(loaded_campaign, paths, where, failed_only=failed)
    description = f"{pluralize(len(runs), 'record')} of {pluralize(len({cell for cell, _ in runs}), 'cell')}"
    if dry_run:
        echo(f"would move {description} to {paths.superseded_records}")
        return
    if not yes and not confirm(f"Move {description} to {paths.superseded_records} and measure the runs again?"):
        raise click.Abort
    selection = " and ".join(
        [*(["status != 'ok'"] if failed else []), *([f"({where})" if failed else where] if where else [])]
    )
    redoing.move_records_for_redo(paths, selection, runs)
    echo(f"moved {description} to {paths.superseded_records}; 'campaign run {campaign}' measures the runs again")


@click.command()
@add_source_options(changes_results=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@build_dry_run_option("Only print what would be deleted.")
def remove(campaign: Path, results: Path, yes: bool, dry_run: bool) -> None:
    """Delete the results of CAMPAIGN: its records, logs, tables, figures and report. The campaign file stays.

    This cannot be undone. Use 'campaign archive' first to keep a copy. Results are not deleted while the campaign is being measured
    or one of its leases holds devices.
    """
    paths = find_results(campaign, results)
    description = f"{paths.directory}: {describe_contents(paths)}"
    if dry_run:
        echo(f"would delete {description}")
        return
    if not yes and not confirm(f"Delete {description}? This cannot be undone"):
        raise click.Abort
    remove_results(paths)
    echo(f"deleted {description}")
