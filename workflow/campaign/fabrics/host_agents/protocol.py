"""Interface of host agents, and the assignment of a host's devices to those of the fabric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from campaign.common.errors import FabricError
from campaign.spec.hardware import Device, Link, normalize_identity


@dataclass(frozen=True, slots=True)
class HostDevice:
    """One device as its host lists it.

    Attributes:
        identity: GPU UUID, serial number of a drive, or MAC; empty if unknown.
        address: PCI address such as `0000:3b:00.0`; empty if unknown.
        kind: kind of the device.
        model: model of the device; empty if unknown.
        link: PCIe link of the device, or None if unknown.
        ready: False for a device on the bus that cannot be used now, such as a drained GPU or one without a driver.
    """

    identity: str
    address: str = ""
    kind: str = "gpu"
    model: str = ""
    link: Link | None = None
    ready: bool = True


class HostBusy(FabricError):
    """Error for a device that cannot be detached because the host uses it.

    `holders` describes the users, such as `pid 4711 python`.
    """

    def __init__(self, message: str, holders: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.holders = tuple(holders)


class HostAgent(Protocol):
    """Agent that inspects hosts, addressed by their names in the system file.

    Every method raises FabricError if the host cannot be queried.
    """

    def list_devices(self, host: str) -> tuple[HostDevice, ...]:
        """Return the devices that the host lists now: GPUs, NVMe drives and network cards."""

    def rescan(self, host: str) -> None:
        """Make the host scan for newly attached devices. An agent that can only list devices does nothing."""

    def detach(self, host: str, devices: Sequence[HostDevice], *, force: bool = False) -> None:
        """Take devices out of use on the host, in the order that drivers survive, so that the fabric may detach them.

        Repeating the call is harmless, and so is a device that the host does not have. Raises HostBusy with the users of a
        device, unless `force` is True. An agent that can only list devices raises HostBusy if a device has users, and otherwise
        does nothing.
        """

    def close(self) -> None:
        """Close open connections."""
        ...


def match_devices(devices: Iterable[Device], host_devices: Sequence[HostDevice]) -> dict[str, HostDevice]:
    """Return the host's device for each fabric id.

    Devices are matched by identity. If the fabric reports no identity, they are matched in order with the remaining devices
    of their kind.

    A GPU without a driver shows no identity. Such GPUs are matched with the missing ones, unless there are more of them, so
    that an interrupted detachment can be finished. Since they are not `ready`, they do not count as visible.
    """
    unmatched_devices = dict(enumerate(host_devices))
    matches: dict[str, HostDevice] = {}
    devices_without_identity: list[Device] = []
    missed_by_kind: dict[str, list[Device]] = {}
    for device in devices:
        if not device.host_id:
            devices_without_identity.append(device)
            continue
        identity = normalize_identity(device.host_id)
        number = next(
            (
                n
                for n, host_device in unmatched_devices.items()
                if identity in (normalize_identity(host_device.identity), normalize_identity(host_device.address))
            ),
            None,
        )
        if number is not None:
            matches[device.fabric_id] = unmatched_devices.pop(number)
        else:
            missed_by_kind.setdefault(device.kind, []).append(device)
    for kind, missed_devices in missed_by_kind.items():
        anonymous_numbers = [
            n
            for n, host_device in unmatched_devices.items()
            if host_device.kind == kind and not host_device.identity and not host_device.ready
        ]
        if len(anonymous_numbers) <= len(missed_devices):
            matches.update(
                {
                    device.fabric_id: unmatched_devices.pop(n)
                    for device, n in zip(missed_devices, anonymous_numbers, strict=False)
                }
            )
    for device in devices_without_identity:
        number = next((n for n, host_device in unmatched_devices.items() if host_device.kind == device.kind), None)
        if number is not None:
            matches[device.fabric_id] = unmatched_devices.pop(number)
    return matches
