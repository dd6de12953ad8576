"""Parsing of resource blocks, zones, systems and their parts from any Redfish service. Pure, except for `ServiceReader`.

Sources: the schemas ResourceBlock, Zone, ComputerSystem, Processor, Drive, EthernetInterface; DSP2050 (composability).
Deviations that were seen in services are accepted: `Reserved` as text, ResourceBlockType as one word or missing, unknown types,
no CompositionStatus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.redfish.answers import get_reference_path, get_reference_paths
from campaign.fabrics.adapters.redfish.service import RedfishService
from campaign.fabrics.http.response import Json, get_mapping, get_mappings, get_nested, get_text
from campaign.spec.hardware import NETWORK_KIND, STORAGE_KIND, Health, Link

SPECIFIC_COMPOSITION = "ComputerSystemComposition"
CONSTRAINED_COMPOSITION = "ComputerSystemConstrainedComposition"
NO_COMPOSITION_SERVICE = "the service lists its blocks but cannot compose systems (it has no CompositionService)"
ONLY_CONSTRAINED_COMPOSITION = (
    f"the service chooses devices by constraints ({CONSTRAINED_COMPOSITION}) and does not support "
    f"requests for specific devices ({SPECIFIC_COMPOSITION})"
)
HOST_BLOCK_TYPES = {"Compute", "ComputerSystem"}
_KIND_BY_PART_PROPERTY = (
    ("Processors", "gpu"),
    ("Drives", STORAGE_KIND),
    ("Storage", STORAGE_KIND),
    ("SimpleStorage", STORAGE_KIND),
    ("NetworkInterfaces", NETWORK_KIND),
    ("EthernetInterfaces", NETWORK_KIND),
    ("Memory", "memory"),
)
_KIND_BY_BLOCK_TYPE = {"Processor": "gpu", "Storage": STORAGE_KIND, "Network": NETWORK_KIND}


@dataclass(frozen=True, slots=True)
class ResourceBlock:
    """Resource block of a Redfish service.

    parts: (kind, reference or complete resource). composition_count: number of systems that contain the block.
    """

    uri: str
    id: str
    name: str
    types: tuple[str, ...]
    state: str | None
    is_reserved: bool
    is_enabled: bool
    health: Health
    systems: tuple[str, ...]
    zones: tuple[str, ...]
    parts: tuple[tuple[str, Json], ...]
    own_systems: tuple[str, ...] = ()
    composition_count: int = 0

    @property
    def is_host(self) -> bool:
        """True if this is the compute block of a host."""
        return bool(HOST_BLOCK_TYPES & set(self.types)) or (not self.types and bool(self.own_systems))

    @property
    def kind(self) -> str:
        """Kind derived from the type of the block, for blocks whose parts do not show it."""
        return next((_KIND_BY_BLOCK_TYPE.get(block_type, block_type.lower()) for block_type in self.types), "block")


@dataclass(frozen=True, slots=True)
class ComputerSystem:
    """Computer system of a Redfish service.

    blocks: addresses of the blocks that the system lists. reset_path: address of its reset action.
    """

    uri: str
    id: str
    name: str
    description: str
    type: str | None
    blocks: tuple[str, ...]
    power_state: str | None
    reset_path: str | None = None
    uuid: str | None = None

    @property
    def is_physical(self) -> bool:
        """True if the system is physical rather than composed."""
        return self.type == "Physical"


@dataclass(frozen=True, slots=True)
class ResourceZone:
    """Resource zone of a Redfish service.

    limits: minimum and maximum number of blocks in one system, such as `MaxProcessor`. use_cases: kinds of requests that it
    accepts. capability_paths: addresses of objects with further details.
    """

    uri: str
    id: str
    name: str
    blocks: tuple[str, ...]
    use_cases: tuple[str, ...] = ()
    capability_paths: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BlockPart:
    """Part of a resource block that becomes one device, such as a GPU, drive or network interface."""

    kind: str
    model: str | None
    host_id: str | None
    link: Link | None
    health: Health


def is_true(value: Any) -> bool:
    """Convert a JSON value to a boolean. The text "true" counts as true, any other text as false."""
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def parse_block(body: Json) -> ResourceBlock:
    """Parse a resource block from the JSON object of a Redfish service."""
    links, status, composition = (get_mapping(body, name) for name in ("Links", "Status", "CompositionStatus"))
    types = body.get("ResourceBlockType")
    composition_count = composition.get("NumberOfCompositions")
    return ResourceBlock(
        *_parse_identity(body),
        types=tuple(map(str, types)) if isinstance(types, list) else ((str(types),) if types else ()),
        state=get_text(composition, "CompositionState"),
        is_reserved=is_true(composition.get("Reserved")),
        is_enabled=status.get("State") in (None, "Enabled", "StandbyOffline", "StandbySpare", "Deferring", "Updating"),
        health=parse_health(status),
        systems=parse_paths(links.get("ComputerSystems")),
        zones=parse_paths(links.get("Zones")),
        parts=_find_parts(body),
        own_systems=parse_paths(body.get("ComputerSystems")),
        composition_count=composition_count if isinstance(composition_count, int) else 0,
    )


def _parse_identity(body: Json) -> tuple[str, str, str]:
    """Return (address, Id, Name) of a Redfish resource. A trailing slash of the address is removed."""
    path = (get_reference_path(body) or "").rstrip("/")
    return path, str(body.get("Id") or path.rpartition("/")[2]), get_text(body, "Name") or ""


def _find_parts(body: Json) -> tuple[tuple[str, Json], ...]:
    """Return the parts of a resource block, from the first property that has any.

    A network card is listed as two kinds of interface, and a drive also in its controller.
    """
    for name, kind in _KIND_BY_PART_PROPERTY:
        if resources := get_mappings(body, name) or get_mappings(body, name, "Members"):
            return tuple((kind, resource) for resource in resources)
    return ()


def parse_system(body: Json) -> ComputerSystem:
    """Parse a computer system from the JSON object of a Redfish service."""
    links, actions = get_mapping(body, "Links"), get_mapping(body, "Actions")
    return ComputerSystem(
        *_parse_identity(body),
        description=get_text(body, "Description") or "",
        type=get_text(body, "SystemType"),
        blocks=parse_paths(links.get("ResourceBlocks")),
        power_state=get_text(body, "PowerState"),
        reset_path=get_text(actions, "#ComputerSystem.Reset", "target"),
        uuid=get_text(body, "UUID"),
    )


def parse_zone(body: Json) -> ResourceZone:
    """Parse a resource zone from the JSON object of a Redfish service."""
    return ResourceZone(
        *_parse_identity(body), parse_paths(get_nested(body, "Links", "ResourceBlocks")), *parse_capabilities(body)
    )


def parse_capabilities(body: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the use cases of a zone or collection of systems, and the addresses of the objects that describe them."""
    records = get_mappings(body, "@Redfish.CollectionCapabilities", "Capabilities")
    objects = tuple(path for record in records if (path := get_reference_path(record.get("CapabilitiesObject"))))
    return tuple(str(record.get("UseCase")) for record in records), objects


