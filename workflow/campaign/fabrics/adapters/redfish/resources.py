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
from campaign.fabrics.adapters.redfish.answers import uri, uris
from campaign.fabrics.adapters.redfish.service import Service
from campaign.fabrics.http.response import Json, at, mapping, mappings, text
from campaign.spec.hardware import NETWORK_KIND, STORAGE_KIND, Health, Link

SPECIFIC = "ComputerSystemComposition"
CONSTRAINED = "ComputerSystemConstrainedComposition"
NO_SERVICE = "the service shows its blocks and composes nothing (it has no CompositionService)"
BY_CONSTRAINTS = f"the service chooses devices by constraints ({CONSTRAINED}) and takes no exact ones ({SPECIFIC})"
HOST_TYPES = {"Compute", "ComputerSystem"}
_PARTS = (
    ("Processors", "gpu"),
    ("Drives", STORAGE_KIND),
    ("Storage", STORAGE_KIND),
    ("SimpleStorage", STORAGE_KIND),
    ("NetworkInterfaces", NETWORK_KIND),
    ("EthernetInterfaces", NETWORK_KIND),
    ("Memory", "memory"),
)
_KIND_OF_TYPE = {"Processor": "gpu", "Storage": STORAGE_KIND, "Network": NETWORK_KIND}


@dataclass(frozen=True, slots=True)
class Block:
    """Resource block of a Redfish service.

    parts: (kind, reference or complete resource). composition_count: number of systems that have the block.
    """

    uri: str
    id: str
    name: str
    types: tuple[str, ...]
    state: str | None
    reserved: bool
    enabled: bool
    health: Health
    systems: tuple[str, ...]
    zones: tuple[str, ...]
    parts: tuple[tuple[str, Json], ...]
    own_systems: tuple[str, ...] = ()
    compositions: int = 0

    @property
    def is_host(self) -> bool:
        """True for a block that is the compute block of a host."""
        return bool(HOST_TYPES & set(self.types)) or (not self.types and bool(self.own_systems))

    @property
    def kind(self) -> str:
        """Kind of a block whose parts do not show it, derived from its type."""
        return next((_KIND_OF_TYPE.get(one, one.lower()) for one in self.types), "block")


@dataclass(frozen=True, slots=True)
class System:
    """Computer system of a Redfish service.

    blocks: addresses of the blocks that the system lists. reset_path: address of its reset action.
    """

    uri: str
    id: str
    name: str
    description: str
    type: str | None
    blocks: tuple[str, ...]
    power: str | None
    reset: str | None = None
    uuid: str | None = None

    @property
    def physical(self) -> bool:
        """True for a physical system, in contrast to a composed one."""
        return self.type == "Physical"


@dataclass(frozen=True, slots=True)
class Zone:
    """Resource zone of a Redfish service.

    limits: minimum and maximum number of blocks in one system, such as `MaxProcessor`. use_cases: kinds of requests that it
    accepts. capability_paths: addresses of objects with further details.
    """

    uri: str
    id: str
    name: str
    blocks: tuple[str, ...]
    cases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a resource block that becomes one device, such as a GPU, drive or network interface."""

    kind: str
    model: str | None
    host_id: str | None
    link: Link | None
    health: Health


def truth(value: Any) -> bool:
    """Convert a JSON value to a boolean. The text "true" counts as true, any other text as false."""
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def block(body: Json) -> Block:
    """Parse a resource block from the JSON object of a Redfish service."""
    links, status, composition = (mapping(body, name) for name in ("Links", "Status", "CompositionStatus"))
    types = body.get("ResourceBlockType")
    number = composition.get("NumberOfCompositions")
    return Block(
        *_named(body),
        types=tuple(map(str, types)) if isinstance(types, list) else ((str(types),) if types else ()),
        state=text(composition, "CompositionState"),
        reserved=truth(composition.get("Reserved")),
        enabled=status.get("State") in (None, "Enabled", "StandbyOffline", "StandbySpare", "Deferring", "Updating"),
        health=health(status),
        systems=paths(links.get("ComputerSystems")),
        zones=paths(links.get("Zones")),
        parts=_parts(body),
        own_systems=paths(body.get("ComputerSystems")),
        compositions=number if isinstance(number, int) else 0,
    )


def _named(body: Json) -> tuple[str, str, str]:
    """Return (address, Id, Name) of a Redfish resource. A slash at the end of the address is removed."""
    path = (uri(body) or "").rstrip("/")
    return path, str(body.get("Id") or path.rpartition("/")[2]), text(body, "Name") or ""


def _parts(body: Json) -> tuple[tuple[str, Json], ...]:
    """Return the parts of a resource block, from the first property that has any.

    A network card is listed as two kinds of interface, and a drive also in its controller.
    """
    for name, kind in _PARTS:
        if found := mappings(body, name) or mappings(body, name, "Members"):
            return tuple((kind, one) for one in found)
    return ()


def system(body: Json) -> System:
    """Parse a computer system from the JSON object of a Redfish service."""
    links, actions = mapping(body, "Links"), mapping(body, "Actions")
    return System(
        *_named(body),
        description=text(body, "Description") or "",
        type=text(body, "SystemType"),
        blocks=paths(links.get("ResourceBlocks")),
        power=text(body, "PowerState"),
        reset=text(actions, "#ComputerSystem.Reset", "target"),
        uuid=text(body, "UUID"),
    )


def zone(body: Json) -> Zone:
    """Parse a resource zone from the JSON object of a Redfish service."""
    return Zone(*_named(body), paths(at(body, "Links", "ResourceBlocks")), *capabilities(body))


def capabilities(body: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (use cases, addresses of the objects that describe them) of a zone or of the collection of systems."""
    found = mappings(body, "@Redfish.CollectionCapabilities", "Capabilities")
    objects = tuple(path for one in found if (path := uri(one.get("CapabilitiesObject"))))
    return tuple(str(one.get("UseCase")) for one in found), objects


