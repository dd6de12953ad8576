"""The emulated service as requests and answers: routes, versions (ETag), tasks, and the oddities of its variant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.redfish.access import (
    ACCOUNT_SERVICE,
    ACCOUNTS,
    ROLES,
    SESSION_SERVICE,
    SESSIONS,
    Access,
    Account,
)
from campaign.testbed.control_planes.redfish.changes import Changes, named
from campaign.testbed.control_planes.redfish.composition import Machine, Refused
from campaign.testbed.control_planes.redfish.documents import (
    BLOCKS,
    ROOT,
    SYSTEMS,
    Document,
    Documents,
    collection,
    ref,
)
from campaign.testbed.control_planes.redfish.responses import (
    HEADERS,
    METADATA,
    etag,
    expanded,
    expansion,
    pages,
    refused,
)
from campaign.testbed.control_planes.redfish.tasks import MONITORS, TASK_SERVICE, Tasks
from campaign.testbed.control_planes.redfish.variant import Variant
from campaign.testbed.control_planes.server import Asked, Reply

_OPEN = {"/redfish", ROOT, f"{ROOT}/odata", f"{ROOT}/$metadata"}
_UUID = "6d1a54c8-2f60-4c7e-9a49-93a8f2f0c0de"


class Redfish:
    """See `server.Dialect`."""

    def __init__(self, rack: Rack, variant: Variant) -> None:
        self.rack = rack
        self.variant = variant
        self.machine = Machine(rack, variant)
        self.documents = Documents(self.machine)
        self.access = Access(variant)
        self.tasks = Tasks(variant)
        self.changes = Changes(self.machine, self.documents)

    def answer(self, asked: Asked) -> Reply:
        path = asked.path.rstrip("/") or "/"
        if asked.method == "POST":  # to the members is to the collection
            path = path.removesuffix("/Members")
        self.documents.begin()
        try:
            if value(asked, "OData-Version") not in (None, "4.0"):
                raise Refused(412, "Base.1.19.HeaderInvalid", "OData-Version is 4.0", ("OData-Version",))
            account = self._who(asked, path)
            if path.startswith(f"{MONITORS}/"):
                return self.tasks.look(path)
            if asked.method in ("GET", "HEAD"):
                return self._read(path, asked)
            return self._changed(path, asked, account)
        except Refused as refusal:
            if "bare_answers" in self.variant.quirks and refusal.status not in (401, 404):
                return Reply(refusal.status, f'"{refusal.text}"', {"Content-Type": "application/json"})
            reply = refused(refusal)
            allow = {"Allow": self._allowed(path)} if refusal.status == 405 else {}
            return Reply(reply.status, reply.body, {**reply.headers, **allow})

    def _who(self, asked: Asked, path: str) -> Account | None:
        account = self.access.account(asked.headers)
        reads = asked.method in ("GET", "HEAD")
        if not self.variant.auth or (reads and path in _OPEN) or (asked.method == "POST" and path == SESSIONS):
            return account
        if account is None:
            raise Refused(401, "Base.1.19.NoValidSession", "log in first")
        own = path == f"{ACCOUNTS}/{account.id}" or path.startswith(f"{SESSIONS}/")
        need = "ConfigureUsers" if path.startswith((ACCOUNT_SERVICE, SESSION_SERVICE)) else "ConfigureComponents"
        if not reads and not own and need not in ROLES[account.role]:
            raise Refused(403, "Base.1.19.InsufficientPrivilege", f"role {account.role} may not do this")
        return account

    # -- reading -----------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Document | None:
        return self._fixed(path) or self.documents.find(path) or self.access.find(path) or self.tasks.find(path) or None

    def _read(self, path: str, asked: Asked) -> Reply:
        if path == f"{ROOT}/$metadata":
            return Reply(
                200, METADATA, HEADERS | {"Content-Type": "application/xml;charset=utf-8", "Allow": "GET, HEAD"}
            )
        if path.startswith("/redfish") and (found := self.find(path)) is not None:
            return self._whole(path, found, asked)
        raise Refused(404, "Base.1.19.ResourceMissingAtURI", f"no {asked.path}", (asked.path,))

    def _whole(self, path: str, found: Document, asked: Asked) -> Reply:
        version = etag(found)
        wanted = {name for name in asked.query if name.startswith("$")}
        if "Members" in found or "Members" in found.get("Links", {}):
            try:
                found = pages(found, path, asked.query, self.variant.page)
            except ValueError:
                raise Refused(400, "Base.1.19.QueryParameterValueTypeError", "$skip and $top are numbers") from None
            wanted -= {"$skip", "$top"}
        if wanted:
            found = self._expanded(found, asked.query.get("$expand"), wanted)
        headers = {"Allow": self._allowed(path), "Link": f"<{ROOT}/$metadata>; rel=describedby"}
        if path.startswith(ROOT) and path != f"{ROOT}/odata" and self.variant.etags != "none":
            headers["ETag"] = version
            found = found | {"@odata.etag": version}
            if value(asked, "If-None-Match") == version:
                return Reply(304, None, HEADERS | {"ETag": version})
        return Reply(200, found, HEADERS | headers)

    def _expanded(self, found: Document, text: str | None, wanted: set[str]) -> Document:
        if not self.variant.expand or wanted != {"$expand"}:
            name = min(wanted)
            raise Refused(501, "Base.1.19.QueryNotSupportedOnResource", f"{name} is not supported", (name,))
        how = expansion(text or "")
        if how is None or how[1] > 2:
            raise Refused(
                400, "Base.1.19.QueryParameterOutOfRange", f"$expand={text} is none", (str(text), "$expand", "2")
            )
        whole: Document = expanded(found, self.find, *how)
        return whole

    def _allowed(self, path: str) -> str:
        verbs = "GET, HEAD"
        if path in (SYSTEMS, SESSIONS, ACCOUNTS):
            return f"{verbs}, POST"
        if path.startswith((f"{ACCOUNTS}/", f"{SYSTEMS}/")):
            return f"{verbs}, PATCH" + ("" if self._is_physical(path) else ", DELETE")
        if path.startswith(f"{BLOCKS}/"):
            return f"{verbs}, PATCH"
        return f"{verbs}, DELETE" if path.startswith(f"{SESSIONS}/") else verbs

    def _is_physical(self, path: str) -> bool:
        made = self.machine.systems.get(path.removeprefix(f"{SYSTEMS}/"))
        return made is not None and made.physical

    def _fixed(self, path: str) -> Document | None:
        match path:
            case "/redfish":
                return {"v1": f"{ROOT}/"}
            case "/redfish/v1":
                return self._root()
            case "/redfish/v1/odata":
                names = ("Systems", "Chassis", "SessionService", "AccountService", "TaskService", "Registries")
                values = [{"name": name, "kind": "Singleton", "url": f"{ROOT}/{name}"} for name in names]
                service = {"name": "Service", "kind": "Singleton", "url": f"{ROOT}/"}
                return {"@odata.context": f"{ROOT}/$metadata", "value": [service, *values]}
            case "/redfish/v1/Chassis":
                drawers = dict.fromkeys(device.drawer for device in self.rack.devices.values())
                return collection(path, "Chassis", "Chassis", list(drawers))
            case "/redfish/v1/Registries":
                return collection(path, "MessageRegistryFile", "Registries", ["Base"])
            case "/redfish/v1/Registries/Base":
                return {
                    "@odata.id": path,
                    "@odata.type": "#MessageRegistryFile.v1_1_3.MessageRegistryFile",
                    "Id": "Base",
                    "Name": "Base Message Registry File",
                    "Registry": "Base.1.19",
                    "Languages": ["en"],
                    "Location": [
                        {
                            "Language": "en",
                            "PublicationUri": "https://redfish.dmtf.org/registries/Base.1.19.0.json",
                        }
                    ],
                }
        place, _, name = path.rpartition("/")
        if place == f"{ROOT}/Chassis" and any(device.drawer == name for device in self.rack.devices.values()):
            return {
                "@odata.id": path,
                "@odata.type": "#Chassis.v1_23_0.Chassis",
                "Id": name,
                "Name": name,
                "ChassisType": "Drawer",
                "Status": {"State": "Enabled", "Health": "OK"},
            }
        return None

    def _root(self) -> Document:
        variant = self.variant
        offers: dict[str, Any] = {
            "ExpandAll": variant.expand,
            "Levels": variant.expand,
            "Links": variant.expand,
            "NoLinks": variant.expand,
        }
        if variant.expand:
            offers["MaxLevels"] = 2
        whole: Document = {
            "@odata.id": f"{ROOT}/",
            "@odata.type": "#ServiceRoot.v1_17_0.ServiceRoot",
            "Id": "RootService",
            "Name": "Root Service",
            "RedfishVersion": "1.20.0",
            "UUID": _UUID,
            "Product": "campaign-emulator",
            "ProtocolFeaturesSupported": {
                "ExpandQuery": offers,
                "SelectQuery": False,
                "FilterQuery": False,
                "ExcerptQuery": False,
                "OnlyMemberQuery": False,
                "TopSkipQuery": True,
            },
            "SessionService": ref(SESSION_SERVICE),
            "AccountService": ref(ACCOUNT_SERVICE),
            "Tasks": ref(TASK_SERVICE),
            "Systems": ref(SYSTEMS),
            "Chassis": ref(f"{ROOT}/Chassis"),
            "Registries": ref(f"{ROOT}/Registries"),
            "Links": {"Sessions": ref(SESSIONS)},
        }
        if variant.composes:
            return whole | {"CompositionService": ref(f"{ROOT}/CompositionService")}
        return whole | {"ResourceBlocks": ref(self.documents.blocks_at)}

    # -- changing ----------------------------------------------------------------------------------------------------------

    def _changed(self, path: str, asked: Asked, account: Account | None) -> Reply:
        kind = value(asked, "Content-Type") or "application/json"
        if asked.text and (asked.body is None or not kind.startswith("application/json")):
            raise Refused(400, "Base.1.19.MalformedJSON", "the body is no JSON")
        if asked.method in ("POST", "PATCH", "PUT") and not isinstance(asked.body, dict):
            raise Refused(400, "Base.1.19.UnrecognizedRequestBody", "the body is no JSON object")
        if path.startswith((SESSIONS, ACCOUNTS)):
            return self._access(path, asked)
        found = self.find(path)
        if found is None and "/Actions/" not in path:
            raise Refused(404, "Base.1.19.ResourceMissingAtURI", f"no {asked.path}", (asked.path,))
        if found is not None and asked.method in ("PATCH", "PUT", "DELETE"):
            self._match(asked, found)
        change = self._route(path, asked)
        if self.variant.task_polls and path.startswith(SYSTEMS):
            return self.tasks.begin(lambda: self._run(change))
        return self._odd(asked.method, self._run(change))

    def _run(self, change: Callable[[], Reply]) -> Reply:
        try:
            self.documents.begin()
            return change()
        except Refused as refusal:
            if "bare_answers" in self.variant.quirks:
                raise
            return refused(refusal)

    def _odd(self, method: str, reply: Reply) -> Reply:
        if "bare_answers" in self.variant.quirks and reply.status < 300:
            return Reply(200, "200" if method != "DELETE" else "", {"Content-Type": "application/json"})
        return reply

    def _match(self, asked: Asked, found: Document) -> None:
        sent = value(asked, "If-Match")
        if self.variant.etags == "required" and sent is None and asked.method != "DELETE":
            raise Refused(428, "Base.1.19.PreconditionRequired", "If-Match is needed")
        if self.variant.etags != "none" and sent is not None and sent not in ("*", etag(found)):
            raise Refused(412, "Base.1.19.PreconditionFailed", "the resource was changed")

    def _route(self, path: str, asked: Asked) -> Callable[[], Reply]:
        """The change that is asked for. Raises Refused for a method that the resource has not."""
        body, changes = asked.body, self.changes
        action = re.fullmatch(rf"{SYSTEMS}/([^/]+)/Actions/ComputerSystem\.(\w+)", path)
        system = re.fullmatch(rf"{SYSTEMS}/([^/]+)", path)
        block = re.fullmatch(rf"{self.documents.blocks_at}/([^/]+)", path)
        composes = self.variant.composes
        if action and asked.method == "POST":
            return lambda: changes.act(named(self.machine, action[1]), action[2], body)
        if path == SYSTEMS and asked.method == "POST" and composes:
            return lambda: changes.create(body)
        if system and asked.method in ("PATCH", "DELETE") and system[1] in self.machine.systems and composes:
            made = self.machine.systems[system[1]]
            return (lambda: changes.delete(made)) if asked.method == "DELETE" else (lambda: changes.alter(made, body))
        if block and asked.method == "PATCH" and composes:
            return lambda: changes.reserve(block[1], body)
        raise Refused(405, "Base.1.19.OperationNotAllowed", f"{asked.method} is not allowed for {path}")

    def _access(self, path: str, asked: Asked) -> Reply:
        place, _, name = path.rpartition("/")
        match asked.method, path:
            case ("POST", "/redfish/v1/SessionService/Sessions"):
                session = self.access.log_in(asked.body)
                at = f"{SESSIONS}/{session.id}"
                return Reply(201, self.find(at), HEADERS | {"X-Auth-Token": session.token, "Location": at})
            case ("POST", "/redfish/v1/AccountService/Accounts"):
                at = f"{ACCOUNTS}/{self.access.add(asked.body).id}"
                return Reply(201, self.find(at), HEADERS | {"Location": at})
        found = self.find(path)
        if found is None:
            raise Refused(404, "Base.1.19.ResourceMissingAtURI", f"no {asked.path}", (asked.path,))
        if asked.method == "DELETE" and place in (SESSIONS, ACCOUNTS):
            if place == SESSIONS:
                del self.access.sessions[name]
            else:
                del self.access.accounts[name]
            return Reply(204, None, HEADERS)
        if asked.method == "PATCH" and place == ACCOUNTS:
            self._match(asked, found)
            self.access.alter(self.access.accounts[name], asked.body)
            now = self.find(path) or {}
            return Reply(200, now, HEADERS | {"ETag": etag(now)})
        raise Refused(405, "Base.1.19.OperationNotAllowed", f"{asked.method} is not allowed for {path}")


def value(asked: Asked, name: str) -> str | None:
    """A header of a request, whatever the case of its name."""
    return next((text for key, text in asked.headers.items() if key.lower() == name.lower()), None)
