"""How the slots of a simulated chassis look, from the fabric and from the host; pure over the stored state."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from campaign.fabrics.hardware import Device, DeviceState, Link
from campaign.fabrics.simulated.chassis_topology import Slotted
from campaign.fabrics.state_file import Slot, State

# A Falcon-4016-like host adapter and slot: PCIe 4.0, 16 lanes.
LANES = 16
GENERATION = 4


def host_id(kind: str, fabric_id: str) -> str:
    """What a host would call the device: a GPU's UUID, a card's MAC, a drive's serial; always the same for one slot."""
    name = uuid.uuid5(uuid.NAMESPACE_OID, fabric_id)
    if kind == "nic":
        return ":".join(f"{byte:02x}" for byte in b"\x02" + name.bytes[:5])
    return name.hex[:16].upper() if kind == "nvme" else f"{kind.upper()}-{name}"


def pooled(slotted: Slotted) -> Device:
    """The device in a slot, free and well; its fabric id is its location."""
    location = slotted.location
    link = Link(LANES, GENERATION, LANES, GENERATION)
    return Device(
        location, slotted.kind, slotted.model, host_id(slotted.kind, location), location, local=False, link=link
    )


def present(device: Device, state: State, now: float, occupied: Mapping[str, str]) -> Device:
    """A pooled device as it is at `now` (Unix time). `occupied`: who else holds which fabric id."""
    if device.fabric_id in occupied:
        by = occupied[device.fabric_id]
        return replace(device, holder=by, attached_to=by, state="in_use")
    slot = state.devices.get(device.fabric_id)
    if slot is None:
        return device
    broken = slot.fails_s is not None and slot.fails_s <= now
    looks: DeviceState = "failed" if broken and slot.lease is None else slot.state
    return replace(
        device,
        holder=slot.lease,
        attached_to=slot.host,
        state=looks,
        health="critical" if broken else "ok",
        link=Link(slot.width or LANES, GENERATION, LANES, GENERATION),
    )


def visible(slot: Slot, host: str, now: float) -> bool:
    """True when `host` enumerates the device in the slot at `now`."""
    arrived = slot.visible_s is not None and slot.visible_s <= now and not slot.needs_rescan
    broken = slot.fails_s is not None and slot.fails_s <= now
    return arrived and not broken and slot.host == host
