"""What resource blocks, zones, systems and their parts say, whatever their version and whoever wrote them. Pure.

Sources: the schemas ResourceBlock, Zone, ComputerSystem, Processor, Drive, EthernetInterface; DSP2050 (composability). Tolerated,
as peers were seen to send it: `Reserved` as text, ResourceBlockType as one word or missing, unknown types, no CompositionStatus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from campaign.fabrics.dialects.redfish.answers import uri, uris
from campaign.fabrics.hardware import NETWORK_KIND, STORAGE_KIND, Health, Link
from campaign.fabrics.http.json_values import Json, at, mapping, mappings, text

SPECIFIC = "ComputerSystemComposition"
CONSTRAINED = "ComputerSystemConstrainedComposition"
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
    """One resource block. parts: (kind, reference or whole resource); limit: how many systems may have it at one time."""

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
    limit: int = 1
    compositions: int | None = None

    @property
    def is_host(self) -> bool:
        return bool(HOST_TYPES & set(self.types)) or (not self.types and bool(self.own_systems))

    @property
    def kind(self) -> str:
        """The kind of a block whose parts do not say: by its type."""
        return next((_KIND_OF_TYPE.get(one, one.lower()) for one in self.types), "block")


@dataclass(frozen=True, slots=True)
class System:
    """One computer system. blocks: None where it has no such property, so that no block can ever be added."""

    uri: str
    id: str
    name: str
    description: str
    type: str | None
    blocks: tuple[str, ...] | None
    power: str | None
    reset: str | None = None
    add: str | None = None
    remove: str | None = None
    uuid: str | None = None

    @property
    def expandable(self) -> bool:
        return self.type == "Physical" and self.blocks is not None


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
    """Of what should be a boolean: the text "false" is none."""
    return value is True or (isinstance(value, str) and value.strip().lower() == "true")


def block(body: Json) -> Block:
    links, status, composition = (mapping(body, name) for name in ("Links", "Status", "CompositionStatus"))
    types = body.get("ResourceBlockType")
    limit, number = composition.get("MaxCompositions"), composition.get("NumberOfCompositions")
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
        limit=limit if isinstance(limit, int) and truth(composition.get("SharingEnabled")) else 1,
        compositions=number if isinstance(number, int) else None,
    )


def _named(body: Json) -> tuple[str, str, str]:
    """(address, Id, Name), the address without the slash that some services end it with."""
    path = (uri(body) or "").rstrip("/")
    return path, str(body.get("Id") or path.rpartition("/")[2]), text(body, "Name") or ""


def _parts(body: Json) -> tuple[tuple[str, Json], ...]:
    """Of the first property that has any: a network card is listed as interfaces of two kinds, a drive under its controller."""
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
        blocks=paths(links["ResourceBlocks"]) if "ResourceBlocks" in links else None,
        power=text(body, "PowerState"),
        reset=text(actions, "#ComputerSystem.Reset", "target"),
        add=text(actions, "#ComputerSystem.AddResourceBlock", "target"),
        remove=text(actions, "#ComputerSystem.RemoveResourceBlock", "target"),
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
