"""What CDIM shows, and the procedures that it is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.fabrics.dialects.nec.options import Api, Options
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.hardware import Device, DeviceState, Health
from campaign.fabrics.http.json_values import Json, at, mapping

Operation = Literal["connect", "disconnect"]
KINDS = {"GPU": "gpu", "storage": "nvme", "networkInterface": "nic"}
DRAWER = "cdim"
ENDS: dict[Api, tuple[str, str, str]] = {
    "eeio": ("destinationFabricAdapter", "sourceDeviceID", "destinationDeviceID"),
    "cpu": ("CPU", "targetCPUID", "targetDeviceID"),
}
"""Per API: the type of a host's own end of a link, and the names of the two ends in a procedure."""
_LINKED: dict[Api, tuple[str, ...]] = {"eeio": ("destinationFabricAdapter", "eeio"), "cpu": ("CPU",)}
"""Types of links that hold a device: the public client reads one type to see that it is free, the other to see where it is."""
_ADAPTER, _ADAPTER_STATUS = "sourceFabricAdapter", "eesv"
"""The fabric adapter of a host, whose link leads to the host's end in the fabric."""
_HEALTH: dict[str, Health] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}


@dataclass(frozen=True, slots=True)
class Layout:
    """What CDIM shows: devices, and by host (the system file's name) the id of its end of every link."""

    devices: tuple[Device, ...]
    interfaces: Mapping[str, str] = field(default_factory=dict)


def layout(resources: Any, nodes: Any, options: Options, hosts: Sequence[str]) -> Layout:
    """Out of GET /resources and GET /nodes, both with details. Raises ProtocolViolation for lists that are none."""
    names = {options.hosts.get(host, host): host for host in hosts}
    parts: dict[str, set[str]] = {}
    interfaces: dict[str, str] = {}
    ends: dict[str, str] = {}
    for node in _listed(nodes, "nodes"):
        host = names.get(str(node.get("id")), str(node.get("id")))
        for part in _listed(node, "resources"):
            device = mapping(part.get("device"))
            parts.setdefault(str(device.get("deviceID")), set()).add(host)
            for end in _ends(device, options.api):
                interfaces.setdefault(host, end)
                ends[end] = host
    interfaces |= options.interfaces
    ends |= {interface: host for host, interface in options.interfaces.items()}
    movable = [  # what can be taken out of its host
        resource
        for resource in _listed(resources, "resources")
        if str(at(resource, "device", "type")) in KINDS
        and not at(resource, "device", "constraints", "nonRemovableDevices")
    ]
    movable.sort(key=lambda resource: str(at(resource, "device", "deviceID")))
    devices = (_device(one, slot, parts, ends, options) for slot, one in enumerate(movable, start=1))
    return Layout(tuple(devices), interfaces)


def _ends(device: Json, api: Api) -> tuple[str, ...]:
    """The ids of a host's ends of links that one of its parts tells."""
    kind = ENDS[api][0]
    if api == "cpu":
        return (str(device.get("deviceID")),) if device.get("type") == kind else ()
    status = at(device, "attribute", "deviceSpecificInformation", "status")
    if device.get("type") != _ADAPTER or status not in (None, _ADAPTER_STATUS):
        return ()
    return tuple(str(link.get("deviceID")) for link in _listed(device, "links", ()) if link.get("type") == kind)


def _device(
    resource: Json, slot: int, parts: Mapping[str, set[str]], ends: Mapping[str, str], options: Options
) -> Device:
    device, types = mapping(resource, "device"), _LINKED[options.api]
    name = str(device.get("deviceID") or "")
    if not name:
        raise ProtocolViolation(f"resources: a {device.get('type')} without deviceID")
    links = [str(link.get("deviceID")) for link in _listed(device, "links", ()) if link.get("type") in types]
    linked = {ends.get(link, f"{types[0]} {link}") for link in links}
    listed = parts.get(name, set())
    status = mapping(device, "status")
    health = _HEALTH.get(str(status.get("health")), "warning")
    agree = linked == listed and len(linked) <= 1
    return Device(
        name,
        KINDS[str(device.get("type"))],
        str(device.get("model") or "unknown"),
        # A drive and a card are seen by their serial on their host; a GPU's UUID is not told.
        str(device["serialNumber"]) if device.get("type") != "GPU" and device.get("serialNumber") else None,
        f"{DRAWER}/slot{slot}",
        local=False,
        attached_to=min(linked or listed, default=None),
        state=_state(resource, status, health, bool(linked)) if agree else "unknown",
        health=health,
    )


def _state(resource: Json, status: Json, health: Health, linked: bool) -> DeviceState:
    """Free is what is detected, enabled, well, offered by its administrator, and linked to no host."""
    if linked:
        return "in_use"
    if health == "critical":
        return "failed"
    offered = mapping(resource, "annotation").get("available", True) is True and resource.get("detected") is True
    return "free" if offered and status.get("state") == "Enabled" and health == "ok" else "unavailable"


def _listed(body: Any, name: str, otherwise: Any = None) -> list[Json]:
    members = mapping(body).get(name, otherwise)
    if not isinstance(members, (list, tuple)):
        raise ProtocolViolation(f"CDIM: a list {name!r} was expected, got {str(body)[:200]}")
    return [mapping(member) for member in members]


def procedures(
    operation: Operation,
    hosts: Mapping[str, Sequence[str]],
    interfaces: Mapping[str, str],
    api: Api,
) -> list[dict[str, Any]]:
    """The steps of one apply: those of one host one after the other (a host enumerates one at a time), hosts side by side."""
    _, source, destination = ENDS[api]
    found: list[dict[str, Any]] = []
    for host, names in hosts.items():
        for index, name in enumerate(names):
            step = {"operationID": len(found) + 1, "operation": operation, source: interfaces[host], destination: name}
            found.append(step | {"dependencies": [len(found)] if index else []})
    return found
