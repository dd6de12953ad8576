"""Adapter for a Liqid Matrix (REST v2). A lease gets one machine per host, with the compute device of the host and its devices.

Machines belong to the campaign's group. The adapter has not been run against a real Matrix. The addresses, words and records of
Liqid's public SDKs are written down in `tests/data/fabrics/liqid/sdk.json`. Requests of this adapter and all answers of its
emulator are checked against them.
"""

from __future__ import annotations

from campaign.fabrics.adapters.liqid.api import LiqidOptions
from campaign.fabrics.adapters.liqid.control_plane import LiqidControlPlane
from campaign.fabrics.control_plane.controlled_fabric import make_opener
from campaign.fabrics.registry import FabricKind

open_fabric = make_opener(LiqidControlPlane, "liqid")

FABRIC = FabricKind(
    "Liqid Matrix, REST v2",
    LiqidOptions,
    open_fabric,
    unverified="not run on a real Liqid director. Its error numbers, its names of device states, the moment at which devices show "
    "a new machine, and the effect of peer-to-peer are unknown. Memory devices are not composed",
    tested="its emulator. Requests of the adapter and answers of the emulator are checked against a description of Liqid's public "
    "SDKs (Java 3.4, Python). Tests do not run the SDKs, because no registry has them. The emulator lacks `fabric/topology`, "
    "`manager/device` and `node/status`",
    emulator="campaign.emulators.control_planes.liqid",
    offers=frozenset({"p2p"}),
)
