"""From what a service says to what campaigns need: which block is which host, who holds what, which host reaches what. Pure.

A device is in use when three things agree: the system lists the block, the block lists the system, and the state is Composed. Where
they do not, it is `unknown`.

Which systems are our leases', is told by the address that the service answered, by their blocks, or by name. The address is the
evidence: services rename what they are asked to name, or cut it. Where the answer was lost, a system of the blocks that were asked
for is ours. Names tell where nothing was remembered, such as when the state file was lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote, unquote

from campaign.fabrics.adapters.redfish.resources import CONSTRAINED, SPECIFIC, Block, Part, ServiceReading, System, Zone
from campaign.fabrics.adapters.redfish.service import RedfishOptions
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.lease_tag import by_lease, decode
from campaign.fabrics.control_plane.protocol import Change, View
from campaign.fabrics.hardware import Device, DeviceState, Health
from campaign.fabrics.protocol import Tag
from campaign.fabrics.state_file import State

_LIMITED = ("Processor", "Memory", "Storage", "Network", "Compute", "ComputerSystem", "Expansion")
_STATES: dict[str | None, DeviceState] = {
    "Composing": "composing",
    "Failed": "failed",
    "Unavailable": "unavailable",
}
_ATTACHED = ("Composed", "ComposedAndAvailable")
READ_ONLY = "the service shows its blocks and composes nothing (it has no CompositionService)"
_WORSE: tuple[Health, ...] = ("ok", "warning", "critical")
_Named = TypeVar("_Named", Block, System)


@dataclass(frozen=True, slots=True)
class Standing:
    """One use of a block. others: who has it too, and is no system that both ends name."""

    state: DeviceState
    host: str | None = None
    holder: str | None = None
    others: tuple[str, ...] = ()
    shareable: bool = False


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One reading, understood for the hosts and models of one system file. blocks: by fabric id of a device; leased: by address."""

    reading: ServiceReading
    seats: Mapping[str, Seat]
    view: View
    blocks: Mapping[str, Block]
    leased: Mapping[str, Leased]

    def system_of(self, lease_id: str, host: str) -> System | None:
        """The system that a lease has composed for a host."""
        ours = (path for path, leased in self.leased.items() if (leased.tag.lease_id, leased.host) == (lease_id, host))
        return next((self.reading.systems[path] for path in ours), None)

    def hosts_of(self, lease_id: str) -> tuple[str, ...]:
        """Every host that a lease has a system for, also where the system itself says nothing of its block."""
        return tuple(leased.host for leased in self.leased.values() if leased.tag.lease_id == lease_id)

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
        return _constrained(self.reading)


def _constrained(reading: ServiceReading) -> bool:
    cases = {case for zone in reading.zones for case in zone.cases}
    return CONSTRAINED in cases and SPECIFIC not in cases


def service_view(reading: ServiceReading, hosts: Sequence[str], options: RedfishOptions, state: State) -> ServiceView:
    """state: what this program's leases have claimed."""
    found = {host: seat for host in hosts if (seat := _seat(reading, host, options)) is not None}
    parts = dict(_pooled_parts(reading, {seat.block.uri for seat in found.values() if seat.block is not None}))
    blocks = {name: block for name, (block, _) in parts.items()}
    leased = leased_systems(reading.systems, found, blocks, state, constrained=_constrained(reading))
    whose = {system.uri: _host_of(system, found, leased) for system in reading.systems.values()}
    devices: list[Device] = []
    slots: dict[str, int] = {}
    for name, (block, part) in parts.items():
        zones = (zone.id for zone in reading.zones if zone.uri in reading.zones_of(block))
        drawer = "+".join(sorted(zones, key=_natural)) or "pool"
        slots[drawer] = slots.get(drawer, 0) + 1
        location = f"{drawer}/slot{slots[drawer]}"
        devices += [_device(name, block, part, one, location) for one in _standings(reading, block, whose, leased)]
    tags = by_lease((one.tag for one in leased.values()), devices)
    holders, shared = _host_holders(reading, found, leased)
    return ServiceView(reading, found, View(tuple(devices), holders, tags, shared), blocks, leased)


