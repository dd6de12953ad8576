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
from functools import partial
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from campaign.common.errors import ConfigError, FabricError
from campaign.fabrics.adapters.h3.box import BoxClient, BoxGpu, BoxListing
from campaign.fabrics.banks import Bank, build_banks_by_mode
from campaign.fabrics.control_plane.protocol import (
    ControlPlane,
    FabricView,
    LeaseChange,
    OptionsWithoutLogin,
    RememberHandle,
)
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.http.options import ConnectionOptions
from campaign.fabrics.operations import time_operation
from campaign.fabrics.protocol import Capabilities
from campaign.fabrics.state_file import DetachedDevice, DeviceSlot, StateFile
from campaign.spec.hardware import Device, list_pool_devices
from campaign.spec.operation_times import Operation
from campaign.spec.site_hardware import DeviceKind, HostSpec, PoolSpec

CAPABILITIES_NOTE = (
    "the adapter follows the requests and logs of public clients of two Falcon 4005 boxes, and was not run on a real box. Boxes "
    "have no field for a tag, so only the state file shows which lease has a device"
)
MAX_READING_AGE_S = 5.0
"""Maximum age of the reading that gives the address of a device. A box that was changed since is always read again."""
PORT_RULE = "a host must have a port in the box of each of its devices"


_UUID_PATTERN = re.compile(r"GPU-[0-9A-Fa-f-]+")


class H3Options(OptionsWithoutLogin):
    """Options of a fabric of H3 Falcon boxes. Each box is a drawer of the pool.

    `hosts`: port number (`Port#`) of each host, the same in every box unless `ports` differs. `models`: model of a device by its
    UUID, for boxes with several models.
    """

    url: Literal[""] = Field(default="", description="not used, because each box has its own address; see `boxes`")
    boxes: dict[str, str] = Field(
        min_length=1,
        description="address of each box, by its drawer in the pool (`falcon1/drawer1: http://10.0.0.1`)",
    )
    ports: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="port number of each host cabled to a box, by box (`falcon1/drawer2: {host1: '16'}`); default: as in `hosts`",
    )
    movable: tuple[str, ...] = Field(
        default=(),
        description="devices that the campaign may take from the host to which they are attached: all devices of a box, all "
        "devices on a host, or one device (`[falcon1/drawer1, host2, GPU-...]`). No other attached device is ever moved",
    )
    modes: dict[str, Literal["standard_one_host", "advanced"]] = Field(
        default_factory=dict,
        description="mode of each box, which boxes do not report. `advanced` allows three hosts at one time, `standard_one_host` "
        "allows one; default: no limit. The campaign never changes the mode",
    )
    poll_s: Annotated[float, Field(ge=0)] = Field(
        default=0.5,
        description="seconds between two readings of a box. A state counts if two consecutive readings agree",
    )
    reads_max: Annotated[int, Field(ge=2)] = Field(
        default=10,
        description="maximum number of readings before a box whose readings never agree is reported as an error",
    )
    request_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0,
        description="timeout of one request in seconds. A box answers only after it has completed all earlier requests",
    )
    operation_s: Annotated[float, Field(gt=0)] = Field(
        default=1800.0,
        description="timeout of one composition or release in seconds. Each device that moves takes about 40",
    )

    @field_validator("boxes")
    @classmethod
    def _check_addresses(cls, boxes: dict[str, str]) -> dict[str, str]:
        """Check that each box has a valid address."""
        for name, url in boxes.items():
            try:
                ConnectionOptions(url=url)
            except ValidationError as error:
                raise ValueError(f"{name}: {url!r} is not a valid address; use one such as http://10.0.0.1") from error
        return boxes

    def build_connection_options(self, box: str) -> ConnectionOptions:
        """Build the connection settings of one H3 box."""
        common_options = {name: getattr(self, name) for name in ConnectionOptions.model_fields if name != "url"}
        return ConnectionOptions(url=self.boxes[box], **common_options)

    def map_model(self, fabric_model: str) -> str:
        """Return the system file's name of a device model, or the fabric's own name if the system file has none."""
        return self.models.get(fabric_model, fabric_model)

    def find_port(self, box: str, host: str) -> str | None:
        """Return the port number of a host in an H3 box, or None if the host is not cabled to it."""
        return self.ports.get(box, self.hosts).get(host)

    def check_names(self, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec]) -> None:
        """Check the host and box names in the options against the hosts and pool of the system file.

        Raises ConfigError for a name that is neither a box nor a host of the system, and for two hosts on one port.
        """
        host_names = [host.name for host in hosts]
        movable = [entry for entry in self.movable if not _UUID_PATTERN.fullmatch(entry)]
        checks: list[tuple[str, Iterable[str], Collection[str], str]] = [
            ("modes", self.modes, self.boxes, "box"),
            ("ports", self.ports, self.boxes, "box"),
            ("hosts", self.hosts, host_names, "host"),
            *((f"ports: {box}", mentions, host_names, "host") for box, mentions in self.ports.items()),
            ("pool: drawer", [spec.drawer for spec in pool if spec.drawer is not None], self.boxes, "box"),
            ("movable", movable, [*self.boxes, *host_names], "box or host"),
        ]
        for key, mentions, allowed_names, category in checks:
            if unknown_names := [entry for entry in mentions if entry not in allowed_names]:
                raise ConfigError(
                    f"{key}: unknown {category} {unknown_names[0]!r}; use one of: {', '.join(allowed_names)}"
                )
        for box in self.boxes:
            host_by_port: dict[str, str] = {}
            for name in host_names:
                port = self.find_port(box, name)
                if port is not None and host_by_port.setdefault(port, name) != name:
                    raise ConfigError(
                        f"hosts: {name} and {host_by_port[port]} both use port {port} of {box}; give each host its own port"
                    )


