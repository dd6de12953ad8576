"""Adapter for H3 Falcon boxes through H3's own interface, which has a list of resources and one allocation per device.

Source: the client of Irene-Ting/KubeComp@8579a32 (gpupool-archive), its logs of two real Falcon 4005 boxes, and the times in
them. H3 publishes no reference for this interface. Behaviour that no client shows is assumed and marked as an assumption: the
entry of a device without a host, statuses and errors, logins, modes, other kinds of devices, parallel allocations.
"""

from __future__ import annotations

from campaign.fabrics.adapters.h3.control_plane import H3ControlPlane, H3Options
from campaign.fabrics.control_plane.controlled_fabric import make_opener
from campaign.fabrics.operations import OperationSteps
from campaign.fabrics.registry import Example, FabricKind
from campaign.spec.cell import Configuration
from campaign.spec.operation_times import Operation
from campaign.spec.site_hardware import PoolSpec

open_fabric = make_opener(H3ControlPlane, "h3")

_MOVE: tuple[Operation, ...] = ("detach", "read_back", "attach", "read_back")

FABRIC = FabricKind(
    "H3 Falcon boxes, through H3's own interface",
    H3Options,
    open_fabric,
    unverified="not run on a real Falcon. Requests and the interpretation of answers follow a public client of two Falcon 4005 "
    "boxes. H3 does not publish how a box lists an unattached device, nor its errors, logins and modes",
    tested="its emulator, which replays the recorded requests, answers and times of two real Falcon 4005 boxes",
    emulator="campaign.emulators.control_planes.h3",
    times="h3",
    steps=OperationSteps(_MOVE, ("detach", "read_back"), ("inventory",) * 3, confirms_readings=True),
    example=Example(
        {
            "boxes": {"drawer1": "http://127.0.0.1:1", "drawer2": "http://127.0.0.1:2"},
            "hosts": {"host1": "0", "host2": "48"},
        },
        pool=(PoolSpec(kind="gpu", model="a100", count=3),),
        configuration=Configuration("c", 1, 2, 0, 2, "a100", "fabric", "local"),
    ),
)
