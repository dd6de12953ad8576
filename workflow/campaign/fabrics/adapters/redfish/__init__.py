"""Adapter for DMTF Redfish composition (DSP2050). Systems are composed of a host's block and exact devices, and read back.

The adapter has not been run against any vendor's service. It was run against this project's emulator, which third-party Redfish
clients checked, and against third-party servers of Redfish trees. It supports only specific composition, like the public
services: none was found that chooses devices by constraints or expands physical systems. `service` and `answers` are independent
of composition.
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
    unverified="not run against any vendor's service, only against emulators and third-party Redfish clients and servers",
    tested="its emulator (which can also behave like DMTF's emulator and mockup server), third-party Redfish clients, and "
    "third-party servers of Redfish trees",
    emulator="campaign.emulators.control_planes.redfish",
)
