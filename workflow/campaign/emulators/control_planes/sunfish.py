"""OFMF/Sunfish, emulated: a Redfish store, and the agent behind it that has the fabric. They can disagree.

Source: the Sunfish reference server (its development branch), which was run with its own agent. It asks nobody to log in. Links to
the collections of a fabric lead nowhere, there are no Connections before the first, and endpoints say nothing of them. Created
objects are answered with 200 and no Location, a second one of an Id with 409 and text after the agent was asked too. The ends of a
connection are not looked at. What goes wrong inside ends the connection without an answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.emulators.control_planes.hardware import Rack, RackError
from campaign.emulators.control_planes.redfish.documents import ROOT, ref
from campaign.emulators.control_planes.server import Asked, Reply

FABRIC = f"{ROOT}/Fabrics/CXL"
CONNECTIONS = f"{FABRIC}/Connections"
AGENT_HOST = "/_agent"
AGENT = f"{AGENT_HOST}{CONNECTIONS}"
"""The agent's own list of connections, on a service of its own in reality."""
SOURCE = f"{ROOT}/AggregationService/AggregationSources/agent-1"
ENTITIES = {"gpu": "Processor", "nvme": "Drive", "nic": "NetworkController"}
_HTML = {"Content-Type": "text/html; charset=utf-8"}
_PAGE = "<!doctype html>\n<html lang=en>\n<title>500 Internal Server Error</title>\n<h1>Internal Server Error</h1>\n"


def ends(connection: Mapping[str, Any], name: str) -> list[str]:
    """Addresses of one side of a connection, out of whatever a client has stored as one."""
    links = connection.get("Links")
    listed = links.get(name) if isinstance(links, dict) else None
    references = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [str(one.get("@odata.id")) for one in references]


@dataclass
class Quirks:
    """How this Sunfish is.

    deletions: those that the agent carries out end in an error of Sunfish and stay listed: `dropped` without an answer, `500` where
    its file of renamed objects is there. unstored: creations that the agent carries out are answered with 500 and not listed.
    down: the agent is not there. renamed: addresses of endpoints mean nothing; nameless: it does not say where its agent is.
    """

    deletions: Literal["", "dropped", "500"] = ""
    unstored: bool = False
    down: bool = False
    renamed: bool = False
    nameless: bool = False


@dataclass
class EmulatedAgent:
    """Who has the fabric: its connections by Id, and what it does to the hardware."""

    rack: Rack
    endpoints: dict[str, str]
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)

    def create(self, body: Mapping[str, Any]) -> bool:
        """False for what the hardware cannot do; ends that do not exist are passed over, as nobody looks at them."""
        if body["Id"] in self.connections:
            return True
        if len(self._ends(body, "InitiatorEndpoints")) > 1:
            return False
        host = next(iter(self._ends(body, "InitiatorEndpoints")), None)
        devices = [name for name in self._ends(body, "TargetEndpoints") if name in self.rack.devices]
        if host is None or any(self.rack.devices[name].attached_to is not None for name in devices):
            return False
        try:
            for name in devices:
                self.rack.attach(name, host)
        except RackError:
            return False
        self.connections[str(body["Id"])] = dict(body)
        return True

    def delete(self, name: str) -> bool:
        """False: it has none of that Id (404)."""
        body = self.connections.pop(name, None)
        for device in self._ends(body or {}, "TargetEndpoints"):
            if device in self.rack.devices:
                self.rack.detach(device)
        return body is not None

    def _ends(self, body: Mapping[str, Any], name: str) -> list[str]:
        return [self.endpoints[path] for path in ends(body, name) if path in self.endpoints]


