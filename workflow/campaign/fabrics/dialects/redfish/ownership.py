"""From what a service says to what campaigns need: which block is which host, who holds what, which host reaches what. Pure.

A device is in use when three things agree: the system lists the block, the block lists the system, and the state is Composed. Where
they do not, it is `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.lease_tag import by_lease
from campaign.fabrics.control_plane.protocol import Change, View
from campaign.fabrics.dialects.redfish.options import Options
from campaign.fabrics.dialects.redfish.read_service import Reading
from campaign.fabrics.dialects.redfish.resources import (
    CONSTRAINED,
    SPECIFIC,
    Block,
    Part,
    System,
    Zone,
    tag_of,
)
from campaign.fabrics.hardware import Device, DeviceState, Health

_LIMITED = ("Processor", "Memory", "Storage", "Network", "Compute", "ComputerSystem", "Expansion")
_STATES: dict[str | None, DeviceState] = {
    "Composing": "composing",
    "Failed": "failed",
    "Unavailable": "unavailable",
}
_ATTACHED = ("Composed", "ComposedAndAvailable")
_WORSE: tuple[Health, ...] = ("ok", "warning", "critical")
_Named = TypeVar("_Named", Block, System)


@dataclass(frozen=True, slots=True)
class Seat:
    """What a host is on the fabric: the block that is composed for it, or the physical system that is expanded."""

    host: str
    block: Block | None
    system: System | None = None


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One reading, understood for the hosts and models of one system file. blocks: of each device, by fabric id."""

    reading: Reading
    seats: Mapping[str, Seat]
    view: View
    blocks: Mapping[str, Block]

    def system_of(self, lease_id: str, host: str) -> System | None:
        """The system that a lease has composed for a host."""
        return next((s for s in self.reading.systems.values() if s.lease == (lease_id, host)), None)

    def hosts_of(self, lease_id: str) -> tuple[str, ...]:
        """Every host that a lease has a system for, also where the system itself says nothing of its block."""
        leases = (system.lease for system in self.reading.systems.values())
        return tuple(found[1] for found in leases if found is not None and found[0] == lease_id)

    def zones_of(self, seat: Seat) -> frozenset[str]:
        """Zones that a host is in; all of them for a physical system that says nothing of its own blocks."""
        if seat.block is not None:
            return self.reading.zones_of(seat.block)
        return frozenset(zone.uri for zone in self.reading.zones)

    def common(self, seat: Seat, blocks: Iterable[Block]) -> tuple[Zone, ...]:
        """The zones that a host and blocks share."""
        shared = self.zones_of(seat)
        for block in blocks:
            shared &= self.reading.zones_of(block)
        return tuple(zone for zone in self.reading.zones if zone.uri in shared)

    def constrained(self) -> bool:
        """True where the service chooses the devices, and exact ones cannot be asked for."""
        cases = {case for zone in self.reading.zones for case in zone.cases}
        return CONSTRAINED in cases and SPECIFIC not in cases


def service_view(reading: Reading, hosts: Sequence[str], options: Options) -> ServiceView:
    found = {host: seat for host in hosts if (seat := _seat(reading, host, options)) is not None}
    devices: list[Device] = []
    blocks: dict[str, Block] = {}
    slots: dict[str, int] = {}
    whose = {system.uri: _host_of(system, found) for system in reading.systems.values()}
    for block in sorted(reading.blocks.values(), key=lambda block: _natural(block.id)):
        if block.is_host:
            continue
        zones = (zone.id for zone in reading.zones if zone.uri in reading.zones_of(block))
        drawer = "+".join(sorted(zones, key=_natural)) or "pool"
        for device in _devices(reading, block, whose, options):
            slots[drawer] = slots.get(drawer, 0) + 1
            devices.append(replace(device, location=f"{drawer}/slot{slots[drawer]}"))
            blocks[device.fabric_id] = block
    view = View(
        tuple(devices), dict(_holders(reading, found)), by_lease(map(tag_of, reading.systems.values()), devices)
    )
    return ServiceView(reading, found, view, blocks)


def _seat(reading: Reading, host: str, options: Options) -> Seat | None:
    """None for a host that the service does not know: it has no pooled devices."""
    wanted = options.hosts.get(host, host)
    block = next((b for b in _by_name(reading.blocks.values(), wanted) if b.is_host), None)
    system = next((s for s in _by_name(reading.systems.values(), wanted) if s.expandable), None)
    if block is not None and system is None:
        inside = (reading.systems.get(path) for path in reading.listing(block))
        system = next((s for s in inside if s is not None and s.expandable), None)
    if system is not None and block is None:
        own = (reading.blocks.get(path) for path in system.blocks or ())
        block = next((b for b in own if b is not None and b.is_host), None)
    if options.composition == "expand" or (options.composition == "auto" and system is not None):
        return None if system is None else Seat(host, block, system)
    return None if block is None else Seat(host, block)


def _by_name(things: Iterable[_Named], wanted: str) -> list[_Named]:
    """By Id first; a Name may be there twice."""
    listing = list(things)
    return [one for one in listing if one.id == wanted] + [one for one in listing if one.name == wanted]


def _host_of(system: System, seats: Mapping[str, Seat]) -> str:
    """The host that a system is, as the system file names it; else as the service does."""
    for seat in seats.values():
        if seat.system is not None and seat.system.uri == system.uri:
            return seat.host
        if seat.system is None and seat.block is not None and seat.block.uri in (system.blocks or ()):
            return seat.host
    return system.lease[1] if system.lease else f"system {system.name or system.id}"


