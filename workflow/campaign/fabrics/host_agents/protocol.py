"""What is asked of a host about devices that come and go, and which device of a host is which of the fabric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from campaign.common.errors import FabricError
from campaign.spec.hardware import Device, Link, normal


@dataclass(frozen=True, slots=True)
class HostDevice:
    """One device as its host enumerates it. identity: GPU UUID, drive's serial or MAC; address: PCI, `0000:3b:00.0`; "": not told.

    ready: False for what is on the bus and that nothing can use now, such as a GPU without a driver, or a drained one.
    """

    identity: str
    address: str = ""
    kind: str = "gpu"
    model: str = ""
    link: Link | None = None
    ready: bool = True


class HostBusy(FabricError):
    """Something on the host uses a device that is to be detached. holders: what and who, such as `pid 4711 python`."""

    def __init__(self, message: str, holders: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


class HostAgent(Protocol):
    """Looks on hosts by name (the system file's). Every method raises FabricError when the host cannot be asked."""

    def devices(self, host: str) -> tuple[HostDevice, ...]:
        """What the host enumerates now: GPUs, NVMe drives and network cards."""

    def rescan(self, host: str) -> None:
        """Make the host look for devices that were attached; an agent that only looks does nothing."""

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        """Take devices out of use on the host, in the order that drivers survive, so that the fabric may detach them.

        Doing so again is harmless, and so is a device that the host does not have. Raises HostBusy naming who uses it, unless
        `force`. An agent that only looks raises HostBusy when it is told of users, and otherwise does nothing.
        """

    def close(self) -> None: ...


def pair(devices: Iterable[Device], seen: Sequence[HostDevice]) -> dict[str, HostDevice]:
    """Fabric id -> the host's device: by identity; where the fabric gives none, in order among those of the kind that are left.

    A GPU without a driver shows no identity. Such ones stand for those that are missed, unless they are more, so that a detachment
    that was cut off can be finished; that they are not `ready` says that nobody sees what was asked for.
    """
    left = dict(enumerate(seen))
    found: dict[str, HostDevice] = {}
    unnamed: list[Device] = []
    missed: dict[str, list[Device]] = {}
    for device in devices:
        if not device.host_id:
            unnamed.append(device)
            continue
        wanted = normal(device.host_id)
        number = next((n for n, one in left.items() if wanted in (normal(one.identity), normal(one.address))), None)
        if number is not None:
            found[device.fabric_id] = left.pop(number)
        else:
            missed.setdefault(device.kind, []).append(device)
    for kind, those in missed.items():
        nameless = [n for n, one in left.items() if one.kind == kind and not one.identity and not one.ready]
        if len(nameless) <= len(those):
            found.update({device.fabric_id: left.pop(n) for device, n in zip(those, nameless, strict=False)})
    for device in unnamed:
        number = next((n for n, one in left.items() if one.kind == device.kind), None)
        if number is not None:
            found[device.fabric_id] = left.pop(number)
    return found
