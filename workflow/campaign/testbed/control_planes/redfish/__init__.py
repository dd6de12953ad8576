"""An emulated Redfish service that composes (DSP2050) over a rack: strict, with the variants and oddities that peers have.

Hosts are compute blocks, of which systems are composed, or physical systems that are expanded. What is attached is the
rack's truth. Knows nothing of the adapters.

For real: accounts, sessions, versions, tasks, paging and $expand; not for real: events, updates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.redfish.composition import Machine, Variant
from campaign.testbed.control_planes.redfish.resources import Resources
from campaign.testbed.control_planes.redfish_service.access import ACCOUNTS, SESSIONS
from campaign.testbed.control_planes.redfish_service.documents import ROOT
from campaign.testbed.control_planes.redfish_service.service import Service
from campaign.testbed.control_planes.server import Asked, Reply

__all__ = ["Redfish", "Variant", "open_dialect"]

COMPOSES = ("POST", "/redfish/v1/Systems")
_BARE = {"Content-Type": "application/json"}


class Redfish:
    """See `server.Dialect`."""

    def __init__(self, rack: Rack, variant: Variant) -> None:
        self.rack = rack
        self.variant = variant
        self.machine = Machine(rack, variant)
        self._resources = Resources(self.machine)
        self._service = Service(self._resources, variant)
        self.access = self._service.access

    def answer(self, asked: Asked) -> Reply:
        self._resources.begin()
        reply = self._service.answer(replace(asked, path=unquote(asked.path)))
        if "errors_with_200" in self.variant.quirks and reply.status >= 400 and reply.status not in (401, 405):
            return Reply(200, "404" if reply.status == 404 else "500", _BARE)
        if "linked_root" in self.variant.quirks and asked.path.rstrip("/") == ROOT and reply.status == 200:
            links = {
                name: link for name, link in reply.body.items() if isinstance(link, dict) and set(link) == {"@odata.id"}
            }
            kept = {name: value for name, value in reply.body.items() if name not in links}
            return replace(reply, body={**kept, "Links": {**links, **reply.body["Links"]}})
        if "bare_answers" not in self.variant.quirks:
            return reply
        if reply.status >= 400 and reply.status not in (401, 404):
            return Reply(reply.status, f'"{reply.body["error"]["message"]}"', _BARE)
        done = asked.method not in ("GET", "HEAD") and reply.status in (200, 201, 204)
        if done and not asked.path.startswith((SESSIONS, ACCOUNTS)):
            return Reply(200, "" if asked.method == "DELETE" else "200", _BARE)
        return reply


def open_dialect(rack: Rack, **options: Any) -> Redfish:
    """options: the fields of `Variant`; `quirks` is any collection of their names."""
    return Redfish(rack, Variant(**options))
