"""Liqid Matrix, REST v2: a machine for each host of a lease, in the campaign's group, of the host's compute device and its devices.

Unverified: written from the public SDKs (3.2.0) and requests recorded from them; run against this project's emulator only.
"""

from __future__ import annotations

from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.liqid.control_plane import Plane
from campaign.fabrics.dialects.liqid.options import Options
from campaign.fabrics.registry import FabricKind

open_fabric = opening(Plane, "liqid")

FABRIC = FabricKind(
    "Liqid Matrix, REST v2",
    Options,
    open_fabric,
    unverified="a real Liqid director; requests follow its published client libraries",
    tested="its emulator, by requests recorded from Liqid's own SDK",
    emulator="campaign.testbed.control_planes.liqid",
)
