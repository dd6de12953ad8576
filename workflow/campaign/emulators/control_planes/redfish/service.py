"""Emulated service over HTTP: access, reads with pages and $expand, changes, and tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.redfish.access import (
    SESSION_SERVICE,
    SESSIONS,
    Access,
)
from campaign.emulators.control_planes.redfish.composition import Machine, Variant
from campaign.emulators.control_planes.redfish.documents import (
    HEADERS,
    ROOT,
    Document,
    RedfishRefusal,
    collection,
    expanded,
    expansion,
    missing,
    pages,
    ref,
    resource,
)
from campaign.emulators.control_planes.redfish.resources import SYSTEMS, Resources
from campaign.emulators.control_planes.server import HttpRequest, Reply

_TASK_SERVICE = f"{ROOT}/TaskService"
_TASKS, _MONITORS = f"{_TASK_SERVICE}/Tasks", f"{_TASK_SERVICE}/TaskMonitors"
_OPEN = {"/redfish", ROOT, f"{ROOT}/odata", f"{ROOT}/$metadata"}
_REGISTRIES = f"{ROOT}/Registries"
_EXPANDS = ("ExpandAll", "Levels", "Links", "NoLinks")
_LEVELS = 2
_BARE = {"Content-Type": "application/json"}
_QUERIES = dict.fromkeys(("SelectQuery", "FilterQuery", "ExcerptQuery", "OnlyMemberQuery"), False) | {
    "TopSkipQuery": True
}
_METADATA = """<?xml version="1.0" encoding="UTF-8"?>
<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">
  <edmx:Reference Uri="http://redfish.dmtf.org/schemas/v1/ServiceRoot_v1.xml">
    <edmx:Include Namespace="ServiceRoot"/>
    <edmx:Include Namespace="ServiceRoot.v1_17_0"/>
  </edmx:Reference>
  <edmx:Reference Uri="http://redfish.dmtf.org/schemas/v1/RedfishExtensions_v1.xml">
    <edmx:Include Namespace="RedfishExtensions.v1_0_0" Alias="Redfish"/>
  </edmx:Reference>
  <edmx:DataServices>
    <Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">
      <EntityContainer Name="Service" Extends="ServiceRoot.v1_17_0.ServiceContainer"/>
    </Schema>
  </edmx:DataServices>