def _natural(text: str) -> list[tuple[int, str]]:
    """gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _devices(reading: Reading, block: Block, whose: Mapping[str, str], options: Options) -> Iterator[Device]:
    """One for each part of a block: a block of two GPUs is two devices, which come and go together."""
    state, host, holder = _standing(reading, block, whose)
    parts = reading.parts.get(block.uri) or (Part(block.kind, None, None, None, "ok"),)
    for number, one in enumerate(parts):
        yield Device(
            fabric_id=block.id if len(parts) == 1 else f"{block.id}.{number}",
            kind=one.kind,
            model=options.model(one.model or block.name or block.id),
            host_id=one.host_id,
            location="",
            local=False,
            attached_to=host,
            holder=holder,
            state=state,
            health=max(block.health, one.health, key=_WORSE.index),
            link=one.link,
        )


def _standing(reading: Reading, block: Block, whose: Mapping[str, str]) -> tuple[DeviceState, str | None, str | None]:
    """(state, host, holder) of a block, from both ends."""
    listing, named = reading.listing(block), frozenset(block.systems)
    if not listing and not named:
        return _unattached(block), None, None
    ours = [path for path in sorted(listing) if tag_of(reading.systems[path]) is not None]
    if listing == named and not ours and block.limit > (block.compositions or len(named)):
        return _unattached(replace(block, state="Unused")), None, None  # shared, with room for one more
    holder = _holder(reading, [*ours, *sorted(listing)])
    if listing != named:
        return "unknown", None, holder
    if block.state in _ATTACHED:
        return "in_use", whose[[*ours, *sorted(listing)][0]], holder
    return ("composing" if block.state == "Composing" else "unknown"), None, holder


def _unattached(block: Block) -> DeviceState:
    if block.state in (None, "Unused"):
        return "unavailable" if not block.enabled else "reserved" if block.reserved else "free"
    return _STATES.get(block.state, "unknown")


def _holder(reading: Reading, systems: Sequence[str]) -> str | None:
    """Whoever holds what a system has; nobody in particular for a physical one, which is a host with what is attached to it."""
    if not systems:
        return None
    system = reading.systems[systems[0]]
    tag = tag_of(system)
    if tag is not None:
        return tag.lease_id
    return None if system.expandable else f"system {system.name or system.id}"


def _holders(reading: Reading, seats: Mapping[str, Seat]) -> Iterator[tuple[str, str]]:
    """Hosts that are composed already, or kept by somebody. This program reserves no host: a mark on one is somebody else's."""
    for seat in seats.values():
        if seat.block is None or seat.system is not None:
            continue
        systems = sorted(reading.listing(seat.block))
        holder = _holder(reading, systems)
        state = _unattached(seat.block)
        if holder is not None:
            yield seat.host, holder
        elif seat.block.systems:
            yield seat.host, f"system {seat.block.systems[0].rpartition('/')[2]}"
        elif state == "reserved":
            yield seat.host, "another client that reserved it"
        elif state != "free":
            yield seat.host, f"the fabric, which says that it is {seat.block.state}"


def banks(seen: ServiceView, view: View) -> tuple[Bank, ...]:
    """Devices by the zones that they are in, and the hosts that share one of those."""
    reach = {
        device.location.rpartition("/slot")[0]: seen.reading.zones_of(block)
        for device in view.devices
        if (block := seen.blocks.get(device.fabric_id)) is not None
    }
    everywhere = not seen.reading.zones
    return open_banks(
        (device.location for device in view.devices),
        lambda drawer: tuple(s.host for s in seen.seats.values() if everywhere or seen.zones_of(s) & reach[drawer]),
    )


def objection(seen: ServiceView, change: Change) -> str | None:
    """The rule that a change breaks: whole blocks, one zone for everything in a system, the limits of that zone."""
    if not seen.reading.composes:
        return "read only: the service shows its blocks and composes nothing (it has no CompositionService)"
    for host, names in change.hosts.items():
        blocks = {seen.blocks[name].uri: seen.blocks[name] for name in names if name in seen.blocks}
        for block in blocks.values():
            together = [name for name, other in seen.blocks.items() if other.uri == block.uri]
            if not set(together) <= set(names):
                return f"blocks: {', '.join(together)} are one resource block and go to one host together"
        seat = seen.seats.get(host)
        if seat is None:
            if blocks:
                return f"hosts: {host} is no compute block and no expandable system of the service (see `hosts`)"
            continue
        if seen.reading.zones and blocks:
            zones = seen.common(seat, blocks.values())
            if not zones:
                return f"zones: {host} and {', '.join(names)} share no resource zone"
            rules = [_exceeded(zone, _counts(seen, seat, blocks)) for zone in zones]
            if all(rules):
                return f"{host}: {rules[0]}"
    return None


def _counts(seen: ServiceView, seat: Seat, new: Mapping[str, Block]) -> dict[str, int]:
    """Blocks of each type that the host's system would have."""
    there = seat.system.blocks or () if seat.system else ()
    blocks = {path: found for path in there if (found := seen.reading.blocks.get(path))} | dict(new)
    if seat.block is not None:
        blocks[seat.block.uri] = seat.block
    return {kind: sum(kind in block.types for block in blocks.values()) for kind in _LIMITED}


def _exceeded(zone: Zone, counts: Mapping[str, int]) -> str | None:
    limits = dict(zone.limits)
    for kind, count in counts.items():
        if count > limits.get(f"Max{kind}", count):
            return f"zone {zone.id} allows {limits[f'Max{kind}']} blocks of type {kind} in a system, not {count}"
        if count < limits.get(f"Min{kind}", 0) and kind not in ("Compute", "ComputerSystem"):
            return f"zone {zone.id} wants {limits[f'Min{kind}']} blocks of type {kind} in a system, not {count}"
    return None
