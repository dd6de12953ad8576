"""Derivation of hosts, holders and reachable devices from a reading of a Redfish service. Pure.

A device is in use when three things agree: the system lists the block, the block lists the system, and the state is Composed. If
they disagree, the device is `unknown`.

A system is a lease's by the address that the service answered, by its blocks, or by its name. The address is the evidence,
because services change or truncate the names that they receive. If the answer was lost, a system of the requested blocks is the
lease's. Names decide if nothing was remembered, for example if the state file was lost.
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
    """Use of a resource block by one system.

    other_holders: further holders of the block, other than systems that both ends name.
    """

    state: DeviceState
    host: str | None = None
    holder: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One reading of a Redfish service, interpreted for the hosts of one system file.

    hosts: block that is composed for each host. blocks: by fabric id of a device. leased_systems: by path of the system.
    """

    reading: ServiceReading
    hosts: Mapping[str, Block]
    view: View
    blocks: Mapping[str, Block]
    leased: Mapping[str, SystemOwner]

    def system_of(self, lease_id: str, host: str) -> System | None:
        """Return the system that a lease has composed for a host, or None if there is none."""
        ours = (path for path, leased in self.leased.items() if (leased.tag.lease_id, leased.host) == (lease_id, host))
        return next((self.reading.systems[path] for path in ours), None)

    def hosts_of(self, lease_id: str) -> tuple[str, ...]:
        """Return all hosts for which a lease has a system, even if the system does not list the host's block."""
        return tuple(leased.host for leased in self.leased.values() if leased.tag.lease_id == lease_id)

    def common(self, blocks: Iterable[Block]) -> tuple[Zone, ...]:
        """Return the zones that contain all of these blocks."""
        found = [self.reading.zones_of(block) for block in blocks]
        return tuple(zone for zone in self.reading.zones if all(zone.uri in one for one in found))


def service_view(reading: ServiceReading, hosts: Sequence[str], options: RedfishOptions, state: State) -> ServiceView:
    """Interpret a reading of a Redfish service for the hosts of a system file.

    Args:
        reading: blocks, systems and zones of the service.
        hosts: names of the hosts in the system file.
        options: options of the fabric.
        state: claims of this program's leases.
    """
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
    """Return the resource block of a host, or None if the service does not have it.

    A host without a block has no pooled devices.
    """
    blocks = _by_name(reading.blocks.values(), options.hosts.get(host, host))
    # A block that the options name as a host is one whatever its type. A block without a type is a host by its name alone.
    return next((b for b in blocks if b.is_host or not b.types or host in options.hosts), None)


def _by_name(blocks: Iterable[Block], wanted: str) -> list[Block]:
    """Return the resource blocks with this Id, followed by those with this Name, which may occur twice."""
    listing = list(blocks)
    return [one for one in listing if one.id == wanted] + [one for one in listing if one.name == wanted]


def _host_of(system: System, hosts: Mapping[str, Block], leased: Mapping[str, SystemOwner]) -> str:
    """Return the system file's name of the host that a Redfish system is, or a description of the system if it has none."""
    found = next((host for host, block in hosts.items() if block.uri in system.blocks), None)
    if found is not None:
        return found
    return leased[system.uri].host if system.uri in leased else _called(system)


def _called(system: System) -> str:
    """Describe a Redfish system by its name or Id, for messages."""
    return f"system {system.name or system.id}"


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _pooled_parts(reading: ServiceReading, hosts: Collection[str]) -> Iterator[tuple[str, tuple[Block, Part]]]:
    """Yield (fabric id, (block, part)) for each part of a block that is not a host.

    A block of two GPUs is two devices, which are attached and detached together.
    """
    for block in sorted(reading.blocks.values(), key=lambda block: _natural(block.id)):
        if block.is_host or block.uri in hosts:
            continue
        parts = reading.parts.get(block.uri) or (Part(block.kind, None, None, None, "ok"),)
        for number, part in enumerate(parts):
            yield block.id if len(parts) == 1 else f"{block.id}.{number}", (block, part)


def _device(name: str, block: Block, part: Part, standing: Standing, location: str) -> Device:
    """Build the device of a view from a part of a block and one use of the block."""
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
    """Return all uses of a resource block, one per system that has it, those by leases first.

    Args:
        reading: reading of the service.
        block: the block.
        host_by_system: name of the host by path of the system.
        leases_by_system: systems of leases, by path.
    """
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
    """Return the state of a resource block that no system has."""
    if block.state in (None, "Unused"):
        return "unavailable" if not block.enabled else "reserved" if block.reserved else "free"
    return _STATES.get(block.state, "unknown")


