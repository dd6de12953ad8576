"""The operations of the fabric that each lease of a plan takes, in the planned order: what stays attached is not attached again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from campaign.config.open_fabric import request_of
from campaign.config.resolve import Campaign
from campaign.documents.cell import Configuration
from campaign.errors import FabricError
from campaign.fabrics.moves import Operations, attachments, operations
from campaign.fabrics.protocol import Fabric
from campaign.fabrics.registry import fabric_kind

Leases = Sequence[tuple[Configuration, int]]
"""Configuration and composition of each."""
Counted = Callable[[Leases], Sequence[Operations | None]]

_BLOCK, _EARLIER = "this block", "an earlier block"


def counting(fabric: Fabric, campaign: Campaign) -> Counted:
    """A function that gives the operations of each lease in order; None where they are not known before."""
    kind = fabric_kind(str(campaign.system.fabric["kind"]))
    steps = kind.steps

    def count(leases: Leases) -> list[Operations | None]:
        if steps is None:
            return [None] * len(leases)
        inventory = fabric.inventory_planned()
        devices = {device.fabric_id: device for device in inventory.devices}
        attached: dict[str, str] = {}
        stale: set[str] = set()
        found: list[Operations | None] = []
        block = 0
        for configuration, composition in leases:
            if composition != block:
                block, stale = composition, set(attached)
            there = inventory.staying(attached, _BLOCK)
            there = there.staying({name: attached[name] for name in stale}, _EARLIER)
            try:
                request = replace(request_of(campaign.system, "plan", campaign.name, configuration), epoch=_BLOCK)
                wanted = attachments(fabric.select_planned(request, there))
            except FabricError:
                found.append(None)
                continue
            wanted = {name: host for name, host in wanted.items() if name in devices and not devices[name].local}
            found.append(operations(attached, wanted, devices, steps, stale))
            if kind.keeps_attached:
                hosts = set(wanted.values())
                attached = {name: host for name, host in attached.items() if host not in hosts} | wanted
                stale -= wanted.keys()
                stale &= attached.keys()
        return found

    return count
