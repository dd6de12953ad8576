"""DMTF Redfish composition (DSP2050): systems are composed of a host's block and exact devices, and read back.

Unverified: against any vendor's service. It was run against this project's emulator, judged by foreign Redfish clients, and against
foreign servers of Redfish trees. Only specific composition is here, as public services have it: none was found that chooses by
constraints or expands physical systems. `service` and `answers` know no composition.
"""

from __future__ import annotations

from campaign.fabrics.adapters.redfish.control_plane import RedfishPlane
from campaign.fabrics.adapters.redfish.service import RedfishOptions
from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.registry import FabricKind

open_fabric = opening(RedfishPlane, "redfish")

FABRIC = FabricKind(
    "DMTF Redfish composition: resource blocks, zones, composed systems",
    RedfishOptions,
    open_fabric,
    unverified="any vendor's service; it was run against emulators and judged by foreign Redfish clients",
    tested="its emulator, also as odd as DMTF's emulator and mockup server, foreign Redfish clients and foreign servers of "
    "Redfish trees",
    emulator="campaign.emulators.control_planes.redfish",
)
