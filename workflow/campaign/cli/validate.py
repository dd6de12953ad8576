"""The command `campaign validate`: check a campaign file and the files that it names, or one other file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from campaign.cli.echo import echo
from campaign.cli.options import campaign_argument
from campaign.cli.source import resolve_source
from campaign.cli.terminal import print_warnings
from campaign.common.wording import pluralize
from campaign.plan.campaign.load import detect_noun
from campaign.plan.campaign.single_file import check_single_file
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.run.preflight import check_campaign_files
from campaign.spec.yaml_file import read_yaml


@click.command()
@campaign_argument
def validate(campaign: Path) -> None:
    """Check a campaign file and all files that it names, or a single system, workload or claims file.

    Only the files count, not this machine: the command needs neither Slurm nor the fabric nor the software of a workload. 'campaign
    check' checks a site, and 'campaign plan' also warns of software that this machine lacks. Warnings concern values that are valid
    but probably a mistake. Only errors make the command exit with 1.
    """
    path, (campaign, _) = campaign, resolve_source(campaign, Path("results"))
    if campaign.is_dir() or (noun := detect_noun((source := read_yaml(campaign)).data)) == "campaign":
        summary, warnings, notes = _check_campaign(campaign)
    else:
        summary, warnings, notes = f"a {noun} file", check_single_file(noun, source), ()
    print_warnings(warnings)
    echo(f"{path}: valid; {summary}")
    for note in notes:
        echo(f"note: {note}")


def _check_campaign(path: Path) -> tuple[str, Sequence[str], Sequence[str]]:
    """Check a campaign and its inputs. Return a summary of its plan, warnings and notes."""
    plan = read_plan(PlanRequest(path, Path("results")))
    check_campaign_files(plan.campaign)
    counts = (
        f"{pluralize(plan.cell_count, 'cell')}, {pluralize(plan.runs, 'run')} in {pluralize(len(plan.leases), 'lease')}"
    )
    summary = f"{counts} on {plan.campaign.system_names}"
    return summary, plan.warnings, plan.notes
