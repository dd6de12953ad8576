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
from dataclasses import dataclass
from urllib.parse import quote, unquote

from campaign.fabrics.adapters.redfish.resources import Block, Part, ServiceReading, System, Zone
from campaign.fabrics.adapters.redfish.service import RedfishOptions
from campaign.fabrics.banks import Bank, open_banks
from campaign.fabrics.control_plane.lease_tag import by_lease, decode
from campaign.fabrics.control_plane.protocol import Change, View
from campaign.fabrics.protocol import Tag
from campaign.fabrics.state_file import State
from campaign.spec.hardware import Device, DeviceState, Health

_LIMITED = ("Processor", "Memory", "Storage", "Network", "Compute", "ComputerSystem", "Expansion")
_STATES: dict[str | None, DeviceState] = {
    "Composing": "composing",
    "Failed": "failed",
    "Unavailable": "unavailable",
}
_ATTACHED = ("Composed", "ComposedAndAvailable")
_WORSE: tuple[Health, ...] = ("ok", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Standing:
    """One use of a block. others: who has it too, and is no system that both ends name."""

    state: DeviceState
    host: str | None = None
    holder: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One reading, understood for the hosts of one system file.

    hosts: the block that is composed for each host; blocks: by fabric id of a device; leased: by address.
    """

    reading: ServiceReading
    hosts: Mapping[str, Block]
    view: View
    blocks: Mapping[str, Block]
    leased: Mapping[str, SystemOwner]

    def system_of(self, lease_id: str, host: str) -> System | None:
        """The system that a lease has composed for a host."""
        ours = (path for path, leased in self.leased.items() if (leased.tag.lease_id, leased.host) == (lease_id, host))
        return next((self.reading.systems[path] for path in ours), None)

    def hosts_of(self, lease_id: str) -> tuple[str, ...]:
        """Every host that a lease has a system for, also where the system itself says nothing of its block."""
        return tuple(leased.host for leased in self.leased.values() if leased.tag.lease_id == lease_id)

    def common(self, blocks: Iterable[Block]) -> tuple[Zone, ...]:
        """The zones that blocks share."""
        found = [self.reading.zones_of(block) for block in blocks]
        return tuple(zone for zone in self.reading.zones if all(zone.uri in one for one in found))


def service_view(reading: ServiceReading, hosts: Sequence[str], options: RedfishOptions, state: State) -> ServiceView:
    """state: what this program's leases have claimed."""
    found = {host: block for host in hosts if (block := _host_block(reading, host, options)) is not None}
    parts = dict(_pooled_parts(reading, {block.uri for block in found.values()}))
    blocks = {name: block for name, (block, _) in parts.items()}
    leased = leased_systems(reading.systems, found, blocks, state)
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


def _host_block(reading: ServiceReading, host: str, options: RedfishOptions) -> Block | None:
    """None for a host that the service does not know: it has no pooled devices."""
    blocks = _by_name(reading.blocks.values(), options.hosts.get(host, host))
    # A site that names a block as a host knows better than its type; one without a type is a host by its name alone.
    return next((b for b in blocks if b.is_host or not b.types or host in options.hosts), None)


def _by_name(blocks: Iterable[Block], wanted: str) -> list[Block]:
    """What has the wanted Id, then what has it as its Name, which may be there twice."""
    listing = list(blocks)
    return [one for one in listing if one.id == wanted] + [one for one in listing if one.name == wanted]


def _host_of(system: System, hosts: Mapping[str, Block], leased: Mapping[str, SystemOwner]) -> str:
    """The host that a system is, as the system file names it; else as the service does."""
    found = next((host for host, block in hosts.items() if block.uri in system.blocks), None)
    if found is not None:
        return found
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
    )


def _standings(
    reading: ServiceReading, block: Block, whose: Mapping[str, str], leased: Mapping[str, SystemOwner]
) -> Sequence[Standing]:
    """How a block is used, from both ends: one for each system that has it, those of leases first."""
    listing, named = reading.listing(block), frozenset(block.systems)
    if not listing and not named:
        return [Standing(_unattached(block))]
    ordered = sorted(listing, key=lambda path: (path not in leased, path))
    holders = [_holder(reading, path, leased) for path in ordered]
    if listing != named:
        return [Standing("unknown", holder=next(iter(holders), None), others=tuple(filter(None, holders[1:])))]
    if block.state not in _ATTACHED:
        return [Standing("composing" if block.state == "Composing" else "unknown", holder=holders[0])]
    unlisted = ("somebody that the service does not list",) * (block.compositions > len(listing))
    return [Standing("in_use", whose[path], holder, unlisted) for path, holder in zip(ordered, holders, strict=True)]


def _unattached(block: Block) -> DeviceState:
    if block.state in (None, "Unused"):
        return "unavailable" if not block.enabled else "reserved" if block.reserved else "free"
    return _STATES.get(block.state, "unknown")


