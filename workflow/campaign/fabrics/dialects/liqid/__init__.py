"""Liqid Matrix, REST v2: a machine for each host of a lease, in the campaign's group, of the host's compute device and its devices.

Unverified: written from the public SDKs (3.2.0) and requests recorded from them; run against this project's emulator only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.dialects.liqid.control_plane import Plane
from campaign.fabrics.dialects.liqid.options import Options
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.host_agents import open_agent
from campaign.fabrics.registry import FabricKind


def open_fabric(
    options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
) -> ControlledFabric:
    """See `fabrics.open_fabric`. The Matrix is not asked anything yet, and tells itself what the pool has."""
    plane = Plane(options, [host.name for host in hosts])
    return ControlledFabric(plane, hosts, state_dir / "liqid.json", open_agent(options.agent, len(hosts)), pool)


FABRIC = FabricKind(
    "Liqid Matrix, REST v2",
    Options,
    open_fabric,
    unverified="a real Liqid director; requests follow its published client libraries",
    tested="its emulator, by requests recorded from Liqid's own SDK",
    emulator="campaign.testbed.control_planes.liqid",
)
