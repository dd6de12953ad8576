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

from campaign.fabrics.adapters.redfish.resources import (
    BlockPart,
    ComputerSystem,
    ResourceBlock,
    ResourceZone,
    ServiceReading,
)
from campaign.fabrics.adapters.redfish.service import RedfishOptions
from campaign.fabrics.banks import Bank, build_unlimited_banks
from campaign.fabrics.control_plane.lease_tag import decode_tag, group_tags_by_lease
from campaign.fabrics.control_plane.protocol import FabricView, LeaseChange
from campaign.fabrics.protocol import Tag
from campaign.fabrics.state_file import FabricState
from campaign.spec.hardware import Device, DeviceState, Health

_LIMITED_BLOCK_TYPES = ("Processor", "Memory", "Storage", "Network", "Compute", "ComputerSystem", "Expansion")
_DEVICE_STATE_BY_COMPOSITION_STATE: dict[str | None, DeviceState] = {
    "Composing": "composing",
    "Failed": "failed",
    "Unavailable": "unavailable",
}
_ATTACHED_STATES = ("Composed", "ComposedAndAvailable")
_HEALTH_BY_SEVERITY: tuple[Health, ...] = ("ok", "warning", "critical")


@dataclass(frozen=True, slots=True)
class BlockUse:
    """Use of a resource block by one system.

    other_holders: further holders of the block, apart from systems that both ends confirm.
    """

    state: DeviceState
    host: str | None = None
    holder: str | None = None
    other_holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceView:
    """One reading of a Redfish service, interpreted for the hosts of one system file.

    hosts: block that is composed for each host. blocks: by fabric id of a device. leased_systems: by path of the system.
    """

    reading: ServiceReading
    hosts: Mapping[str, ResourceBlock]
    view: FabricView
    blocks: Mapping[str, ResourceBlock]
    leased_systems: Mapping[str, SystemOwner]

    def find_system(self, lease_id: str, host: str) -> ComputerSystem | None:
        """Return the system that a lease has composed for a host, or None if there is none."""
        lease_paths = (
            path
            for path, leased_system in self.leased_systems.items()
            if (leased_system.tag.lease_id, leased_system.host) == (lease_id, host)
        )
        return next((self.reading.systems[path] for path in lease_paths), None)

    def list_lease_hosts(self, lease_id: str) -> tuple[str, ...]:
        """Return all hosts for which a lease has a system, including those whose block the system does not list."""
        return tuple(
            leased_system.host
            for leased_system in self.leased_systems.values()
            if leased_system.tag.lease_id == lease_id
        )

    def find_shared_zones(self, blocks: Iterable[ResourceBlock]) -> tuple[ResourceZone, ...]:
        """Return the zones that contain all of these blocks."""
        zones_per_block = [self.reading.find_zones(block) for block in blocks]
        return tuple(
            zone for zone in self.reading.zones if all(zone.uri in zone_paths for zone_paths in zones_per_block)
        )


def build_service_view(
    reading: ServiceReading, hosts: Sequence[str], options: RedfishOptions, state: FabricState
) -> ServiceView:
    """Interpret a reading of a Redfish service for the hosts of a system file.

    Args:
        reading: blocks, systems and zones of the service.
        hosts: names of the hosts in the system file.
        options: options of the fabric.
        state: claims of this program's leases.
    """
    host_blocks = {host: block for host in hosts if (block := _find_host_block(reading, host, options)) is not None}
    parts = dict(_list_pooled_parts(reading, {block.uri for block in host_blocks.values()}))
    blocks = {name: block for name, (block, _) in parts.items()}
    leases_by_system = find_leased_systems(reading.systems, host_blocks, blocks, state)
    host_by_system = {
        system.uri: _find_host_name(system, host_blocks, leases_by_system) for system in reading.systems.values()
    }
    devices: list[Device] = []
    slots: dict[str, int] = {}
    for name, (block, part) in parts.items():
        zones = (zone.id for zone in reading.zones if zone.uri in reading.find_zones(block))
        drawer = "+".join(sorted(zones, key=_natural_sort_key)) or "pool"
        slots[drawer] = slots.get(drawer, 0) + 1
        location = f"{drawer}/slot{slots[drawer]}"
        devices += [
            _build_device(name, block, part, entry, location)
            for entry in _determine_uses(reading, block, host_by_system, leases_by_system)
        ]
    tags = group_tags_by_lease((entry.tag for entry in leases_by_system.values()), devices)
    holders, shared_hosts = _find_host_holders(reading, host_blocks, leases_by_system)
    return ServiceView(
        reading, host_blocks, FabricView(tuple(devices), holders, tags, shared_hosts), blocks, leases_by_system
    )


