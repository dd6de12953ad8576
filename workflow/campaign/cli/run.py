"""`campaign run` and `campaign redo`: measure what has no record, and measure runs again."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from campaign.cli.options import CAMPAIGN_FILE, campaign_argument, dry_run_option, request_options, results_option
from campaign.cli.until import measure_rounds
from campaign.config.load import load_campaign_file, read_system
from campaign.config.resolve import load_campaign
from campaign.paths import ROOT, SNAKEFILE, Results
from campaign.plan.dag import Request
from campaign.plan.selection import host_expression
from campaign.run import redo as redoing
from campaign.submit.own_job import submit_command
from campaign.wording import plural


@click.command()
@request_options(costs=True)
@click.option("--profile", help="Snakemake profile: local, slurm or a path. Default: the system's launcher.")
@dry_run_option("Only print what would be done.")
@click.option(
    "--submit",
    is_flag=True,
    help="Submit the command itself as a Slurm job of one core, for sites that end what runs long on login nodes.",
)
@click.argument("snakemake", nargs=-1, type=click.UNPROCESSED)
def run(asked: Request, profile: str | None, dry_run: bool, submit: bool, snakemake: tuple[str, ...]) -> None:
    """Measure the runs that have no record, and write the report, through Snakemake.

    It is the same as 'snakemake --profile local --config campaign=CAMPAIGN'. Arguments after '--' go to Snakemake. With --budget,
    only the runs that 'campaign plan --budget' shows are measured. The choice is kept in plan/budget.json, so that the same command
    resumes it. With --until, leases are chosen and measured in rounds until the question is answered. Rounds are kept in
    questions/, so that the same command resumes them. To measure runs again that have a record, use 'campaign redo' first.
    """
    if str(asked.campaign).startswith("-"):  # 'campaign run -- OPTIONS': the default campaign
        asked, snakemake = replace(asked, campaign=CAMPAIGN_FILE), (str(asked.campaign), *snakemake)
    if asked.where and host_expression(load_campaign(asked.campaign), asked.where) is not None:
        click.echo(
            f"--where only selects cells. To measure runs on a host again: campaign redo {asked.campaign} --where ..",
            err=True,
        )
    campaign = load_campaign_file(asked.campaign).model
    systems = [read_system(name, asked.campaign) for name in campaign.system_names]
    name = profile or ("slurm" if all(system.launcher == "slurm" for system in systems) else "local")
    directory = ROOT / name
    config = {
        "where": asked.where and _unquoted(asked.where),
        "skip_implied": "no" if asked.run_implied else None,
        "until": asked.until and _unquoted(asked.until),
        "budget": asked.budget,
        "assume": asked.assumed.text,
        "learn_from": ",".join(map(str, asked.learn_from)),
    }
    given = [f"{key}={value}" for key, value in config.items() if value]
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    command += ["--profile", str(directory if directory.is_dir() else name), "--directory", str(Path.cwd())]
    command += [*(["-n"] if dry_run else []), *snakemake]
    command += ["--config", f"campaign={asked.campaign}", f"results={asked.results}", *given]
    results = Results(asked.results, campaign.name)
    if submit:
        again = ["run", *asked.arguments(), f"--profile={name}", "--", *snakemake]
        command = [sys.executable, "-m", "campaign.cli", *again] if asked.until and not dry_run else command
        click.echo(submit_command(command, results, systems[0].slurm))
        return
    if asked.until and not dry_run:
        # Where a word may be a target, Snakemake is left with it: it does not take targets from two places.
        targets = ["tables"] if all(word.startswith("-") for word in snakemake) else []
        measure_rounds(asked, results, command, targets)
    sys.stdout.flush()
    os.execv(command[0], command)  # Ctrl-C is for Snakemake: a process that waits for it would kill it


def _unquoted(where: str) -> str:
    """An expression as Snakemake leaves it alone: it takes quotes away from the ends of a value."""
    text = where.strip()
    return f"({text})" if text[-1:] in ("'", '"') or text[:1] in ("'", '"') else text


@click.command()
@campaign_argument
@click.option(
    "--where",
    metavar="EXPRESSION",
    required=True,
    help="Runs to measure again: 'batch >= 8', or \"host == 'host3'\" for the runs on that host.",
)
@results_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option("Only print what would be moved.")
def redo(campaign: Path, where: str, results: Path, yes: bool, dry_run: bool) -> None:
    """Move the records that match into superseded/, so that 'campaign run' measures their runs again.

    Nothing is deleted: superseded/ keeps the records and the expression, and the report states how many there are.
    """
    loaded = load_campaign(campaign)
    paths = Results(results, loaded.name)
    runs = redoing.matching_runs(loaded, paths, where)
    what = f"{plural(len(runs), 'record')} of {plural(len({cell for cell, _ in runs}), 'cell')}"
    if dry_run:
        click.echo(f"would move {what} to {paths.superseded}")
        return
    if not yes:
        click.confirm(f"Move {what} to {paths.superseded} and measure the runs again?", abort=True)
    redoing.redo(paths, where, runs)
    click.echo(f"moved {what} to {paths.superseded}; 'campaign run {campaign}' measures the runs again")
