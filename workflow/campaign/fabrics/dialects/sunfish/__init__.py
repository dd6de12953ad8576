"""OFMF/Sunfish: a Redfish store, before agents that have the fabrics: a device is attached by a Connection, which the agent makes.

Source: the Sunfish reference server and library, which were run, and the Redfish fabric model (DSP0268). What the store says and
what the agent did can differ: a DELETE may end without an answer, the agent having done it while Sunfish lists the connection for
good. So a device is believed only where the connection, its endpoint and, with `agent_url`, the agent itself agree; else it is
`unknown`, is no part of a composition, and is not given up. The Name of a connection is the mark of a lease; connections without it
are left alone.

Unverified: an agent with hardware. The type of a connection to a GPU (`connection_type`) is not settled: Redfish knows Memory and
Storage.
"""

from __future__ import annotations

from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.sunfish.control_plane import Plane
from campaign.fabrics.dialects.sunfish.options import Options
from campaign.fabrics.registry import FabricKind

open_fabric = opening(Plane, "sunfish")

FABRIC = FabricKind(
    "OFMF/Sunfish: connections through an agent",
    Options,
    open_fabric,
    unverified="a hardware agent; behaviour follows the reference server and its agents",
    tested="its emulator",
    emulator="campaign.testbed.control_planes.sunfish",
)