</edmx:Edmx>
"""


@dataclass
class Task:
    """Accepted operation that is carried out later. `result` is None while it runs."""

    looks_left: int
    change: Callable[[], Reply]
    result: Reply | None = None


class Redfish:
    """Emulated Redfish service; see `server.Emulator`."""

    def __init__(self, rack: Rack, variant: Variant) -> None:
        self.rack = rack
        self.variant = variant
        self.machine = Machine(rack, variant)
        self.access = Access(variant.user, variant.password, variant.sessions_max)
        self._resources = Resources(self.machine)
        self._tasks: dict[str, Task] = {}
        self._accepted = 0

    def answer(self, asked: HttpRequest) -> Reply:
        """Answer a request, with the quirks of the variant."""
        self._resources.begin()
        return self._as_odd_peers(asked, self._answer(replace(asked, path=unquote(asked.path))))

    def _as_odd_peers(self, asked: HttpRequest, reply: Reply) -> Reply:
        """Change an answer according to the quirks of the variant."""
        quirks = self.variant.quirks
        if "errors_with_200" in quirks and reply.status >= 400 and reply.status not in (401, 405):
            return Reply(200, "404" if reply.status == 404 else "500", _BARE)
        if "linked_root" in quirks and asked.path.rstrip("/") == ROOT and reply.status == 200:
            links = {
                name: link for name, link in reply.body.items() if isinstance(link, dict) and set(link) == {"@odata.id"}
            }
            kept = {name: value for name, value in reply.body.items() if name not in links}
            return replace(reply, body={**kept, "Links": {**links, **reply.body["Links"]}})
        if "bare_answers" not in quirks:
            return reply
        if reply.status >= 400 and reply.status not in (401, 404):
            return Reply(reply.status, f'"{reply.body["error"]["message"]}"', _BARE)
        done = asked.method not in ("GET", "HEAD") and reply.status in (200, 201, 204)
        if done and not asked.path.startswith(SESSIONS):
            return Reply(200, "" if asked.method == "DELETE" else "200", _BARE)
        return reply

    def _answer(self, asked: HttpRequest) -> Reply:
        """Answer a request as the specification defines it."""
        path = asked.path.rstrip("/") or "/"
        if asked.method == "POST":  # a POST to the members is a POST to the collection
            path = path.removesuffix("/Members")
        try:
            if asked.header("OData-Version") not in (None, "4.0"):
                raise RedfishRefusal(412, "HeaderInvalid", "OData-Version is 4.0", ("OData-Version",))
            reads = asked.method in ("GET", "HEAD")
            self._admit(asked, path, reads)
            if path.startswith(f"{_MONITORS}/"):
                return self._look(path)
            return self._read(path, asked) if reads else self._changed(path, asked)
        except RedfishRefusal as refusal:
            reply = refusal.reply()
            allow = {"Allow": self._allowed(path)} if refusal.status == 405 else {}
            return Reply(reply.status, reply.body, {**reply.headers, **allow})

    def _admit(self, asked: HttpRequest, path: str, reads: bool) -> None:
        """Check that the client may send this request. Raises RedfishRefusal if it may not."""
        if not self.variant.auth or (reads and path in _OPEN) or (asked.method == "POST" and path == SESSIONS):
            return
        if not self.access.admits(asked):
            raise RedfishRefusal(401, "NoValidSession", "log in first")

    def find(self, path: str) -> Document | None:
        """Return the resource of a path, or None if there is none."""
        return self._fixed(path) or self._resources.find(path) or self.access.find(path) or self._task(path)

    def _read(self, path: str, asked: HttpRequest) -> Reply:
        """Answer a GET or HEAD request, with paging and $expand."""
        if path == f"{ROOT}/$metadata":
            headers = {"Content-Type": "application/xml;charset=utf-8", "Allow": "GET, HEAD"}
            return Reply(200, _METADATA, HEADERS | headers)
        found = self.find(path)
        if found is None:
            raise missing(asked.path)
        wanted = {name for name in asked.query if name.startswith("$")}
        if "Members" in found or "Members" in found.get("Links", {}):
            try:
                found = pages(found, path, asked.query, self.variant.page)
            except ValueError:
                raise RedfishRefusal(400, "QueryParameterValueTypeError", "$skip and $top are numbers") from None
            wanted -= {"$skip", "$top"}
        if wanted:
            found = self._expanded(found, asked.query.get("$expand", ""), wanted)
        headers = {"Allow": self._allowed(path), "Link": f"<{ROOT}/$metadata>; rel=describedby"}
        return Reply(200, found, HEADERS | headers)

    def _expanded(self, found: Document, text: str, wanted: set[str]) -> Document:
        """Expand the references of a document. Raises RedfishRefusal if the query is not supported."""
        if not self.variant.expand or wanted != {"$expand"}:
            name = min(wanted)
            raise RedfishRefusal(501, "QueryNotSupported", f"{name} is not supported", (name,))
        how = expansion(text)
        if how is None or how[1] > _LEVELS:
            raise RedfishRefusal(
                400, "QueryParameterOutOfRange", f"$expand={text} is none", (text, "$expand", str(_LEVELS))
            )
        whole: Document = expanded(found, self.find, *how)
        return whole

    def _allowed(self, path: str) -> str:
        """Build the Allow header of a path."""
        more = self._resources.allowed(path)
        if path == SESSIONS:
            more = ", POST"
        elif path.startswith(f"{SESSIONS}/"):
            more = ", DELETE"
        return f"GET, HEAD{more}"

    def _fixed(self, path: str) -> Document | None:
        """Return the resource of a path whose content never changes, or None."""
        if path == "/redfish":
            return {"v1": f"{ROOT}/"}
        if path == ROOT:
            return self._root()
        if path == f"{ROOT}/odata":
            links = {
                name: link["@odata.id"]
                for name, link in self._root().items()
                if name[0].isupper() and "@odata.id" in link
            }
            values = [{"name": name, "kind": "Singleton", "url": url} for name, url in links.items()]
            service = {"name": "Service", "kind": "Singleton", "url": f"{ROOT}/"}
            return {"@odata.context": f"{ROOT}/$metadata", "value": [service, *values]}
        if path == _REGISTRIES:
            return collection(path, "MessageRegistryFile", ["Base"])
        if path == f"{_REGISTRIES}/Base":
            place = {"Language": "en", "PublicationUri": "https://redfish.dmtf.org/registries/Base.1.19.0.json"}
            base = {"Registry": "Base.1.19", "Languages": ["en"], "Location": [place]}
            return resource(path, "MessageRegistryFile", "v1_1_3", **base)
        return None

    def _root(self) -> Document:
        """Build the service root."""
        offers: dict[str, Any] = dict.fromkeys(_EXPANDS, self.variant.expand)
        if self.variant.expand:
            offers["MaxLevels"] = _LEVELS
        return resource(
            f"{ROOT}/",
            "ServiceRoot",
            "v1_17_0",
            Id="RootService",
            Name="Root Service",
            RedfishVersion="1.20.0",
            UUID="6d1a54c8-2f60-4c7e-9a49-93a8f2f0c0de",
            Product="campaign-emulator",
            ProtocolFeaturesSupported={"ExpandQuery": offers, **_QUERIES},
            SessionService=ref(SESSION_SERVICE),
            Tasks=ref(_TASK_SERVICE),
            Registries=ref(_REGISTRIES),
            Links={"Sessions": ref(SESSIONS)},
            **self._resources.root(),
        )

    def _changed(self, path: str, asked: HttpRequest) -> Reply:
        """Answer a request that changes something, with a task if the variant has tasks."""
        kind = asked.header("Content-Type") or "application/json"
        if asked.text and (asked.body is None or not kind.startswith("application/json")):
            raise RedfishRefusal(400, "MalformedJSON", "the body is no JSON")
        if asked.method in ("POST", "PATCH", "PUT") and not isinstance(asked.body, dict):
            raise RedfishRefusal(400, "UnrecognizedRequestBody", "the body is no JSON object")
        found = self.find(path)
        if found is None and "/Actions/" not in path:
            raise missing(asked.path)
        if path.startswith(SESSIONS):
            return self._change_session(path, asked)
        change = self._resources.change(path, asked)
        if change is None:
            raise _not_allowed(path, asked)
        if not self.variant.task_polls or not path.startswith(SYSTEMS):
            return change()
        self._accepted += 1
        name = str(self._accepted)
        self._tasks[name] = Task(self.variant.task_polls, change)
        return self._waiting(name)

    def _change_session(self, path: str, asked: HttpRequest) -> Reply:
        """Open or close a session."""
        name = path.removeprefix(f"{SESSIONS}/")
        if asked.method == "POST" and path == SESSIONS:
            name = self.access.log_in(asked.body)
            headers = {"Location": f"{SESSIONS}/{name}", "X-Auth-Token": self.access.sessions[name]}
            return Reply(201, self.find(f"{SESSIONS}/{name}"), HEADERS | headers)
        if asked.method == "DELETE" and name in self.access.sessions:
            del self.access.sessions[name]
            return Reply(204, None, HEADERS)
        raise _not_allowed(path, asked)

    def _waiting(self, name: str) -> Reply:
        """Build the reply that refers to a task in progress."""
        headers = {"Location": f"{_MONITORS}/{name}", "Retry-After": "0"}
        return Reply(202, self._task(f"{_TASKS}/{name}"), HEADERS | headers)

    def _look(self, path: str) -> Reply:
        """Poll a task, and return the reply of its operation once it is done."""
        name = path.rpartition("/")[2]
        task = self._tasks.get(name)
        if task is None:
            raise missing(path)
        task.looks_left -= 1
        if task.looks_left > 0:
            return self._waiting(name)
        if task.result is None:
            try:
                task.result = task.change()
            except RedfishRefusal as refusal:
                task.result = refusal.reply()
        del self._tasks[name]
        return task.result

    def _task(self, path: str) -> Document | None:
        """Return the resource of a task path, or None for any other path."""
        if path == _TASK_SERVICE:
            return resource(path, "TaskService", "v1_2_1", ServiceEnabled=True, Tasks=ref(_TASKS))
        if path == _TASKS:
            return collection(path, "Task", self._tasks)
        place, _, name = path.rpartition("/")
        if place != _TASKS or (task := self._tasks.get(name)) is None:
            return None
        state = "Running" if task.result is None else "Completed" if task.result.status < 400 else "Exception"
        words = {"TaskState": state, "TaskStatus": "OK", "TaskMonitor": f"{_MONITORS}/{name}", "Messages": []}
        return resource(path, "Task", "v1_7_4", **words)


def _not_allowed(path: str, asked: HttpRequest) -> RedfishRefusal:
    """Build the error for a method that the path does not allow."""
    return RedfishRefusal(405, "OperationNotAllowed", f"{asked.method} is not allowed for {path}")
