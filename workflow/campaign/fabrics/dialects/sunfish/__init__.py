"""OFMF/Sunfish: a Redfish store, before agents that have the fabrics: a device is attached by a Connection, which the agent makes.

Source: the Sunfish reference server and library, which were run (development branch and release 0.3), and the Redfish fabric
model (DSP0268). What the store says and what the agent did can differ: a DELETE may end without an answer, or with 500, the agent
having done it while Sunfish lists the connection for good. So the agent is asked too (`ask_agent`), and its word counts: a lease is
released when the agent no longer has its connections, and what Sunfish goes on listing is reported. Where the agent is not asked, a
device is believed only where the connection and its endpoint agree; else it is `unknown`, is no part of a composition, and is kept.
The Name of a connection is the mark of a lease; connections without it are left alone.

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
    unverified="an agent with hardware; whether one confirms a connection before it works",
    tested="its emulator, which does what runs of the public reference server did (development branch and 0.3, a minimal agent); "
    "no registry has that server, so tests do not run it",
    emulator="campaign.testbed.control_planes.sunfish",
)
