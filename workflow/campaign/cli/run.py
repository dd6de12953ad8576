"""`campaign run` and `campaign redo`: measure what has no record, and measure runs again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from campaign.cli.options import (
    CAMPAIGN_FILE,
    budget_option,
    campaign_argument,
    implied_option,
    learn_option,
    results_option,
    where_option,
)


@click.command()
@campaign_argument
@where_option
@implied_option
@budget_option
@learn_option
@results_option
@click.option("--profile", help="Snakemake profile: local, slurm or a path. Default: the system's launcher.")
@click.option("--dry-run", "-n", is_flag=True, help="Only print what would be done.")
@click.argument("snakemake", nargs=-1, type=click.UNPROCESSED)
def run(
    campaign: Path,
    where: str | None,
    run_implied: bool,
    budget: str | None,
    learn_from: tuple[Path, ...],
    results: Path,
    profile: str | None,
    dry_run: bool,
    snakemake: tuple[str, ...],
) -> None:
    """Measure the runs that have no record, and write the report, through Snakemake.

    It is the same as 'snakemake --profile local --config campaign=CAMPAIGN'. Arguments after '--' go to Snakemake. With --budget,
    only the runs that 'campaign plan --budget' shows are measured. The choice is kept in plan/budget.json, so that the same command
    resumes it. To measure runs again that have a record, use 'campaign redo' first.
    """
    if str(campaign).startswith("-"):  # 'campaign run -- OPTIONS': the default campaign
        campaign, snakemake = CAMPAIGN_FILE, (str(campaign), *snakemake)
    from campaign.config.load import read_campaign, read_system
    from campaign.paths import ROOT, SNAKEFILE
    from campaign.plan.cost.budget import parse_budget

    if where and _names_host(campaign, where):
        click.echo(
            f"--where only selects cells. To measure runs on a host again: campaign redo {campaign} --where ..",
            err=True,
        )
    name = profile or read_system(read_campaign(campaign).system, campaign).launcher
    directory = ROOT / name
    config = [f"campaign={campaign}", f"results={results}", *([f"where={_unquoted(where)}"] if where else [])]
    config += ["skip_implied=no"] if run_implied else []
    config += [f"budget={parse_budget(budget)}"] if budget else []
    config += [f"learn_from={','.join(map(str, learn_from))}"] if learn_from else []
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    command += ["--profile", str(directory if directory.is_dir() else name), "--directory", str(Path.cwd())]
    command += [*(["-n"] if dry_run else []), *snakemake, "--config", *config]
    sys.exit(subprocess.run(command, check=False).returncode)


def _unquoted(where: str) -> str:
    """An expression as Snakemake leaves it alone: it takes quotes away from the ends of a value."""
    text = where.strip()
    return f"({text})" if text[-1:] in ("'", '"') or text[:1] in ("'", '"') else text


def _names_host(campaign: Path, where: str) -> bool:
    from campaign.config.resolve import load_campaign
    from campaign.plan.selection import host_expression

    return host_expression(load_campaign(campaign), where) is not None


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
@click.option("--dry-run", "-n", is_flag=True, help="Only print what would be moved.")
def redo(campaign: Path, where: str, results: Path, yes: bool, dry_run: bool) -> None:
    """Move the records that match into superseded/, so that 'campaign run' measures their runs again.

    Nothing is deleted: superseded/ keeps the records and the expression, and the report states how many there are.
    """
    from campaign.config.resolve import load_campaign
    from campaign.paths import Results
    from campaign.run import redo as redoing
    from campaign.wording import plural

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