def _seat(reading: ServiceReading, host: str, options: RedfishOptions) -> Seat | None:
    """None for a host that the service does not know: it has no pooled devices."""
    wanted = options.hosts.get(host, host)
    # A site that names a block as a host knows better than its type; one without a type is a host by its name alone.
    blocks = _by_name(reading.blocks.values(), wanted)
    block = next((b for b in blocks if b.is_host or not b.types or host in options.hosts), None)
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
    """What has the wanted Id, then what has it as its Name, which may be there twice."""
    listing = list(things)
    return [one for one in listing if one.id == wanted] + [one for one in listing if one.name == wanted]


def _host_of(system: System, seats: Mapping[str, Seat], leased: Mapping[str, Leased]) -> str:
    """The host that a system is, as the system file names it; else as the service does."""
    for seat in seats.values():
        if seat.system is not None and seat.system.uri == system.uri:
            return seat.host
        if seat.system is None and seat.block is not None and seat.block.uri in (system.blocks or ()):
            return seat.host
    return leased[system.uri].host if system.uri in leased else _called(system)


def _called(system: System) -> str:
    return f"system {system.name or system.id}"


def _natural(text: str) -> list[tuple[int, str]]:
    """gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _pooled_parts(reading: ServiceReading, hosts: Collection[str]) -> Iterator[tuple[str, tuple[Block, Part]]]:
    """Devices by fabric id: one for each part of a block; a block of two GPUs is two devices, which come and go together."""
    for block in sorted(reading.blocks.values(), key=lambda block: _natural(block.id)):
        if block.is_host or block.uri in hosts:
            continue
        parts = reading.parts.get(block.uri) or (Part(block.kind, None, None, None, "ok"),)
        for number, part in enumerate(parts):
            yield block.id if len(parts) == 1 else f"{block.id}.{number}", (block, part)


def _device(name: str, block: Block, part: Part, standing: Standing, location: str) -> Device:
    return Device(
        fabric_id=name,
        kind=part.kind,
        model=part.model or block.name or block.id,
        host_id=part.host_id,
        location=location,
        local=False,
        attached_to=standing.host,
        holder=standing.holder,
        state=standing.state,
        health=max(block.health, part.health, key=_WORSE.index),
        link=part.link,
        others=standing.others,
        shareable=standing.shareable,
    )


def _standings(
    reading: ServiceReading, block: Block, whose: Mapping[str, str], leased: Mapping[str, Leased]
) -> Sequence[Standing]:
    """How a block is used, from both ends: one for each system that has it, those of leases first."""
    listing, named = reading.listing(block), frozenset(block.systems)
    count = max(len(listing | named), block.compositions or 0)
    if not listing and not named:
        return [Standing(_unattached(block))]
    ordered = sorted(listing, key=lambda path: (path not in leased, path))
    holders = [_holder(reading, path, leased) for path in ordered]
    if listing != named:
        return [Standing("unknown", holder=next(iter(holders), None), others=tuple(filter(None, holders[1:])))]
    if not leased.keys() & listing and block.limit > count:
        return [Standing(_unattached(replace(block, state="Unused")))]  # shared, with room for one more
    if block.state not in _ATTACHED:
        return [Standing("composing" if block.state == "Composing" else "unknown", holder=holders[0])]
    unlisted = ("somebody that the service does not list",) * (count > len(listing))
    shareable = 1 < block.limit >= count
    return [
        Standing("in_use", whose[path], holder, unlisted, shareable)
        for path, holder in zip(ordered, holders, strict=True)
    ]


def _unattached(block: Block) -> DeviceState:
    if block.state in (None, "Unused"):
        return "unavailable" if not block.enabled else "reserved" if block.reserved else "free"
    return _STATES.get(block.state, "unknown")


def _holder(reading: ServiceReading, path: str, leased: Mapping[str, Leased]) -> str | None:
    """Whoever holds what a system has; nobody in particular for a physical one, which is a host with what is attached to it."""
    if path in leased:
        return leased[path].tag.lease_id
    system = reading.systems.get(path)
    if system is None:
        return f"system {path.rpartition('/')[2]}"
    return None if system.expandable else _called(system)


def _host_holders(
    reading: ServiceReading, seats: Mapping[str, Seat], leased: Mapping[str, Leased]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Who holds hosts that are composed already, or kept by somebody; and who holds them beside those.

    This program reserves no host: a mark on one is somebody else's.
    """
    holders: dict[str, str] = {}
    shared: dict[str, tuple[str, ...]] = {}
    for seat in seats.values():
        if seat.block is None or seat.system is not None:
            continue
        ends = reading.listing(seat.block) | frozenset(seat.block.systems)
        ordered = sorted(ends, key=lambda path: (path not in leased, path not in reading.systems, path))
        names = [name for path in ordered if (name := _holder(reading, path, leased)) is not None]
        state = _unattached(seat.block)
        if names:
            holders[seat.host] = names[0]
        elif state == "reserved":
            holders[seat.host] = "another client that reserved it"
        elif state != "free":
            holders[seat.host] = f"the fabric, which says that it is {seat.block.state}"
        if names[1:]:
            shared[seat.host] = tuple(names[1:])
    return holders, shared


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
        return f"read only: {READ_ONLY}"
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