def limits(body: Json) -> tuple[tuple[str, int], ...]:
    """Return the limits in a capabilities object, as pairs such as ("MaxProcessor", 4).

    They are in `@Redfish.ResourceBlockLimits`, at any of its usual places.
    """
    for place in (body, mapping(body, "Links"), mapping(body, "Links@Redfish.RequiredOnCreate")):
        for name in ("@Redfish.ResourceBlockLimits", "ResourceBlocks@Redfish.ResourceBlockLimits"):
            found = place.get(name)
            if isinstance(found, Mapping):
                return tuple((key, value) for key, value in found.items() if type(value) is int)
    return ()


def part(kind: str, body: Json) -> Part:
    """Parse a part of a resource block. The type of a processor that is not a GPU becomes its kind (such as `fpga`).

    Args:
        kind: kind of the property that lists the part.
        body: JSON object of the part.
    """
    if kind == "gpu" and (processor := text(body, "ProcessorType")) is not None:
        kind = processor.lower()
    # Identity of the part on the host: serial number of a drive, address of a card, UUID of a GPU.
    identities = {
        STORAGE_KIND: ("SerialNumber", "UUID"),
        NETWORK_KIND: ("PermanentMACAddress", "MACAddress", "SerialNumber"),
    }.get(kind, ("UUID", "SerialNumber"))
    model, identity = (
        next((found for name in names if (found := text(body, name))), None)
        for names in (("Model", "PartNumber"), identities)
    )
    return Part(kind, model, identity, link(body), health(mapping(body, "Status")))


def link(body: Json) -> Link | None:
    """Parse the PCIe link of a part. Return None if the service does not report its trained width and generation.

    The link is in a PCIeInterface, as in Processor, Drive and PCIeDevice.
    """
    interface, controllers = mapping(body, "SystemInterface"), mappings(body, "Controllers")
    first = mapping(controllers[0], "PCIeInterface") if controllers else {}
    for place in (mapping(interface, "PCIe"), mapping(body, "PCIeInterface"), first, interface):
        width, gen, widest = place.get("LanesInUse"), generation(place.get("PCIeType")), place.get("MaxLanes")
        if type(width) is int and width > 0 and gen:
            most = widest if type(widest) is int else width
            return Link(width, gen, most, generation(place.get("MaxPCIeType")) or gen)
    return None


def generation(text: Any) -> int:
    """Convert a PCIe type such as `Gen4` to its number, or return 0 for anything else."""
    found = re.fullmatch(r"Gen(\d+)", text) if isinstance(text, str) else None
    return int(found[1]) if found else 0


def health(status: Json) -> Health:
    """Convert a Redfish Status object to `ok`, `warning` or `critical`. A missing value means `ok`."""
    told = str(status.get("Health") or "OK").lower()
    return "critical" if told == "critical" else "warning" if told == "warning" else "ok"


def paths(references: Any) -> tuple[str, ...]:
    """Return the addresses in Redfish references, without repetition.

    A slash at their end, which some services add, is removed.
    """
    members = references.get("Members") if isinstance(references, Mapping) and "Members" in references else references
    return tuple(dict.fromkeys(path.rstrip("/") for path in uris(members)))


_WELL_KNOWN_SYSTEMS = "/redfish/v1/Systems"


