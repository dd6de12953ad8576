"""What resource blocks, zones, systems and their parts say, whatever their version and whoever wrote them. Pure.

Sources: the schemas ResourceBlock, Zone, ComputerSystem, Processor, Drive, EthernetInterface; DSP2050 (composability). Tolerated,
as peers were seen to send it: `Reserved` as text, ResourceBlockType as one word or missing, unknown types, no CompositionStatus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from campaign.fabrics.dialects.redfish.service import uri, uris
from campaign.fabrics.hardware import NETWORK_KIND, STORAGE_KIND, Health, Link

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
    parts: tuple[tuple[str, Mapping[str, Any]], ...]
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
    host_name: str = ""
    reset: str | None = None
    add: str | None = None
    remove: str | None = None

    @property
    def composed(self) -> bool:
        """False for whatever is not known to be made by composing: nobody may delete that."""
        return self.type == "Composed"

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


def block(body: Mapping[str, Any]) -> Block:
    links, status, composition = (_object(body, name) for name in ("Links", "Status", "CompositionStatus"))
    types = body.get("ResourceBlockType")
    at = uri(body) or ""
    limit = composition.get("MaxCompositions")
    number = composition.get("NumberOfCompositions")
    return Block(
        uri=at.rstrip("/"),
        id=str(body.get("Id") or at.rstrip("/").rpartition("/")[2]),
        name=_text(body, "Name") or "",
        types=tuple(str(one) for one in types) if isinstance(types, list) else ((str(types),) if types else ()),
        state=_text(composition, "CompositionState"),
        reserved=truth(composition.get("Reserved")),
        enabled=status.get("State") in (None, "Enabled", "StandbyOffline", "StandbySpare", "Deferring", "Updating"),
        health=health(status),
        systems=paths(links.get("ComputerSystems")),
        zones=paths(links.get("Zones")),
        parts=tuple(_parts(body)),
        own_systems=paths(body.get("ComputerSystems")),
        limit=limit if isinstance(limit, int) and truth(composition.get("SharingEnabled")) else 1,
        compositions=number if isinstance(number, int) else None,
    )


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Of the first property that has any: a network card is listed as interfaces of two kinds, a drive under its controller."""
    for name, kind in _PARTS:
        listing = body.get(name)
        members = listing.get("Members") if isinstance(listing, Mapping) else listing
        found = [(kind, one) for one in members if isinstance(one, Mapping)] if isinstance(members, list) else []
        if found:
            yield from found
            return


def system(body: Mapping[str, Any]) -> System:
    links, actions = _object(body, "Links"), _object(body, "Actions")
    at = (uri(body) or "").rstrip("/")
    return System(
        uri=at,
        id=str(body.get("Id") or at.rpartition("/")[2]),
        name=_text(body, "Name") or "",
        description=_text(body, "Description") or "",
        type=_text(body, "SystemType"),
        blocks=paths(links["ResourceBlocks"]) if "ResourceBlocks" in links else None,
        power=_text(body, "PowerState"),
        host_name=_text(body, "HostName") or "",
        reset=_target(actions, "#ComputerSystem.Reset"),
        add=_target(actions, "#ComputerSystem.AddResourceBlock"),
        remove=_target(actions, "#ComputerSystem.RemoveResourceBlock"),
    )


def _target(actions: Mapping[str, Any], name: str) -> str | None:
    return _text(_object(actions, name), "target")


def zone(body: Mapping[str, Any]) -> Zone:
    at = (uri(body) or "").rstrip("/")
    cases, objects = capabilities(body)
    return Zone(
        uri=at,
        id=str(body.get("Id") or at.rpartition("/")[2]),
        name=_text(body, "Name") or "",
        blocks=paths(_object(body, "Links").get("ResourceBlocks")),
        cases=cases,
        capabilities=objects,
    )


def capabilities(body: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(use cases, addresses of the objects that describe them) of a zone, or of the collection of systems."""
    listing = _object(body, "@Redfish.CollectionCapabilities").get("Capabilities")
    found = [one for one in listing if isinstance(one, Mapping)] if isinstance(listing, list) else []
    objects = tuple(path for one in found if (path := uri(one.get("CapabilitiesObject"))))
    return tuple(str(one.get("UseCase")) for one in found), objects


def limits(body: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """`@Redfish.ResourceBlockLimits` of a capabilities object, wherever in it."""
    for place in (body, _object(body, "Links"), _object(body, "Links@Redfish.RequiredOnCreate")):
        for name in ("@Redfish.ResourceBlockLimits", "ResourceBlocks@Redfish.ResourceBlockLimits"):
            found = place.get(name)
            if isinstance(found, Mapping):
                return tuple((key, value) for key, value in found.items() if type(value) is int)
    return ()


def part(kind: str, body: Mapping[str, Any]) -> Part:
    """A part of a block. A processor that is no GPU is named by its own type (`fpga`)."""
    if kind == "gpu" and (processor := _text(body, "ProcessorType")) is not None:
        kind = processor.lower()
    return Part(
        kind=kind,
        model=next((found for name in ("Model", "PartNumber") if (found := _text(body, name))), None),
        host_id=_identity(kind, body),
        link=link(body),
        health=health(_object(body, "Status")),
    )


def _identity(kind: str, body: Mapping[str, Any]) -> str | None:
    """What the host knows it by: a GPU's UUID, a card's address, a drive's serial number."""
    names = {
        STORAGE_KIND: ("SerialNumber", "UUID"),
        NETWORK_KIND: ("PermanentMACAddress", "MACAddress", "SerialNumber"),
    }.get(kind, ("UUID", "SerialNumber"))
    return next((found for name in names if (found := _text(body, name))), None)


def link(body: Mapping[str, Any]) -> Link | None:
    """The PCIe link of a part, where it says how it is trained (PCIeInterface, as Processor, Drive and PCIeDevice have it)."""
    interface = _object(body, "SystemInterface")
    controllers = body.get("Controllers")
    first = controllers[0] if isinstance(controllers, list) and controllers else {}
    places = (_object(interface, "PCIe"), _object(body, "PCIeInterface"), _object(first, "PCIeInterface"), interface)
    for place in places:
        width, gen = place.get("LanesInUse"), generation(place.get("PCIeType"))
        if type(width) is int and width > 0 and gen:
            widest = place.get("MaxLanes")
            return Link(
                width, gen, widest if type(widest) is int else width, generation(place.get("MaxPCIeType")) or gen
            )
    return None


def generation(text: Any) -> int:
    """`Gen4` -> 4; 0 for whatever says nothing."""
    found = re.fullmatch(r"Gen(\d+)", text) if isinstance(text, str) else None
    return int(found[1]) if found else 0


def health(status: Mapping[str, Any]) -> Health:
    """Critical where a service says Critical, warning for Warning; a service that does not say means well."""
    match str(status.get("Health") or "OK").lower():
        case "critical":
            return "critical"
        case "warning":
            return "warning"
    return "ok"


def paths(references: Any) -> tuple[str, ...]:
    """Addresses of references, each once, without the slash that some services end them with."""
    members = references.get("Members") if isinstance(references, Mapping) and "Members" in references else references
    return tuple(dict.fromkeys(path.rstrip("/") for path in uris(members)))


def _object(body: Any, name: str) -> Mapping[str, Any]:
    found = body.get(name) if isinstance(body, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _text(body: Mapping[str, Any], name: str) -> str | None:
    found = body.get(name)
    return found if isinstance(found, str) and found else None
