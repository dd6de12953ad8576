"""An emulated Redfish service that composes (DSP2050) over a rack: strict, with the variants and oddities that peers have.

Hosts are compute blocks, of which systems are composed, or physical systems that are expanded. What is attached is the
rack's truth. Knows nothing of the adapters.

For real: accounts, sessions, versions, tasks, paging and $expand; not for real: events, updates.
"""

from __future__ import annotations

from typing import Any

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.redfish.composition import Machine, Variant
from campaign.testbed.control_planes.redfish.resources import Resources
from campaign.testbed.control_planes.redfish_service.access import ACCOUNTS, SESSIONS
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
        reply = self._service.answer(asked)
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
