"""Control plane of several GPU boxes. The boxes are independent: each is read and changed by itself.

A box has no request that moves a device: the device is detached and then attached. In between it has no host and may not be
listed. Its identifier is therefore written into the state file first (`State.detached`). Answers prove nothing. A box is read
right before each request, because identifiers of devices change, and again after it. A device has moved when the box shows it on
the new port.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from campaign.common.errors import ConfigError, FabricError
from campaign.fabrics.adapters.h3.box import Box, Gpu, Listing
from campaign.fabrics.banks import Bank, banks_by_mode
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View, WithoutLogin
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.options import Connection
from campaign.fabrics.operations import timing
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import Detached, Slot, StateFile
from campaign.spec.hardware import Device, pool_devices
from campaign.spec.operation_times import Operation
from campaign.spec.site_hardware import DeviceKind, HostSpec, PoolSpec

NOTE = (
    "written from what public clients of two Falcon 4005 boxes sent and logged; no box was tried. A box has no field for a tag, so "
    "that only the state file says whose a device is"
)
JUST_BEFORE_S = 5.0
"""Maximum age of the reading that gives the address of a device. A box that was changed since is always read again."""
PORT_RULE = "a host has a port in the box of each of its devices"


_UUID = re.compile(r"GPU-[0-9A-Fa-f-]+")


class H3Options(WithoutLogin):
    """Options of a fabric of H3 Falcon boxes. Each box is a drawer of the pool.

    `hosts`: port number (`Port#`) of each host, the same in every box unless `ports` differs. `models`: model of a device by its
    UUID, for boxes with several models.
    """

    url: Literal[""] = Field(default="", description="not used: each box has an address, see `boxes`")
    boxes: dict[str, str] = Field(
        min_length=1,
        description="address of each box, by the drawer that it is in the pool (`falcon1/drawer1: http://10.0.0.1`)",
    )
    ports: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="port of each host that is cabled to a box (`falcon1/drawer2: {host1: '16'}`), by box; default: as in `hosts`",
    )
    movable: tuple[str, ...] = Field(
        default=(),
        description="what the campaign may take from the host that it is found on: all devices of a box, those on a host, or one "
        "device (`[falcon1/drawer1, host2, GPU-...]`). Nothing else that is found attached is ever moved",
    )
    modes: dict[str, Literal["standard_one_host", "advanced"]] = Field(
        default_factory=dict,
        description="mode that a box is set to, which it does not tell: `advanced`: three hosts at one time, `standard_one_host`: "
        "one; default: no limit. It is never changed",
    )
    poll_s: Annotated[float, Field(ge=0)] = Field(
        default=0.5, description="seconds between two reads of a box; a state counts when two reads in a row agree"
    )
    reads_max: Annotated[int, Field(ge=2)] = Field(
        default=10, description="reads after which a box whose lists never agree is given up"
    )
    request_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0,
        description="seconds that one request may take; a box answers it when it has done everything before it",
    )
    operation_s: Annotated[float, Field(gt=0)] = Field(
        default=1800.0, description="seconds that composing or releasing may take, about 40 for each device that moves"
    )

    @field_validator("boxes")
    @classmethod
    def _addresses(cls, boxes: dict[str, str]) -> dict[str, str]:
        """Check that each box has a valid address."""
        for name, url in boxes.items():
            try:
                Connection(url=url)
            except ValidationError as error:
                raise ValueError(f"{name}: {url!r} is no address such as http://10.0.0.1") from error
        return boxes

    def connection(self, box: str) -> Connection:
        """Build the connection settings of one H3 box."""
        shared = {name: getattr(self, name) for name in Connection.model_fields if name != "url"}
        return Connection(url=self.boxes[box], **shared)

    def model(self, told: str) -> str:
        """Return the system file's name of a device model, or the fabric's own name if the system file has none."""
        return self.models.get(told, told)

    def port(self, box: str, host: str) -> str | None:
        """Return the port number of a host in an H3 box, or None if the host is not cabled to it."""
        return self.ports.get(box, self.hosts).get(host)

    def fit(self, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec]) -> None:
        """Check the host and box names in the options against the hosts and pool of the system file.

        Raises ConfigError for a name that is neither a box nor a host of the system, and for two hosts on one port.
        """
        names = [host.name for host in hosts]
        movable = [each for each in self.movable if not _UUID.fullmatch(each)]
        told: list[tuple[str, Iterable[str], Collection[str], str]] = [
            ("modes", self.modes, self.boxes, "box"),
            ("ports", self.ports, self.boxes, "box"),
            ("hosts", self.hosts, names, "host"),
            *((f"ports: {box}", given, names, "host") for box, given in self.ports.items()),
            ("pool: drawer", [spec.drawer for spec in pool if spec.drawer is not None], self.boxes, "box"),
            ("movable", movable, [*self.boxes, *names], "box or host"),
        ]
        for key, given, known, what in told:
            if unknown := [each for each in given if each not in known]:
                raise ConfigError(f"{key}: no {what} {unknown[0]!r}; there are: {', '.join(known)}")
        for box in self.boxes:
            taken: dict[str, str] = {}
            for name in names:
                port = self.port(box, name)
                if port is not None and taken.setdefault(port, name) != name:
                    raise ConfigError(
                        f"hosts: {name} and {taken[port]} both have port {port} of {box}; a port has one host"
                    )


UNNAMED = "gpu"
"""Model of a device without a model in the system file. Boxes do not report models."""


@dataclass(frozen=True)
class BoxLayout:
    """Boxes, hosts and devices of a system file, for the interpretation of the boxes' lists.

    The options have been checked against the hosts (names) and the pool.
    """

    options: H3Options
    hosts: tuple[str, ...]
    pool: tuple[PoolSpec, ...]

    def port(self, box: str, host: str) -> str | None:
        """Return the port number of a host in an H3 box, or None if the host is not cabled to it."""
        return self.options.port(box, host)

    def end(self, box: str, port: str) -> str:
        """Return the host on a port of a box for messages, or a description of the port if its host is unknown."""
        return next((host for host in self.hosts if self.port(box, host) == port), f"port {port} of {box}")

    def split(self, fabric_id: str) -> tuple[str, str]:
        """Split a fabric id (`BOX/UUID`) into box and UUID."""
        box, _, uuid = fabric_id.rpartition("/")
        return box, uuid

    def model(self, box: str, kind: str) -> str | None:
        """Return the model of a kind of device in a box, or None if the system file has several or none."""
        found = {spec.model for spec in self.pool if spec.kind == kind and spec.drawer in (None, box)}
        return found.pop() if len(found) == 1 else None

    def view(
        self, listings: Mapping[str, Listing], detached: Mapping[str, Detached], slots: Mapping[str, Slot]
    ) -> View:
        """Build the view of devices that boxes list, and of unlisted devices that this program detached.

        Raises ProtocolViolation if two boxes list the same device, which means that they are one box.

        Args:
            listings: listing by box.
            detached_devices: devices that this program detached, by fabric id.
            slots: entries of the state file, by fabric id.
        """
        shown: dict[str, str] = {}
        for box, listing in listings.items():
            for uuid in dict.fromkeys(gpu.uuid for gpu in listing.gpus):
                if shown.setdefault(uuid, box) != box:
                    raise ProtocolViolation(
                        f"{shown[uuid]} and {box} both list {uuid}: give each box its own address (`boxes`)"
                    )
        for name, slot in slots.items():
            box, uuid = self.split(name)
            hidden = box in listings and listings[box].unreadable and uuid not in shown
            if hidden and slot.lease is not None and name not in detached:
                raise ProtocolViolation(
                    f"{box} lists {listings[box].unreadable} GPUs in an unknown form; {name} of {slot.lease} may be one of them"
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
        """Return the host or port that a listed device is attached to, or None if it is free.

        A device that this program detached is free if its port does not exist.
        """
        if gpu.port is None or (f"{box}/{gpu.uuid}" in detached and gpu.port not in listing.ports):
            return None
        return self.end(box, gpu.port)

    def _device(self, box: str, gpu: Gpu, attached: str | None, doubtful: bool) -> Device:
        """Build the device of a view from a GPU in the list of a box."""
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
        """Return True if the system file allows the campaign to take a device from its current host.

        A device on a port with an unknown host is never movable.
        """
        box, uuid = self.split(device.fabric_id)
        known = device.attached_to in self.hosts and device.state != "unknown"
        return known and not {box, uuid, str(device.attached_to)}.isdisjoint(self.options.movable)

    def _holders(
        self, devices: Sequence[Device], movable: frozenset[str], slots: Mapping[str, Slot]
    ) -> Iterator[tuple[str, str]]:
        """Yield (host, holder) for hosts with devices that belong to no lease and are not movable."""
        for host in self.hosts:
            there = [d.fabric_id for d in devices if d.attached_to == host and d.fabric_id not in movable]
            if foreign := [name for name in there if not _ours(slots.get(name), host)]:
                yield host, f"somebody with {', '.join(foreign)} on {host} (see `movable`)"

    def banks(self, devices: Sequence[Device]) -> tuple[Bank, ...]:
        """Build one bank of slots per H3 box, with the limit of hosts of its mode.

        Nothing is known about positions in a box, so any host with a port can use any of its devices.
        """

        def hosts(box: str) -> tuple[str, ...]:
            """Return the hosts that have a port in a box."""
            return tuple(host for host in self.hosts if self.port(box, host) is not None)

        return banks_by_mode((device.location for device in devices), hosts, self.options.modes)

    def planned(self) -> tuple[tuple[Device, ...], tuple[Bank, ...]]:
        """Build the devices and banks that a plan is based on, from the pool of the system file.

        Devices without a box are distributed evenly.
        """
        boxes = list(self.options.boxes)
        counts: Counter[tuple[DeviceKind, str, str]] = Counter()
        for spec in self.pool:
            for number in range(spec.count):
                counts[spec.kind, spec.model, spec.drawer or boxes[number * len(boxes) // spec.count]] += 1
        devices = pool_devices(
            PoolSpec(kind=kind, model=model, count=count, drawer=box) for (kind, model, box), count in counts.items()
        )
        return devices, self.banks(devices)


def _slot(device: Device) -> int:
    """Return the slot number in the location of a device."""
    return int(device.location.rpartition("slot")[2])


def _ours(slot: Slot | None, host: str) -> bool:
    """Return True if a device is on a host because of a lease, or is still on the host where it was found."""
    return slot is not None and ((slot.lease is not None and slot.host == host) or slot.found == host)


class H3Plane(ControlPlane):
    """Control plane of H3 Falcon boxes.

    Boxes have no field for a tag, so only the state file shows which lease has a device.
    """

    marks_leases = False

    def __init__(
        self, options: H3Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        """Create the clients of all boxes without sending a request.

        Raises ConfigError if names in the options do not match the hosts and the pool.
        """
        options.fit(hosts, pool)
        self._layout = BoxLayout(options, tuple(host.name for host in hosts), tuple(pool))
        self._state = state
        first, *others = options.boxes
        self.client = Client(options.connection(first))
        beside = {name: Client(options.connection(name), beside=self.client) for name in others}
        self._boxes = {
            name: Box(name, client, state.path.parent, poll_s=options.poll_s, reads_max=options.reads_max)
            for name, client in {first: self.client, **beside}.items()
        }
        self._read: dict[str, tuple[float, Listing]] = {}
        self._ordered_last: set[str] = set()
        self._rehearsed: set[str] = set()

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the boxes, with the number of listed GPUs as the limit per host."""
        seen = sum(len(listing.gpus) for _, listing in self._read.values())
        return Capabilities(max_devices_per_host=max(1, seen), gives_host_id=True, tells_models=False, note=NOTE)

    def view(self) -> View:
        """Read all H3 boxes in parallel and return the view of their devices.

        The reading after the last change is used once, if it is recent, to read back the new composition.
        """
        before = self._state.read().detached
        self._rehearsed = set()
        with self.client.operation(), ThreadPoolExecutor(len(self._boxes)) as threads:
            # The reading after the last change is used once, to read back what was composed.
            just, self._ordered_last = self._ordered_last, set()
            asked = {box: self._just_before if box in just else self._reading for box in self._boxes}
            listings = dict(zip(asked, threads.map(lambda box: asked[box](box), asked), strict=True))
        state = self._state.read()  # read again: devices that were detached meanwhile are not listed
        return self._layout.view(listings, {**before, **state.detached}, state.devices)

    def _reading(self, box: str) -> Listing:
        """Read an H3 box and keep the listing and its time."""
        listing = self._boxes[box].read()
        self._read[box] = (time.monotonic(), listing)
        return listing

    def _just_before(self, box: str) -> Listing:
        """Return the last listing of an H3 box if it is recent and still valid, otherwise read the box again."""
        when, listing = self._read.get(box, (0.0, None))
        return listing if listing is not None and time.monotonic() - when < JUST_BEFORE_S else self._reading(box)

    def banks(self, view: View) -> Sequence[Bank]:
        """Return one bank of slots per H3 box, with the limit of hosts of its mode."""
        return self._layout.banks(view.devices)

    def planned(self, pool: Sequence[PoolSpec], hosts: Sequence[str]) -> tuple[Sequence[Device], Sequence[Bank]]:
        """Return the devices and banks that a plan is based on, from the system file alone."""
        return self._layout.planned()

    def out_of_reach(self) -> Mapping[tuple[str, str], str]:
        """Return the reason, by box and host, for each host whose port the box does not list."""
        found: dict[tuple[str, str], str] = {}
        for box, (_, listing) in self._read.items():
            there = ", ".join(sorted(listing.ports))
            for host in self._layout.hosts:
                port = self._layout.port(box, host)
                if port is not None and port not in listing.ports:
                    words = f"{box} lists no port {port} for {host} (see `hosts` and `ports`); there are: {there}"
                    found[box, host] = words
        return found

    def objection(self, change: Change, view: View) -> str | None:
        """Return the reason why a host cannot reach the box of one of its new devices, or None if all are reachable."""
        unreached = self.out_of_reach()
        wanted = {(self._layout.split(name)[0], host) for host, names in change.hosts.items() for name in names}
        return next((unreached[each] for each in sorted(wanted) if each in unreached), None)

    def attach(self, change: Change, remember: Remember) -> None:
        """Attach the devices of a lease to their hosts, one after another.

        Raises Conflict if another host has the first device, PartialFailure if some devices cannot be attached, OutcomeUnknown
        if all devices are attached but answers were lost.
        """
        done, failed, lost = list[str](), dict[str, FabricError](), list[str]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    lost += self._attach(name, host)
                except FabricError as error:
                    if isinstance(error, Conflict) and not done and not failed:
                        raise
                    failed[name] = error
                else:
                    done.append(name)
        if failed:
            raise _partial(change, "attached", done, failed)
        if lost:
            raise OutcomeUnknown(
                f"{change.tag.lease_id}: {'; '.join(lost)}; the boxes show all devices attached by now"
            )

    def _attach(self, name: str, host: str) -> list[str]:
        """Attach one free device of an H3 box to a host, and return the errors of answers that were lost.

        If the box gave no result, the request is sent once more. Raises Conflict if a host has the device, Incompatible if the
        port of the host does not exist, ProtocolViolation if the box reports a result but does not show the device there,
        OutcomeUnknown if both answers were lost.
        """
        (box, uuid), lost = self._layout.split(name), list[str]()
        port = self._layout.port(box, host)
        for _ in range(2):
            now = self._just_before(box)
            gpu, port_gid = now.gpu(uuid), now.ports.get(str(port))
            there = gpu is not None and name not in self._rehearsed
            if gpu is not None and there and gpu.port == port:
                self._forget(name)
                return lost
            if port_gid is None:
                raise Incompatible(
                    f"{box} lists no port {port} for {host}; it has {', '.join(sorted(now.ports))}", PORT_RULE
                )
            if gpu is not None and there and gpu.port in now.ports:
                where = self._layout.end(box, str(gpu.port))
                raise Conflict(f"{name} is attached to {where}", (where,))
            gid = self._gid(name, now)
            said = self._ordered("attach", box, lambda gid=gid, to=port_gid: self._boxes[box].attach(gid, to), lost)  # type: ignore[misc]
            if self.client.rehearses:
                return lost
            after = self._read_back(box).gpu(uuid)
            if after is not None and after.port == port:
                self._forget(name)
                return lost
            if said:
                raise ProtocolViolation(f"{box} answered {said}, and does not show it on port {port} of {host}")
        raise OutcomeUnknown(f"{'; '.join(lost)}; ordered twice, and {box} does not show it on port {port} of {host}")

    def detach(self, change: Change) -> tuple[str, ...]:
        """Detach the devices of a lease one after another, and return the fabric ids of devices that are still attached.

        Raises PartialFailure if a request fails.
        """
        done, failed, stuck = list[str](), dict[str, FabricError](), list[str]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    gone = self._detach(name, host)
                except FabricError as error:
                    failed[name] = error
                else:
                    (done if gone else stuck).append(name)
        if failed:
            raise _partial(change, "detached", done, failed, stuck)
        return tuple(stuck)

    def _detach(self, name: str, host: str) -> bool:
        """Detach one device of an H3 box from a host, and return True if the box no longer shows it there.

        If the box gave no result, the request is sent once more. Raises OutcomeUnknown if both answers were lost and the device
        is still there.
        """
        (box, uuid), lost = self._layout.split(name), list[str]()
        port = self._layout.port(box, host)
        for _ in range(2):
            now = self._just_before(box)
            gpu = now.gpu(uuid)
            if gpu is None or (gpu.port != port and not self.client.rehearses):
                return True
            gid = self._gid(name, now)
            if self.client.rehearses:
                self._boxes[box].detach(gid)
                self._rehearsed.add(name)
                return True
            self._remember(name, gpu, now)
            said = self._ordered("detach", box, lambda gid=gid: self._boxes[box].detach(gid), lost)  # type: ignore[misc]
            after = self._read_back(box).gpu(uuid)
            if after is None or after.port != port:
                return True
            if said:
                return False
        raise OutcomeUnknown(f"{'; '.join(lost)}; ordered twice, and {box} still shows it on port {port} of {host}")

    def _read_back(self, box: str) -> Listing:
        """Read a box after a change, timed as `read_back`."""
        with timing("read_back", "gpu", box):
            return self._reading(box)

    def _ordered(self, what: Operation, box: str, order: Callable[[], str], lost: list[str]) -> str:
        """Send a changing request to an H3 box, time it, and return the result that the box reports.

        Return "" if the box gave no result. The error is then added to `lost_answers`.

        Args:
            operation: operation that is timed.
            box: name of the box.
            send: function that sends the request.
            lost_answers: list that receives the error of a lost answer.
        """
        if not self.client.rehearses:
            self._read.pop(box, None)
            self._ordered_last.add(box)
        try:
            with timing(what, "gpu", box) as answered:
                answered.answer = order()
            return answered.answer
        except OutcomeUnknown as error:
            lost.append(str(error))
            return ""

    def _gid(self, name: str, now: Listing) -> str:
        """Return the current Dev_GID of a device, its identifier in requests.

        A device that is not listed is addressed by the Dev_GID that it had when this program detached it. Raises
        ProtocolViolation if several devices have that Dev_GID. Raises FabricError if this program did not detach the device, or
        if Dev_GIDs have changed since.
        """
        box, uuid = self._layout.split(name)
        gpu = now.gpu(uuid)
        if gpu is not None:
            if len(now.called(gpu.gid)) > 1:
                raise ProtocolViolation(f"{box} lists {gpu.gid} as the Dev_GID of {', '.join(now.called(gpu.gid))}")
            return gpu.gid
        told = self._state.read().detached.get(name)
        if told is None:
            raise FabricError(f"{box} does not list {uuid}, and it was not this program that detached it")
        others = {each.uuid: each.gid for each in now.gpus}
        if told.called in others.values() or any(others.get(one, gid) != gid for one, gid in told.others.items()):
            raise FabricError(
                f"{box} does not list {uuid}, and has given its devices other Dev_GIDs since it was detached as {told.called}: "
                "attach it to any host with H3's own tools"
            )
        return told.called

    def _remember(self, name: str, gpu: Gpu, now: Listing) -> None:
        """Write the identifiers of a device and its neighbours into the state file before the device is detached."""
        others = {each.uuid: each.gid for each in now.gpus if each.uuid != gpu.uuid}
        with self._state.change() as state:
            state.detached[name] = Detached(called=gpu.gid, port=str(gpu.port), others=others)

    def _forget(self, name: str) -> None:
        """Remove a device that is attached again from the detached devices in the state file."""
        if name in self._state.read().detached:
            with self._state.change() as state:
                del state.detached[name]


def _partial(
    change: Change, what: str, done: Sequence[str], failed: Mapping[str, FabricError], more: Sequence[str] = ()
) -> PartialFailure:
    """Build the error for a change that succeeded for some devices only, with the error of each failed device."""
    words = "; ".join(f"{name}: {error}" for name, error in failed.items())
    return PartialFailure(f"{change.tag.lease_id}: could not be {what}: {words}", done, (*failed, *more))
