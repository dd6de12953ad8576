"""What resource blocks, zones, systems and their parts say, whoever wrote them. Pure, but for `ServiceReader`.

Sources: the schemas ResourceBlock, Zone, ComputerSystem, Processor, Drive, EthernetInterface; DSP2050 (composability). Tolerated,
as peers were seen to send it: `Reserved` as text, ResourceBlockType as one word or missing, unknown types, no CompositionStatus.
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
    """One resource block. parts: (kind, reference or whole resource); compositions: how many systems have it."""

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
        return bool(HOST_TYPES & set(self.types)) or (not self.types and bool(self.own_systems))

    @property
    def kind(self) -> str:
        """The kind of a block whose parts do not say: by its type."""
        return next((_KIND_OF_TYPE.get(one, one.lower()) for one in self.types), "block")


@dataclass(frozen=True, slots=True)
class System:
    """One computer system. blocks: addresses of those that it says it has."""

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
        return self.type == "Physical"


@dataclass(frozen=True, slots=True)
class Zone:
    """One resource zone. limits: `MaxProcessor`.. of one system; cases: what can be asked for; capabilities: where more is said."""

    uri: str
    id: str
    name: str
    blocks: tuple[str, ...]
    cases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What composes with a block: one GPU, drive or network interface."""

    kind: str
    model: str | None
    host_id: str | None
    link: Link | None
    health: Health


def truth(value: Any) -> bool:
    """Whether what should be a boolean is true; the text "false" is not."""
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def block(body: Json) -> Block:
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
    """(address, Id, Name), the address without the slash that some services end it with."""
    path = (uri(body) or "").rstrip("/")
    return path, str(body.get("Id") or path.rpartition("/")[2]), text(body, "Name") or ""


def _parts(body: Json) -> tuple[tuple[str, Json], ...]:
    """Parts in the first property that has any: a network card is listed as two kinds of interface, a drive in its controller."""
    for name, kind in _PARTS:
        if found := mappings(body, name) or mappings(body, name, "Members"):
            return tuple((kind, one) for one in found)
    return ()


def system(body: Json) -> System:
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
    return Zone(*_named(body), paths(at(body, "Links", "ResourceBlocks")), *capabilities(body))


def capabilities(body: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(use cases, addresses of the objects that describe them) of a zone, or of the collection of systems."""
    found = mappings(body, "@Redfish.CollectionCapabilities", "Capabilities")
    objects = tuple(path for one in found if (path := uri(one.get("CapabilitiesObject"))))
    return tuple(str(one.get("UseCase")) for one in found), objects


def limits(body: Json) -> tuple[tuple[str, int], ...]:
    """`@Redfish.ResourceBlockLimits` of a capabilities object, wherever in it."""
    for place in (body, mapping(body, "Links"), mapping(body, "Links@Redfish.RequiredOnCreate")):
        for name in ("@Redfish.ResourceBlockLimits", "ResourceBlocks@Redfish.ResourceBlockLimits"):
            found = place.get(name)
            if isinstance(found, Mapping):
                return tuple((key, value) for key, value in found.items() if type(value) is int)
    return ()


def part(kind: str, body: Json) -> Part:
    """A part of a block. A processor that is no GPU is named by its own type (`fpga`)."""
    if kind == "gpu" and (processor := text(body, "ProcessorType")) is not None:
        kind = processor.lower()
    # What the host knows it by: a drive's serial number, a card's address, a GPU's UUID.
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
    """The PCIe link of a part, where it says how it is trained (PCIeInterface, as Processor, Drive and PCIeDevice have it)."""
    interface, controllers = mapping(body, "SystemInterface"), mappings(body, "Controllers")
    first = mapping(controllers[0], "PCIeInterface") if controllers else {}
    for place in (mapping(interface, "PCIe"), mapping(body, "PCIeInterface"), first, interface):
        width, gen, widest = place.get("LanesInUse"), generation(place.get("PCIeType")), place.get("MaxLanes")
        if type(width) is int and width > 0 and gen:
            most = widest if type(widest) is int else width
            return Link(width, gen, most, generation(place.get("MaxPCIeType")) or gen)
    return None


def generation(text: Any) -> int:
    """`Gen4` -> 4; 0 for whatever says nothing."""
    found = re.fullmatch(r"Gen(\d+)", text) if isinstance(text, str) else None
    return int(found[1]) if found else 0


def health(status: Json) -> Health:
    """Critical where a service says Critical, warning for Warning; a service that does not say means well."""
    told = str(status.get("Health") or "OK").lower()
    return "critical" if told == "critical" else "warning" if told == "warning" else "ok"


def paths(references: Any) -> tuple[str, ...]:
    """Addresses of references, each once, without the slash that some services end them with."""
    members = references.get("Members") if isinstance(references, Mapping) and "Members" in references else references
    return tuple(dict.fromkeys(path.rstrip("/") for path in uris(members)))


_WELL_KNOWN_SYSTEMS = "/redfish/v1/Systems"


@dataclass(frozen=True)
class ServiceReading:
    """A service at one moment; blocks and systems by address.

    read_only: why nothing can be composed, such as by a chassis that only shows what it has; "" where it can.
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
        told = ((path, zone) for path, block in self.blocks.items() for zone in block.zones)
        return _grouped((*told, *((path, zone.uri) for zone in self.zones for path in zone.blocks)))

    @cached_property
    def _systems_by_block(self) -> Mapping[str, frozenset[str]]:
        return _grouped((path, system.uri) for system in self.systems.values() for path in system.blocks)

    def zones_of(self, block: Block) -> frozenset[str]:
        """Addresses of the zones that a block is in, by whichever of the two says so."""
        return self._zones.get(block.uri, frozenset())

    def listing(self, block: Block) -> frozenset[str]:
        """Addresses of the systems that say they have a block: the other end of the block's own `systems`."""
        return self._systems_by_block.get(block.uri, frozenset())


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        found.setdefault(one, set()).add(other)
    return {one: frozenset(others) for one, others in found.items()}


class ServiceReader:
    """Reads one service again and again: all blocks and systems in two requests where it expands, what cannot change only once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._empty: ServiceReading | None = None
        self._parts: dict[str, Json] = {}

    def read(self) -> ServiceReading:
        """Everything as it is now. Raises FabricError for a service that has no resource blocks, or has them switched off."""
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
        """A part as it was expanded; else as it was read first, without what may have changed since."""
        path = uri(body)
        if path is None or set(body) - {"@odata.id", "@odata.type"}:
            return part(kind, body)
        if path not in self._parts:
            self._parts[path] = self._service.get(path)
        return replace(part(kind, self._parts[path]), link=None, health="ok")

    def _found(self) -> ServiceReading:
        """Where blocks are, and what is said of them once and for all."""
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
        """Zones with the limits that their capabilities state; where zones state none, those of the collection of systems."""
        if zones and not any(zone.cases for zone in zones):
            cases, objects = capabilities(self._service.find(systems_at) or {})
            zones = tuple(replace(zone, cases=cases, capabilities=objects) for zone in zones)
        paths = dict.fromkeys(path for zone in zones for path in zone.capabilities)
        said = {path: limits(self._service.find(path) or {}) for path in paths}
        return tuple(
            replace(zone, limits=tuple(limit for path in zone.capabilities for limit in said[path])) for zone in zones
        )
