"""`campaign check`: whether a site is ready for leases."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import click

from campaign.cli.cluster import load_system_file
from campaign.cli.fabric import notes_to_read, tell
from campaign.cli.options import results_option
from campaign.config.check import system_problems
from campaign.config.probable_mistakes import in_system
from campaign.lease.campaign_leases import Site
from campaign.lease.check_hosts import check_system
from campaign.lease.check_site import Finding


@click.command()
@click.argument("system")
@results_option
@click.option("--devices", is_flag=True, help="Go on to the devices: compose them all, and measure what each does.")
@click.option("--short", is_flag=True, help="With --devices: only what `check: devices` looks at, in 20 s.")
@click.option("--host", "hosts", multiple=True, help="With --devices: only this host and what it reaches. Repeatable.")
@click.option(
    "--keep", is_flag=True, help="With --devices: this run, if no device fails, becomes the site's reference."
)
@click.option("--json", "as_json", is_flag=True, help="With --devices: print the document of the check.")
def check(
    system: str, results: Path, devices: bool, short: bool, hosts: tuple[str, ...], keep: bool, as_json: bool
) -> None:
    """Check whether SYSTEM, a system file or its name, is as its file says. Run this first at a new site; it changes nothing.

    It asks what leases will ask: the control plane, each host's agent, Slurm, and the results directory. Exits with 1 if something
    must be fixed. Every campaign does the same before its first lease. 'campaign fabric check' also tries to compose a device.

    --devices composes all devices of the system and measures each, side by side, in at most 5 minutes: settings and errors, timers,
    products, memory, links, repeatability, telemetry, precision, and running out of memory. Exits with 1 if one fails. The document
    stays beside the results; reports show it, and later checks are compared with the reference.
    """
    if (short or hosts or keep or as_json) and not devices:
        raise click.UsageError("--short, --host, --keep and --json belong to --devices; add it, or leave them out")
    file = load_system_file(system)
    said = [Finding("file", "stop", words) for words in system_problems(file.model, file.source)]
    said += [Finding("file", "note", words) for words in in_system(file.source)]
    findings = chain(said, check_system(Site(file.model, results)))
    if as_json:
        found = [each for each in findings if each.verdict in ("problem", "stop")]
        for each in found:
            click.echo(f"{each.what}: {each.words}", err=True)
        problems, notes = len(found), 0
    else:
        problems, notes = tell(findings)
    if problems:
        click.echo(f"\nNot ready: {problems} to put right; nothing was changed.", err=as_json)
        sys.exit(1)
    if devices:
        from campaign.cli.device_check import check_devices  # what a check of files does not need

        check_devices(file.model, results, hosts, short=short, keep=keep, as_json=as_json)
        return
    click.echo(f"\nReady{notes_to_read(notes)}: nothing was changed.")