@dataclass(frozen=True)
class ServiceReading:
    """Blocks, systems and zones of a Redfish service at one moment, by address.

    read_only: reason why nothing can be composed, for example on a chassis that only shows its devices; "" if composing is
    possible.
    """

    blocks: Mapping[str, Block]
    systems: Mapping[str, System]
    zones: tuple[Zone, ...]
    parts: Mapping[str, tuple[Part, ...]]
    blocks_at: str = ""
    systems_at: str = _WELL_KNOWN_SYSTEMS
    read_only: str = ""

    @cached_property
    def _zones(self) -> Mapping[str, frozenset[str]]:
        """Addresses of the zones of each block, as listed by blocks or zones."""
        told = ((path, zone) for path, block in self.blocks.items() for zone in block.zones)
        return _grouped((*told, *((path, zone.uri) for zone in self.zones for path in zone.blocks)))

    @cached_property
    def _systems_by_block(self) -> Mapping[str, frozenset[str]]:
        """Addresses of the systems that list each block."""
        return _grouped((path, system.uri) for system in self.systems.values() for path in system.blocks)

    def zones_of(self, block: Block) -> frozenset[str]:
        """Return the addresses of the zones of a resource block, as listed by the block or the zones."""
        return self._zones.get(block.uri, frozenset())

    def listing(self, block: Block) -> frozenset[str]:
        """Return the addresses of the systems that list a resource block.

        `systems` of the block is the opposite direction.
        """
        return self._systems_by_block.get(block.uri, frozenset())


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Group pairs of texts by their first element."""
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        found.setdefault(one, set()).add(other)
    return {one: frozenset(others) for one, others in found.items()}


class ServiceReader:
    """Repeated reader of one Redfish service.

    If the service supports $expand, all blocks and systems take two requests. Data that cannot change are read only once.
    """

    def __init__(self, service: Service) -> None:
        """Prepare the reader without sending a request."""
        self._service = service
        self._empty: ServiceReading | None = None
        self._parts: dict[str, Json] = {}

    def read(self) -> ServiceReading:
        """Read the current blocks and systems of the Redfish service.

        Raises FabricError if the service has no resource blocks or its composition is switched off.
        """
        if self._empty is None:
            self._empty = self._found()
        empty = self._empty
        blocks = [block(body) for body in self._service.members(empty.blocks_at, levels=2)]
        systems = map(system, self._service.members(empty.systems_at) if empty.systems_at else ())
        return replace(
            empty,
            blocks={block.uri: block for block in blocks},
            systems={system.uri: system for system in systems},
            parts={block.uri: tuple(self._part(*one) for one in block.parts) for block in blocks if not block.is_host},
        )

    def _part(self, kind: str, body: Json) -> Part:
        """Return a part of a block, as expanded by the service or as first read.

        A part as first read has no link and health, because they may have changed since.
        """
        path = uri(body)
        if path is None or set(body) - {"@odata.id", "@odata.type"}:
            return part(kind, body)
        if path not in self._parts:
            self._parts[path] = self._service.get(path)
        return replace(part(kind, self._parts[path]), link=None, health="ok")

    def _found(self) -> ServiceReading:
        """Read the data of the Redfish service that do not change, namely the addresses of blocks and systems, and the zones.

        Raises FabricError if the service has no resource blocks or its composition is switched off.
        """
        root, where = self._service.root(), self._service.client.base
        systems_at = uri(root.get("Systems")) or _WELL_KNOWN_SYSTEMS
        service_at = uri(root.get("CompositionService"))
        if service_at is None:
            blocks_at = uri(root.get("ResourceBlocks"))
            if blocks_at is None:
                raise FabricError(
                    f"{where}: a Redfish service without CompositionService and without ResourceBlocks; "
                    "Falcon boxes are for the adapter `h3`"
                )
            return ServiceReading({}, {}, (), {}, blocks_at=blocks_at, systems_at="", read_only=NO_SERVICE)
        composing = self._service.get(service_at)
        enabled, blocks_at = composing.get("ServiceEnabled"), uri(composing.get("ResourceBlocks"))
        if enabled is not None and not truth(enabled):
            raise FabricError(
                f"{where}: its CompositionService is switched off (ServiceEnabled is {enabled!r}); switch it on at the service"
            )
        if blocks_at is None:
            raise FabricError(f"{where}: its CompositionService has no ResourceBlocks")
        zones = self._described(tuple(map(zone, self._service.collection(composing, "ResourceZones"))), systems_at)
        cases = {case for zone in zones for case in zone.cases}
        read_only = BY_CONSTRAINTS if CONSTRAINED in cases and SPECIFIC not in cases else ""
        return ServiceReading({}, {}, zones, {}, blocks_at=blocks_at, systems_at=systems_at, read_only=read_only)

    def _described(self, zones: tuple[Zone, ...], systems_at: str) -> tuple[Zone, ...]:
        """Return the zones of a Redfish service with the limits in their capabilities.

        If no zone has capabilities, those of the collection of systems are used.
        """
        if zones and not any(zone.cases for zone in zones):
            cases, objects = capabilities(self._service.find(systems_at) or {})
            zones = tuple(replace(zone, cases=cases, capabilities=objects) for zone in zones)
        paths = dict.fromkeys(path for zone in zones for path in zone.capabilities)
        said = {path: limits(self._service.find(path) or {}) for path in paths}
        return tuple(
            replace(zone, limits=tuple(limit for path in zone.capabilities for limit in said[path])) for zone in zones
        )