class Sunfish:
    """Sunfish and its agent over a rack: an initiator endpoint a host, a target one a device, a zone a drawer. See `Quirks`."""

    def __init__(self, rack: Rack, **quirks: Any) -> None:
        self.rack = rack
        self.quirks = Quirks(**quirks)
        self._names = {self._endpoint_path(name): name for name in (*rack.hosts, *rack.devices)}
        self._drawers = sorted({drawer for host in rack.hosts.values() for drawer in host.drawers})
        self._address = ""
        self._connected = False
        self.agent = EmulatedAgent(rack, self._names)
        self.store: dict[str, dict[str, Any]] = {}

    def _endpoint_path(self, name: str) -> str:
        shown = hashlib.sha256(name.encode()).hexdigest()[:12] if self.quirks.renamed else name
        return f"{FABRIC}/Endpoints/{shown}"

    def answer(self, asked: Asked) -> Reply | None:
        path = asked.path.rstrip("/")
        self._address = f"{asked.scheme}://{asked.header('Host')}"
        if path.startswith(AGENT_HOST):
            return self._agents(asked.method, path)
        if asked.path == ROOT:  # the root has a slash at its end, and no other address
            return Reply(404, "The requested URL was not found on the server.")
        if (asked.method, path) == ("GET", ROOT):
            return Reply(200, {"@odata.id": f"{ROOT}/", "Fabrics": ref(f"{ROOT}/Fabrics")})
        match asked.method:
            case "POST":
                return self._create(path, asked.body)
            case "DELETE" if path in self._connections():
                return self._delete(self._connections()[path])
            case "DELETE":
                # A collection is not deleted, which nobody catches.
                return None if self._resource(path) else Reply(404, f"[Error] Resource {path} not found.")
            case "GET":
                found = self._resource(path)
                return Reply(404, f"[Error] Resource {path} not found.") if found is None else Reply(200, found)
        return Reply(500, _PAGE, _HTML)

    def _connections(self) -> dict[str, str]:
        return {f"{CONNECTIONS}/{name}": name for name in self.store}

    def _resource(self, path: str) -> dict[str, Any] | None:
        zones, parts, connections = f"{FABRIC}/Zones", f"{ROOT}/Chassis/Pool/", self._connections()
        collections: dict[str, Iterable[str]] = {
            f"{ROOT}/Fabrics": [FABRIC],
            f"{FABRIC}/Endpoints": self._names,
            zones: [f"{zones}/{drawer}" for drawer in self._drawers],
        }
        if self._connected:
            collections[CONNECTIONS] = connections
        if path in collections:
            return {"@odata.id": path, "Members": [ref(member) for member in collections[path]]}
        if path == FABRIC:
            links = {name: ref(f"{ROOT}/{name}") for name in ("Endpoints", "Zones", "Connections")}
            return {"@odata.id": path, "Id": "CXL", "FabricType": "CXL", **links, **_managed()}
        if path == SOURCE:
            host = {} if self.quirks.nameless else {"HostName": self._address + AGENT_HOST}
            return {"@odata.id": path, "Id": "agent-1", **host}
        if path in self._names:
            return self._endpoint(path, self._names[path])
        if path in connections:
            return self.store[connections[path]]
        if (drawer := path.removeprefix(f"{zones}/")) in self._drawers:
            members = [host.name for host in self.rack.hosts.values() if drawer in host.drawers]
            members += [device.name for device in self.rack.devices.values() if device.drawer == drawer]
            ends_there = {"Endpoints": [ref(self._endpoint_path(name)) for name in members]}
            return {"@odata.id": path, "Id": drawer, "ZoneType": "ZoneOfEndpoints", "Links": ends_there}
        if (device := self.rack.devices.get(path.removeprefix(parts))) is not None:
            part = {"@odata.id": path, "Id": device.name, "Model": device.model, "SerialNumber": device.serial}
            return part | {"ProcessorType": "GPU"} if device.kind == "gpu" else part
        return None

    def _endpoint(self, path: str, name: str) -> dict[str, Any]:
        device = self.rack.devices.get(name)
        entities: list[dict[str, Any]] = [{"EntityType": "ComputerSystem", "EntityRole": "Initiator"}]
        if device is not None:
            entity: dict[str, Any] = {"EntityType": ENTITIES[device.kind], "EntityRole": "Target"}
            entity["EntityLink"] = ref(f"{ROOT}/Chassis/Pool/{name}")
            if device.kind == "gpu":
                entity["Identifiers"] = [{"DurableName": device.uuid, "DurableNameFormat": "UUID"}]
            # Agents of the reference server put the device's place in the fabric before what it is.
            entities = [{"EntityType": "CXLDevice", "EntityRole": "Target"}, entity]
        status = {"State": "Enabled", "Health": "Critical" if device and "broken" in device.quirks else "OK"}
        whole = {"@odata.id": path, "Id": name, "Name": name, "ConnectedEntities": entities, "Status": status}
        return whole | _managed()

    def _create(self, path: str, body: Any) -> Reply | None:
        if not isinstance(body, dict) or "@odata.type" not in body:
            return Reply(400, "[Error] Property @odata.type not found.")
        if path != CONNECTIONS:
            return Reply(500, _PAGE, _HTML)
        if body.get("ConnectionType") not in ("Memory", "Storage"):
            return Reply(400, "[Error] ConnectionType: Memory or Storage")
        own = str(body.get("@odata.id", f"{CONNECTIONS}/{hashlib.sha256(repr(body).encode()).hexdigest()[:32]}"))
        name = own.removeprefix(f"{CONNECTIONS}/")
        whole = {**body, "Id": str(body.get("Id", name)), "@odata.id": own}
        nameless = "Id" in body and "@odata.id" not in body
        if nameless or "/" in name:
            return Reply(500, _PAGE, _HTML)
        if self.quirks.down:
            return None
        if not self.agent.create(whole) or self.quirks.unstored:
            return Reply(500, _PAGE, _HTML)
        if name in self.store:
            return Reply(409, f"[Error] Resource {own} already exists.")
        self._connected = True
        self.store[name] = whole | _managed()
        return Reply(200, self.store[name])

    def _delete(self, name: str) -> Reply | None:
        if self.quirks.down or not self.agent.delete(name) or self.quirks.deletions == "dropped":
            return None  # that the agent has no such connection ends Sunfish's answer, too
        if self.quirks.deletions:
            return Reply(500, _PAGE, _HTML)
        del self.store[name]
        return Reply(200, {"message": "DELETED"})

    def _agents(self, method: str, path: str) -> Reply | None:
        """The agent itself. It has no list while there is nothing to list."""
        if method != "GET":
            return Reply(405)
        if self.quirks.down:
            return None
        addresses = {f"{AGENT}/{name}": body for name, body in self.agent.connections.items()}
        if path == AGENT and addresses:
            return Reply(200, {"@odata.id": AGENT, "Members": [ref(address) for address in addresses]})
        if path == AGENT_HOST + FABRIC:
            return Reply(200, {"@odata.id": FABRIC, "Id": "CXL"})
        if path not in addresses:
            return Reply(404, {"error": "not found"})
        return Reply(200, {**addresses[path], "@odata.id": path})


def _managed() -> dict[str, Any]:
    """What Sunfish adds to objects that an agent has."""
    return {"Oem": {"Sunfish_RM": {"ManagingAgent": ref(SOURCE)}}}


COMPOSES = ("POST", "*/Connections")
open_emulator = Sunfish
