"""Redfish resources and answers as JSON: links, collections, refusals, pages and $expand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from campaign.emulators.control_planes.server import Reply

ROOT_PATH = "/redfish/v1"
RESPONSE_HEADERS = {"OData-Version": "4.0", "Cache-Control": "no-cache"}
STATUS_OK = {"State": "Enabled", "Health": "OK"}
_BASE_REGISTRY = "Base.1.19"
_EXPAND_PATTERN = re.compile(r"([.*~])(?:\(\$levels=(\d+)\))?")

Document = dict[str, Any]
FindResource = Callable[[str], Document | None]


class RedfishRefusal(Exception):
    """Error for a request that the service refuses.

    `message_id` belongs to the registry `Base` if it names no other registry.
    """

    def __init__(self, status: int, message_id: str, text: str, arguments: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.message_id = message_id if "." in message_id else f"{_BASE_REGISTRY}.{message_id}"
        self.arguments = list(arguments)

    def to_reply(self) -> Reply:
        """Convert the refusal to an HTTP reply with a Redfish error body."""
        message = {
            "@odata.type": "#Message.v1_1_2.Message",
            "MessageId": self.message_id,
            "Message": str(self),
            "MessageArgs": self.arguments,
            "MessageSeverity": "Critical",
            "Resolution": "See the message.",
        }
        body = {"error": {"code": self.message_id, "message": str(self), "@Message.ExtendedInfo": [message]}}
        login = {"WWW-Authenticate": 'Basic realm="campaign-emulator"'} if self.status == 401 else {}
        return Reply(self.status, body, RESPONSE_HEADERS | login)


def build_not_found_error(path: str) -> RedfishRefusal:
    """Build the error for a path without a resource."""
    return RedfishRefusal(404, "ResourceMissingAtURI", f"no {path}", (path,))


def make_reference(path: str) -> dict[str, str]:
    """Build a reference to a resource."""
    return {"@odata.id": path}


def make_references(parent: str, names: Iterable[str]) -> list[dict[str, str]]:
    """Build references to resources under a path."""
    return [make_reference(f"{parent}/{name}") for name in names]


def build_resource(path: str, kind: str, version: str, **properties: Any) -> Document:
    """Build a resource document from its path, type and properties."""
    name = path.rstrip("/").rpartition("/")[2]
    return {"@odata.id": path, "@odata.type": f"#{kind}.{version}.{kind}", "Id": name, "Name": name, **properties}


def build_collection(path: str, kind: str, names: Iterable[str]) -> Document:
    """Build a collection document with references to its members."""
    members = make_references(path, names)
    return {
        "@odata.id": path,
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "Name": f"{kind} Collection",
        "Members": members,
        "Members@odata.count": len(members),
    }


def cut_to_page(collection_document: Document, path: str, query: Mapping[str, str], page_size: int | None) -> Document:
    """Cut a collection to the requested $skip and $top, and to the page size of the service.

    If members remain, a link to the next page is added.
    """
    holder = collection_document if "Members" in collection_document else collection_document["Links"]
    skip, top = int(query.get("$skip", "0")), int(query["$top"]) if "$top" in query else None
    members = holder["Members"][skip:][:top]
    if page_size and len(members) > page_size:
        top_parameter = "" if top is None else f"&$top={top - page_size}"
        expand = f"&$expand={query['$expand']}" if "$expand" in query else ""
        holder["Members@odata.nextLink"] = f"{path}?$skip={skip + page_size}{top_parameter}{expand}"
        members = members[:page_size]
    holder["Members"] = members
    return collection_document


def parse_expand(text: str) -> tuple[str, int] | None:
    """Parse the value of $expand into (sign, levels), or return None if it is invalid."""
    match = _EXPAND_PATTERN.fullmatch(text)
    return (match[1], int(match[2] or 1)) if match else None


def expand_references(value: Any, find: FindResource, sign: str, levels: int, parent_member: str = "") -> Any:
    """Replace references in a document with the resources, down to a number of levels.

    The sign `.` leaves out references under Links, `~` leaves out all others, and `*` expands both.

    Args:
        value: document or part of one.
        find: function that returns the resource of a path.
        sign: references to expand.
        levels: remaining number of levels.
        parent_member: "Links" inside a member Links, otherwise "".
    """
    if levels <= 0:
        return value
    if isinstance(value, list):
        return [expand_references(item, find, sign, levels, parent_member) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"@odata.id"}:
        expands = sign == "*" or (sign == "~") == (parent_member == "Links")
        value, levels = (find(value["@odata.id"]) if expands else None) or value, levels - 1
        if levels <= 0 or set(value) == {"@odata.id"}:
            return value
    return {
        name: item
        if name.startswith(("@", "#")) or name == "Actions"
        else expand_references(item, find, sign, levels, "Links" if name == "Links" else parent_member)
        for name, item in value.items()
    }
