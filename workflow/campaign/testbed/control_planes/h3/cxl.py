"""A CXL box (Falcon C5022), emulated as one public client uses it; no recording of a real one is public, so nothing here is timed.

A memory module is composed at its device port, assigned to a host port, unassigned, and deleted again. What that client never sent
is refused and noted in `violations`.

Source: a public Go client of the box (a fork of Seagate/cfm, package pkg/backend; its HTTP layer as in Seagate/cfm@012ae65).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.testbed.control_planes.hardware import Rack, RackDevice
from campaign.testbed.control_planes.server import Asked, Reply, Wire

SWITCH = "/h3api/v1/Switches/0"
MAPPING = f"{SWITCH}/VCSMapping"
DEVICE_PORTS = (*range(8), *range(13, 24), *range(29, 32))
"""Ports of memory modules; the place of one in this row is its `EntryIdx`."""
HOST_PORTS = (8, 9, 10, 11, 12, 24, 25, 26, 27, 28)
"""The other ports. Inferred: nobody has published which ports hosts are on."""
CAPACITY_GIB = 128
KEYS = {
    "compose": {"DSPort", "EntryIdx", "Operation"},
    "assign": {"USPort", "MemoryId", "Operation"},
    "delete": {"MemoryId", "Operation"},
}


class CxlOptions(BaseModel):
    """What is emulated. Where a description says unknown, nobody has published what a real box does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unassigned: Literal["no_key", "empty", "na"] = Field(
        default="no_key", description="HostPort of a memory that no host has; unknown"
    )
    deleted: Literal["nothing", "object"] = Field(default="nothing", description="the answer to a delete; may be empty")
    pcie: str = Field(default="Gen5", description="PCIeType of ports; any case was seen")


@dataclass
class Memory:
    """A composed module: its device, and the host that it is assigned to."""

    device: RackDevice
    port: int
    host: str | None = None


