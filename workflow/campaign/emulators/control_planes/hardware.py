"""Hardware behind an emulated control plane: hosts, pooled devices, and attachments. Independent of any protocol.

It is the reference that tests compare with: no device can be attached to two hosts here.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Quirk = Literal["never_visible", "needs_rescan", "degraded_link", "broken"]


class RackError(Exception):
    """Error for an impossible operation, such as attaching a device that is attached elsewhere or does not exist."""


@dataclass
class RackDevice:
    """One pooled device.

    Attributes:
        name: name of the device in the rack.
        kind: kind of the device, such as `gpu`.
        model: model of the device.
        drawer: drawer that contains the device.
        slot: position in the drawer, from 1.
        uuid: UUID of a GPU, as the tools of its host report it.
        serial: serial number of a drive or card.
        attached_to: host that the device is attached to, or None.
        quirks: emulated defects.
        rescanned: the host was rescanned since the device was attached.
    """

    name: str
    kind: str
    model: str
    drawer: str
    slot: int
    uuid: str
    serial: str
    attached_to: str | None = None
    quirks: set[Quirk] = field(default_factory=set)
    rescanned: bool = False

    @property
    def width(self) -> int:
        """Number of trained lanes of the link, out of 16."""
        return 8 if "degraded_link" in self.quirks else 16


@dataclass(frozen=True)
class RackHost:
    """One host with the drawers that it is cabled to."""

    name: str
    drawers: tuple[str, ...] = ()


class Rack:
    """Rack of hosts and pooled devices.

    Hold `lock` while changing or reading several values together. `draw_duration_s` returns the duration of an operation in
    seconds. The rack sleeps that long with the lock held, like a chassis that does one thing at a time.
    """

    def __init__(self, hosts: Sequence[RackHost], devices: Sequence[RackDevice]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.devices = {device.name: device for device in devices}
        self.lock = threading.RLock()
        self.changes = 0
        self.draw_duration_s: Callable[[Literal["attach", "detach"]], float] = lambda _: 0.0

    def attach(self, device: str, host: str) -> None:
        """Attach a device to a host.

        Raises RackError if the device is attached to another host, or if the host is not cabled to its drawer.
        """
        with self.lock:
            rack_device = self._find_device(device)
            if host not in self.hosts:
                raise RackError(f"no host {host}")
            if rack_device.drawer not in self.hosts[host].drawers:
                raise RackError(f"{host} is not cabled to {rack_device.drawer}")
            if rack_device.attached_to not in (None, host):
                raise RackError(f"{device} is attached to {rack_device.attached_to}")
            if rack_device.attached_to is None:
                time.sleep(self.draw_duration_s("attach"))
            rack_device.attached_to = host
            rack_device.rescanned = False
            self.changes += 1

    def detach(self, device: str) -> None:
        """Detach a device from its host, if it is attached."""
        with self.lock:
            if self._find_device(device).attached_to is not None:
                time.sleep(self.draw_duration_s("detach"))
            self._find_device(device).attached_to = None
            self.changes += 1

    def list_attached_devices(self, host: str) -> list[RackDevice]:
        """Return the devices that are attached to a host."""
        with self.lock:
            return [device for device in self.devices.values() if device.attached_to == host]

    def _find_device(self, name: str) -> RackDevice:
        """Return a device by name. Raises RackError if there is none."""
        if name not in self.devices:
            raise RackError(f"no device {name}")
        return self.devices[name]

    def rescan_host(self, host: str) -> None:
        """Make the host scan for devices."""
        with self.lock:
            for device in self.list_attached_devices(host):
                device.rescanned = True

    def list_visible_devices(self, host: str) -> list[dict[str, Any]]:
        """Return the devices that the host itself sees, in the format that the host agent of kind `http` reads."""
        with self.lock:
            return [
                {
                    "identity": f"GPU-{device.uuid}" if device.kind == "gpu" else device.serial,
                    "address": f"0000:{device.slot:02x}:00.0",
                    "kind": device.kind,
                    "model": device.model,
                    "link": {"width": device.width, "gen": 4, "width_max": 16, "gen_max": 4},
                }
                for device in self.list_attached_devices(host)
                if "never_visible" not in device.quirks and ("needs_rescan" not in device.quirks or device.rescanned)
            ]

    def list_free_devices(self) -> list[str]:
        """Return the names of the devices that are attached to no host."""
        with self.lock:
            return [device.name for device in self.devices.values() if device.attached_to is None]


def build_rack(
    hosts: Mapping[str, Sequence[str]] | Sequence[str], devices: Sequence[tuple[str, str, int]], *, drawers: int = 2
) -> Rack:
    """Build a rack of hosts and pooled devices.

    Devices fill the drawers `drawer1`.. evenly and are named `gpu1`... Their ids are the same in every run.

    Args:
        hosts: host names, or a mapping from each host name to the drawers that the host reaches.
        devices: (kind, model, count) of the pooled devices.
        drawers: number of drawers.
    """
    names = [f"drawer{number}" for number in range(1, drawers + 1)]
    drawers_by_host = hosts if isinstance(hosts, Mapping) else dict.fromkeys(hosts, names)
    slots = dict.fromkeys(names, 0)
    rack_devices: list[RackDevice] = []
    last_numbers: dict[str, int] = {}
    for kind, model, count in devices:
        for index in range(count):
            drawer = names[index * drawers // count]
            slots[drawer] += 1
            last_numbers[kind] = last_numbers.get(kind, 0) + 1
            name = f"{kind}{last_numbers[kind]}"
            digest = hashlib.sha256(f"{name} {model}".encode()).hexdigest()
            uuid = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
            rack_devices.append(RackDevice(name, kind, model, drawer, slots[drawer], uuid, digest[:12].upper()))
    return Rack(
        [RackHost(name, drawers=tuple(host_drawers)) for name, host_drawers in drawers_by_host.items()], rack_devices
    )
