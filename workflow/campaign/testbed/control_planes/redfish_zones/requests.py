"""The chassis' Redfish service: who may ask, what is asked, and changes of zones, at once or as tasks."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.redfish_zones.options import Options
from campaign.testbed.control_planes.redfish_zones.resources import Resources, hostport
from campaign.testbed.control_planes.redfish_zones.shapes import (
    FABRIC,
    ROOT,
    Json,
    collection,
    link,
    resource,
)
from campaign.testbed.control_planes.redfish_zones.switching import Port, Refused, Switching
from campaign.testbed.control_planes.server import Asked, Reply

_SESSIONS = f"{ROOT}/SessionService/Sessions"
_TASKS, _MONITORS = f"{ROOT}/TaskService/Tasks", f"{ROOT}/TaskService/TaskMonitors"
_HEADERS = {"OData-Version": "4.0", "Cache-Control": "no-cache"}
_LOOKS_BEFORE_DONE = 2


@dataclass
class Task:
    """An operation that was accepted. looks: how often its monitor was asked; answer: what it came to."""

    number: int
    work: Callable[[], Reply]
    looks: int = 0
    answer: Reply | None = None


def failure(status: int, message_id: str, message: str, arguments: Sequence[str] = ()) -> Reply:
    info = {
        "MessageId": f"Base.1.18.{message_id}",
        "Message": message,
        "MessageArgs": list(arguments),
        "Severity": "Critical",
    }
    return Reply(
        status, {"error": {"code": f"Base.1.18.{message_id}", "message": message, "@Message.ExtendedInfo": [info]}}
    )


class Service:
    """See `server.Dialect`."""

    def __init__(self, rack: Rack, switching: Switching, options: Options) -> None:
        self.rack = rack
        self.switching = switching
        self.options = options
        self.resources = Resources(switching, options)
        self.sessions: dict[str, str] = {}  # id -> token
        self.tasks: dict[str, Task] = {}
        self._made = 0

    def answer(self, asked: Asked) -> Reply:
        try:
            reply = self._answer(asked)
        except Refused as refused:
            reply = failure(refused.status, refused.message_id, str(refused), refused.arguments)
        return replace(reply, headers={**_HEADERS, **reply.headers})

    def _answer(self, asked: Asked) -> Reply:
        path = asked.path.rstrip("/") or "/"
        if asked.method in ("GET", "HEAD") and path in ("/redfish", ROOT):
            return Reply(200, {"v1": f"{ROOT}/"} if path == "/redfish" else self.resources.get(ROOT))
        if (asked.method, path) == ("POST", _SESSIONS):
            return self._log_in(asked.body)
        if not self._known(asked):
            return failure(401, "NoValidSession", "There is no valid session established with the implementation.")
        if path.startswith(_MONITORS):
            return self._monitor(asked.method, path.removeprefix(f"{_MONITORS}/"))
        if asked.method == "DELETE" and path.startswith(f"{_SESSIONS}/"):
            ended = self.sessions.pop(path.rpartition("/")[2], None)
            return Reply(204) if ended else _missing(path)
        found = self._own(path) or self.resources.get(path)
        if found is None:
            return _missing(path)
        if asked.method in ("GET", "HEAD"):
            return self._read(found, asked)
        if asked.method == "PATCH" and path.startswith(f"{FABRIC}/Zones/"):
            return self._patch(path, asked)
        return failure(405, "OperationNotAllowed", f"{asked.method} is not allowed on {path}.")

    # -- who ---------------------------------------------------------------------------------------------------------------

    def _log_in(self, body: Any) -> Reply:
        if not isinstance(body, dict) or not {"UserName", "Password"} <= set(body):
            return failure(400, "PropertyMissing", "UserName and Password are required.", ("UserName",))
        if (body["UserName"], body["Password"]) != (self.options.user, self.options.password):
            return failure(401, "ResourceAtUriUnauthorized", "The user or the password is wrong.")
        if len(self.sessions) >= self.options.sessions_max:
            return failure(503, "SessionLimitExceeded", "All sessions are in use.")
        self._made += 1
        name = str(self._made)
        self.sessions[name] = hashlib.sha256(f"session {name}".encode()).hexdigest()[:32]
        path = f"{_SESSIONS}/{name}"
        session = resource(path, "Session", "v1_6_0", UserName=self.options.user)
        return Reply(201, session, {"X-Auth-Token": self.sessions[name], "Location": path})

    def _known(self, asked: Asked) -> bool:
        headers = {name.lower(): value for name, value in asked.headers.items()}
        if headers.get("x-auth-token") in self.sessions.values():
            return True
        kind, _, word = headers.get("authorization", "").partition(" ")
        try:
            return kind == "Basic" and b64decode(word).decode() == f"{self.options.user}:{self.options.password}"
        except ValueError:
            return False

    # -- reading -----------------------------------------------------------------------------------------------------------

    def _own(self, path: str) -> Json | None:
        """Resources of the service itself."""
        if path == f"{ROOT}/SessionService":
            return resource(path, "SessionService", "v1_1_8", ServiceEnabled=True, Sessions=link(_SESSIONS))
        if path == _SESSIONS:
            return collection(path, "Session", self.sessions)
        if path == f"{ROOT}/TaskService":
            return resource(path, "TaskService", "v1_2_0", ServiceEnabled=True, Tasks=link(_TASKS))
        if path == _TASKS:
            return collection(path, "Task", self.tasks)
        task = self.tasks.get(path.removeprefix(f"{_TASKS}/"))
        return None if task is None else _task(task)

    def _read(self, found: Json, asked: Asked) -> Reply:
        if "Members" not in found:
            headers = {"ETag": etag(found)} if self.options.etags != "none" and "/Zones/" in asked.path else {}
            return Reply(200, found, headers)
        members, skip = found["Members"], int(asked.query.get("$skip") or 0)
        size = self.options.page or len(members) or 1
        shown = members[skip : skip + size]
        if "$expand" in asked.query:
            if not self.options.expand:
                return failure(501, "QueryNotSupported", "Querying is not supported by the implementation.")
            shown = [self._expanded(member["@odata.id"]) for member in shown]
        found = {**found, "Members": shown}
        if skip + size < len(members):
            query = f"$expand={asked.query['$expand']}&" if "$expand" in asked.query else ""
            found["Members@odata.nextLink"] = f"{asked.path}?{query}$skip={skip + size}"
        return Reply(200, found)

    def _expanded(self, path: str) -> Json:
        found = self._own(path) or self.resources.get(path) or link(path)
        if self.options.etags != "none" and "/Zones/" in path:
            found = {**found, "@odata.etag": etag(found)}
        return found

    # -- changing ----------------------------------------------------------------------------------------------------------

    def _patch(self, path: str, asked: Asked) -> Reply:
        port = next(port for port in self.switching.ports.values() if path.endswith(f"/Zones/{port.zone}"))
        if self.options.etags != "none":
            match = next((value for name, value in asked.headers.items() if name.lower() == "if-match"), None)
            if match is None and self.options.etags == "required":
                return failure(428, "PreconditionRequired", "If-Match is required.")
            if match not in (None, "*", etag(self.resources.zone(port))):
                return failure(412, "PreconditionFailed", "The ETag does not match.")
        wanted, description = self._wanted(port, asked.body)
        self.switching.check(port, wanted)
        if not self.options.tasks:
            return self._put(port, wanted, description)
        task = Task(len(self.tasks) + 1, lambda: self._put(port, wanted, description))
        self.tasks[str(task.number)] = task
        return Reply(202, _task(task), {"Location": f"{_MONITORS}/{task.number}", "Retry-After": "0"})

    def _put(self, port: Port, wanted: Sequence[str], description: str | None) -> Reply:
        self.switching.put(port, wanted, description)
        if self.options.answers == "nothing":
            return Reply(204)
        zone = self.resources.zone(port)
        return Reply(200, zone, {"ETag": etag(zone)} if self.options.etags != "none" else {})

    def _wanted(self, port: Port, body: Any) -> tuple[list[str], str | None]:
        """Devices and description that a body asks for. Raises Refused."""
        if not isinstance(body, dict):
            raise Refused(400, "MalformedJSON", "The request body must be a JSON object.")
        rest, description = dict(body), None
        if "Description" in rest:
            description = self._described(rest.pop("Description"))
        if self.options.endpoints == "rsd21":
            listing = rest.pop("Endpoints", None)
        else:
            links = rest.pop("Links", {})
            if not isinstance(links, dict) or set(links) - {"Endpoints"}:
                raise Refused(400, "PropertyNotWritable", "Of Links, only Endpoints can be written.", ("Links",))
            listing = links.get("Endpoints")
        for name in rest:
            known = name in self.resources.zone(port)
            raise Refused(
                400, "PropertyNotWritable" if known else "PropertyUnknown", f"{name} cannot be written.", (name,)
            )
        if listing is None:
            return [device.name for device in self.switching.zones()[port.name]], description
        return self._devices(port, listing), description

    def _described(self, text: Any) -> str | None:
        match self.options.description:
            case "unknown":
                raise Refused(400, "PropertyUnknown", "The property Description is not known.", ("Description",))
            case "read_only":
                raise Refused(400, "PropertyNotWritable", "The property Description is read-only.", ("Description",))
            case "ignored":
                return None
        if not isinstance(text, str):
            raise Refused(400, "PropertyValueTypeError", "Description must be a string.", (str(text), "Description"))
        return text

    def _devices(self, port: Port, listing: Any) -> list[str]:
        prefix, own = f"{FABRIC}/Endpoints/", hostport(port, self.resources.falcon)
        if not isinstance(listing, list) or any(not isinstance(member, dict) for member in listing):
            raise Refused(400, "PropertyValueTypeError", "Endpoints must be a list of references.", ("Endpoints",))
        paths = [str(member.get("@odata.id")) for member in listing]
        names = [path.removeprefix(prefix) for path in paths]
        known = {own, *self.rack.devices}
        for path, name in zip(paths, names, strict=True):
            if not path.startswith(prefix) or name not in known:
                raise Refused(400, "ResourceMissingAtURI", f"{path} is no endpoint for this zone.", (path,))
        if len(set(names)) < len(names):
            raise Refused(400, "PropertyValueConflict", "An endpoint is in the list twice.", ("Endpoints",))
        if own not in names:
            raise Refused(400, "PropertyValueConflict", f"The host port {own} cannot be removed from its zone.", (own,))
        return [name for name in names if name != own]

    def _monitor(self, method: str, name: str) -> Reply:
        task = self.tasks.get(name)
        if task is None or method != "GET":
            return _missing(f"{_MONITORS}/{name}")
        task.looks += 1
        if task.looks < _LOOKS_BEFORE_DONE:
            return Reply(202, _task(task), {"Location": f"{_MONITORS}/{name}", "Retry-After": "0"})
        if task.answer is None:
            try:
                task.answer = task.work()
            except Refused as refused:
                task.answer = failure(refused.status, refused.message_id, str(refused), refused.arguments)
        return task.answer


def etag(found: Json) -> str:
    """The version of a resource: a digest of what it says."""
    return f'"{hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]}"'


def _missing(path: str) -> Reply:
    return failure(404, "ResourceMissingAtURI", f"The resource at the URI {path} was not found.", (path,))


def _task(task: Task) -> Json:
    state = "Running" if task.answer is None else "Completed" if task.answer.status < 400 else "Exception"
    return resource(
        f"{_TASKS}/{task.number}",
        "Task",
        "v1_7_1",
        TaskState=state,
        TaskStatus="OK",
        TaskMonitor=f"{_MONITORS}/{task.number}",
    )