def parse_limits(body: Json) -> tuple[tuple[str, int], ...]:
    """Return the limits in a capabilities object, as pairs such as ("MaxProcessor", 4).

    They are in `@Redfish.ResourceBlockLimits`, at any of its usual places.
    """
    for container in (body, get_mapping(body, "Links"), get_mapping(body, "Links@Redfish.RequiredOnCreate")):
        for name in ("@Redfish.ResourceBlockLimits", "ResourceBlocks@Redfish.ResourceBlockLimits"):
            counts = container.get(name)
            if isinstance(counts, Mapping):
                return tuple((key, value) for key, value in counts.items() if type(value) is int)
    return ()


def parse_part(kind: str, body: Json) -> BlockPart:
    """Parse a part of a resource block. The type of a processor that is not a GPU becomes its kind (such as `fpga`).

    Args:
        kind: kind of the property that lists the part.
        body: JSON object of the part.
    """
    if kind == "gpu" and (processor := get_text(body, "ProcessorType")) is not None:
        kind = processor.lower()
    # Identity of the part on the host: serial number of a drive, address of a card, UUID of a GPU.
    identity_keys = {
        STORAGE_KIND: ("SerialNumber", "UUID"),
        NETWORK_KIND: ("PermanentMACAddress", "MACAddress", "SerialNumber"),
    }.get(kind, ("UUID", "SerialNumber"))
    model, identity = (
        next((value for name in names if (value := get_text(body, name))), None)
        for names in (("Model", "PartNumber"), identity_keys)
    )
    return BlockPart(kind, model, identity, parse_link(body), parse_health(get_mapping(body, "Status")))


