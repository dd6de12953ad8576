"""Boxes of an H3 Falcon 4005, emulated: each drawer of the rack is a box with an address of its own; nothing joins them.

Sources: public clients of two real boxes and their logs (Irene-Ting/KubeComp@8579a32, gpupool-archive). No document of H3's is
public, and no box was tried: what no client shows is a switch (`habits.Options`).
"""

from __future__ import annotations

from campaign.testbed.control_planes.h3.box import ALLOCATION, Box, Took
from campaign.testbed.control_planes.h3.habits import Options
from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.server import Asked, Reply, Server, Wire

COMPOSES = ("POST", ALLOCATION)
DEVICES = ("gpu:cpu-rank:8",)
OPTIONS = {"factor": 1.0, "attached": "all"}
"""For a person: two boxes of four, as slow as the real ones."""


def address(server: Server) -> dict[str, object]:
    """What a system file says of where the boxes are."""
    return {"boxes": dict(server.urls)}


class Boxes:
    """See `server.Dialect`. violations: what no public client ever sent, in words; took: what each operation took."""

    def __init__(self, rack: Rack, options: Options) -> None:
        self.rack = rack
        self.violations: list[str] = []
        self.took: list[Took] = []
        drawers = dict.fromkeys(drawer for host in rack.hosts.values() for drawer in host.drawers)
        drawers |= dict.fromkeys(device.drawer for device in rack.devices.values())
        self.boxes = {
            name: Box(name, number, rack, options, self.violations, self.took) for number, name in enumerate(drawers)
        }
        self.wire = Wire(parts=tuple(self.boxes), tls=False, concurrent=True)

    def answer(self, asked: Asked) -> Reply | None:
        return self.boxes[asked.part].answer(asked)


def open_dialect(rack: Rack, **options: object) -> Boxes:
    """The boxes of a rack; options: the fields of `Options`. Raises ValueError for a rack that does not fit in."""
    return Boxes(rack, Options.model_validate(options))
