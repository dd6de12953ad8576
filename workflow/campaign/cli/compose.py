"""`campaign compose`, `release`, `inventory` and `verify`: compositions by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from campaign.cli.options import campaign_argument, campaign_option, name_option, results_option
from campaign.errors import ConfigError

if TYPE_CHECKING:
    from campaign.fabrics.hardware import Inventory
    from campaign.fabrics.protocol import Capabilities


@click.command()
@click.argument("configuration")
@campaign_option
@results_option
@click.option("--hosts", metavar="HOST,HOST..", help="Only on these hosts. Default: any that fit.")
@name_option
@click.option(
    "--dry-run", "-n", is_flag=True, help="Print the exact requests to the fabric, and send none that changes anything."
)
def compose(
    configuration: str, campaign: Path, results: Path, hosts: str | None, name: str | None, dry_run: bool
) -> None:
    """Compose one CONFIGURATION by hand and keep it until 'campaign release'.

    A campaign waits for devices that are kept so.
    """
    from campaign.lease.manual import compose as keep
    from campaign.lease.manual import rehearse

    allowed = tuple(filter(None, (hosts or "").split(",")))
    if dry_run:
        for line in rehearse(campaign, results, configuration, allowed, name):
            click.echo(line)
        return
    show_composition(keep(campaign, results, configuration, allowed, name))


@click.command()
@click.argument("configuration", required=False)
@campaign_option
@results_option
@click.option(
    "--orphans", is_flag=True, help="Release the leases that dead processes left, instead of a configuration."
)
@click.option("--dry-run", "-n", is_flag=True, help="With --orphans: only list them.")
@name_option
def release(
    configuration: str | None, campaign: Path, results: Path, orphans: bool, dry_run: bool, name: str | None
) -> None:
    """Release a CONFIGURATION that 'campaign compose' keeps, or what dead processes left (--orphans)."""
    from campaign.lease.manual import release as give_back
    from campaign.lease.manual import release_orphans

    if orphans == (configuration is not None):
        raise ConfigError("give either a configuration or --orphans")
    if configuration is None:
        for line in release_orphans(campaign, results, dry_run=dry_run) or ["no lease without an owner"]:
            click.echo(line)
        return
    click.echo(give_back(campaign, results, configuration, name))


@click.command()
@campaign_argument
@results_option
def inventory(campaign: Path, results: Path) -> None:
    """Show the system's hosts and devices, and who holds them."""
    from campaign.lease.manual import read_inventory

    show_inventory(*read_inventory(campaign, results))


@click.command()
@campaign_argument
@results_option
def verify(campaign: Path, results: Path) -> None:
    """Read back every composition that is held, from the fabric and from the hosts, device by device.

    Exits with 1 when a device is missing, broken, or not what was requested.
    """
    from campaign.lease.manual import verify as read_back

    if not show_verification(read_back(campaign, results)):
        sys.exit(1)


def show_inventory(system: str, capabilities: Capabilities, inventory: Inventory) -> None:
    """Print hosts, devices and who holds them."""
    from campaign.cli.terminal import Table, say, show

    hosts = [(h.name, h.cores, h.memory_gib, ", ".join(h.ports), h.holder) for h in inventory.hosts]
    devices = [
        (d.fabric_id, d.kind, d.model, d.location, d.attached_to, d.state, d.health, d.holder)
        for d in inventory.devices
    ]
    columns = ["device", "kind", "model", "where", "attached to", "state", "health", "held by"]
    numbers = ["cores", "memory GiB"]
    show(
        Table(f"Hosts of {system}", ["host", *numbers, "ports", "held by"], hosts, numbers),
        Table("Devices", columns, devices),
    )
    checked = "" if capabilities.verified else "UNVERIFIED against a real control plane; "
    say(f"attach: {capabilities.attach_mode}; {checked}{capabilities.note}")


def show_composition(document: Mapping[str, Any]) -> None:
    """Print the devices that a lease obtained, and the time it took."""
    from campaign.cli.terminal import Table, say, show

    rows = [
        (host["name"], device["fabric_id"], device["model"], device["location"])
        for host in document["obtained"]["hosts"]
        for device in (*host["devices"], *host["storage"])
    ]
    show(Table(document["lease_id"], ["host", "device", "model", "where"], rows))
    times = document["times"]
    say(f"composed in {times['ready_s'] - times['requested_s']:.2f} s, {document['operations']} operations")
    for mismatch in document["mismatches"]:
        say(f"differs from the request: {mismatch}")


def show_verification(found: Sequence[Mapping[str, Any]]) -> bool:
    """Print every composition that is held; returns whether all are as requested, healthy and owned by a live process."""
    from campaign.cli.terminal import Table, say, show

    if not found:
        say("no composition is held")
    well = True
    for lease in found:
        owner = f"{lease['owner']}, campaign {lease['campaign']}, {'live' if lease['live'] else 'WITHOUT OWNER'}"
        rows = [
            (d["host"], d["device"], d["model"], d["location"], "yes" if d["host_sees"] else "NO", d["health"])
            for d in lease["devices"]
        ]
        columns = ["host", "device", "model", "where", "visible to host", "health"]
        show(Table(f"{lease['lease']} ({owner})", columns, rows))
        for mismatch in lease["mismatches"]:
            say(f"differs from the request: {mismatch}")
        seen = all(d["host_sees"] and d["health"] != "critical" for d in lease["devices"])
        well = well and seen and not lease["mismatches"] and lease["live"]
    return well