def parse_link(body: Json) -> Link | None:
    """Parse the PCIe link of a part. Return None if the service does not report its trained width and generation.

    The link is in a PCIeInterface, as in Processor, Drive and PCIeDevice.
    """
    interface, controllers = get_mapping(body, "SystemInterface"), get_mappings(body, "Controllers")
    first_controller = get_mapping(controllers[0], "PCIeInterface") if controllers else {}
    for container in (get_mapping(interface, "PCIe"), get_mapping(body, "PCIeInterface"), first_controller, interface):
        width, generation_in_use, reported_max_width = (
            container.get("LanesInUse"),
            parse_generation(container.get("PCIeType")),
            container.get("MaxLanes"),
        )
        if type(width) is int and width > 0 and generation_in_use:
            max_width = reported_max_width if type(reported_max_width) is int else width
            return Link(
                width, generation_in_use, max_width, parse_generation(container.get("MaxPCIeType")) or generation_in_use
            )
    return None


def parse_generation(text: Any) -> int:
    """Convert a PCIe type such as `Gen4` to its number, or return 0 for anything else."""
    match = re.fullmatch(r"Gen(\d+)", text) if isinstance(text, str) else None
    return int(match[1]) if match else 0


def parse_health(status: Json) -> Health:
    """Convert a Redfish Status object to `ok`, `warning` or `critical`. A missing value means `ok`."""
    value = str(status.get("Health") or "OK").lower()
    return "critical" if value == "critical" else "warning" if value == "warning" else "ok"


def parse_paths(references: Any) -> tuple[str, ...]:
    """Return the addresses in Redfish references, without duplicates.

    A trailing slash, which some services add, is removed.
    """
    members = references.get("Members") if isinstance(references, Mapping) and "Members" in references else references
    return tuple(dict.fromkeys(path.rstrip("/") for path in get_reference_paths(members)))


_DEFAULT_SYSTEMS_PATH = "/redfish/v1/Systems"


@dataclass(frozen=True)
class ServiceReading:
    """Blocks, systems and zones of a Redfish service at one moment, by address.

    read_only: reason why nothing can be composed, for example on a chassis that only shows its devices; "" if composing is
    possible.
    """

    blocks: Mapping[str, ResourceBlock]
    systems: Mapping[str, ComputerSystem]
    zones: tuple[ResourceZone, ...]
    parts: Mapping[str, tuple[BlockPart, ...]]
    blocks_path: str = ""
    systems_path: str = _DEFAULT_SYSTEMS_PATH
    read_only: str = ""

    @cached_property
    def _zones_by_block(self) -> Mapping[str, frozenset[str]]:
        """Addresses of the zones of each block, as listed by blocks or zones."""
        pairs_from_blocks = ((path, zone) for path, block in self.blocks.items() for zone in block.zones)
        return _group_pairs((*pairs_from_blocks, *((path, zone.uri) for zone in self.zones for path in zone.blocks)))

    @cached_property
    def _systems_by_block(self) -> Mapping[str, frozenset[str]]:
        """Addresses of the systems that list each block."""
        return _group_pairs((path, system.uri) for system in self.systems.values() for path in system.blocks)

    def find_zones(self, block: ResourceBlock) -> frozenset[str]:
        """Return the addresses of the zones of a resource block, as listed by the block or the zones."""
        return self._zones_by_block.get(block.uri, frozenset())

    def find_listing_systems(self, block: ResourceBlock) -> frozenset[str]:
        """Return the addresses of the systems that list a resource block.

        The opposite direction is `systems` of the block.
        """
        return self._systems_by_block.get(block.uri, frozenset())


