"""A Falcon-like chassis as a Redfish service: two drawers of eight slots, host ports H1-H4, one zone a host port.

A host gets devices by a PATCH of its zone with the full list of endpoints, the host port's own among them. Drawers have modes,
whose rules are enforced; every change is in the event log. Variant `gigaio`: any number of ports and devices, without drawers
and modes. What the real product's bodies and errors look like is not public: this follows Redfish (DSP0266, DSP2046) and what
the client of Intel's RSD sends.
"""

from __future__ import annotations

from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.redfish_zones.options import Options
from campaign.testbed.control_planes.redfish_zones.requests import Service
from campaign.testbed.control_planes.redfish_zones.switching import Switching

COMPOSES = ("PATCH", "*/Zones/*")


def open_dialect(rack: Rack, **options: object) -> Service:
    """The emulated service over a rack; options: the fields of `Options`. Raises ValueError for a rack that does not fit in."""
    chosen = Options.model_validate(options)
    return Service(rack, Switching(rack, chosen), chosen)
