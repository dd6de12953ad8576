"""OFMF/Sunfish, emulated: a Redfish store, and the agent behind it that has the fabric. They can disagree.

Source: the Sunfish reference server, which was run: created objects are answered with 200 and no Location, a second one of an Id
with 409 and text, ends of a connection are not looked at, an agent that fails gives a page of HTML or no answer at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from campaign.testbed.control_planes.hardware import Rack, RackError
from campaign.testbed.control_planes.redfish_service.documents import ROOT, ref
from campaign.testbed.control_planes.server import Asked, Reply

FABRIC = f"{ROOT}/Fabrics/CXL"
AGENT = "/_agent/redfish/v1/Fabrics/CXL/Connections"
"""The agent's own list of connections, on a service of its own in reality."""
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
    """What peers do. down: how an agent that is not there is told of; drops: so many deletions (-1: all) that the agent carries out
    and nobody answers, `half_made` the same of creations; links: by whom endpoints say what they are part of; renamed: addresses
    mean nothing; expands: collections can be expanded."""

    down: Literal["", "html", "drop"] = ""
    drops: int = 0
    half_made: int = 0
    links: Literal["agent", "store", "none"] = "agent"
    renamed: bool = False
    expands: bool = False


@dataclass
class Agent:
    """Who has the fabric: its connections by Id, and what it does to the hardware."""

    rack: Rack
    endpoints: dict[str, str]
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)

    def create(self, body: Mapping[str, Any]) -> bool:
        """False for what the hardware cannot do; ends that do not exist are passed over, as nobody looks at them."""
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

    def __init__(self, rack: Rack, *, user: str = "campaign", password: str = "learn-2-compose", **quirks: Any) -> None:
        self.rack = rack
        self.quirks = Quirks(**quirks)
        self._login = (user, password)
        self._sessions: set[str] = set()
        self._names = {self._path("Endpoints", name): name for name in (*rack.hosts, *rack.devices)}
        self._drawers = sorted({drawer for host in rack.hosts.values() for drawer in host.drawers})
        self.agent = Agent(rack, self._names)
        self.store: dict[str, dict[str, Any]] = {}

    def _path(self, collection: str, name: str) -> str:
        shown = hashlib.sha256(name.encode()).hexdigest()[:12] if self.quirks.renamed else name
        return f"{FABRIC}/{collection}/{shown}"

    def answer(self, asked: Asked) -> Reply | None:
        path = asked.path.rstrip("/")
        if path.startswith(AGENT):
            return self._agents(asked.method, path)
        if (asked.method, path) == ("GET", ROOT):
            return Reply(200, self._root())
        if (asked.method, path) == ("POST", f"{ROOT}/SessionService/Sessions"):
            return self._session(asked.body)
        if asked.header("X-Auth-Token") not in self._sessions and asked.basic != self._login:
            return Reply(401, {"error": {"code": "Base.1.0.NoValidSession", "message": "There is no valid session."}})
        if asked.method == "DELETE" and path.startswith(f"{ROOT}/SessionService/Sessions/"):
            self._sessions.discard(path.rpartition("/")[2])
            return Reply(204)
        if (asked.method, path) == ("POST", f"{FABRIC}/Connections"):
            return self._create(asked.body)
        if asked.method == "DELETE" and path in self._connections():
            return self._delete(self._connections()[path])
        if asked.method != "GET":
            return Reply(405, {"error": "method not allowed"})
        return self._get(path, "$expand" in asked.query)

    def _session(self, body: Any) -> Reply:
        if not isinstance(body, dict) or (body.get("UserName"), body.get("Password")) != self._login:
            return Reply(401, {"error": "wrong user or password"})
        token = f"token-{len(self._sessions) + 1}"
        self._sessions.add(token)
        path = f"{ROOT}/SessionService/Sessions/{token}"
        return Reply(201, {"@odata.id": path, "Id": token}, {"X-Auth-Token": token, "Location": path})

    def _root(self) -> dict[str, Any]:
        features = {"ProtocolFeaturesSupported": {"ExpandQuery": {"NoLinks": True}}} if self.quirks.expands else {}
        sessions = {"Sessions": ref(f"{ROOT}/SessionService/Sessions")}
        return {"@odata.id": f"{ROOT}/", "Fabrics": ref(f"{ROOT}/Fabrics"), "Links": sessions, **features}

    def _connections(self) -> dict[str, str]:
        return {self._path("Connections", name): name for name in self.store}

    def _get(self, path: str, expand: bool) -> Reply:
        found = self._resource(path)
        if found is None:
            return Reply(404, {"error": f"{path} not found"})
        if expand and self.quirks.expands and "Members" in found:
            found["Members"] = [self._resource(member["@odata.id"]) for member in found["Members"]]
        return Reply(200, found)

    def _resource(self, path: str) -> dict[str, Any] | None:
        zones, parts, connections = f"{FABRIC}/Zones", f"{ROOT}/Chassis/Pool/", self._connections()
        collections: dict[str, Iterable[str]] = {
            f"{ROOT}/Fabrics": [FABRIC],
            f"{FABRIC}/Endpoints": self._names,
            f"{FABRIC}/Connections": connections,
            zones: [f"{zones}/{drawer}" for drawer in self._drawers],
        }
        if path in collections:
            return {"@odata.id": path, "Members": [ref(member) for member in collections[path]]}
        if path == FABRIC:
            links = {name: ref(f"{FABRIC}/{name}") for name in ("Endpoints", "Zones", "Connections")}
            return {"@odata.id": path, "Id": "CXL", "FabricType": "CXL", **links}
        if path in self._names:
            return self._endpoint(path, self._names[path])
        if path in connections:
            return self.store[connections[path]]
        if (drawer := path.removeprefix(f"{zones}/")) in self._drawers:
            members = [host.name for host in self.rack.hosts.values() if drawer in host.drawers]
            members += [device.name for device in self.rack.devices.values() if device.drawer == drawer]
            ends_there = {"Endpoints": [ref(self._path("Endpoints", name)) for name in members]}
            return {"@odata.id": path, "Id": drawer, "ZoneType": "ZoneOfEndpoints", "Links": ends_there}
        if (device := self.rack.devices.get(path.removeprefix(parts))) is not None:
            found = {"@odata.id": path, "Id": device.name, "Model": device.model, "SerialNumber": device.serial}
            return found | {"ProcessorType": "GPU"} if device.kind == "gpu" else found
        return None

    def _endpoint(self, path: str, name: str) -> dict[str, Any]:
        device = self.rack.devices.get(name)
        entity: dict[str, Any] = {"EntityType": "ComputerSystem", "EntityRole": "Initiator"}
        if device is not None:
            entity = {"EntityType": ENTITIES[device.kind], "EntityRole": "Target"}
            entity["EntityLink"] = ref(f"{ROOT}/Chassis/Pool/{name}")
            if device.kind == "gpu":
                entity["Identifiers"] = [{"DurableName": device.uuid, "DurableNameFormat": "UUID"}]
        status = {"State": "Enabled", "Health": "Critical" if device and "broken" in device.quirks else "OK"}
        found: dict[str, Any] = {
            "@odata.id": path,
            "Id": name,
            "Name": name,
            "ConnectedEntities": [entity],
            "Status": status,
        }
        if self.quirks.links != "none":
            told = self.agent.connections if self.quirks.links == "agent" else self.store
            mine = [n for n, c in told.items() if path in (*ends(c, "InitiatorEndpoints"), *ends(c, "TargetEndpoints"))]
            found["Links"] = {"Connections": [ref(self._path("Connections", number)) for number in mine]}
        return found

    def _create(self, body: Any) -> Reply | None:
        if not isinstance(body, dict) or body.get("ConnectionType") not in ("Memory", "Storage"):
            return Reply(400, {"error": "ConnectionType: Memory or Storage"})
        name = str(body.get("Id") or hashlib.sha256(repr(body).encode()).hexdigest()[:32])
        if name in self.store:
            return Reply(409, f"[Error] Resource {self._path('Connections', name)} already exists.")
        if self.quirks.down:
            return self._no_agent()
        whole = {**body, "Id": name, "@odata.id": self._path("Connections", name)}
        if not self.agent.create(whole):
            return Reply(500, _PAGE, _HTML)
        if self.quirks.half_made:
            self.quirks.half_made -= 1
            return None
        self.store[name] = {**whole, "Oem": {"Sunfish_RM": {"ManagingAgent": ref(f"{ROOT}/AggregationService")}}}
        return Reply(200, self.store[name])

    def _delete(self, name: str) -> Reply | None:
        if self.quirks.down:
            return self._no_agent()
        there = self.agent.delete(name)
        if self.quirks.drops or not there:
            self.quirks.drops -= 1 if there else 0
            return None  # what the agent answers, or that it has no such connection, ends Sunfish's answer
        del self.store[name]
        return Reply(200, {"message": "DELETED"})

    def _no_agent(self) -> Reply | None:
        return Reply(500, _PAGE, _HTML) if self.quirks.down == "html" else None

    def _agents(self, method: str, path: str) -> Reply | None:
        if method != "GET":
            return Reply(405)
        if self.quirks.down:
            return None
        addresses = {f"{AGENT}/{name}": body for name, body in self.agent.connections.items()}
        if path == AGENT:
            return Reply(200, {"@odata.id": AGENT, "Members": [ref(address) for address in addresses]})
        if path not in addresses:
            return Reply(404, {"error": "not found"})
        return Reply(200, {**addresses[path], "@odata.id": path})


COMPOSES = ("POST", "*/Connections")
open_dialect = Sunfish
