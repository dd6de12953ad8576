"""Who holds which hosts and devices: what adapters that keep their own state have in common."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from campaign.fabrics.errors import Conflict
from campaign.fabrics.protocol import ComposedHost, Composition, Device, HostSpec, Selection
from campaign.fabrics.state import HeldHost, Holding, State, wanted


def own_devices(host: HostSpec) -> tuple[Device, ...]:
    """A host's own devices, ids like `host1/gpu0`, numbered per kind."""
    found: list[Device] = []
    numbers: dict[str, int] = {}
    for spec in host.devices:
        for _ in range(spec.count):
            number = numbers.get(spec.kind, 0)
            numbers[spec.kind] = number + 1
            name = f"{host.name}/{spec.kind}{number}"
            found.append(Device(name, spec.kind, spec.model, None, host.name, local=True, attached_to=host.name))
    return tuple(found)


def occupy(device: Device, state: State) -> Device:
    """A host's own device with its present holder."""
    slot = state.devices.get(device.fabric_id)
    if slot is None or slot.lease is None:
        return device
    return replace(device, holder=slot.lease, state="in_use")


def claim(state: State, selection: Selection) -> bool:
    """Enter the selection into the state, or raise Conflict; False when this lease has just this selection already."""
    request, hosts = selection.request, wanted(selection)
    holding = state.leases.get(request.lease_id)
    if holding is not None:
        if (holding.campaign, holding.owner, holding.hosts) != (request.campaign, request.owner, hosts):
            raise Conflict(
                f"{request.lease_id} holds devices already, for {holding.owner} (campaign {holding.campaign})",
                holders=(request.lease_id,),
            )
        return False
    taken = {host.name: holder for host in hosts if (holder := state.holder_of_host(host.name)) is not None}
    taken |= {name: lease for name in selection.ids if (lease := state.slot(name).lease) is not None}
    if taken:
        what = ", ".join(f"{name} by {holder}" for name, holder in taken.items())
        raise Conflict(f"{request.lease_id}: held meanwhile: {what}", holders=dict.fromkeys(taken.values()))
    state.leases[request.lease_id] = Holding(
        campaign=request.campaign, owner=request.owner, since_s=time.time(), hosts=hosts
    )
    return True


def take(state: State, selection: Selection) -> None:
    """Claim a selection, all of which is in use at once: nothing has to be attached. Raises Conflict as `claim` does."""
    if claim(state, selection):
        for host in wanted(selection):
            for name in (*host.devices, *host.storage):
                slot = state.slot(name)
                slot.lease, slot.host, slot.state = selection.request.lease_id, host.name, "in_use"


def give_up(state: State, lease_id: str) -> None:
    """Drop all claims of a lease."""
    state.leases.pop(lease_id, None)
    for name in state.held_by(lease_id):
        del state.devices[name]


def composition_of(
    state: State, lease_id: str, specs: Mapping[str, HostSpec], devices: Iterable[Device]
) -> Composition | None:
    """What a lease claims, as its devices (all there are, at this moment) say; None where it claims nothing."""
    holding = state.leases.get(lease_id)
    if holding is None:
        return None
    held = set(state.held_by(lease_id))
    there = {device.fabric_id: device for device in devices if device.fabric_id in held}
    return composed(specs, (host for host in holding.hosts if host.name in specs), there)


def composed(specs: Mapping[str, HostSpec], hosts: Iterable[HeldHost], devices: Mapping[str, Device]) -> Composition:
    """The composition of stored hosts, out of the devices that are really there (missing ones are left out)."""
    return Composition(
        tuple(
            ComposedHost(
                host.name,
                specs[host.name].cores,
                specs[host.name].memory_gib,
                tuple(devices[name] for name in host.devices if name in devices),
                tuple(devices[name] for name in host.storage if name in devices),
            )
            for host in hosts
        )
    )
