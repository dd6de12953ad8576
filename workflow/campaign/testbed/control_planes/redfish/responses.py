"""Answers of the emulated service: headers that DSP0266 wants, error bodies with extended information, and $expand."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from campaign.testbed.control_planes.redfish.composition import Refused
from campaign.testbed.control_planes.server import Reply

HEADERS = {"OData-Version": "4.0", "Cache-Control": "no-cache"}
_EXPAND = re.compile(r"([.*~])(?:\(\$levels=(\d+)\))?")

Find = Callable[[str], dict[str, Any] | None]


def error(status: int, message_id: str, text: str, arguments: Sequence[str] = ()) -> Reply:
    message = {
        "@odata.type": "#Message.v1_1_2.Message",
        "MessageId": message_id,
        "Message": text,
        "MessageArgs": list(arguments),
        "MessageSeverity": "Critical",
        "Resolution": "See the message.",
    }
    body = {"error": {"code": message_id, "message": text, "@Message.ExtendedInfo": [message]}}
    headers = {"WWW-Authenticate": 'Basic realm="campaign-emulator"'} if status == 401 else {}
    return Reply(status, body, HEADERS | headers)


def refused(refusal: Refused) -> Reply:
    return error(refusal.status, refusal.message_id, refusal.text, refusal.arguments)


def etag(document: Mapping[str, Any]) -> str:
    """A strong validator, as text with its quotes."""
    return f'"{hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]}"'


def pages(found: dict[str, Any], path: str, query: Mapping[str, str], page: int | None) -> dict[str, Any]:
    """A collection cut to what $skip and $top ask for, and to the service's own page with a link to the next."""
    holder = found if "Members" in found else found["Links"]
    members = holder["Members"]
    skip = int(query.get("$skip", "0"))
    top = int(query["$top"]) if "$top" in query else None
    rest = members[skip:] if top is None else members[skip : skip + top]
    if page is not None and len(rest) > page:
        left = "" if top is None else f"&$top={top - page}"
        expand = f"&$expand={query['$expand']}" if "$expand" in query else ""
        holder["Members@odata.nextLink"] = f"{path}?$skip={skip + page}{left}{expand}"
        rest = rest[:page]
    holder["Members"] = rest
    return found


def expansion(text: str) -> tuple[str, int] | None:
    """(sign, levels) of an $expand; None for what is no such thing."""
    found = _EXPAND.fullmatch(text)
    return (found[1], int(found[2] or 1)) if found else None


def expanded(value: Any, find: Find, sign: str, levels: int, within: str = "") -> Any:
    """A document with what it refers to in its place, so many levels deep; `.` leaves alone what is under Links, `~` all else."""
    if levels <= 0:
        return value
    if isinstance(value, list):
        return [expanded(one, find, sign, levels, within) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"@odata.id"}:
        wanted = sign == "*" or (sign == "~") == (within == "Links")
        path = value["@odata.id"]
        document = find(path) if wanted else None
        if document is None:
            return value
        return _inside(document | {"@odata.etag": etag(document)}, find, sign, levels - 1, within)
    return _inside(value, find, sign, levels, within)


def _inside(document: dict[str, Any], find: Find, sign: str, levels: int, within: str) -> dict[str, Any]:
    if levels <= 0:
        return document
    return {
        name: value
        if name.startswith(("@", "#")) or name == "Actions"
        else expanded(value, find, sign, levels, "Links" if name == "Links" else within)
        for name, value in document.items()
    }


METADATA = """<?xml version="1.0" encoding="UTF-8"?>
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
