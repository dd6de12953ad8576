"""Fujitsu CDI (Fsas), through its fabric manager: a machine is sent a condition, and the fabric chooses the device.

Source: public clients of the fabric manager and their mocks. Free devices have no names there: the fabric tells how many of a
model are left. So a device of the pool is named by its place in that count, such as `fabric1/a100-3`, and stands for whichever
resource the fabric attaches when it is asked for one. Which one that was, is in the state file (`handles`) as soon as it is known;
where the answer was lost, it is the resource that appeared on the machine since. What came back is what was obtained, of whatever
model.

The fabric has no field for a tag, so that the claims in the state file are the only mark. What was on a machine before is foreign.

Unverified: every request, against a real fabric manager. Its sibling, the cluster manager (`resize` to an absolute count), is not
spoken to: two clients that resize at one time lose one another's update.
"""

from __future__ import annotations

from campaign.fabrics.control_plane.controlled_fabric import opening
from campaign.fabrics.dialects.cdi.control_plane import Plane
from campaign.fabrics.dialects.cdi.options import Options
from campaign.fabrics.registry import Example, FabricKind

open_fabric = opening(Plane, "cdi")

FABRIC = FabricKind(
    "Fujitsu CDI, fabric manager",
    Options,
    open_fabric,
    unverified="a real fabric manager; requests follow public clients of it",
    tested="its emulator alone; no client or schema of others has judged that",
    emulator="campaign.testbed.control_planes.cdi",
    example=Example({"tenant": "b3b65e79-ad41-4367-89d6-e4e7315141ef", "realm": "cdi", "client_id": "campaign"}),
)
