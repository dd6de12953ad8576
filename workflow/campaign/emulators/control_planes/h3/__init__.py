"""Emulated boxes of an H3 Falcon 4005.

Each drawer of the rack is one box with a separate address. The boxes are not connected.

Sources: public clients of two real boxes and their logs (Irene-Ting/KubeComp@8579a32, gpupool-archive). No document of H3 is
public, and no real box was tried. Behaviour that no client shows is an option (`habits.BoxOptions`).
"""

from __future__ import annotations

from campaign.emulators.control_planes.h3.box import ALLOCATION_PATH, HOST_PORT_NUMBERS, EmulatedBox, SimulatedOperation
from campaign.emulators.control_planes.h3.habits import BoxOptions
from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.server import ControlPlaneServer, HttpRequest, Reply, WireSettings

COMPOSES = ("POST", ALLOCATION_PATH)
DEVICES = ("gpu:cpu-rank:8",)
OPTIONS = {"factor": 1.0, "attached": "all"}
"""Defaults of `campaign fabric emulate`: two boxes with four devices each, as slow as the real boxes."""
NOTE = "The boxes are emulated. Operations take the recorded times of two H3 Falcon 4005 boxes, multiplied by `factor`."


def address(server: ControlPlaneServer) -> dict[str, object]:
    """Build the entries of a system file that locate the boxes: addresses, ports of the hosts, and movable devices."""
    emulator, hosts = server.original_emulator, server.original_emulator.rack.hosts
    movable = (
        {"movable": [*server.urls]}
        if isinstance(emulator, EmulatedBoxes) and emulator.options.attached == "all"
        else {}
    )
    numbers = {host: str(port) for host, port in zip(hosts, HOST_PORT_NUMBERS, strict=False)}
    return {"boxes": dict(server.urls), "hosts": numbers, **movable}


class EmulatedBoxes:
    """Emulated boxes; see `server.Emulator`.

    `violations` describes requests that no public client ever sent. `timed_operations` lists the duration of each operation.
    """

    def __init__(self, rack: Rack, options: BoxOptions) -> None:
        self.rack = rack
        self.options = options
        self.violations: list[str] = []
        self.timed_operations: list[SimulatedOperation] = []
        drawers = dict.fromkeys(drawer for host in rack.hosts.values() for drawer in host.drawers)
        drawers |= dict.fromkeys(device.drawer for device in rack.devices.values())
        self.boxes = {
            name: EmulatedBox(name, number, rack, options, self.violations, self.timed_operations)
            for number, name in enumerate(drawers)
        }
        self.wire = WireSettings(parts=tuple(self.boxes), tls=False, concurrent=True)

    def answer(self, request: HttpRequest) -> Reply | None:
        """Answer a request to one of the boxes, or return None to close the connection."""
        return self.boxes[request.part].answer(request)


def open_emulator(rack: Rack, **options: object) -> EmulatedBoxes:
    """Create the emulated boxes for a rack.

    Raises ValueError if such boxes cannot represent the rack.

    Args:
        rack: emulated hardware.
        **options: fields of `BoxOptions`.
    """
    return EmulatedBoxes(rack, BoxOptions.model_validate(options))
