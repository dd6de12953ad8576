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
from campaign.fabrics.dialects.redfish.resources import link
from campaign.fabrics.hardware import DeviceState, Health, Link
from campaign.fabrics.http.json_values import Json, at, mapping, mappings, number, text

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
_AWAY = {"Disabled", "StandbyOffline", "UnavailableOffline", "InTest", "Quiesced", "Updating", "Absent"}
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


def _named(found: Json) -> tuple[str, str]:
    """(path, Id)"""
    path = uri(found) or ""
    return path, str(found.get("Id") or path.rpartition("/")[2])


def endpoint(found: Json) -> Endpoint:
    (path, ident), links, status = _named(found), mapping(found, "Links"), mapping(found, "Status")
    entity = next(iter(mappings(found, "ConnectedEntities")), {})
    named = _HOSTPORT.fullmatch(ident)
    details, name = uri(entity.get("EntityLink")), str(found.get("Name") or "")
    labels = (named[1] if named else "", ident, name, (details or "").rpartition("/")[2])
    health = {str(status.get("Health")), str(status.get("HealthRollup"))}
    return Endpoint(
        path=path,
        id=ident,
        name=name or ident,
        host_port=named is not None
        or str(entity.get("EntityType")) in _HOST_ENTITIES
        or entity.get("EntityRole") == "Initiator",
        kind=_kind(entity),
        identity=_identity(entity),
        details=details,
        zones=uris(links["Zones"]) if "Zones" in links else None,
        ports=(*uris(links.get("ConnectedPorts")), *uris(links.get("Ports"))),
        state="unavailable" if str(status.get("State")) in _AWAY else "free",
        health="critical" if "Critical" in health else "warning" if "Warning" in health else "ok",
        labels=tuple(dict.fromkeys(label for label in labels if label)),
        place=_oem_place(found),
    )


def _kind(entity: Json) -> str:
    known = _KINDS.get(str(entity.get("EntityType")))
    if known is None and (code := text(entity, "EntityPciId", "ClassCode")):
        known = _CLASSES.get(code.lower().removeprefix("0x").zfill(6)[:2])
    return known or str(entity.get("EntityType") or "device").lower()


def _identity(entity: Json) -> str | None:
    """A UUID first, else any name that lasts."""
    named = sorted(mappings(entity, "Identifiers"), key=lambda one: one.get("DurableNameFormat") != "UUID")
    return next((found for one in named if (found := text(one, "DurableName"))), None)


def zone(found: Json) -> Zone:
    description = found.get("Description")
    endpoints = mapping(found, "Links").get("Endpoints", found.get("Endpoints"))
    return Zone(*_named(found), description if isinstance(description, str) else None, uris(endpoints))


def port(found: Json, switch: str) -> Port:
    links, up = mapping(found, "Links"), found.get("LinkStatus", found.get("LinkState"))
    return Port(
        *_named(found),
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
    return Card(text(found, "Model"), text(found, "SerialNumber"), _place(found), link(found))


def _place(found: Json) -> Place:
    for location in (at(found, "Slot", "Location"), found.get("Location"), found.get("PhysicalLocation")):
        ordinal = at(location, "PartLocation", "LocationOrdinalValue")
        if not isinstance(ordinal, int):
            ordinal = _last_number(at(location, "PartLocation", "ServiceLabel"))
        if ordinal is not None:
            context = text(location, "PartLocationContext")
            return Place(context.split("/")[-1] if context else None, ordinal)
    return _oem_place(found)


def _oem_place(found: Json) -> Place:
    """Drawer and slot as a vendor's own properties may say them."""
    for vendor in mapping(found, "Oem").values():
        told = {str(key).lower(): value for key, value in mapping(vendor).items()}
        slot = _last_number(told.get("slot", told.get("slotid", told.get("slotnumber"))))
        drawer = told.get("drawer", told.get("drawerid"))
        if slot is not None:
            return Place(f"drawer{drawer}" if isinstance(drawer, int) else text(drawer), slot)
    return Place()


def enclosure(found: Json) -> Enclosure:
    return Enclosure(*_named(found), uri(at(found, "Links", "ContainedBy")), next(_modes(found.get("Oem")), None))


def _modes(told: Any) -> Iterator[Mode]:
    """Modes in a vendor's own properties: any `..Mode` whose value is one."""
    for key, value in mapping(told).items():
        if isinstance(value, Mapping):
            yield from _modes(value)
        elif str(key).lower().endswith("mode") and isinstance(value, str):
            mode = _MODES.get(re.sub(r"[^a-z0-9]", "", value.lower()).removesuffix("mode"))
            if mode is not None:
                yield mode


def _number(found: Json, *names: str) -> float | None:
    return next((value for name in names if (value := number(found.get(name))) is not None), None)


def _last_number(value: Any) -> int | None:
    digits = re.findall(r"\d+", str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else []
    return int(digits[-1]) if digits else None
