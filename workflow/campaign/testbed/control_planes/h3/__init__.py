"""Boxes of an H3 Falcon, emulated: of GPUs (4005), or of memory (C5022, `api="cxl"`). Each drawer of the rack is a box that has an
address of its own; nothing joins them.

Sources: public clients of two real boxes and their logs (Irene-Ting/KubeComp@8579a32, gpupool-archive). No document of H3's is
public, and no box was tried: what no client shows is a switch (`habits.Options`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from campaign.testbed.control_planes.h3.box import ALLOCATION, PORTS, Box, Took
from campaign.testbed.control_planes.h3.cxl import HOST_PORTS, CxlBoxes, CxlOptions
from campaign.testbed.control_planes.h3.habits import Options
from campaign.testbed.control_planes.hardware import Rack
from campaign.testbed.control_planes.server import Asked, Reply, Server, Wire

COMPOSES = ("POST", ALLOCATION)
DEVICES = ("gpu:cpu-rank:8",)
OPTIONS = {"factor": 1.0, "attached": "all"}
"""For a person: two boxes of four, as slow as the real ones."""
NOTE = "The boxes are emulated. Operations take the times recorded of two H3 Falcon 4005, multiplied by the emulator's `factor`."


def address(server: Server) -> dict[str, object]:
    """What a system file says of where the boxes are, of the ports of their hosts, and of what may be taken from these."""
    ca = {"ca_file": str(server.ca_file.resolve())} if server.ca_file else {}
    dialect, hosts = server.opened, server.opened.rack.hosts
    if isinstance(dialect, CxlBoxes):
        return {"api": "cxl", "boxes": dict(server.urls), "hosts": _numbers(hosts, HOST_PORTS), **ca}
    movable = {"movable": [*server.urls]} if isinstance(dialect, Boxes) and dialect.options.attached == "all" else {}
    return {"boxes": dict(server.urls), "hosts": _numbers(hosts, PORTS), **movable}


def _numbers(hosts: Iterable[str], ports: Sequence[int]) -> dict[str, str]:
    return {host: str(port) for host, port in zip(hosts, ports, strict=False)}


class Boxes:
    """See `server.Dialect`. violations: what no public client ever sent, in words; took: what each operation took."""

    def __init__(self, rack: Rack, options: Options) -> None:
        self.rack = rack
        self.options = options
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


def open_dialect(rack: Rack, *, api: Literal["gpu", "cxl"] = "gpu", **options: object) -> Boxes | CxlBoxes:
    """The boxes of a rack; options: the fields of `Options` or `CxlOptions`. Raises ValueError for a rack that does not fit."""
    if api == "cxl":
        return CxlBoxes(rack, CxlOptions.model_validate(options))
    return Boxes(rack, Options.model_validate(options))
