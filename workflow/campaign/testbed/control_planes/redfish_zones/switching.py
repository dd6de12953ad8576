"""What the chassis does, whatever protocol it is asked in: ports, zones, the rules of modes, counters and a log of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from campaign.testbed.control_planes.hardware import Rack, RackDevice, RackError
from campaign.testbed.control_planes.redfish_service.documents import ROOT, Refused, ref
from campaign.testbed.control_planes.redfish_service.service import Behaviour

Mode = Literal["standard_one_host", "standard_two_hosts", "advanced"]

SLOTS = 8
HOSTS_IN_ADVANCED = 3


class Options(Behaviour):
    """The variant that is emulated."""

    variant: Literal["falcon", "gigaio"] = Field(default="falcon", description="with drawers and modes, or without")
    modes: dict[str, Mode] = Field(default_factory=dict, description="mode by drawer; default: advanced")
    tells_modes: bool = Field(default=True, description="the chassis shows its mode")
    ports: dict[str, str] = Field(default_factory=dict, description="host by port; default: the rack's hosts in order")
    tells_hosts: bool = Field(default=True, description="the endpoint of a host port refers to its host")
    endpoints: Literal["links", "rsd21"] = Field(
        default="links", description="where the list of endpoints is in a PATCH: under `Links`, or at the top"
    )
    description: Literal["writable", "unknown", "read_only", "ignored"] = Field(
        default="writable", description="what becomes of a zone's Description in a PATCH"
    )
    descriptions: dict[str, str] = Field(default_factory=dict, description="what zones are described as at first")
    etags: Literal["none", "given", "required"] = "none"
    keeps_tasks: bool = True
    both_ends: bool = Field(default=True, description="endpoints tell their zones")
    details: bool = Field(default=True, description="endpoints refer to resources of their devices")
    answers: Literal["resource", "nothing"] = Field(default="resource", description="to a PATCH: 200 with it, or 204")
    others: tuple[str, ...] = Field(default=(), description="further fabrics, which are empty")
    rsd_version: str | None = Field(default=None, description="version of Intel's RSD that the root claims")


@dataclass
class Port:
    """One host port and its zone. number counts from 1."""

    name: str
    number: int
    host: str | None
    description: str

    @property
    def zone(self) -> str:
        return str(self.number)


class Switching:
    """Zones over a rack. Which port a device is on is kept here; which host has it is the rack's truth."""

    def __init__(self, rack: Rack, options: Options) -> None:
        self.rack = rack
        self.options = options
        drawers = dict.fromkeys(["drawer1", "drawer2", *(device.drawer for device in rack.devices.values())])
        self.drawers = [] if options.variant == "gigaio" else list(drawers)
        self.modes: dict[str, Mode] = {drawer: options.modes.get(drawer, "advanced") for drawer in self.drawers}
        self.ports = {port.name: port for port in self._cabled(options)}
        self.log: list[dict[str, Any]] = []  # properties of Redfish's LogEntry
        self.errors: dict[str, tuple[int, int]] = {}  # device -> correctable, uncorrectable
        self._port_of: dict[str, str] = {}
        if unknown := sorted(set(options.modes) - set(self.drawers)):
            raise ValueError(f"modes: no drawer {', '.join(unknown)}; there are {', '.join(self.drawers) or 'none'}")
        if self.drawers and (beyond := [device.name for device in rack.devices.values() if device.slot > SLOTS]):
            raise ValueError(f"a drawer has {SLOTS} slots; no room for {', '.join(beyond)}")

    def _cabled(self, options: Options) -> list[Port]:
        names = list(self.rack.hosts)
        known = ["H1", "H2", "H3", "H4"] if self.drawers else [f"port{17 + index}" for index in range(len(names))]
        hosts = options.ports or dict(zip(known, names, strict=False))
        known = known if self.drawers else list(hosts)
        if wrong := [port for port, host in hosts.items() if port not in known or host not in names]:
            raise ValueError(f"ports: {', '.join(wrong)}: ports are {', '.join(known)}, hosts {', '.join(names)}")
        return [
            Port(name, index + 1, hosts.get(name), options.descriptions.get(name, f"Zone of host port {name}"))
            for index, name in enumerate(known)
        ]

    def port_of(self, device: RackDevice) -> Port | None:
        """The port whose zone a device is in: the one it was put in, or the first of its host."""
        if device.attached_to is None:
            return None
        own = self.ports.get(self._port_of.get(device.name, ""))
        there = [port for port in self.ports.values() if port.host == device.attached_to]
        return own if own in there else next(iter(there), None)

    def zones(self) -> dict[str, list[RackDevice]]:
        """Devices by port."""
        found: dict[str, list[RackDevice]] = {name: [] for name in self.ports}
        for device in self.rack.devices.values():
            port = self.port_of(device)
            if port is not None:
                found[port.name].append(device)
            for other in self.ports.values():
                if device.also is not None and other.host == device.also:
                    found[other.name].append(device)
        return found

    def reaching(self, drawer: str) -> list[str]:
        """Ports that reach a drawer in its mode, in the order of its connections."""
        cabled = [
            port.name for port in self.ports.values() if port.host and drawer in self.rack.hosts[port.host].drawers
        ]
        if self.modes[drawer] == "advanced":
            return cabled
        index = self.drawers.index(drawer)
        own = [name for name in cabled if self.ports[name].number in (2 * index + 1, 2 * index + 2)]
        return (own or cabled)[: 1 if self.modes[drawer] == "standard_one_host" else 2]

    def violation(self, attached: Mapping[str, str]) -> str | None:
        """The rule that having devices on ports (device -> port) would break."""
        sharing: dict[str, set[str]] = {}
        for name, port in attached.items():
            device, host = self.rack.devices[name], self.ports[port].host
            if not self.drawers:
                continue
            mode, reaching = self.modes[device.drawer], self.reaching(device.drawer)
            if mode == "standard_two_hosts":
                connection = (device.slot - 1) // (SLOTS // 2)
                reaching = reaching[connection : connection + 1]
            if port not in reaching:
                return f"port {port} does not reach slot {device.slot} of {device.drawer} in mode {mode}"
            sharing.setdefault(device.drawer, set()).add(str(host))
            if len(sharing[device.drawer]) > HOSTS_IN_ADVANCED:
                return f"more than {HOSTS_IN_ADVANCED} hosts would hold devices of {device.drawer}"
        return None

    def check(self, port: Port, wanted: Sequence[str]) -> None:
        """Raises Refused when the zone of a port cannot be made of these devices."""
        now = {name: owner.name for name, device in self.rack.devices.items() if (owner := self.port_of(device))}
        for name in wanted:
            if now.get(name, port.name) != port.name:
                raise Refused(409, "ResourceInUse", f"{name} is in the zone of host port {now[name]}")
        if wanted and port.host is None:
            raise Refused(400, "ActionNotSupported", f"no host is connected to host port {port.name}")
        after = {name: owner for name, owner in now.items() if owner != port.name} | dict.fromkeys(wanted, port.name)
        if rule := self.violation(after):
            raise Refused(400, "PropertyValueConflict", f"not allowed: {rule}", ("Endpoints", "Mode"))

    def put(self, port: Port, wanted: Sequence[str], description: str | None) -> None:
        """Make the zone of a port of just these devices; all or nothing. Raises Refused."""
        self.check(port, wanted)
        before = [device.name for device in self.zones()[port.name]]
        try:
            for name in wanted:
                if name not in before:
                    self.rack.attach(name, str(port.host))
                    self._port_of[name] = port.name
                    self.note(f"{name} assigned to host port {port.name}", "ZoneEndpointAdded", f"Endpoints/{name}")
        except RackError as error:
            for name in wanted:
                if name not in before and self._port_of.get(name) == port.name:
                    self.rack.detach(name)
            raise Refused(400, "PropertyValueConflict", f"not allowed: {error}", ("Endpoints", "Cabling")) from error
        for name in before:
            if name not in wanted:
                self.rack.detach(name)
                self._port_of.pop(name, None)
                self.note(f"{name} removed from host port {port.name}", "ZoneEndpointRemoved", f"Endpoints/{name}")
        if description is not None and description != port.description:
            port.description = description
            self.note(f"zone {port.zone} described anew", "ResourceChanged", f"Zones/{port.zone}")

    def note(self, message: str, message_id: str, origin: str) -> None:
        """origin: what it is about, below the fabric."""
        self.log.append(
            {
                "Created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "Severity": "OK",
                "Message": message,
                "MessageId": f"Fabric.1.0.{message_id}",
                "Links": {"OriginOfCondition": ref(f"{ROOT}/Fabrics/PCIe/{origin}")},
            }
        )
