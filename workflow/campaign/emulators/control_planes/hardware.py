"""The hardware behind an emulated control plane: hosts, pooled devices, and which is attached to which. Knows no protocol.

It is the truth that tests compare with: nobody can attach one device to two hosts here, and `conserved` says so at any time.
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
    """What hardware does not do: attach what is attached elsewhere, or what is not there."""


@dataclass
class RackDevice:
    """One pooled device. serial: a drive's or card's; uuid: a GPU's, as its host's tools show it. slot: from 1 in its drawer."""

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
        """Lanes of its link as trained, of 16 possible."""
        return 8 if "degraded_link" in self.quirks else 16


@dataclass(frozen=True)
class RackHost:
    """One host, with the drawers that it is cabled to."""

    name: str
    drawers: tuple[str, ...] = ()


class Rack:
    """Hosts and devices. `lock` is held by whoever changes or reads more than one thing. takes: seconds of an operation, slept with
    the lock held, as by a chassis that does one thing at a time.
    """

    def __init__(self, hosts: Sequence[RackHost], devices: Sequence[RackDevice]) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.devices = {device.name: device for device in devices}
        self.lock = threading.RLock()
        self.changes = 0
        self.takes: Callable[[Literal["attach", "detach"]], float] = lambda _: 0.0

    def attach(self, device: str, host: str) -> None:
        """Raises RackError when it is attached to another host, or to reach it takes a cable that is not there."""
        with self.lock:
            found = self._device(device)
            if host not in self.hosts:
                raise RackError(f"no host {host}")
            if found.drawer not in self.hosts[host].drawers:
                raise RackError(f"{host} is not cabled to {found.drawer}")
            if found.attached_to not in (None, host):
                raise RackError(f"{device} is attached to {found.attached_to}")
            if found.attached_to is None:
                time.sleep(self.takes("attach"))
            found.attached_to = host
            found.rescanned = False
            self.changes += 1

    def detach(self, device: str) -> None:
        with self.lock:
            if self._device(device).attached_to is not None:
                time.sleep(self.takes("detach"))
            self._device(device).attached_to = None
            self.changes += 1

    def attached(self, host: str) -> list[RackDevice]:
        with self.lock:
            return [device for device in self.devices.values() if device.attached_to == host]

    def _device(self, name: str) -> RackDevice:
        if name not in self.devices:
            raise RackError(f"no device {name}")
        return self.devices[name]

    def rescan(self, host: str) -> None:
        with self.lock:
            for device in self.attached(host):
                device.rescanned = True

    def enumerated(self, host: str) -> list[dict[str, Any]]:
        """What the host itself sees, as the host agent of kind `http` reads it."""
        with self.lock:
            return [
                {
                    "identity": f"GPU-{device.uuid}" if device.kind == "gpu" else device.serial,
                    "address": f"0000:{device.slot:02x}:00.0",
                    "kind": device.kind,
                    "model": device.model,
                    "link": {"width": device.width, "gen": 4, "width_max": 16, "gen_max": 4},
                }
                for device in self.attached(host)
                if "never_visible" not in device.quirks and ("needs_rescan" not in device.quirks or device.rescanned)
            ]

    def free(self) -> list[str]:
        with self.lock:
            return [device.name for device in self.devices.values() if device.attached_to is None]


def rack(
    hosts: Mapping[str, Sequence[str]] | Sequence[str], devices: Sequence[tuple[str, str, int]], *, drawers: int = 2
) -> Rack:
    """A rack of hosts (names, or names with the drawers that they reach) and pooled devices (kind, model, count).

    Devices fill the drawers `drawer1`.. evenly, are named `gpu1`.., and have ids that are the same every time.
    """
    names = [f"drawer{number}" for number in range(1, drawers + 1)]
    reach = hosts if isinstance(hosts, Mapping) else dict.fromkeys(hosts, names)
    slots = dict.fromkeys(names, 0)
    built: list[RackDevice] = []
    numbers: dict[str, int] = {}
    for kind, model, count in devices:
        for index in range(count):
            drawer = names[index * drawers // count]
            slots[drawer] += 1
            numbers[kind] = numbers.get(kind, 0) + 1
            name = f"{kind}{numbers[kind]}"
            digest = hashlib.sha256(f"{name} {model}".encode()).hexdigest()
            uuid = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
            built.append(RackDevice(name, kind, model, drawer, slots[drawer], uuid, digest[:12].upper()))
    return Rack([RackHost(name, drawers=tuple(reached)) for name, reached in reach.items()], built)
