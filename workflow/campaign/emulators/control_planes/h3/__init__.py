"""Boxes of an H3 Falcon 4005, emulated. Each drawer of the rack is a box that has an address of its own; nothing joins them.

Sources: public clients of two real boxes and their logs (Irene-Ting/KubeComp@8579a32, gpupool-archive). No document of H3's is
public, and no box was tried: what no client shows is a switch (`habits.BoxOptions`).
"""

from __future__ import annotations

from campaign.emulators.control_planes.h3.box import ALLOCATION, PORTS, EmulatedBox, Took
from campaign.emulators.control_planes.h3.habits import BoxOptions
from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply, Wire

COMPOSES = ("POST", ALLOCATION)
DEVICES = ("gpu:cpu-rank:8",)
OPTIONS = {"factor": 1.0, "attached": "all"}
"""For a person: two boxes of four, as slow as the real ones."""
NOTE = "The boxes are emulated. Operations take the times recorded of two H3 Falcon 4005, multiplied by the emulator's `factor`."


def address(server: ControlPlaneServer) -> dict[str, object]:
    """What a system file says of where the boxes are, of the ports of their hosts, and of what may be taken from these."""
    emulator, hosts = server.opened, server.opened.rack.hosts
    movable = {"movable": [*server.urls]} if isinstance(emulator, Boxes) and emulator.options.attached == "all" else {}
    numbers = {host: str(port) for host, port in zip(hosts, PORTS, strict=False)}
    return {"boxes": dict(server.urls), "hosts": numbers, **movable}


class Boxes:
    """See `server.Emulator`. violations: what no public client ever sent, in words; took: what each operation took."""

    def __init__(self, rack: Rack, options: BoxOptions) -> None:
        self.rack = rack
        self.options = options
        self.violations: list[str] = []
        self.took: list[Took] = []
        drawers = dict.fromkeys(drawer for host in rack.hosts.values() for drawer in host.drawers)
        drawers |= dict.fromkeys(device.drawer for device in rack.devices.values())
        self.boxes = {
            name: EmulatedBox(name, number, rack, options, self.violations, self.took)
            for number, name in enumerate(drawers)
        }
        self.wire = Wire(parts=tuple(self.boxes), tls=False, concurrent=True)

    def answer(self, asked: HttpRequest) -> Reply | None:
        return self.boxes[asked.part].answer(asked)


def open_emulator(rack: Rack, **options: object) -> Boxes:
    """The boxes of a rack; options: the fields of `BoxOptions`. Raises ValueError for a rack that does not fit."""
    return Boxes(rack, BoxOptions.model_validate(options))
