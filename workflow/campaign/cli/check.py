"""The command `campaign check`: whether a site is ready for leases."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import click

from campaign.cli.cluster import load_system_file
from campaign.cli.echo import echo
from campaign.cli.fabric import format_note_count, print_findings
from campaign.cli.options import results_option
from campaign.common.wording import pluralize
from campaign.lease.campaign_leases import Site
from campaign.lease.check_hosts import check_system
from campaign.lease.check_site import Finding
from campaign.plan.campaign.check import find_system_problems
from campaign.plan.campaign.probable_mistakes import warn_of_system
from campaign.run.preflight import find_missing_site_software


@click.command()
@click.argument("system")
@results_option
def check(system: str, results: Path) -> None:
    """Check whether a site matches SYSTEM, its system file, without changing anything.

    Run this command first at a new site. SYSTEM is a path, or a name under config/systems. The command checks what leases need:
    the control plane, each host's agent, Slurm, this machine's programs, and the results directory. With Slurm, a job of a few
    seconds on a free host tests whether hosts see that directory. Exits with 1 if something must be fixed. Every campaign makes
    these checks before its first lease. 'campaign fabric check' also tries to compose a device.
    """
    file = load_system_file(system)
    findings = [Finding("file", "stop", message) for message in find_system_problems(file.model, file.source)]
    findings += [Finding("file", "note", message) for message in warn_of_system(file.source)]
    findings += [Finding("software", "problem", message) for message in find_missing_site_software(file.model)]
    problems, notes = print_findings(chain(findings, check_system(Site(file.model, results))))
    if problems:
        echo(f"\nNot ready: {pluralize(problems, 'problem')} to fix; nothing was changed.")
        sys.exit(1)
    echo(f"\nReady{format_note_count(notes)}: nothing was changed.")
