"""Emulated service over HTTP: access, reads with pages and $expand, changes, and tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.redfish.access import (
    SESSION_SERVICE_PATH,
    SESSIONS_PATH,
    SessionAccess,
)
from campaign.emulators.control_planes.redfish.composition import CompositionModel, ServiceVariant
from campaign.emulators.control_planes.redfish.documents import (
    RESPONSE_HEADERS,
    ROOT_PATH,
    Document,
    RedfishRefusal,
    build_collection,
    build_not_found_error,
    build_resource,
    cut_to_page,
    expand_references,
    make_reference,
    parse_expand,
)
from campaign.emulators.control_planes.redfish.resources import SYSTEMS_PATH, ResourceTree
from campaign.emulators.control_planes.server import HttpRequest, Reply

_TASK_SERVICE = f"{ROOT_PATH}/TaskService"
_TASKS, _MONITORS = f"{_TASK_SERVICE}/Tasks", f"{_TASK_SERVICE}/TaskMonitors"
_PUBLIC_PATHS = {"/redfish", ROOT_PATH, f"{ROOT_PATH}/odata", f"{ROOT_PATH}/$metadata"}
_REGISTRIES = f"{ROOT_PATH}/Registries"
_EXPAND_FEATURES = ("ExpandAll", "Levels", "Links", "NoLinks")
_MAX_EXPAND_LEVELS = 2
_JSON_CONTENT_TYPE = {"Content-Type": "application/json"}
_QUERY_FEATURES = dict.fromkeys(("SelectQuery", "FilterQuery", "ExcerptQuery", "OnlyMemberQuery"), False) | {
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
class RedfishTask:
    """Accepted operation that is carried out later. `result` is None while it runs."""

    polls_left: int
    change: Callable[[], Reply]
    result: Reply | None = None


class RedfishEmulator:
    """Emulated Redfish service; see `server.Emulator`."""

    def __init__(self, rack: Rack, variant: ServiceVariant) -> None:
        self.rack = rack
        self.variant = variant
        self.composition = CompositionModel(rack, variant)
        self.access = SessionAccess(variant.user, variant.password, variant.sessions_max)
        self._resources = ResourceTree(self.composition)
        self._tasks: dict[str, RedfishTask] = {}
        self._task_count = 0

    def answer(self, request: HttpRequest) -> Reply:
        """Answer a request, with the quirks of the variant."""
        self._resources.refresh_systems()
        return self._apply_quirks(request, self._handle_request(replace(request, path=unquote(request.path))))

    def _apply_quirks(self, request: HttpRequest, reply: Reply) -> Reply:
        """Change an answer according to the quirks of the variant."""
        quirks = self.variant.quirks
        if "errors_with_200" in quirks and reply.status >= 400 and reply.status not in (401, 405):
            return Reply(200, "404" if reply.status == 404 else "500", _JSON_CONTENT_TYPE)
        if "linked_root" in quirks and request.path.rstrip("/") == ROOT_PATH and reply.status == 200:
            links = {
                name: link for name, link in reply.body.items() if isinstance(link, dict) and set(link) == {"@odata.id"}
            }
            other_members = {name: value for name, value in reply.body.items() if name not in links}
            return replace(reply, body={**other_members, "Links": {**links, **reply.body["Links"]}})
        if "bare_answers" not in quirks:
            return reply
        if reply.status >= 400 and reply.status not in (401, 404):
            return Reply(reply.status, f'"{reply.body["error"]["message"]}"', _JSON_CONTENT_TYPE)
        is_change = request.method not in ("GET", "HEAD") and reply.status in (200, 201, 204)
        if is_change and not request.path.startswith(SESSIONS_PATH):
            return Reply(200, "" if request.method == "DELETE" else "200", _JSON_CONTENT_TYPE)
        return reply

    def _handle_request(self, request: HttpRequest) -> Reply:
        """Answer a request as the specification defines it."""
        path = request.path.rstrip("/") or "/"
        if request.method == "POST":  # A POST to the members is a POST to the collection.
            path = path.removesuffix("/Members")
        try:
            if request.find_header("OData-Version") not in (None, "4.0"):
                raise RedfishRefusal(412, "HeaderInvalid", "OData-Version is 4.0", ("OData-Version",))
            is_read = request.method in ("GET", "HEAD")
            self._check_access(request, path, is_read)
            if path.startswith(f"{_MONITORS}/"):
                return self._poll_task(path)
            return self._handle_read(path, request) if is_read else self._handle_change(path, request)
        except RedfishRefusal as refusal:
            reply = refusal.to_reply()
            allow = {"Allow": self._build_allow_header(path)} if refusal.status == 405 else {}
            return Reply(reply.status, reply.body, {**reply.headers, **allow})

    def _check_access(self, request: HttpRequest, path: str, is_read: bool) -> None:
        """Check that the client may send this request. Raises RedfishRefusal if it may not."""
        if (
            not self.variant.auth
            or (is_read and path in _PUBLIC_PATHS)
            or (request.method == "POST" and path == SESSIONS_PATH)
        ):
            return
        if not self.access.is_authorized(request):
            raise RedfishRefusal(401, "NoValidSession", "log in first")

    def find_resource(self, path: str) -> Document | None:
        """Return the resource of a path, or None if there is none."""
        return (
            self._find_fixed_resource(path)
            or self._resources.find_resource(path)
            or self.access.find_resource(path)
            or self._find_task(path)
        )

    def _handle_read(self, path: str, request: HttpRequest) -> Reply:
        """Answer a GET or HEAD request, with paging and $expand."""
        if path == f"{ROOT_PATH}/$metadata":
            headers = {"Content-Type": "application/xml;charset=utf-8", "Allow": "GET, HEAD"}
            return Reply(200, _METADATA, RESPONSE_HEADERS | headers)
        document = self.find_resource(path)
        if document is None:
            raise build_not_found_error(request.path)
        query_options = {name for name in request.query if name.startswith("$")}
        if "Members" in document or "Members" in document.get("Links", {}):
            try:
                document = cut_to_page(document, path, request.query, self.variant.page)
            except ValueError:
                raise RedfishRefusal(400, "QueryParameterValueTypeError", "$skip and $top are numbers") from None
            query_options -= {"$skip", "$top"}
        if query_options:
            document = self._expand_document(document, request.query.get("$expand", ""), query_options)
        headers = {"Allow": self._build_allow_header(path), "Link": f"<{ROOT_PATH}/$metadata>; rel=describedby"}
        return Reply(200, document, RESPONSE_HEADERS | headers)

    def _expand_document(self, document: Document, text: str, query_options: set[str]) -> Document:
        """Expand the references of a document. Raises RedfishRefusal if the query is not supported."""
        if not self.variant.expand or query_options != {"$expand"}:
            name = min(query_options)
            raise RedfishRefusal(501, "QueryNotSupported", f"{name} is not supported", (name,))
        expand_options = parse_expand(text)
        if expand_options is None or expand_options[1] > _MAX_EXPAND_LEVELS:
            raise RedfishRefusal(
                400, "QueryParameterOutOfRange", f"$expand={text} is none", (text, "$expand", str(_MAX_EXPAND_LEVELS))
            )
        expanded_document: Document = expand_references(document, self.find_resource, *expand_options)
        return expanded_document

    def _build_allow_header(self, path: str) -> str:
        """Build the Allow header of a path."""
        further_methods = self._resources.get_allowed_methods(path)
        if path == SESSIONS_PATH:
            further_methods = ", POST"
        elif path.startswith(f"{SESSIONS_PATH}/"):
            further_methods = ", DELETE"
        return f"GET, HEAD{further_methods}"

    def _find_fixed_resource(self, path: str) -> Document | None:
        """Return the resource of a path whose content never changes, or None for any other path."""
        if path == "/redfish":
            return {"v1": f"{ROOT_PATH}/"}
        if path == ROOT_PATH:
            return self._build_root()
        if path == f"{ROOT_PATH}/odata":
            links = {
                name: link["@odata.id"]
                for name, link in self._build_root().items()
                if name[0].isupper() and "@odata.id" in link
            }
            values = [{"name": name, "kind": "Singleton", "url": url} for name, url in links.items()]
            service = {"name": "Service", "kind": "Singleton", "url": f"{ROOT_PATH}/"}
            return {"@odata.context": f"{ROOT_PATH}/$metadata", "value": [service, *values]}
        if path == _REGISTRIES:
            return build_collection(path, "MessageRegistryFile", ["Base"])
        if path == f"{_REGISTRIES}/Base":
            registry_location = {
                "Language": "en",
                "PublicationUri": "https://redfish.dmtf.org/registries/Base.1.19.0.json",
            }
            base = {"Registry": "Base.1.19", "Languages": ["en"], "Location": [registry_location]}
            return build_resource(path, "MessageRegistryFile", "v1_1_3", **base)
        return None

    def _build_root(self) -> Document:
        """Build the service root."""
        expand_features: dict[str, Any] = dict.fromkeys(_EXPAND_FEATURES, self.variant.expand)
        if self.variant.expand:
            expand_features["MaxLevels"] = _MAX_EXPAND_LEVELS
        return build_resource(
            f"{ROOT_PATH}/",
            "ServiceRoot",
            "v1_17_0",
            Id="RootService",
            Name="Root Service",
            RedfishVersion="1.20.0",
            UUID="6d1a54c8-2f60-4c7e-9a49-93a8f2f0c0de",
            Product="campaign-emulator",
            ProtocolFeaturesSupported={"ExpandQuery": expand_features, **_QUERY_FEATURES},
            SessionService=make_reference(SESSION_SERVICE_PATH),
            Tasks=make_reference(_TASK_SERVICE),
            Registries=make_reference(_REGISTRIES),
            Links={"Sessions": make_reference(SESSIONS_PATH)},
            **self._resources.build_root_links(),
        )

    def _handle_change(self, path: str, request: HttpRequest) -> Reply:
        """Answer a request that changes something, with a task if the variant has tasks."""
        kind = request.find_header("Content-Type") or "application/json"
        if request.text and (request.body is None or not kind.startswith("application/json")):
            raise RedfishRefusal(400, "MalformedJSON", "the body is no JSON")
        if request.method in ("POST", "PATCH", "PUT") and not isinstance(request.body, dict):
            raise RedfishRefusal(400, "UnrecognizedRequestBody", "the body is no JSON object")
        document = self.find_resource(path)
        if document is None and "/Actions/" not in path:
            raise build_not_found_error(request.path)
        if path.startswith(SESSIONS_PATH):
            return self._change_session(path, request)
        change = self._resources.prepare_change(path, request)
        if change is None:
            raise _build_not_allowed_error(path, request)
        if not self.variant.task_polls or not path.startswith(SYSTEMS_PATH):
            return change()
        self._task_count += 1
        name = str(self._task_count)
        self._tasks[name] = RedfishTask(self.variant.task_polls, change)
        return self._build_pending_reply(name)

    def _change_session(self, path: str, request: HttpRequest) -> Reply:
        """Open or close a session."""
        name = path.removeprefix(f"{SESSIONS_PATH}/")
        if request.method == "POST" and path == SESSIONS_PATH:
            name = self.access.log_in(request.body)
            headers = {"Location": f"{SESSIONS_PATH}/{name}", "X-Auth-Token": self.access.sessions[name]}
            return Reply(201, self.find_resource(f"{SESSIONS_PATH}/{name}"), RESPONSE_HEADERS | headers)
        if request.method == "DELETE" and name in self.access.sessions:
            del self.access.sessions[name]
            return Reply(204, None, RESPONSE_HEADERS)
        raise _build_not_allowed_error(path, request)

    def _build_pending_reply(self, name: str) -> Reply:
        """Build the reply that refers to a task in progress."""
        headers = {"Location": f"{_MONITORS}/{name}", "Retry-After": "0"}
        return Reply(202, self._find_task(f"{_TASKS}/{name}"), RESPONSE_HEADERS | headers)

    def _poll_task(self, path: str) -> Reply:
        """Poll a task, and return the reply of its operation once it is done."""
        name = path.rpartition("/")[2]
        task = self._tasks.get(name)
        if task is None:
            raise build_not_found_error(path)
        task.polls_left -= 1
        if task.polls_left > 0:
            return self._build_pending_reply(name)
        if task.result is None:
            try:
                task.result = task.change()
            except RedfishRefusal as refusal:
                task.result = refusal.to_reply()
        del self._tasks[name]
        return task.result

    def _find_task(self, path: str) -> Document | None:
        """Return the resource of a task path, or None for any other path."""
        if path == _TASK_SERVICE:
            return build_resource(path, "TaskService", "v1_2_1", ServiceEnabled=True, Tasks=make_reference(_TASKS))
        if path == _TASKS:
            return build_collection(path, "Task", self._tasks)
        parent, _, name = path.rpartition("/")
        if parent != _TASKS or (task := self._tasks.get(name)) is None:
            return None
        state = "Running" if task.result is None else "Completed" if task.result.status < 400 else "Exception"
        properties = {"TaskState": state, "TaskStatus": "OK", "TaskMonitor": f"{_MONITORS}/{name}", "Messages": []}
        return build_resource(path, "Task", "v1_7_4", **properties)


def _build_not_allowed_error(path: str, request: HttpRequest) -> RedfishRefusal:
    """Build the error for a method that the path does not allow."""
    return RedfishRefusal(405, "OperationNotAllowed", f"{request.method} is not allowed for {path}")
