"""What the chassis' resources say, out of their JSON. Pure; whatever is missing or odd in a resource is None or nothing here.

Source: DSP2046 (Endpoint, Zone, Port, PCIeDevice, Processor, Drive, Chassis). Older and newer names of a property both count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from campaign.fabrics.banks import Mode
from campaign.fabrics.dialects.redfish.answers import uri, uris
from campaign.fabrics.hardware import DeviceState, Health, Link

Json = Mapping[str, Any]

_KINDS = {
    "Processor": "gpu",
    "Accelerator": "gpu",
    "Drive": "nvme",
    "Volume": "nvme",
    "NetworkController": "nic",
    "NetworkAdapter": "nic",
    "EthernetInterface": "nic",
}
_CLASSES = {"03": "gpu", "12": "gpu", "01": "nvme", "02": "nic"}  # PCI base classes
_HOST_ENTITIES = {"RootComplex", "ComputerSystem", "StorageInitiator", "PCIeRootComplex"}
_STATES: dict[str, DeviceState] = {
    "Disabled": "unavailable",
    "StandbyOffline": "unavailable",
    "UnavailableOffline": "unavailable",
    "InTest": "unavailable",
    "Quiesced": "unavailable",
    "Updating": "unavailable",
    "Absent": "unavailable",
}
_GENERATIONS = ((48.0, 6), (24.0, 5), (12.0, 4), (6.5, 3), (3.5, 2))  # at least so many GT/s a lane
_MODES: dict[str, Mode] = {
    "standardonehost": "standard_one_host",
    "standard1host": "standard_one_host",
    "standard1": "standard_one_host",
    "standardtwohosts": "standard_two_hosts",
    "standard2hosts": "standard_two_hosts",
    "standard2": "standard_two_hosts",
    "advanced": "advanced",
}
_HOSTPORT = re.compile(r"host[-_ ]?port\d*[-_](H\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host port, or a device. labels: names by which a person may mean it; details: the resource of the device (of the host);
    zones: None where the service does not tell them."""

    path: str
    id: str
    name: str
    host_port: bool
    kind: str
    identity: str | None
    details: str | None
    zones: tuple[str, ...] | None
    ports: tuple[str, ...]
    state: DeviceState
    health: Health
    labels: tuple[str, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is, as far as it is told."""

    drawer: str | None = None
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Zone:
    path: str
    id: str
    description: str | None
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a switch. upstream: it is a host's."""

    path: str
    id: str
    switch: str
    upstream: bool
    endpoints: tuple[str, ...]
    link: Link | None
    up: bool | None
    metrics: str | None


@dataclass(frozen=True, slots=True)
class Card:
    """What the device's own resource tells."""

    model: str | None = None
    serial: str | None = None
    place: Place = Place()
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A chassis: one that is in another is that one's drawer."""

    path: str
    id: str
    within: str | None
    mode: Mode | None


def endpoint(found: Json) -> Endpoint:
    path, links = uri(found) or "", _object(found.get("Links"))
    entities = [one for one in _list(found.get("ConnectedEntities")) if isinstance(one, Mapping)]
    entity = entities[0] if entities else {}
    ident = str(found.get("Id") or path.rpartition("/")[2])
    status = _object(found.get("Status"))
    named = _HOSTPORT.fullmatch(ident)
    details = uri(entity.get("EntityLink"))
    labels = [named[1] if named else "", ident, str(found.get("Name") or ""), (details or "").rpartition("/")[2]]
    return Endpoint(
        path=path,
        id=ident,
        name=str(found.get("Name") or ident),
        host_port=named is not None or _is_host(entity),
        kind=_kind(entity),
        identity=_identity(entity),
        details=details,
        zones=uris(links["Zones"]) if "Zones" in links else None,
        ports=(*uris(links.get("ConnectedPorts")), *uris(links.get("Ports"))),
        state=_STATES.get(str(status.get("State")), "free"),
        health=_health(status),
        labels=tuple(dict.fromkeys(label for label in labels if label)),
        place=_oem_place(found),
    )


def _is_host(entity: Json) -> bool:
    return str(entity.get("EntityType")) in _HOST_ENTITIES or entity.get("EntityRole") == "Initiator"


def _kind(entity: Json) -> str:
    known = _KINDS.get(str(entity.get("EntityType")))
    code = _object(entity.get("EntityPciId")).get("ClassCode")
    if known is None and isinstance(code, str):
        known = _CLASSES.get(code.lower().removeprefix("0x").zfill(6)[:2])
    return known or str(entity.get("EntityType") or "device").lower()


def _identity(entity: Json) -> str | None:
    """A UUID first, else any name that lasts."""
    named = [one for one in _list(entity.get("Identifiers")) if isinstance(one, Mapping)]
    named.sort(key=lambda one: one.get("DurableNameFormat") != "UUID")
    return next(
        (one["DurableName"] for one in named if isinstance(one.get("DurableName"), str) and one["DurableName"]), None
    )


def _health(status: Json) -> Health:
    """The worse of its own and of what is in it."""
    told = {str(status.get("Health")), str(status.get("HealthRollup"))}
    return "critical" if "Critical" in told else "warning" if "Warning" in told else "ok"


def zone(found: Json) -> Zone:
    path = uri(found) or ""
    description = found.get("Description")
    listing = _object(found.get("Links")).get("Endpoints", found.get("Endpoints"))
    return Zone(
        path,
        str(found.get("Id") or path.rpartition("/")[2]),
        description if isinstance(description, str) else None,
        uris(listing) if listing is not None else (),
    )


def port(found: Json, switch: str) -> Port:
    path, links = uri(found) or "", _object(found.get("Links"))
    up = found.get("LinkStatus", found.get("LinkState"))
    return Port(
        path,
        str(found.get("Id") or path.rpartition("/")[2]),
        switch,
        found.get("PortType") in ("UpstreamPort", "BidirectionalPort"),
        (*uris(links.get("AssociatedEndpoints")), *uris(links.get("ConnectedEndpoints"))),
        _port_link(found),
        up in ("LinkUp", "Up", "Enabled") if isinstance(up, str) else None,
        uri(found.get("Metrics")),
    )


def _port_link(found: Json) -> Link | None:
    most = _number(found, "MaxWidth", "Width")
    width = _number(found, "ActiveWidth", "CurrentWidth", "Width")
    speed, fastest = _number(found, "CurrentSpeedGbps"), _number(found, "MaxSpeedGbps")
    if not width or not most or not speed:
        return None
    gen = generation(speed, width)
    return Link(int(width), gen, int(most), generation(fastest, most) if fastest else gen)


def generation(speed_gb_per_s: float, lanes: float) -> int:
    """PCIe generation of a link, by its speed in Gbit/s over all lanes; a speed below that of one lane each is that of one lane."""
    lane = speed_gb_per_s / lanes if speed_gb_per_s / lanes >= 1.9 else speed_gb_per_s
    return next((gen for least, gen in _GENERATIONS if lane >= least), 1)


def card(found: Json) -> Card:
    model, serial = found.get("Model"), found.get("SerialNumber")
    bus = _object(found.get("PCIeInterface"))
    return Card(
        model if isinstance(model, str) and model else None,
        serial if isinstance(serial, str) and serial else None,
        _place(found),
        _bus_link(bus),
    )


def _bus_link(bus: Json) -> Link | None:
    width, most = _number(bus, "LanesInUse"), _number(bus, "MaxLanes")
    gen, best = (re.sub(r"\D", "", str(bus.get(name) or "")) for name in ("PCIeType", "MaxPCIeType"))
    if not width or not most or not gen:
        return None
    return Link(int(width), int(gen), int(most), int(best or gen))


def _place(found: Json) -> Place:
    slot = _object(found.get("Slot"))
    for location in (slot.get("Location"), found.get("Location"), found.get("PhysicalLocation")):
        part = _object(_object(location).get("PartLocation"))
        ordinal = part.get("LocationOrdinalValue")
        if not isinstance(ordinal, int):
            ordinal = _last_number(part.get("ServiceLabel"))
        context = _object(location).get("PartLocationContext")
        if ordinal is not None:
            return Place(context.split("/")[-1] if isinstance(context, str) and context else None, ordinal)
    return _oem_place(found)


def _oem_place(found: Json) -> Place:
    """Drawer and slot as a vendor's own properties may say them."""
    for vendor in _object(found.get("Oem")).values():
        told = {str(key).lower(): value for key, value in _object(vendor).items()}
        slot = _last_number(told.get("slot", told.get("slotid", told.get("slotnumber"))))
        drawer = told.get("drawer", told.get("drawerid"))
        if slot is not None:
            name = f"drawer{drawer}" if isinstance(drawer, int) else drawer
            return Place(name if isinstance(name, str) and name else None, slot)
    return Place()


def enclosure(found: Json) -> Enclosure:
    path = uri(found) or ""
    within = uri(_object(found.get("Links")).get("ContainedBy"))
    return Enclosure(
        path, str(found.get("Id") or path.rpartition("/")[2]), within, next(_modes(found.get("Oem")), None)
    )


def _modes(told: Any) -> Iterator[Mode]:
    """Modes in a vendor's own properties: any `..Mode` whose value is one."""
    for key, value in _object(told).items():
        if isinstance(value, Mapping):
            yield from _modes(value)
        elif str(key).lower().endswith("mode") and isinstance(value, str):
            mode = _MODES.get(re.sub(r"[^a-z0-9]", "", value.lower()).removesuffix("mode"))
            if mode is not None:
                yield mode


def _object(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(found: Json, *names: str) -> float | None:
    for name in names:
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _last_number(value: Any) -> int | None:
    digits = re.findall(r"\d+", str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else []
    return int(digits[-1]) if digits else None
