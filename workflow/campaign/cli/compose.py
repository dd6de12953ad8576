"""`campaign compose`, `release`, `inventory` and `verify`: compositions by hand."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from campaign.cli.options import (
    campaign_argument,
    campaign_option,
    dry_run_option,
    format_option,
    name_option,
    results_option,
)
from campaign.cli.terminal import Table, say, show, show_json
from campaign.errors import ConfigError
from campaign.fabrics.hardware import Device
from campaign.lease import manual
from campaign.paths import Results
from campaign.run import check_results
from campaign.wording import plural, printable

_SHOWN = 20


@click.command()
@click.argument("configuration")
@campaign_option
@results_option
@click.option(
    "--hosts", metavar="HOST,HOST..", default="", show_default=False, help="Only on these hosts. Default: any that fit."
)
@name_option
@dry_run_option("Print the exact requests to the fabric, and send none that changes anything.")
def compose(configuration: str, campaign: Path, results: Path, hosts: str, name: str | None, dry_run: bool) -> None:
    """Compose one CONFIGURATION by hand and keep it until 'campaign release'.

    A campaign waits for devices that are kept so.
    """
    asked = campaign, results, configuration, tuple(filter(None, hosts.split(","))), name
    if dry_run:
        click.echo(printable("\n".join(manual.rehearse(*asked))))
        return
    lease = manual.compose(*asked)
    rows = [
        (host["name"], device["fabric_id"], device["model"], device["location"])
        for host in lease["obtained"]["hosts"]
        for device in (*host["devices"], *host["storage"])
    ]
    show(Table(lease["lease_id"], ["host", "device", "model", "where"], rows))
    times = lease["times"]
    say(f"composed in {times['ready_s'] - times['requested_s']:.2f} s, {lease['operations']} operations")
    for mismatch in lease["mismatches"]:
        say(f"differs from the request: {mismatch}")


@click.command()
@click.argument("configuration", required=False)
@campaign_option
@results_option
@click.option(
    "--orphans", is_flag=True, help="Release the leases that dead processes left, instead of a configuration."
)
@dry_run_option("With --orphans: only list them.")
@name_option
def release(
    configuration: str | None, campaign: Path, results: Path, orphans: bool, dry_run: bool, name: str | None
) -> None:
    """Release a CONFIGURATION that 'campaign compose' keeps, or what dead processes left (--orphans)."""
    if orphans == (configuration is not None):
        raise ConfigError("give either a configuration or --orphans")
    if configuration is not None:
        click.echo(printable(manual.release(campaign, results, configuration, name)))
        return
    lines = manual.release_orphans(campaign, results, dry_run=dry_run)
    click.echo(printable("\n".join(lines)) or "no lease without an owner")


@click.command()
@campaign_argument
@results_option
@format_option("table", "json")
def inventory(campaign: Path, results: Path, style: str) -> None:
    """Show the system's hosts and devices, and who holds them."""
    system, capabilities, found = manual.read_inventory(campaign, results)
    if style == "json":
        show_json({"system": system, "capabilities": asdict(capabilities), **asdict(found)})
        return
    hosts = [(h.name, h.cores, h.memory_gib, ", ".join(h.ports), h.holder) for h in found.hosts]
    devices = [
        (d.fabric_id, d.kind, d.model, d.location, d.attached_to, d.state, d.health, d.holder or _left_by(d))
        for d in found.devices
    ]
    columns = ["device", "kind", "model", "where", "attached to", "state", "health", "held by"]
    numbers = ["cores", "memory GiB"]
    show(
        Table(f"Hosts of {system}", ["host", *numbers, "ports", "held by"], hosts, numbers),
        Table("Devices", columns, devices),
    )
    checked = "" if capabilities.verified else "UNVERIFIED against a real control plane; "
    say(f"attach: {capabilities.attach_mode}; {checked}{capabilities.note}")


def _left_by(device: Device) -> str | None:
    return f"nobody (since {device.stays})" if device.stays else None


_SEEN = {True: "yes", False: "NO", None: "not looked at"}


@click.command()
@campaign_argument
@results_option
@format_option("table", "json")
def verify(campaign: Path, results: Path, style: str) -> None:
    """Read back every composition that is held, from the fabric and from the hosts, device by device.

    Of the results directory of a campaign, such as results/first: read every record, lease, journal and plan instead. Exits with 1
    when a device is missing, broken, or not what was requested, or a file is damaged.
    """
    if campaign.is_dir():
        _verify_results(Results.at(campaign.absolute()))
        return
    found = manual.verify(campaign, results)
    if style == "json":
        show_json(found)
    elif not found:
        say("no composition is held")
    well = True
    for lease in found:
        seen = all(d["host_sees"] is not False and d["health"] != "critical" for d in lease["devices"])
        well = well and seen and not lease["mismatches"] and lease["live"]
        if style == "json":
            continue
        owner = f"{lease['owner']}, campaign {lease['campaign']}, {'live' if lease['live'] else 'WITHOUT OWNER'}"
        rows = [
            (d["host"], d["device"], d["model"], d["location"], _SEEN[d["host_sees"]], d["health"])
            for d in lease["devices"]
        ]
        columns = ["host", "device", "model", "where", "visible to host", "health"]
        title = f"{lease['lease']} ({owner})"
        if not rows:
            say(f"{title}: no device")
        show(Table(title, columns, rows))
        for mismatch in lease["mismatches"]:
            say(f"differs from the request: {mismatch}")
    if not well:
        sys.exit(1)


def _verify_results(results: Results) -> None:
    found = list(check_results.problems(results))
    for problem in found[:_SHOWN]:
        click.secho(problem, fg="red", err=True)
    if found:
        more = f", {len(found) - _SHOWN} more are not shown" if len(found) > _SHOWN else ""
        click.echo(f"{results.directory}: {plural(len(found), 'problem')}{more}", err=True)
        sys.exit(1)
    say(f"{results.directory}: every record, lease, journal and plan is whole")
