"""Adapter for DMTF Redfish composition (DSP2050). Systems are composed of a host's block and exact devices, and read back.

The adapter has not been run against any vendor's service. It was run against this project's emulator, which foreign Redfish
clients checked, and against foreign servers of Redfish trees. It supports only specific composition, like the public services:
none was found that chooses devices by constraints or expands physical systems. `service` and `answers` are independent of
composition.
"""

from __future__ import annotations

from campaign.fabrics.adapters.redfish.control_plane import RedfishControlPlane
from campaign.fabrics.adapters.redfish.service import RedfishOptions
from campaign.fabrics.control_plane.controlled_fabric import make_opener
from campaign.fabrics.registry import FabricKind

open_fabric = make_opener(RedfishControlPlane, "redfish")

FABRIC = FabricKind(
    "DMTF Redfish composition: resource blocks, zones, composed systems",
    RedfishOptions,
    open_fabric,
    unverified="any vendor's service; it was run against emulators and judged by foreign Redfish clients",
    tested="its emulator, also as odd as DMTF's emulator and mockup server, foreign Redfish clients and foreign servers of "
    "Redfish trees",
    emulator="campaign.emulators.control_planes.redfish",
)