def _find_host_block(reading: ServiceReading, host: str, options: RedfishOptions) -> ResourceBlock | None:
    """Return the resource block of a host, or None if the service does not have it.

    A host without a block has no pooled devices.
    """
    blocks = _find_blocks_by_name(reading.blocks.values(), options.hosts.get(host, host))
    # A block that the options name as a host is a host of any type. A block without a type is a host if its name matches.
    return next((b for b in blocks if b.is_host or not b.types or host in options.hosts), None)


def _find_blocks_by_name(blocks: Iterable[ResourceBlock], name: str) -> list[ResourceBlock]:
    """Return the resource blocks with this Id, followed by those with this Name, which may occur twice."""
    block_list = list(blocks)
    return [block for block in block_list if block.id == name] + [block for block in block_list if block.name == name]


def _find_host_name(
    system: ComputerSystem, hosts: Mapping[str, ResourceBlock], leases_by_system: Mapping[str, SystemOwner]
) -> str:
    """Return the system file's host name for a Redfish system, or a description of the system if there is none."""
    host_name = next((host for host, block in hosts.items() if block.uri in system.blocks), None)
    if host_name is not None:
        return host_name
    return leases_by_system[system.uri].host if system.uri in leases_by_system else _describe_system(system)


def _describe_system(system: ComputerSystem) -> str:
    """Describe a Redfish system by its name or Id, for messages."""
    return f"system {system.name or system.id}"


