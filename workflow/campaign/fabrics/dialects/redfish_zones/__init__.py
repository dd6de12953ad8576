"""Chassis with Redfish zones and other Redfish fabrics: a host has what is in the zone of its host port.

Assigning is a PATCH of the full list of a zone's endpoints; there is no composition service, and every zone is there already.
Source: DSP0266, DSP2046 (Fabric, Zone, Endpoint, Port), the public pages of H3 Platform on the Falcon's API ("each zone
represents a host port", `PATCH /redfish/v1/Fabrics/PCIe/Zones/{zone}`) and the two bodies that the client of Intel's RSD sends.

Unverified: no real Falcon or FabreX was asked. Its exact body, login, modes' names, tags and asynchronous behaviour are inferred.
H3 describes its zones, and shows the body of a request only as a picture; the public clients of Falcon boxes do not use them, but
an interface of H3's own (see `dialects.h3`).
"""

from __future__ import annotations

from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.redfish_zones.control_plane import Plane
from campaign.fabrics.dialects.redfish_zones.options import Options
from campaign.fabrics.registry import FabricKind

open_fabric = opening(Plane, "redfish-zones")

FABRIC = FabricKind(
    "Chassis with Redfish zones, one zone a host port",
    Options,
    open_fabric,
    unverified="the body and sign-in of H3's Redfish service and of GigaIO FabreX, whose references are not public. Public "
    "clients of H3 Falcon boxes use `h3`",
    tested="its emulator and a foreign Redfish client",
    emulator="campaign.testbed.control_planes.redfish_zones",
    offers=frozenset({"readings", "events", "allocation"}),
)
