"""What is asked of a host about devices that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from campaign.errors import FabricError
from campaign.fabrics.hardware import Link


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