def _group_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Group pairs of texts by their first element."""
    values_by_key: dict[str, set[str]] = {}
    for key, value in pairs:
        values_by_key.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in values_by_key.items()}


class ServiceReader:
    """Reader for repeated readings of one Redfish service.

    If the service supports $expand, all blocks and systems take two requests. Data that cannot change are read only once.
    """

    def __init__(self, service: RedfishService) -> None:
        """Prepare the reader without sending a request."""
        self._service = service
        self._fixed_reading: ServiceReading | None = None
        self._resource_by_path: dict[str, Json] = {}

    def read_service(self) -> ServiceReading:
        """Read the current blocks and systems of the Redfish service.

        Raises FabricError if the service has no resource blocks or its composition is switched off.
        """
        if self._fixed_reading is None:
            self._fixed_reading = self._read_fixed_data()
        fixed_reading = self._fixed_reading
        blocks = [parse_block(body) for body in self._service.read_members(fixed_reading.blocks_path, levels=2)]
        systems = map(
            parse_system, self._service.read_members(fixed_reading.systems_path) if fixed_reading.systems_path else ()
        )
        return replace(
            fixed_reading,
            blocks={block.uri: block for block in blocks},
            systems={system.uri: system for system in systems},
            parts={
                block.uri: tuple(self._read_part(*part_reference) for part_reference in block.parts)
                for block in blocks
                if not block.is_host
            },
        )

    def _read_part(self, kind: str, body: Json) -> BlockPart:
        """Return a part of a block, as expanded by the service or as first read.

        For a part as first read, link and health are left out, because they may have changed since.
        """
        path = get_reference_path(body)
        if path is None or set(body) - {"@odata.id", "@odata.type"}:
            return parse_part(kind, body)
        if path not in self._resource_by_path:
            self._resource_by_path[path] = self._service.get_resource(path)
        return replace(parse_part(kind, self._resource_by_path[path]), link=None, health="ok")

    def _read_fixed_data(self) -> ServiceReading:
        """Read the data of the Redfish service that do not change, namely the addresses of blocks and systems, and the zones.

        Raises FabricError if the service has no resource blocks or its composition is switched off.
        """
        root, base_url = self._service.read_root(), self._service.client.base
        systems_path = get_reference_path(root.get("Systems")) or _DEFAULT_SYSTEMS_PATH
        service_path = get_reference_path(root.get("CompositionService"))
        if service_path is None:
            blocks_path = get_reference_path(root.get("ResourceBlocks"))
            if blocks_path is None:
                raise FabricError(
                    f"{base_url}: the Redfish service has neither a CompositionService nor ResourceBlocks; "
                    "for Falcon boxes, use the adapter `h3`"
                )
            return ServiceReading(
                {}, {}, (), {}, blocks_path=blocks_path, systems_path="", read_only=NO_COMPOSITION_SERVICE
            )
        composition_service = self._service.get_resource(service_path)
        service_enabled, blocks_path = (
            composition_service.get("ServiceEnabled"),
            get_reference_path(composition_service.get("ResourceBlocks")),
        )
        if service_enabled is not None and not is_true(service_enabled):
            raise FabricError(
                f"{base_url}: the CompositionService is disabled "
                f"(ServiceEnabled is {service_enabled!r}); enable it in the service"
            )
        if blocks_path is None:
            raise FabricError(f"{base_url}: the CompositionService has no ResourceBlocks")
        zones = self._add_zone_limits(
            tuple(map(parse_zone, self._service.read_collection(composition_service, "ResourceZones"))), systems_path
        )
        cases = {case for zone in zones for case in zone.use_cases}
        read_only = (
            ONLY_CONSTRAINED_COMPOSITION
            if CONSTRAINED_COMPOSITION in cases and SPECIFIC_COMPOSITION not in cases
            else ""
        )
        return ServiceReading(
            {}, {}, zones, {}, blocks_path=blocks_path, systems_path=systems_path, read_only=read_only
        )

    def _add_zone_limits(self, zones: tuple[ResourceZone, ...], systems_path: str) -> tuple[ResourceZone, ...]:
        """Return the zones of a Redfish service with the limits in their capabilities.

        If no zone has capabilities, those of the collection of systems are used.
        """
        if zones and not any(zone.use_cases for zone in zones):
            cases, capability_paths = parse_capabilities(self._service.find_resource(systems_path) or {})
            zones = tuple(replace(zone, use_cases=cases, capability_paths=capability_paths) for zone in zones)
        paths = dict.fromkeys(path for zone in zones for path in zone.capability_paths)
        limits_by_path = {path: parse_limits(self._service.find_resource(path) or {}) for path in paths}
        return tuple(
            replace(zone, limits=tuple(limit for path in zone.capability_paths for limit in limits_by_path[path]))
            for zone in zones
        )