@dataclass
class CxlBox:
    """The modules of one drawer. violations: shared by all boxes."""

    name: str
    rack: Rack
    options: CxlOptions
    violations: list[str]
    memories: dict[str, Memory] = field(default_factory=dict)
    _made: int = 0

    def __post_init__(self) -> None:
        modules = [device for device in self.rack.devices.values() if device.drawer == self.name]
        hosts = [host.name for host in self.rack.hosts.values() if self.name in host.drawers]
        if others := [device.name for device in modules if device.kind != "memory"]:
            raise ValueError(f"{self.name}: a CXL box has memory; {', '.join(others)} is none")
        if len(modules) > len(DEVICE_PORTS) or len(hosts) >= len(HOST_PORTS):
            raise ValueError(f"{self.name}: {len(DEVICE_PORTS)} modules and {len(HOST_PORTS) - 1} hosts are the most")
        self.modules = dict(zip(DEVICE_PORTS, modules, strict=False))
        self.ports = dict(zip(HOST_PORTS, hosts, strict=False))

    def answer(self, asked: Asked) -> Reply:
        if (asked.header("Content-Type") or "").lower() != "application/json; charset=utf-8":
            return self._never(asked, f"Content-Type {asked.header('Content-Type')}")
        if asked.query or asked.header("Authorization") or asked.header("Cookie"):
            return self._never(asked, "a query or a login")
        if asked.text != "null" and (asked.method, asked.path) != ("POST", MAPPING):
            return self._never(asked, f"the body {asked.text!r}, not null")
        match asked.method, asked.path.removeprefix(SWITCH).split("/")[1:]:
            case "GET", ["redfish", "v1", *rest]:
                return self._redfish(asked, rest)
            case "GET", ["h3api", "v1", "Switches"]:
                return Reply(200, {"Switches": ["0"]})
            case "POST", ["Ports"]:
                return Reply(200, {"Ports": self._ports()})
            case "GET", ["Ports", number]:
                found = next((port for port in self._ports() if port["PortNumber"] == number), None)
                return (
                    Reply(200, found | {"PCIeType": self.options.pcie}) if found else self._never(asked, "no such port")
                )
            case "POST", ["CXLDevices"]:
                return Reply(200, {"CXLDevices": self._devices()})
            case "GET", ["VCSMapping"]:
                return Reply(
                    200, {"VCSMapping": {name: self._mapped(memory) for name, memory in self.memories.items()}}
                )
            case "POST", ["VCSMapping"]:
                return self._change(asked)
            case "DELETE", ["VCSMapping", name]:
                return self._unassign(asked, name)
        return self._never(asked, "no such call")

    def _never(self, asked: Asked, why: str) -> Reply:
        self.violations.append(f"{self.name}: {asked.method} {asked.path} {asked.text}: {why}")
        return Reply(400, {"emulator": f"no public client ever sent this: {why}"})

    def _redfish(self, asked: Asked, rest: list[str]) -> Reply:
        """As much of it as the client reads: no UUID, a chassis without a part number."""
        root = "/redfish/v1"
        match rest:
            case []:
                return Reply(200, {name: {"@odata.id": f"{root}/{name}"} for name in ("Chassis", "Fabrics")})
            case ["Chassis" | "Fabrics" as kind]:
                return Reply(200, {"Members": [{"@odata.id": f"{root}/{kind}/1"}]})
            case ["Chassis", "1"]:
                devices = {"@odata.id": f"{root}/Chassis/1/PCIeDevices"}
                return Reply(200, {"SerialNumber": f"emulated-{self.name}", "PCIeDevices": devices})
        return self._never(asked, "no such resource")

    def _ports(self) -> list[dict[str, str]]:
        """One host port has no host and one module few lanes, which the client passes over."""
        hosts = {**self.ports, HOST_PORTS[len(self.ports)]: ""}
        ports = [_port(number, "USP", host=host or "NA") for number, host in hosts.items()]
        ports += [_port(number, "DSP") for number in self.modules]
        if spare := [number for number in DEVICE_PORTS if number not in self.modules]:
            ports.append(_port(spare[-1], "DSP", lanes="4"))
        return ports

    def _state(self, port: int) -> int:
        return int(any(memory.port == port for memory in self.memories.values()))

    def _devices(self) -> list[dict[str, Any]]:
        return [
            {"PortNumber": str(port), "MemoryCapacity": str(CAPACITY_GIB), "CompositionState": self._state(port)}
            for port in self.modules
        ]

    def _mapped(self, memory: Memory) -> dict[str, str]:
        if memory.host is not None:
            return {
                "DS": str(memory.port),
                "HostPort": next(str(p) for p, name in self.ports.items() if name == memory.host),
            }
        free = {"empty": {"HostPort": ""}, "na": {"HostPort": "NA"}}.get(self.options.unassigned, {})
        return {"DS": str(memory.port), **free}

    def _change(self, asked: Asked) -> Reply:
        body = asked.body
        operation = body.get("Operation") if isinstance(body, dict) else None
        if (
            operation not in KEYS
            or body.keys() != KEYS[operation]
            or not all(isinstance(v, str) for v in body.values())
        ):
            return self._never(asked, "a body of none of the three operations, all strings")
        if operation == "compose":
            return self._compose(asked, body)
        memory = self.memories.get(body["MemoryId"])
        if memory is None:
            return self._never(asked, "no such memory")
        return self._assign(asked, memory, body["USPort"]) if operation == "assign" else self._delete(asked, memory)

    def _compose(self, asked: Asked, body: dict[str, str]) -> Reply:
        port = int(body["DSPort"]) if body["DSPort"].isdigit() else -1
        if port not in self.modules or body["EntryIdx"] != str(DEVICE_PORTS.index(port)):
            return self._never(asked, "no module at this port, or not the entry of this port")
        if self._state(port):
            return self._never(asked, "composes what is composed")
        self._made += 1
        self.memories[str(self._made)] = Memory(self.modules[port], port)
        return Reply(200, {"MemoryId": str(self._made)})

    def _assign(self, asked: Asked, memory: Memory, port: str) -> Reply:
        host = next((name for number, name in self.ports.items() if str(number) == port), None)
        if host is None or memory.host is not None:
            return self._never(asked, "no host at this port" if host is None else "assigns what is assigned")
        self.rack.attach(memory.device.name, host)
        memory.host = host
        return Reply(200)

    def _unassign(self, asked: Asked, name: str) -> Reply:
        memory = self.memories.get(name)
        if memory is None or memory.host is None:
            return self._never(asked, "unassigns what is not assigned")
        self.rack.detach(memory.device.name)
        memory.host = None
        return Reply(200)

    def _delete(self, asked: Asked, memory: Memory) -> Reply:
        if memory.host is not None:
            return self._never(asked, "deletes what is assigned")
        self.memories = {name: one for name, one in self.memories.items() if one is not memory}
        return Reply(200, {} if self.options.deleted == "object" else None)


def _port(number: int, kind: str, *, lanes: str = "8", host: str = "NA") -> dict[str, str]:
    return {"PortNumber": str(number), "PortType": kind, "LanesInUse": lanes, "HostPlatformDetected": host}


class CxlBoxes:
    """See `server.Dialect`. violations: what the public client never sent, in words."""

    def __init__(self, rack: Rack, options: CxlOptions) -> None:
        self.rack = rack
        self.violations: list[str] = []
        drawers = dict.fromkeys(device.drawer for device in rack.devices.values())
        self.boxes = {name: CxlBox(name, rack, options, self.violations) for name in drawers}
        self.wire = Wire(parts=tuple(self.boxes))

    def answer(self, asked: Asked) -> Reply:
        return self.boxes[asked.part].answer(asked)
