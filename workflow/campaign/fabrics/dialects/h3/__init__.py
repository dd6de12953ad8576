"""H3 Falcon boxes through H3's own interface, as its public clients use it: a list of resources, and an allocation for each device.

Source: the client of Irene-Ting/KubeComp@8579a32 (gpupool-archive), its logs of two real Falcon 4005 boxes, and times in them.
H3 publishes no reference of this interface. What no client shows is assumed, and named where it is: what a box lists of a device
that nobody has, statuses and errors, logins, modes, other kinds of devices, parallel allocations. Boxes of CXL memory are a dialect
of their own (`memory_plane`), of which no recording is public at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from campaign.documents.cell import Configuration
from campaign.documents.operation_times import Operation
from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.h3.control_plane import Plane
from campaign.fabrics.dialects.h3.memory_plane import MemoryPlane
from campaign.fabrics.dialects.h3.options import Options
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.moves import Steps
from campaign.fabrics.registry import Example, FabricKind
from campaign.fabrics.state_file import StateFile


def _plane(
    options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
) -> Plane | MemoryPlane:
    return (MemoryPlane if options.api == "cxl" else Plane)(options, hosts, pool, state)


open_fabric = opening(_plane, "h3")

_MOVE: tuple[Operation, ...] = ("detach", "read_back", "attach", "read_back")

FABRIC = FabricKind(
    "H3 Falcon boxes, H3's own interface",
    Options,
    open_fabric,
    unverified="a real Falcon. Requests, and what is read in answers, are those of a public client of two Falcon 4005; what a box "
    "lists of a device that nobody has, its errors, logins and modes are published nowhere. Of boxes of memory (`api: cxl`) no "
    "answer is public at all",
    tested="its emulator. The emulator replays the recorded orders, answers and times of two real Falcon 4005",
    emulator="campaign.testbed.control_planes.h3",
    times="h3",
    serial="all",
    steps=Steps(_MOVE, ("attach", "read_back"), _MOVE, ("detach", "read_back"), ("inventory",) * 3, confirmed=True),
    keeps_attached=True,
    example=Example(
        {
            "boxes": {"drawer1": "http://127.0.0.1:1", "drawer2": "http://127.0.0.1:2"},
            "hosts": {"host1": "0", "host2": "48"},
        },
        pool=(PoolSpec("gpu", "a100", 3),),
        configuration=Configuration("c", 1, 2, 0, 2, "a100", "fabric", "local"),
    ),
)