ASKED = "?"
"""What is remembered in place of an address while nobody has answered."""
_NAME = re.compile(r"composable-campaign lease=(\S+) host=(\S+)")


@dataclass(frozen=True, slots=True)
class Leased:
    """Whose a system is. host: the one that it was composed for."""

    tag: Tag
    host: str


@dataclass(frozen=True, slots=True)
class Seat:
    """What a host is on the fabric: the block that is composed for it, or the physical system that is expanded."""

    host: str
    block: Block | None
    system: System | None = None


def name_of(lease_id: str, host: str) -> str:
    """The Name of the system that a lease composes for a host."""
    return f"composable-campaign lease={quote(lease_id, safe='-_.+')} host={quote(host, safe='-_.+')}"


def read_name(name: str) -> tuple[str, str] | None:
    """(lease id, host) of such a Name; None for any other."""
    found = _NAME.fullmatch(name.strip())
    return (unquote(found[1]), unquote(found[2])) if found else None


def handle_of(host: str) -> str:
    """What the address of a host's system is remembered as."""
    return f"system:{host}"


def made(path: str, system: System) -> str:
    """What is remembered of a system that was composed: its address, and what tells it from a later one at this address."""
    return f"{path}\t{_identity(system)}"


def _identity(system: System) -> str:
    return f"{system.type or ''}/{system.uuid or ''}"


def address_of(handle: str) -> str | None:
    """The address in what is remembered; None while it is not known."""
    path = handle.partition("\t")[0]
    return None if path in ("", ASKED) else path


def named(system: System) -> Leased | None:
    """The lease that Name or Id say. Physical systems are nobody's, whatever they say."""
    found = read_name(system.name) or read_name(unquote(system.id))
    if found is None or system.type not in (None, "Composed"):
        return None
    tag = decode(system.description)
    if tag is None or tag.lease_id != found[0]:
        tag = Tag(found[0], "", "", 0.0, ())  # campaign and owner are unknown
    return Leased(tag, found[1])


def leased_systems(
    systems: Mapping[str, System],
    seats: Mapping[str, Seat],
    blocks: Mapping[str, Block],
    state: State,
    *,
    constrained: bool,
) -> dict[str, Leased]:
    """Leased systems by address. blocks: of each device, by fabric id; constrained: the service chose the devices."""
    found = {path: leased for path, system in systems.items() if (leased := named(system)) is not None}
    tags = state.tags()
    for lease_id, holding in state.leases.items():
        for held in holding.hosts:
            handle, seat = holding.handles.get(handle_of(held.name), ""), seats.get(held.name)
            if not handle or seat is None or seat.block is None or seat.system is not None:
                continue
            names = (name for name in (*held.devices, *held.storage) if name in blocks)
            wanted = {seat.block.uri, *(blocks[name].uri for name in names)}
            candidates = (system for system in systems.values() if system.uri not in found)
            if handle == ASKED:
                fitting = (
                    one for one in candidates if _is_made_of(one, seat.block.uri, wanted, constrained=constrained)
                )
            else:
                fitting = (one for one in candidates if is_at(one, handle, wanted))
            if (one := next(fitting, None)) is not None:
                found[one.uri] = Leased(tags[lease_id], held.name)
    return found


def is_at(system: System, handle: str, wanted: set[str]) -> bool:
    """Whether it is the system that was remembered, not one that somebody else composed there later: addresses are given anew."""
    path, _, identity = handle.partition("\t")
    same = not identity or identity == _identity(system)
    return system.uri == path and same and (not system.blocks or not wanted.isdisjoint(system.blocks))


def _is_made_of(system: System, host: str, wanted: set[str], *, constrained: bool) -> bool:
    """Whether it has everything that was asked for; somebody may have added to it since."""
    blocks = set(system.blocks or ())
    return wanted <= blocks or (constrained and host in blocks and len(blocks) >= len(wanted))
