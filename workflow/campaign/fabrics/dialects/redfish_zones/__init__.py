"""Falcon-like chassis and other Redfish fabrics: a host has what is in the zone of its host port.

Assigning is a PATCH of the full list of a zone's endpoints; there is no composition service, and every zone is there already.
Source: DSP0266, DSP2046 (Fabric, Zone, Endpoint, Port), the public pages of H3 Platform on the Falcon's API ("each zone
represents a host port", `PATCH /redfish/v1/Fabrics/PCIe/Zones/{zone}`) and the two bodies that the client of Intel's RSD sends.

Unverified: no real Falcon or FabreX was asked. Its exact body, login, modes' names, tags and asynchronous behaviour are inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.dialects.redfish_zones.control_plane import Plane
from campaign.fabrics.dialects.redfish_zones.layout import Claim
from campaign.fabrics.dialects.redfish_zones.options import Options
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.host_agents import open_agent
from campaign.fabrics.http.client import Client
from campaign.fabrics.registry import FabricKind
from campaign.fabrics.state_file import StateFile


def open_fabric(
    options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state_dir: Path
) -> ControlledFabric:
    """Open without asking the chassis anything. What is in the pool, the chassis tells; plans go by `pool`."""
    path = state_dir / "redfish-zones.json"
    plane = Plane(Client(options), options, hosts, lambda: _claims(StateFile(path)))
    agent = open_agent(options.agent, len(hosts))
    return ControlledFabric(
        plane, hosts, path, agent, pool, observed=plane, portable=plane, telemetry=options.telemetry
    )


def _claims(state: StateFile) -> Mapping[str, Claim]:
    return {
        name: Claim(slot.lease, slot.host)
        for name, slot in state.read().devices.items()
        if slot.lease is not None and slot.host is not None
    }


FABRIC = FabricKind(
    "Falcon-like chassis and other Redfish fabrics: one zone a host port",
    Options,
    open_fabric,
    unverified="the body and sign-in of H3 Falcon and GigaIO FabreX, whose references are not public",
    tested="its emulator and a foreign Redfish client",
    emulator="campaign.testbed.control_planes.redfish_zones",
    offers=frozenset({"readings", "events", "allocation"}),
)
