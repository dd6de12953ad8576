"""What CDIM shows, and the procedures that it is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.fabrics.dialects.nec.options import Api, Options
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.hardware import Device, DeviceState, Health

Operation = Literal["connect", "disconnect"]
KINDS = {"GPU": "gpu", "storage": "nvme", "networkInterface": "nic"}
DRAWER = "cdim"
ENDS: dict[Api, tuple[str, str, str]] = {
    "eeio": ("eeio", "sourceDeviceID", "destinationDeviceID"),
    "cpu": ("CPU", "targetCPUID", "targetDeviceID"),
}
"""Per API: the type of a host's own end of a link, and the names of the two ends in a procedure."""
_HEALTH: dict[str, Health] = {"OK": "ok", "Warning": "warning", "Critical": "critical"}


@dataclass(frozen=True, slots=True)
class Layout:
    """What CDIM shows: devices, and by host (the system file's name) the id of its end of every link."""

    devices: tuple[Device, ...]
    interfaces: Mapping[str, str] = field(default_factory=dict)


def layout(resources: Any, nodes: Any, options: Options, hosts: Sequence[str]) -> Layout:
    """Out of GET /resources and GET /nodes, both with details. Raises ProtocolViolation for lists that are none."""
    names = {options.hosts.get(host, host): host for host in hosts}
    link_type = ENDS[options.api][0]
    parts: dict[str, set[str]] = {}
    interfaces: dict[str, str] = {}
    ends: dict[str, str] = {}
    for node in _listed(nodes, "nodes"):
        host = names.get(str(node.get("id")), str(node.get("id")))
        for part in _listed(node, "resources"):
            device = mapping(part.get("device"))
            parts.setdefault(str(device.get("deviceID")), set()).add(host)
            if device.get("type") == link_type:
                interfaces.setdefault(host, str(device.get("deviceID")))
                ends[str(device.get("deviceID"))] = host
    interfaces |= options.interfaces
    ends |= {interface: host for host, interface in options.interfaces.items()}
    found = [
        (resource, mapping(resource.get("device")))
        for resource in _listed(resources, "resources")
        if str(mapping(resource.get("device")).get("type")) in KINDS
    ]
    movable = sorted((pair for pair in found if not _built_in(pair[1])), key=lambda pair: str(pair[1].get("deviceID")))
    devices = tuple(
        _device(resource, device, number, parts, ends, link_type, options.models)
        for number, (resource, device) in enumerate(movable, start=1)
    )
    return Layout(devices, interfaces)


def _device(
    resource: Mapping[str, Any],
    device: Mapping[str, Any],
    slot: int,
    parts: Mapping[str, set[str]],
    ends: Mapping[str, str],
    link_type: str,
    models: Mapping[str, str],
) -> Device:
    name = str(device.get("deviceID") or "")
    if not name:
        raise ProtocolViolation(f"resources: a {device.get('type')} without deviceID")
    links = [str(link.get("deviceID")) for link in _listed(device, "links", ()) if link.get("type") == link_type]
    linked = {ends.get(link, f"{link_type} {link}") for link in links}
    listed = parts.get(name, set())
    model = str(device.get("model") or "unknown")
    status = mapping(device.get("status"))
    health = _HEALTH.get(str(status.get("health")), "warning")
    agree = linked == listed and len(linked) <= 1
    return Device(
        name,
        KINDS[str(device.get("type"))],
        models.get(model, model.lower().replace(" ", "-")),
        # A drive and a card are seen by their serial on their host; a GPU's UUID is not told.
        str(device["serialNumber"]) if device.get("type") != "GPU" and device.get("serialNumber") else None,
        f"{DRAWER}/slot{slot}",
        local=False,
        attached_to=min(linked or listed, default=None),
        state=_state(resource, status, health, bool(linked)) if agree else "unknown",
        health=health,
    )


def _state(resource: Mapping[str, Any], status: Mapping[str, Any], health: Health, linked: bool) -> DeviceState:
    """Free is what is detected, enabled, well, offered by its administrator, and linked to no host."""
    if linked:
        return "in_use"
    if health == "critical":
        return "failed"
    offered = mapping(resource.get("annotation")).get("available", True)
    if (
        resource.get("detected") is not True
        or status.get("state") != "Enabled"
        or health != "ok"
        or offered is not True
    ):
        return "unavailable"
    return "free"


def _built_in(device: Mapping[str, Any]) -> bool:
    """True for what cannot be taken out of its host."""
    return bool(mapping(device.get("constraints")).get("nonRemovableDevices"))


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(body: Any, name: str, otherwise: Any = None) -> list[Mapping[str, Any]]:
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
            number = len(found) + 1
            found.append(
                {
                    "operationID": number,
                    "operation": operation,
                    source: interfaces[host],
                    destination: name,
                    "dependencies": [number - 1] if index else [],
                }
            )
    return found