def _holder(reading: ServiceReading, path: str, leased: Mapping[str, SystemOwner]) -> str | None:
    """Return the lease or system that holds the devices of the Redfish system at a path.

    The result is None for a physical system, which is a host with its own devices.
    """
    if path in leased:
        return leased[path].tag.lease_id
    system = reading.systems.get(path)
    if system is None:
        return f"system {path.rpartition('/')[2]}"
    return None if system.physical else _called(system)


def _host_holders(
    reading: ServiceReading, hosts: Mapping[str, Block], leased: Mapping[str, SystemOwner]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the holder of each held host, and further holders of hosts that have several.

    Hosts are held if they are composed, reserved or unavailable. This program reserves nothing, so a reservation is another
    client's.
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
    """Build one bank of slots per group of zones, with the hosts that share a zone with its devices."""
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
    """Return the rule of the Redfish service that a change breaks, or None if the change is allowed.

    Blocks must be used as a whole, all blocks of a system must share a zone, and the limits of that zone apply.
    """
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
    """Return the limit of a zone that these numbers of blocks by type break, or None if they are allowed."""
    limits = dict(zone.limits)
    for kind, count in counts.items():
        if count > limits.get(f"Max{kind}", count):
            return f"zone {zone.id} allows {limits[f'Max{kind}']} blocks of type {kind} in a system, not {count}"
        if count < limits.get(f"Min{kind}", 0) and kind not in ("Compute", "ComputerSystem"):
            return f"zone {zone.id} wants {limits[f'Min{kind}']} blocks of type {kind} in a system, not {count}"
    return None


ASKED = "?"
"""Handle that is remembered in place of an address until the service answers."""
_NAME = re.compile(r"composable-campaign lease=(\S+) host=(\S+)")


@dataclass(frozen=True, slots=True)
class SystemOwner:
    """Lease to which a composed system belongs.

    host: host that the system was composed for.
    """

    tag: Tag
    host: str


def name_of(lease_id: str, host: str) -> str:
    """Build the Name of the Redfish system that a lease composes for a host."""
    return f"composable-campaign lease={quote(lease_id, safe='-_.+')} host={quote(host, safe='-_.+')}"


def read_name(name: str) -> tuple[str, str] | None:
    """Parse (lease id, host) from the Name of a Redfish system, or return None if this program did not give the name."""
    found = _NAME.fullmatch(name.strip())
    return (unquote(found[1]), unquote(found[2])) if found else None


def handle_of(host: str) -> str:
    """Build the name of the handle that stores the address of a host's composed system."""
    return f"system:{host}"


def made(path: str, system: System) -> str:
    """Build the handle that stores the path and identity of a composed system.

    The identity distinguishes it from a later system at the same path.
    """
    return f"{path}\t{_identity(system)}"


def _identity(system: System) -> str:
    """Return the type and UUID of a Redfish system as one text."""
    return f"{system.type or ''}/{system.uuid or ''}"


def address_of(handle: str) -> str | None:
    """Return the path that the handle of a composed system stores, or None if it is not known yet."""
    path = handle.partition("\t")[0]
    return None if path in ("", ASKED) else path


def named(system: System) -> SystemOwner | None:
    """Return the lease in the Name or Id of a Redfish system, or None if there is none.

    Physical systems never belong to a lease, even if their name has one.
    """
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
    """Find the Redfish systems that leases of this program composed, by path.

    Args:
        systems: all systems of the service, by path.
        hosts: block of each host.
        blocks: block of each device, by fabric id.
        state: claims of this program's leases.
    """
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
            # If the answer was lost, the system is one with all requested blocks. Another client may have added blocks since.
            fitting = (
                one
                for one in candidates
                if (wanted <= set(one.blocks) if handle == ASKED else is_at(one, handle, wanted))
            )
            if (one := next(fitting, None)) is not None:
                found[one.uri] = SystemOwner(tags[lease_id], held.name)
    return found


def is_at(system: System, handle: str, wanted: set[str]) -> bool:
    """Return True if a system has the path and identity that a handle stores.

    Services reuse addresses, so another client's system may be at the same path later.

    Args:
        system: system of the service.
        handle: remembered path and identity.
        block_paths: paths of the blocks that the lease claimed for the host.
    """
    path, _, identity = handle.partition("\t")
    same = identity == _identity(system)
    return system.uri == path and same and (not system.blocks or not wanted.isdisjoint(system.blocks))