UNKNOWN_MODEL = "gpu"
"""Model of a device for which the system file gives no model. Boxes do not report models."""


@dataclass(frozen=True)
class BoxLayout:
    """Boxes, hosts and devices of a system file, used to interpret the listings of the boxes.

    The names in the options have been checked against the hosts and the pool.
    """

    options: H3Options
    hosts: tuple[str, ...]
    pool: tuple[PoolSpec, ...]

    def find_port(self, box: str, host: str) -> str | None:
        """Return the port number of a host in an H3 box, or None if the host is not cabled to it."""
        return self.options.find_port(box, host)

    def describe_port(self, box: str, port: str) -> str:
        """Return the name of the host on a box's port, or a description of the port if the host is unknown, for messages."""
        return next((host for host in self.hosts if self.find_port(box, host) == port), f"port {port} of {box}")

    def split_fabric_id(self, fabric_id: str) -> tuple[str, str]:
        """Split a fabric id (`BOX/UUID`) into box and UUID."""
        box, _, uuid = fabric_id.rpartition("/")
        return box, uuid

    def find_model(self, box: str, kind: str) -> str | None:
        """Return the only model of a device kind in a box, or None if the system file lists several models or none."""
        models = {spec.model for spec in self.pool if spec.kind == kind and spec.drawer in (None, box)}
        return models.pop() if len(models) == 1 else None

    def build_view(
        self,
        listings: Mapping[str, BoxListing],
        detached_devices: Mapping[str, DetachedDevice],
        slots: Mapping[str, DeviceSlot],
    ) -> FabricView:
        """Build a fabric view of the devices that the boxes list and of unlisted devices that this program detached.

        Raises ProtocolViolation if two boxes list the same device, which means that both are the same box.

        Args:
            listings: listing by box.
            detached_devices: devices that this program detached, by fabric id.
            slots: entries of the state file, by fabric id.
        """
        box_by_uuid: dict[str, str] = {}
        for box, listing in listings.items():
            for uuid in dict.fromkeys(gpu.uuid for gpu in listing.gpus):
                if box_by_uuid.setdefault(uuid, box) != box:
                    raise ProtocolViolation(
                        f"{box_by_uuid[uuid]} and {box} both list {uuid}; give each box its own address (`boxes`)"
                    )
        for name, slot in slots.items():
            box, uuid = self.split_fabric_id(name)
            is_hidden = box in listings and listings[box].unreadable and uuid not in box_by_uuid
            if is_hidden and slot.lease is not None and name not in detached_devices:
                raise ProtocolViolation(
                    f"{box} lists {listings[box].unreadable} GPUs in an unknown format; {name} of {slot.lease} may be one of them"
                )
        devices = [
            self._build_device(
                box,
                gpu,
                self._find_attachment(box, gpu, listing, detached_devices),
                len(listing.find_uuids_by_gid(gpu.gid)) > 1,
            )
            for box, listing in listings.items()
            for gpu in listing.gpus
        ]
        listed_ids = {device.fabric_id for device in devices}
        for name, detached_device in detached_devices.items():
            box, uuid = self.split_fabric_id(name)
            if name not in listed_ids and box in listings:
                devices.append(self._build_device(box, BoxGpu(uuid, detached_device.called, None), None, False))
        boxes = list(listings)
        devices.sort(
            key=lambda entry: (
                boxes.index(self.split_fabric_id(entry.fabric_id)[0]),
                _parse_slot(entry),
                entry.fabric_id,
            )
        )
        movable = frozenset(device.fabric_id for device in devices if self._is_movable(device))
        return FabricView(tuple(devices), dict(self._find_foreign_holders(devices, movable, slots)), movable=movable)

    def _find_attachment(
        self, box: str, gpu: BoxGpu, listing: BoxListing, detached_devices: Mapping[str, DetachedDevice]
    ) -> str | None:
        """Return the host or port that a listed device is attached to, or None if it is free.

        A device that this program detached is free if its port does not exist.
        """
        if gpu.port is None or (f"{box}/{gpu.uuid}" in detached_devices and gpu.port not in listing.ports):
            return None
        return self.describe_port(box, gpu.port)

    def _build_device(self, box: str, gpu: BoxGpu, attached_to: str | None, is_ambiguous: bool) -> Device:
        """Convert a GPU in a box's listing to a device of the fabric view."""
        model = gpu.uuid if gpu.uuid in self.options.models else self.find_model(box, "gpu") or UNKNOWN_MODEL
        return Device(
            f"{box}/{gpu.uuid}",
            "gpu",
            model,
            gpu.uuid,
            f"{box}/slot{gpu.slot}",
            local=False,
            attached_to=attached_to,
            state="unknown" if is_ambiguous else "free" if attached_to is None else "in_use",
        )

    def _is_movable(self, device: Device) -> bool:
        """Return True if the system file allows the campaign to take a device from its current host.

        A device on a port with an unknown host is never movable.
        """
        box, uuid = self.split_fabric_id(device.fabric_id)
        is_on_host = device.attached_to in self.hosts and device.state != "unknown"
        return is_on_host and not {box, uuid, str(device.attached_to)}.isdisjoint(self.options.movable)

    def _find_foreign_holders(
        self, devices: Sequence[Device], movable: frozenset[str], slots: Mapping[str, DeviceSlot]
    ) -> Iterator[tuple[str, str]]:
        """Yield (host, holder) for hosts with devices that belong to no lease and are not movable."""
        for host in self.hosts:
            attached_ids = [d.fabric_id for d in devices if d.attached_to == host and d.fabric_id not in movable]
            if foreign_ids := [name for name in attached_ids if not _belongs_to_program(slots.get(name), host)]:
                yield host, f"an unknown user with {', '.join(foreign_ids)} on {host} (see `movable`)"

    def build_banks(self, devices: Sequence[Device]) -> tuple[Bank, ...]:
        """Build one bank of slots per H3 box, with the host limit of the box's mode.

        Nothing is known about positions in a box, so any host with a port can use any of its devices.
        """

        def list_cabled_hosts(box: str) -> tuple[str, ...]:
            """Return the hosts that have a port in a box."""
            return tuple(host for host in self.hosts if self.find_port(box, host) is not None)

        return build_banks_by_mode((device.location for device in devices), list_cabled_hosts, self.options.modes)

    def build_planned_pool(self) -> tuple[tuple[Device, ...], tuple[Bank, ...]]:
        """Build the devices and banks on which a plan is based, from the pool of the system file.

        Devices without a box are distributed evenly.
        """
        boxes = list(self.options.boxes)
        counts: Counter[tuple[DeviceKind, str, str]] = Counter()
        for spec in self.pool:
            for number in range(spec.count):
                counts[spec.kind, spec.model, spec.drawer or boxes[number * len(boxes) // spec.count]] += 1
        devices = list_pool_devices(
            PoolSpec(kind=kind, model=model, count=count, drawer=box) for (kind, model, box), count in counts.items()
        )
        return devices, self.build_banks(devices)


def _parse_slot(device: Device) -> int:
    """Return the slot number in the location of a device."""
    return int(device.location.rpartition("slot")[2])


def _belongs_to_program(slot: DeviceSlot | None, host: str) -> bool:
    """Return True if a lease put the device on the host, or if the host is where the device was found."""
    return slot is not None and ((slot.lease is not None and slot.host == host) or slot.found == host)


class H3ControlPlane(ControlPlane):
    """Control plane of H3 Falcon boxes.

    Boxes have no field for a tag, so only the state file shows which lease holds a device.
    """

    marks_leases = False

    def __init__(
        self, options: H3Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile
    ) -> None:
        """Create the clients of all boxes without sending a request.

        Raises ConfigError if names in the options do not match the hosts and the pool.
        """
        options.check_names(hosts, pool)
        self._layout = BoxLayout(options, tuple(host.name for host in hosts), tuple(pool))
        self._state = state
        first_box, *further_boxes = options.boxes
        self.client = HttpClient(options.build_connection_options(first_box))
        further_clients = {
            name: HttpClient(options.build_connection_options(name), sibling=self.client) for name in further_boxes
        }
        self._boxes = {
            name: BoxClient(name, client, state.path.parent, poll_s=options.poll_s, reads_max=options.reads_max)
            for name, client in {first_box: self.client, **further_clients}.items()
        }
        self._readings: dict[str, tuple[float, BoxListing]] = {}
        self._changed_boxes: set[str] = set()
        self._rehearsed_detachments: set[str] = set()

    def describe_capabilities(self) -> Capabilities:
        """Return the capabilities of the boxes, with the number of listed GPUs as the limit for each host."""
        gpu_count = sum(len(listing.gpus) for _, listing in self._readings.values())
        return Capabilities(
            max_devices_per_host=max(1, gpu_count), gives_host_id=True, tells_models=False, note=CAPABILITIES_NOTE
        )

    def read_view(self) -> FabricView:
        """Read all H3 boxes in parallel and return the view of their devices.

        A recent reading that was taken after the last change is reused once, to read back the new composition.
        """
        detached_before = self._state.read().detached
        self._rehearsed_detachments = set()
        with self.client.limit_time(), ThreadPoolExecutor(len(self._boxes)) as threads:
            # The reading after the last change is used once, to read back what was composed.
            changed_boxes, self._changed_boxes = self._changed_boxes, set()
            read_functions = {
                box: self._read_if_outdated if box in changed_boxes else self._read_box for box in self._boxes
            }
            listings = dict(
                zip(read_functions, threads.map(lambda box: read_functions[box](box), read_functions), strict=True)
            )
        state = (
            self._state.read()
        )  # The state is read again, because boxes may not list devices that were detached meanwhile.
        return self._layout.build_view(listings, {**detached_before, **state.detached}, state.devices)

    def _read_box(self, box: str) -> BoxListing:
        """Read an H3 box, and keep the listing together with the time of the reading."""
        listing = self._boxes[box].read_confirmed()
        self._readings[box] = (time.monotonic(), listing)
        return listing

    def _read_if_outdated(self, box: str) -> BoxListing:
        """Return the last listing of an H3 box if it is recent and still valid, otherwise read the box again."""
        read_at_s, listing = self._readings.get(box, (0.0, None))
        return (
            listing if listing is not None and time.monotonic() - read_at_s < MAX_READING_AGE_S else self._read_box(box)
        )

    def list_banks(self, view: FabricView) -> Sequence[Bank]:
        """Return one bank of slots per H3 box, with the host limit of the box's mode."""
        return self._layout.build_banks(view.devices)

    def build_planned_pool(
        self, pool: Sequence[PoolSpec], hosts: Sequence[str]
    ) -> tuple[Sequence[Device], Sequence[Bank]]:
        """Return the devices and banks on which a plan is based, using only the system file."""
        return self._layout.build_planned_pool()

    def list_unreachable_drawers(self) -> Mapping[tuple[str, str], str]:
        """Return, by box and host, the reason why a host cannot reach a box: the box does not list the host's port."""
        reasons: dict[tuple[str, str], str] = {}
        for box, (_, listing) in self._readings.items():
            port_names = ", ".join(sorted(listing.ports))
            for host in self._layout.hosts:
                port = self._layout.find_port(box, host)
                if port is not None and port not in listing.ports:
                    reason = (
                        f"{box} does not list port {port} of {host}; set `hosts` or `ports` to one of: {port_names}"
                    )
                    reasons[box, host] = reason
        return reasons

    def find_rule_violation(self, change: LeaseChange, view: FabricView) -> str | None:
        """Return the reason why a host cannot reach the box of one of its new devices, or None if all are reachable."""
        reasons = self.list_unreachable_drawers()
        pairs = {
            (self._layout.split_fabric_id(name)[0], host) for host, names in change.hosts.items() for name in names
        }
        return next((reasons[pair] for pair in sorted(pairs) if pair in reasons), None)

    def attach(self, change: LeaseChange, remember: RememberHandle) -> None:
        """Attach the devices of a lease to their hosts, one after another.

        Raises Conflict if another host has the first device, PartialFailure if some devices cannot be attached, OutcomeUnknown
        if all devices are attached but answers were lost.
        """
        attached_ids, errors, lost_answers = list[str](), dict[str, FabricError](), list[str]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    lost_answers += self._attach_device(name, host)
                except FabricError as error:
                    if isinstance(error, Conflict) and not attached_ids and not errors:
                        raise
                    errors[name] = error
                else:
                    attached_ids.append(name)
        if errors:
            raise _build_partial_failure(change, "attached", attached_ids, errors)
        if lost_answers:
            raise OutcomeUnknown(
                f"{change.tag.lease_id}: {'; '.join(lost_answers)}; all devices are now attached according to the boxes"
            )

    def _attach_device(self, name: str, host: str) -> list[str]:
        """Attach one free device of an H3 box to a host, and return the errors of lost answers.

        If the box gave no result, the request is sent once more. Raises Conflict if a host has the device, Incompatible if the
        port of the host does not exist, ProtocolViolation if the box reports a result but does not show the device there,
        OutcomeUnknown if both answers were lost.
        """
        (box, uuid), lost_answers = self._layout.split_fabric_id(name), list[str]()
        port = self._layout.find_port(box, host)
        for _ in range(2):
            listing = self._read_if_outdated(box)
            gpu, port_gid = listing.find_gpu(uuid), listing.ports.get(str(port))
            is_listed = gpu is not None and name not in self._rehearsed_detachments
            if gpu is not None and is_listed and gpu.port == port:
                self._forget_detached(name)
                return lost_answers
            if port_gid is None:
                raise Incompatible(
                    f"{box} does not list port {port} of {host}; it lists {', '.join(sorted(listing.ports))}", PORT_RULE
                )
            if gpu is not None and is_listed and gpu.port in listing.ports:
                current_user = self._layout.describe_port(box, str(gpu.port))
                raise Conflict(f"{name} is attached to {current_user}", (current_user,))
            gid = self._find_gid(name, listing)
            attach = partial(self._boxes[box].attach_device, gid, port_gid)
            answer = self._send_order("attach", box, attach, lost_answers)
            if self.client.is_rehearsing:
                return lost_answers
            gpu_after = self._read_back(box).find_gpu(uuid)
            if gpu_after is not None and gpu_after.port == port:
                self._forget_detached(name)
                return lost_answers
            if answer:
                raise ProtocolViolation(f"{box} answered {answer} but does not show {name} on port {port} of {host}")
        raise OutcomeUnknown(
            f"{'; '.join(lost_answers)}; after two requests, {box} does not show {name} on port {port} of {host}"
        )

    def detach(self, change: LeaseChange) -> tuple[str, ...]:
        """Detach the devices of a lease one after another, and return the fabric ids of devices that are still attached.

        Raises PartialFailure if a request fails.
        """
        detached_ids, errors, stuck_ids = list[str](), dict[str, FabricError](), list[str]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    is_detached = self._detach_device(name, host)
                except FabricError as error:
                    errors[name] = error
                else:
                    (detached_ids if is_detached else stuck_ids).append(name)
        if errors:
            raise _build_partial_failure(change, "detached", detached_ids, errors, stuck_ids)
        return tuple(stuck_ids)

    def _detach_device(self, name: str, host: str) -> bool:
        """Detach one device of an H3 box from a host, and return True if the box no longer shows it there.

        If the box gave no result, the request is sent once more. Raises OutcomeUnknown if both answers were lost and the device
        is still there.
        """
        (box, uuid), lost_answers = self._layout.split_fabric_id(name), list[str]()
        port = self._layout.find_port(box, host)
        for _ in range(2):
            listing = self._read_if_outdated(box)
            gpu = listing.find_gpu(uuid)
            if gpu is None or (gpu.port != port and not self.client.is_rehearsing):
                return True
            gid = self._find_gid(name, listing)
            if self.client.is_rehearsing:
                self._boxes[box].detach_device(gid)
                self._rehearsed_detachments.add(name)
                return True
            self._remember_detached(name, gpu, listing)
            answer = self._send_order("detach", box, lambda gid=gid: self._boxes[box].detach_device(gid), lost_answers)  # type: ignore[misc]
            gpu_after = self._read_back(box).find_gpu(uuid)
            if gpu_after is None or gpu_after.port != port:
                return True
            if answer:
                return False
        raise OutcomeUnknown(
            f"{'; '.join(lost_answers)}; after two requests, {box} still shows {name} on port {port} of {host}"
        )

    def _read_back(self, box: str) -> BoxListing:
        """Read a box after a change, timed as `read_back`."""
        with time_operation("read_back", "gpu", box):
            return self._read_box(box)

    def _send_order(self, operation: Operation, box: str, send: Callable[[], str], lost_answers: list[str]) -> str:
        """Send a request that changes an H3 box, time it, and return the result that the box reports.

        Return "" if the box gave no result. The error is then added to `lost_answers`.

        Args:
            operation: operation that is timed.
            box: name of the box.
            send: function that sends the request.
            lost_answers: list that receives the error of a lost answer.
        """
        if not self.client.is_rehearsing:
            self._readings.pop(box, None)
            self._changed_boxes.add(box)
        try:
            with time_operation(operation, "gpu", box) as measurement:
                measurement.answer = send()
            return measurement.answer
        except OutcomeUnknown as error:
            lost_answers.append(str(error))
            return ""

    def _find_gid(self, name: str, listing: BoxListing) -> str:
        """Return the current Dev_GID of a device, its identifier in requests.

        A device that is not listed is addressed by the Dev_GID that it had when this program detached it. Raises
        ProtocolViolation if several devices have that Dev_GID. Raises FabricError if this program did not detach the device, or
        if Dev_GIDs have changed since.
        """
        box, uuid = self._layout.split_fabric_id(name)
        gpu = listing.find_gpu(uuid)
        if gpu is not None:
            if len(listing.find_uuids_by_gid(gpu.gid)) > 1:
                raise ProtocolViolation(
                    f"{box} lists the same Dev_GID {gpu.gid} for {', '.join(listing.find_uuids_by_gid(gpu.gid))}"
                )
            return gpu.gid
        detached_device = self._state.read().detached.get(name)
        if detached_device is None:
            raise FabricError(f"{box} does not list {uuid}, and this program did not detach it")
        gid_by_uuid = {listed_gpu.uuid: listed_gpu.gid for listed_gpu in listing.gpus}
        if detached_device.called in gid_by_uuid.values() or any(
            gid_by_uuid.get(other_uuid, gid) != gid for other_uuid, gid in detached_device.others.items()
        ):
            raise FabricError(
                f"{box} does not list {uuid}, and its Dev_GIDs have changed since {uuid} was detached as "
                f"{detached_device.called}; attach the device to any host with H3's own tools"
            )
        return detached_device.called

    def _remember_detached(self, name: str, gpu: BoxGpu, listing: BoxListing) -> None:
        """Write the identifiers of a device and its neighbours into the state file before the device is detached."""
        gid_by_uuid = {other_gpu.uuid: other_gpu.gid for other_gpu in listing.gpus if other_gpu.uuid != gpu.uuid}
        with self._state.edit() as state:
            state.detached[name] = DetachedDevice(called=gpu.gid, port=str(gpu.port), others=gid_by_uuid)

    def _forget_detached(self, name: str) -> None:
        """Remove a reattached device from the detached devices in the state file."""
        if name in self._state.read().detached:
            with self._state.edit() as state:
                del state.detached[name]


def _build_partial_failure(
    change: LeaseChange,
    action: str,
    done_ids: Sequence[str],
    errors: Mapping[str, FabricError],
    stuck_ids: Sequence[str] = (),
) -> PartialFailure:
    """Build the error for a change that succeeded for only some devices, with the error of each failed device."""
    message = "; ".join(f"{name}: {error}" for name, error in errors.items())
    return PartialFailure(
        f"{change.tag.lease_id}: some devices could not be {action}: {message}", done_ids, (*errors, *stuck_ids)
    )
