"""A Falcon-like chassis as a Redfish service: two drawers of eight slots, host ports H1-H4, one zone a host port.

A host gets devices by a PATCH of its zone with the full list of endpoints, the host port's own among them. Drawers have modes,
whose rules are enforced; every change is in the event log. Variant `gigaio`: any number of ports and devices, without drawers
and modes. What the real product's bodies and errors look like is not public: this follows Redfish (DSP0266, DSP2046) and what
the client of Intel's RSD sends.
"""

from __future__ import annotations

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.redfish_service.service import Service
from campaign.testbed.control_planes.redfish_zones.resources import Resources
from campaign.testbed.control_planes.redfish_zones.switching import Options, Switching

COMPOSES = ("PATCH", "*/Zones/*")


class Chassis(Service):
    """See `server.Dialect`."""

    def __init__(self, rack: Rack, options: Options) -> None:
        self.rack = rack
        self.switching = Switching(rack, options)
        self.resources = Resources(self.switching)
        super().__init__(self.resources, options)


def open_dialect(rack: Rack, **options: object) -> Chassis:
    """The emulated service over a rack; options: the fields of `Options`. Raises ValueError for a rack that does not fit in."""
    return Chassis(rack, Options.model_validate(options))
