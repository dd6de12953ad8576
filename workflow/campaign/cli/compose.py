"""Hosts, devices and compositions on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from campaign.fabrics.hardware import Inventory
    from campaign.fabrics.protocol import Capabilities


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
