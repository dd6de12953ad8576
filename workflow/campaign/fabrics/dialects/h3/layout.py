"""The boxes as one fabric: which host a port is, what a device is called here, whose it is and which rules hold. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from campaign.fabrics.banks import Bank, banks_by_mode
from campaign.fabrics.control_plane.protocol import View
from campaign.fabrics.dialects.h3.listing import Gpu, Listing
from campaign.fabrics.dialects.h3.options import Options
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.hardware import Device, PoolSpec
from campaign.fabrics.placement.devices import pool_devices
from campaign.fabrics.state_file import Detached, Slot

UNNAMED = "gpu"
"""Model of what the system file does not say: a box tells none."""


@dataclass(frozen=True)
class Layout:
    """options: those of the system file, which fit its hosts (names) and its pool."""

    options: Options
    hosts: tuple[str, ...]
    pool: tuple[PoolSpec, ...]

    def port(self, box: str, host: str) -> str | None:
        return self.options.port(box, host)

    def end(self, box: str, port: str) -> str:
        """Who is on a port of a box, as messages name them."""
        return next((host for host in self.hosts if self.port(box, host) == port), f"port {port} of {box}")

    def split(self, fabric_id: str) -> tuple[str, str]:
        """Box and UUID of a device."""
        box, _, uuid = fabric_id.rpartition("/")
        return box, uuid

    def model(self, box: str, kind: str) -> str | None:
        """The model of a kind in a box, as the system file says; None where it says several, or none."""
        found = {spec.model for spec in self.pool if spec.kind == kind and spec.drawer in (None, box)}
        return found.pop() if len(found) == 1 else None

    def view(
        self, listings: Mapping[str, Listing], detached: Mapping[str, Detached], slots: Mapping[str, Slot]
    ) -> View:
        """What the boxes list, and what this program detached and they do not list.

        Raises ProtocolViolation for boxes that are one.
        """
        shown: dict[str, str] = {}
        for box, listing in listings.items():
            for uuid in dict.fromkeys(gpu.uuid for gpu in listing.gpus):
                if shown.setdefault(uuid, box) != box:
                    raise ProtocolViolation(
                        f"{shown[uuid]} and {box} both list {uuid}: give each box its own address (`boxes`)"
                    )
        devices = [
            self._device(box, gpu, self._attached(box, gpu, listing, detached), len(listing.called(gpu.gid)) > 1)
            for box, listing in listings.items()
            for gpu in listing.gpus
        ]
        listed = {device.fabric_id for device in devices}
        for name, told in detached.items():
            box, uuid = self.split(name)
            if name not in listed and box in listings:
                devices.append(self._device(box, Gpu(uuid, told.called, None), None, False))
        boxes = list(listings)
        devices.sort(key=lambda one: (boxes.index(self.split(one.fabric_id)[0]), _slot(one), one.fabric_id))
        movable = frozenset(device.fabric_id for device in devices if self._movable(device))
        return View(tuple(devices), dict(self._holders(devices, movable, slots)), movable=movable)

    def _attached(self, box: str, gpu: Gpu, listing: Listing, detached: Mapping[str, Detached]) -> str | None:
        """What a listed device is attached to. What this program detached, and is on no port that there is, is nobody's."""
        if gpu.port is None or (f"{box}/{gpu.uuid}" in detached and gpu.port not in listing.ports):
            return None
        return self.end(box, gpu.port)

    def _device(self, box: str, gpu: Gpu, attached: str | None, doubtful: bool) -> Device:
        model = gpu.uuid if gpu.uuid in self.options.models else self.model(box, "gpu") or UNNAMED
        return Device(
            f"{box}/{gpu.uuid}",
            "gpu",
            model,
            gpu.uuid,
            f"{box}/slot{gpu.slot}",
            local=False,
            attached_to=attached,
            state="unknown" if doubtful else "free" if attached is None else "in_use",
        )

    def _movable(self, device: Device) -> bool:
        """Whether the system file gives it to the campaign where it is; never from a port of which nobody here knows the host."""
        box, uuid = self.split(device.fabric_id)
        known = device.attached_to in self.hosts and device.state != "unknown"
        return known and not {box, uuid, str(device.attached_to)}.isdisjoint(self.options.movable)

    def _holders(
        self, devices: Sequence[Device], movable: frozenset[str], slots: Mapping[str, Slot]
    ) -> Iterator[tuple[str, str]]:
        """Hosts with devices that are neither a lease's, nor left there by one, nor movable: they are somebody's."""
        for host in self.hosts:
            there = [d.fabric_id for d in devices if d.attached_to == host and d.fabric_id not in movable]
            if foreign := [name for name in there if not _ours(slots.get(name), host)]:
                yield host, f"somebody with {', '.join(foreign)} on {host} (see `movable`)"

    def banks(self, devices: Sequence[Device]) -> tuple[Bank, ...]:
        """A bank a box. Nothing is known of places in it, so that any host that has a port takes any of its devices."""

        def hosts(box: str) -> tuple[str, ...]:
            return tuple(host for host in self.hosts if self.port(box, host) is not None)

        return banks_by_mode((device.location for device in devices), hosts, self.options.modes)

    def planned(self) -> tuple[tuple[Device, ...], tuple[Bank, ...]]:
        """The pool of the system file; devices that name no box are spread evenly."""
        boxes = list(self.options.boxes)
        counts: Counter[tuple[str, str, str]] = Counter()
        for spec in self.pool:
            for number in range(spec.count):
                counts[spec.kind, spec.model, spec.drawer or boxes[number * len(boxes) // spec.count]] += 1
        devices = pool_devices(PoolSpec(kind, model, count, box) for (kind, model, box), count in counts.items())
        return devices, self.banks(devices)


def _slot(device: Device) -> int:
    return int(device.location.rpartition("slot")[2])


def _ours(slot: Slot | None, host: str) -> bool:
    return slot is not None and ((slot.lease is not None and slot.host == host) or _stays(slot, host))


def _stays(slot: Slot, host: str) -> bool:
    return slot.stays is not None and slot.stays.host == host