def _natural_sort_key(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _list_pooled_parts(
    reading: ServiceReading, hosts: Collection[str]
) -> Iterator[tuple[str, tuple[ResourceBlock, BlockPart]]]:
    """Yield (fabric id, (block, part)) for each part of a block that is not a host.

    A block with two GPUs counts as two devices, which are attached and detached together.
    """
    for block in sorted(reading.blocks.values(), key=lambda block: _natural_sort_key(block.id)):
        if block.is_host or block.uri in hosts:
            continue
        parts = reading.parts.get(block.uri) or (BlockPart(block.kind, None, None, None, "ok"),)
        for number, part in enumerate(parts):
            yield block.id if len(parts) == 1 else f"{block.id}.{number}", (block, part)


def _build_device(name: str, block: ResourceBlock, part: BlockPart, use: BlockUse, location: str) -> Device:
    """Build a device of the fabric view from one part and one use of a block."""
    return Device(
        fabric_id=name,
        kind=part.kind,
        model=part.model or block.name or block.id,
        host_id=part.host_id,
        location=location,
        local=False,
        attached_to=use.host,
        holder=use.holder,
        state=use.state,
        health=max(block.health, part.health, key=_HEALTH_BY_SEVERITY.index),
        link=part.link,
        others=use.other_holders,
    )


def _determine_uses(
    reading: ServiceReading,
    block: ResourceBlock,
    host_by_system: Mapping[str, str],
    leases_by_system: Mapping[str, SystemOwner],
) -> Sequence[BlockUse]:
    """Return all uses of a resource block, one per system that contains it, with the uses by leases first.

    Args:
        reading: reading of the service.
        block: the block.
        host_by_system: name of the host by path of the system.
        leases_by_system: systems of leases, by path.
    """
    listing_systems, named_systems = reading.find_listing_systems(block), frozenset(block.systems)
    if not listing_systems and not named_systems:
        return [BlockUse(_determine_free_state(block))]
    system_paths = sorted(listing_systems, key=lambda path: (path not in leases_by_system, path))
    holders = [_find_holder(reading, path, leases_by_system) for path in system_paths]
    if listing_systems != named_systems:
        return [BlockUse("unknown", holder=next(iter(holders), None), other_holders=tuple(filter(None, holders[1:])))]
    if block.state not in _ATTACHED_STATES:
        return [BlockUse("composing" if block.state == "Composing" else "unknown", holder=holders[0])]
    unlisted_holders = ("a system that the service does not list",) * (block.composition_count > len(listing_systems))
    return [
        BlockUse("in_use", host_by_system[path], holder, unlisted_holders)
        for path, holder in zip(system_paths, holders, strict=True)
    ]


def _determine_free_state(block: ResourceBlock) -> DeviceState:
    """Return the state of a resource block that no system contains."""
    if block.state in (None, "Unused"):
        return "unavailable" if not block.is_enabled else "reserved" if block.is_reserved else "free"
    return _DEVICE_STATE_BY_COMPOSITION_STATE.get(block.state, "unknown")


def _find_holder(reading: ServiceReading, path: str, leases_by_system: Mapping[str, SystemOwner]) -> str | None:
    """Return the lease or system that holds the devices of the Redfish system at a path.

    The result is None for a physical system, which is a host with its own devices.
    """
    if path in leases_by_system:
        return leases_by_system[path].tag.lease_id
    system = reading.systems.get(path)
    if system is None:
        return f"system {path.rpartition('/')[2]}"
    return None if system.is_physical else _describe_system(system)


def _find_host_holders(
    reading: ServiceReading, hosts: Mapping[str, ResourceBlock], leases_by_system: Mapping[str, SystemOwner]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the holder of each held host, and further holders of hosts that have several.

    Hosts are held if they are composed, reserved or unavailable. This program reserves nothing, so a reservation is another
    client's.
    """
    holders: dict[str, str] = {}
    further_holders: dict[str, tuple[str, ...]] = {}
    for host, block in hosts.items():
        system_paths = reading.find_listing_systems(block) | frozenset(block.systems)
        sorted_paths = sorted(
            system_paths, key=lambda path: (path not in leases_by_system, path not in reading.systems, path)
        )
        names = [name for path in sorted_paths if (name := _find_holder(reading, path, leases_by_system)) is not None]
        state = _determine_free_state(block)
        if names:
            holders[host] = names[0]
        elif state == "reserved":
            holders[host] = "another client, which reserved it"
        elif state != "free":
            holders[host] = f"the fabric, which reports the state {block.state}"
        if names[1:]:
            further_holders[host] = tuple(names[1:])
    return holders, further_holders


def build_banks(service_view: ServiceView, view: FabricView) -> tuple[Bank, ...]:
    """Build one bank of slots per group of zones, with the hosts that share a zone with its devices."""
    zones_by_drawer = {
        device.location.rpartition("/slot")[0]: service_view.reading.find_zones(block)
        for device in view.devices
        if (block := service_view.blocks.get(device.fabric_id)) is not None
    }
    has_no_zones = not service_view.reading.zones
    return build_unlimited_banks(
        (device.location for device in view.devices),
        lambda drawer: tuple(
            host
            for host, block in service_view.hosts.items()
            if has_no_zones or service_view.reading.find_zones(block) & zones_by_drawer[drawer]
        ),
    )


def find_rule_violation(service_view: ServiceView, change: LeaseChange) -> str | None:
    """Return the rule of the Redfish service that a change breaks, or None if the change is allowed.

    Blocks must be used as a whole, all blocks of a system must share a zone, and the limits of that zone apply.
    """
    if service_view.reading.read_only:
        return f"read-only: {service_view.reading.read_only}"
    for host, names in change.hosts.items():
        blocks = {
            service_view.blocks[name].uri: service_view.blocks[name] for name in names if name in service_view.blocks
        }
        for block in blocks.values():
            part_ids = [name for name, other_block in service_view.blocks.items() if other_block.uri == block.uri]
            if not set(part_ids) <= set(names):
                return f"blocks: {', '.join(part_ids)} are one resource block and must be attached to one host together"
        host_block = service_view.hosts.get(host)
        if host_block is None:
            if blocks:
                return f"hosts: the service has no compute block for {host} (see `hosts`)"
            continue
        if service_view.reading.zones and blocks:
            all_blocks = (host_block, *blocks.values())
            zones = service_view.find_shared_zones(all_blocks)
            if not zones:
                return f"zones: {host} and {', '.join(names)} are not in a common resource zone"
            counts = {kind: sum(kind in block.types for block in all_blocks) for kind in _LIMITED_BLOCK_TYPES}
            rules = [_check_zone_limits(zone, counts) for zone in zones]
            if all(rules):
                return f"{host}: {rules[0]}"
    return None


def _check_zone_limits(zone: ResourceZone, counts: Mapping[str, int]) -> str | None:
    """Return the zone limit that these block counts (by type) violate, or None if they are allowed."""
    limits = dict(zone.limits)
    for kind, count in counts.items():
        if count > limits.get(f"Max{kind}", count):
            return (
                f"zone {zone.id} allows at most {limits[f'Max{kind}']} blocks of type {kind} in a system, not {count}"
            )
        if count < limits.get(f"Min{kind}", 0) and kind not in ("Compute", "ComputerSystem"):
            return f"zone {zone.id} requires at least {limits[f'Min{kind}']} blocks of type {kind} in a system, not {count}"
    return None


PENDING_HANDLE = "?"
"""Handle that is remembered in place of an address until the service answers."""
_SYSTEM_NAME = re.compile(r"composable-campaign lease=(\S+) host=(\S+)")


@dataclass(frozen=True, slots=True)
class SystemOwner:
    """Lease to which a composed system belongs.

    host: host that the system was composed for.
    """

    tag: Tag
    host: str


def build_system_name(lease_id: str, host: str) -> str:
    """Build the Name of the Redfish system that a lease composes for a host."""
    return f"composable-campaign lease={quote(lease_id, safe='-_.+')} host={quote(host, safe='-_.+')}"


def parse_system_name(name: str) -> tuple[str, str] | None:
    """Parse (lease id, host) from the Name of a Redfish system, or return None if this program did not give the name."""
    match = _SYSTEM_NAME.fullmatch(name.strip())
    return (unquote(match[1]), unquote(match[2])) if match else None


def build_handle_name(host: str) -> str:
    """Build the name of the handle that stores the address of a host's composed system."""
    return f"system:{host}"


def build_handle(path: str, system: ComputerSystem) -> str:
    """Build the handle that stores the path and identity of a composed system.

    The identity distinguishes it from a later system at the same path.
    """
    return f"{path}\t{_format_identity(system)}"


def _format_identity(system: ComputerSystem) -> str:
    """Return the type and UUID of a Redfish system as one text."""
    return f"{system.type or ''}/{system.uuid or ''}"


def get_handle_path(handle: str) -> str | None:
    """Return the path that the handle of a composed system stores, or None if it is not known yet."""
    path = handle.partition("\t")[0]
    return None if path in ("", PENDING_HANDLE) else path


def find_lease_by_name(system: ComputerSystem) -> SystemOwner | None:
    """Return the lease named in the Name or Id of a Redfish system, or None if there is none.

    Physical systems never belong to a lease, even if their name has one.
    """
    lease_and_host = parse_system_name(system.name) or parse_system_name(unquote(system.id))
    if lease_and_host is None or system.type not in (None, "Composed"):
        return None
    tag = decode_tag(system.description)
    if tag is None or tag.lease_id != lease_and_host[0]:
        tag = Tag(lease_and_host[0], "", "", 0.0, ())  # Campaign and owner are unknown.
    return SystemOwner(tag, lease_and_host[1])


def find_leased_systems(
    systems: Mapping[str, ComputerSystem],
    hosts: Mapping[str, ResourceBlock],
    blocks: Mapping[str, ResourceBlock],
    state: FabricState,
) -> dict[str, SystemOwner]:
    """Find the Redfish systems that leases of this program composed, by path.

    Args:
        systems: all systems of the service, by path.
        hosts: block of each host.
        blocks: block of each device, by fabric id.
        state: claims of this program's leases.
    """
    leases_by_system = {
        path: leased_system
        for path, system in systems.items()
        if (leased_system := find_lease_by_name(system)) is not None
    }
    tags = state.build_lease_tags()
    for lease_id, holding in state.leases.items():
        for held_host in holding.hosts:
            handle, host_block = holding.handles.get(build_handle_name(held_host.name), ""), hosts.get(held_host.name)
            if not handle or host_block is None:
                continue
            names = (name for name in (*held_host.devices, *held_host.storage) if name in blocks)
            block_paths = {host_block.uri, *(blocks[name].uri for name in names)}
            candidates = (system for system in systems.values() if system.uri not in leases_by_system)
            # If the answer was lost, the system is one with all requested blocks. Another client may have added blocks since.
            matching_systems = (
                candidate
                for candidate in candidates
                if (
                    block_paths <= set(candidate.blocks)
                    if handle == PENDING_HANDLE
                    else matches_handle(candidate, handle, block_paths)
                )
            )
            if (candidate := next(matching_systems, None)) is not None:
                leases_by_system[candidate.uri] = SystemOwner(tags[lease_id], held_host.name)
    return leases_by_system


def matches_handle(system: ComputerSystem, handle: str, block_paths: set[str]) -> bool:
    """Return True if a system has the path and identity that a handle stores.

    Services reuse addresses, so another client's system may be at the same path later.

    Args:
        system: system of the service.
        handle: remembered path and identity.
        block_paths: paths of the blocks that the lease claimed for the host.
    """
    path, _, identity = handle.partition("\t")
    has_same_identity = identity == _format_identity(system)
    return system.uri == path and has_same_identity and (not system.blocks or not block_paths.isdisjoint(system.blocks))