def _holder(reading: ServiceReading, path: str, leased: Mapping[str, SystemOwner]) -> str | None:
    """Whoever holds what a system has; nobody in particular for a physical one, which is a host with what is attached to it."""
    if path in leased:
        return leased[path].tag.lease_id
    system = reading.systems.get(path)
    if system is None:
        return f"system {path.rpartition('/')[2]}"
    return None if system.physical else _called(system)


def _host_holders(
    reading: ServiceReading, hosts: Mapping[str, Block], leased: Mapping[str, SystemOwner]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Who holds hosts that are composed already, or kept by somebody; and who holds them beside those.

    This program reserves nothing: a mark is somebody else's.
    """
    holders: dict[str, str] = {}
    shared: dict[str, tuple[str, ...]] = {}
    for host, block in hosts.items():
        ends = reading.listing(block) | frozenset(block.systems)
        ordered = sorted(ends, key=lambda path: (path not in leased, path not in reading.systems, path))
        names = [name for path in ordered if (name := _holder(reading, path, leased)) is not None]
        state = _unattached(block)
        if names:
            holders[host] = names[0]
        elif state == "reserved":
            holders[host] = "another client that reserved it"
        elif state != "free":
            holders[host] = f"the fabric, which says that it is {block.state}"
        if names[1:]:
            shared[host] = tuple(names[1:])
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
        lambda drawer: tuple(
            host for host, block in seen.hosts.items() if everywhere or seen.reading.zones_of(block) & reach[drawer]
        ),
    )


def objection(seen: ServiceView, change: Change) -> str | None:
    """The rule that a change breaks: whole blocks, one zone for everything in a system, the limits of that zone."""
    if seen.reading.read_only:
        return f"read only: {seen.reading.read_only}"
    for host, names in change.hosts.items():
        blocks = {seen.blocks[name].uri: seen.blocks[name] for name in names if name in seen.blocks}
        for block in blocks.values():
            parts = [name for name, other in seen.blocks.items() if other.uri == block.uri]
            if not set(parts) <= set(names):
                return f"blocks: {', '.join(parts)} are one resource block and go to one host together"
        own = seen.hosts.get(host)
        if own is None:
            if blocks:
                return f"hosts: {host} is no compute block of the service (see `hosts`)"
            continue
        if seen.reading.zones and blocks:
            together = (own, *blocks.values())
            zones = seen.common(together)
            if not zones:
                return f"zones: {host} and {', '.join(names)} share no resource zone"
            counts = {kind: sum(kind in block.types for block in together) for kind in _LIMITED}
            rules = [_exceeded(zone, counts) for zone in zones]
            if all(rules):
                return f"{host}: {rules[0]}"
    return None


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
class SystemOwner:
    """The owner of a composed system. host: the host that it was composed for."""

    tag: Tag
    host: str


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


def named(system: System) -> SystemOwner | None:
    """The lease that Name or Id say. Physical systems are nobody's, whatever they say."""
    found = read_name(system.name) or read_name(unquote(system.id))
    if found is None or system.type not in (None, "Composed"):
        return None
    tag = decode(system.description)
    if tag is None or tag.lease_id != found[0]:
        tag = Tag(found[0], "", "", 0.0, ())  # campaign and owner are unknown
    return SystemOwner(tag, found[1])


def leased_systems(
    systems: Mapping[str, System],
    hosts: Mapping[str, Block],
    blocks: Mapping[str, Block],
    state: State,
) -> dict[str, SystemOwner]:
    """Leased systems by address. hosts: their blocks; blocks: of each device, by fabric id."""
    found = {path: leased for path, system in systems.items() if (leased := named(system)) is not None}
    tags = state.tags()
    for lease_id, holding in state.leases.items():
        for held in holding.hosts:
            handle, own = holding.handles.get(handle_of(held.name), ""), hosts.get(held.name)
            if not handle or own is None:
                continue
            names = (name for name in (*held.devices, *held.storage) if name in blocks)
            wanted = {own.uri, *(blocks[name].uri for name in names)}
            candidates = (system for system in systems.values() if system.uri not in found)
            # Where the answer was lost, it is one of everything that was asked for; somebody may have added to it since.
            fitting = (
                one
                for one in candidates
                if (wanted <= set(one.blocks) if handle == ASKED else is_at(one, handle, wanted))
            )
            if (one := next(fitting, None)) is not None:
                found[one.uri] = SystemOwner(tags[lease_id], held.name)
    return found


def is_at(system: System, handle: str, wanted: set[str]) -> bool:
    """Whether it is the system that was remembered, not one that somebody else composed there later: addresses are given anew."""
    path, _, identity = handle.partition("\t")
    same = identity == _identity(system)
    return system.uri == path and same and (not system.blocks or not wanted.isdisjoint(system.blocks))
