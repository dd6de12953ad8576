"""Composition and release of a lease's devices on a Matrix.

Composing marks the devices, creates machines, moves devices into the group and then into the machines, and commits. The order is
that of Liqid's own SDK. Every step first checks if it was already done, so that the work of a dead process is continued.

A deleted machine leaves its devices in the group. Devices are therefore released from both, or they would never become free.
Marks are removed last, and only from devices that the Matrix shows as free again. The devices of an interrupted release can
thus be found by their marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.liqid.api import LiqidApi, LiqidOptions, MatrixRefusal
from campaign.fabrics.adapters.liqid.snapshot import (
    LiqidDevice,
    MatrixObject,
    MatrixSnapshot,
    add_mark,
    find_first_number,
    find_numbers,
    make_machine_name,
    parse_device,
    parse_number,
    split_mark,
)
from campaign.fabrics.control_plane.protocol import LeaseChange, RememberHandle
from campaign.fabrics.errors import (
    Busy,
    Conflict,
    Incompatible,
    NoMatch,
    OutcomeUnknown,
    PartialFailure,
    ProtocolViolation,
)
from campaign.fabrics.http.response import get_nested

POOL_EDIT_HANDLE = "pool/edit"
"""Handle of a lease that edits or has edited its group's pool. An edit of this pool that is found later may be its own."""


@dataclass
class HostAssignment:
    """Devices assigned to one host of a lease, with the Liqid machine that holds them.

    devices: the host's compute device comes first. machine: existing or newly created machine, or None if there is none yet.
    """

    host: str
    machine_name: str
    devices: tuple[LiqidDevice, ...]
    machine: MatrixObject | None = None
    is_new_machine: bool = False

    @property
    def pooled_ids(self) -> tuple[str, ...]:
        """Names of the assigned devices, without the compute device of the host."""
        return tuple(device.name for device in self.devices if not device.is_compute)

    @property
    def missing_devices(self) -> tuple[LiqidDevice, ...]:
        """Devices that are not in the machine yet."""
        mach_id = parse_number(get_nested(self.machine, "mach_id"))
        return tuple(device for device in self.devices if mach_id is None or device.machine != mach_id)


def plan_assignments(change: LeaseChange, snapshot: MatrixSnapshot, group: MatrixObject | None) -> list[HostAssignment]:
    """Assign the devices of a lease to Liqid machines, one machine per host. Pure.

    Raises NoMatch if a device is missing from the Matrix, and Conflict (with the holders) if other users hold devices.

    Args:
        change: devices by host.
        snapshot: current state of the Matrix.
        group: the campaign's group, or None if it does not exist.
    """
    lease_id, assignments = change.tag.lease_id, []
    holder_by_device: dict[str, str] = {}
    for host, names in change.hosts.items():
        device_names = (snapshot.find_compute_device(host), *names)
        if missing_names := [name for name in device_names if name not in snapshot.devices]:
            raise NoMatch(
                f"{lease_id}: the Matrix has no {', '.join(missing_names)} (for {host}); correct `hosts` of the fabric"
            )
        name = make_machine_name(lease_id, host)
        assignment = HostAssignment(
            host, name, tuple(snapshot.devices[name] for name in device_names), snapshot.find_machine(name)
        )
        assignments.append(assignment)
        for device in assignment.devices:
            if holder := _find_other_holder(device, assignment, snapshot, lease_id, group):
                holder_by_device[device.name] = holder
    if holder_by_device:
        conflicts = ", ".join(f"{name} is held by {holder}" for name, holder in holder_by_device.items())
        raise Conflict(
            f"{lease_id}: selected devices are no longer free: {conflicts}", dict.fromkeys(holder_by_device.values())
        )
    return assignments


def _find_other_holder(
    device: LiqidDevice, assignment: HostAssignment, snapshot: MatrixSnapshot, lease_id: str, group: MatrixObject | None
) -> str | None:
    """Return the holder that prevents a lease from taking a device, or None if the lease can take it or has it already."""
    tag = device.tag
    if tag is not None and tag.lease_id != lease_id:
        return tag.lease_id
    if device.machine is not None:
        return (
            None
            if snapshot.format_machine_name(device.machine) == assignment.machine_name
            else f"machine {snapshot.format_machine_name(device.machine)}"
        )
    if device.group is None or (tag is not None and device.group == parse_number(get_nested(group, "grp_id"))):
        return None
    return f"group {device.group_name or device.group}"


class Attachment:
    """Composition in progress for one lease on a Liqid Matrix.

    attached_ids: names of devices that are connected. assignments: devices and machine of each host.
    """

    def __init__(
        self,
        api: LiqidApi,
        options: LiqidOptions,
        snapshot: MatrixSnapshot,
        change: LeaseChange,
        remember: RememberHandle,
    ) -> None:
        """Prepare the composition. Raises Incompatible if the group is missing and must not be created."""
        self.api, self.options, self.snapshot, self.change, self.remember = api, options, snapshot, change, remember
        self.attached_ids: list[str] = []
        self.assignments: list[HostAssignment] = []
        self._group = snapshot.find_group(options.group)
        if self._group is None and not options.create_group:
            names = ", ".join(str(get_nested(group, "group_name")) for group in snapshot.groups) or "none"
            rule = f"the Matrix has no group {options.group!r}; its groups are: {names}"
            raise Incompatible(f"{rule}. Set `group` to one of them, or set `create_group: true`", rule)

    def run(self) -> None:
        """Mark the devices of the lease, create its machines, and connect the devices.

        Raises Busy if another edit is in the way before any device is connected; the caller must then undo the steps done so
        far. Raises PartialFailure if the Matrix refuses a step later.
        """
        lease_id = self.change.tag.lease_id
        self.assignments = plan_assignments(self.change, self.snapshot, self._group)
        try:
            for device in (
                device for assignment in self.assignments for device in assignment.devices if device.tag is None
            ):
                self.api.set_description(device, add_mark(device.text, self.change.tag))
            if self.change.p2p or any(assignment.missing_devices for assignment in self.assignments):
                self._compose_machines()
        except MatrixRefusal as error:
            if error.is_busy and not self.attached_ids:
                hint = "if no user is editing, cancel the edit in Liqid's console"
                raise Busy(f"{lease_id}: {error}; {hint}", self._find_editors(error)) from error
            failed_ids = [
                name
                for assignment in self.assignments
                for name in assignment.pooled_ids
                if name not in self.attached_ids
            ]
            raise PartialFailure(f"{lease_id}: {error}", self.attached_ids, failed_ids) from error

    def _find_editors(self, error: MatrixRefusal) -> list[str]:
        """Return the holders of the edit that caused a refusal, for messages.

        They are the machines that the refusal names, or a user who edits the group.
        """
        mentioned_numbers = find_numbers(str(error).partition(": ")[2])
        machines = [
            f"machine {self.snapshot.format_machine_name(n)}" for n in mentioned_numbers if n in self.snapshot.machines
        ]
        is_about_machine = machines and "machine" in str(error).lower()
        return machines if is_about_machine else [f"an unknown user who edits group {self.options.group}"]

    def _compose_machines(self) -> None:
        """Create missing machines, move devices into the group, and connect them machine by machine."""
        for assignment in self.assignments:
            if assignment.machine is None:
                self._create_machine(assignment)
        group = self._ensure_group()
        statuses = self._move_into_group(group)
        for assignment in self.assignments:
            self._connect_devices(assignment, group, statuses)

    def _ensure_group(self) -> MatrixObject:
        """Return the campaign's group on the Liqid Matrix, creating it if it is missing."""
        if self._group is None:
            location, name = self.api.read_location(), self.options.group
            group_number = find_first_number(self.api.get_data("group/nextid"))
            body = {"fabr_id": location.fabr_id, "grp_id": group_number, "group_name": name, "pod_id": -1}
            self.api.send_change("POST", "group", body)
            is_rehearsing = self.api.client.is_rehearsing
            self._group = body if is_rehearsing else MatrixSnapshot({}, self.api.get_data("group")).find_group(name)
        if self._group is None:
            raise ProtocolViolation(f"the Matrix accepted group {self.options.group}, but does not list it")
        return self._group

    def _create_machine(self, assignment: HostAssignment) -> None:
        """Create the Liqid machine of a host in the campaign's group, and remember its number."""
        mach_id = find_first_number(self.api.get_data("machine/nextid"))
        if mach_id is None:
            raise ProtocolViolation("GET machine/nextid: the answer has no number")
        if self.api.client.is_rehearsing:  # No machine is created, so the next number stays the same.
            mach_id += sum(assignment.machine is not None for assignment in self.assignments)
        body: dict[str, Any] = {
            "index": None,
            "mach_id": mach_id,
            "grp_id": get_nested(self._ensure_group(), "grp_id"),
            "fabr_id": self.api.read_location().fabr_id,
            "fabr_gid": None,
            "port_gid": None,
            "swit_gid": None,
            "comp_name": assignment.machine_name,
            "mach_name": assignment.machine_name,
            "p2p": "off",
            "mtime": None,
            "connection_history": [],
        }
        records = self.api.send_change("POST", "machine", body)
        assignment.machine = next(
            (record for record in records if get_nested(record, "mach_name") == assignment.machine_name), body
        )
        assignment.is_new_machine = True
        self.remember(assignment.host, str(get_nested(assignment.machine, "mach_id")))

    def _move_into_group(self, group: MatrixObject) -> dict[str, MatrixObject]:
        """Move devices from the free pool of the Liqid Matrix into the campaign's group.

        Returns:
            Status objects, by name, of all devices that must still be connected.
        """
        missing_devices = [device for assignment in self.assignments for device in assignment.missing_devices]
        free_devices = [device for device in missing_devices if device.group is None]
        if not free_devices:
            return self.api.read_statuses(missing_devices)
        previous_handle = self.change.handles.get(POOL_EDIT_HANDLE, "")
        self.remember(POOL_EDIT_HANDLE, str(get_nested(group, "grp_id")))
        try:
            with self.api.edit_pool(group, cancel_existing=bool(previous_handle)):
                statuses = self.api.read_statuses(missing_devices)
                for device in free_devices:
                    body = {"deviceStatus": statuses[device.name], "group": group}
                    self.api.send_change("POST", f"predevice/{device.path}", body)
        except MatrixRefusal:
            # The edit never began or was cancelled, so an existing edit belongs to another client.
            self.remember(POOL_EDIT_HANDLE, previous_handle)
            raise
        return statuses

    def _connect_devices(
        self, assignment: HostAssignment, group: MatrixObject, statuses: dict[str, MatrixObject]
    ) -> None:
        """Connect the missing devices to the machine of a host.

        The power action of the attach mode follows, and peer-to-peer is enabled if the change requests it.
        """
        if missing_devices := assignment.missing_devices:
            assignment.machine = machine = self._read_machine(assignment)
            with self.api.edit_machine(machine):
                for device in missing_devices:
                    relator = {"deviceStatus": statuses[device.name], "group": group}
                    body = {"groupDeviceRelator": relator, "machine": machine}
                    self.api.send_change("POST", f"relate/{device.path}", body)
            if (power_action := {"reboot": "reboot", "powered_off": "start"}.get(self.options.attach_mode)) is not None:
                ids = f"{get_nested(group, 'grp_id')}/{get_nested(machine, 'mach_id')}"
                self.api.send_change("PUT", f"power/{power_action}/{ids}")
        if self.change.p2p:
            self._enable_p2p(assignment, group)
        self.attached_ids.extend(assignment.pooled_ids)

    def _enable_p2p(self, assignment: HostAssignment, group: MatrixObject) -> None:
        """Enable peer-to-peer between the devices of a machine, if it is off.

        A Matrix refuses to set a value that is already set.
        """
        machine = self._read_machine(assignment)
        if str(get_nested(machine, "p2p")).lower() != "on":
            self.api.send_change("POST", "machine/p2p", {**machine, "p2p": "on"})

    def _read_machine(self, assignment: HostAssignment) -> MatrixObject:
        """Read the complete object of a machine from the Liqid Matrix, including members that this program does not use.

        Raises Incompatible if the Matrix gave a new machine another name, ProtocolViolation if the Matrix does not list it.
        """
        assert assignment.machine is not None  # It was created or found before.
        if self.api.client.is_rehearsing:
            return assignment.machine
        mach_id = get_nested(assignment.machine, "mach_id")
        for record in self.api.get_data("machine", mach_id=mach_id):
            if (name := get_nested(record, "mach_name")) == assignment.machine_name:
                return cast(MatrixObject, record)
            if assignment.is_new_machine and parse_number(get_nested(record, "mach_id")) == parse_number(mach_id):
                # The machine is still empty, and its name would not show that it belongs to this lease.
                self.api.try_change("DELETE", f"machine/{mach_id}")
                rule = (
                    f"the Matrix changed the name of the new machine {assignment.machine_name} to {name!r}; leases are "
                    "identified by these names"
                )
                raise Incompatible(f"{self.change.tag.lease_id}: {rule}", rule)
        raise ProtocolViolation(f"the Matrix accepted machine {assignment.machine_name}, but does not list it")


def predict_snapshot(
    change: LeaseChange, snapshot: MatrixSnapshot, group_name: str, assignments: list[HostAssignment]
) -> MatrixSnapshot:
    """Predict the snapshot of a Liqid Matrix after a change, so that a rehearsal can continue.

    Args:
        change: change that was rehearsed.
        snapshot: snapshot before the change.
        group_name: name of the campaign's group.
        assignments: devices and machine of each host.
    """
    devices, machines, groups = dict(snapshot.devices), dict(snapshot.machines), snapshot.groups
    if snapshot.find_group(group_name) is None:
        groups = (
            *groups,
            {
                "group_name": group_name,
                "grp_id": max((_parse_id(group_record) for group_record in groups), default=0) + 1,
            },
        )
    group_object = next(group_record for group_record in groups if get_nested(group_record, "group_name") == group_name)
    for assignment in assignments:
        assert assignment.machine is not None  # Every assignment has a machine by now.
        mach_id = _parse_id(assignment.machine, "mach_id")
        machines[mach_id] = assignment.machine
        for device in assignment.devices:
            text = add_mark(device.text, change.tag)
            devices[device.name] = replace(
                device,
                text=text,
                group=_parse_id(group_object),
                group_name=group_name,
                machine=mach_id,
                machine_name=assignment.machine_name,
            )
    return replace(snapshot, devices=devices, machines=machines, groups=groups, inconsistent_devices=frozenset())


def _parse_id(record: MatrixObject, key: str = "grp_id") -> int:
    """Return the integer in a member of an object, or 0 if it has none."""
    return parse_number(get_nested(record, key)) or 0


class Detachment:
    """Release in progress of one lease on a Liqid Matrix.

    stuck_names: names of devices that the Matrix did not release.
    """

    def __init__(self, api: LiqidApi, options: LiqidOptions, snapshot: MatrixSnapshot, change: LeaseChange) -> None:
        """Prepare to release the lease that a change refers to."""
        self.api, self.options, self.snapshot, self.change = api, options, snapshot, change
        self.stuck_names: set[str] = set()
        self._group = snapshot.find_group(options.group)
        self._has_edited_pool = bool(change.handles.get(POOL_EDIT_HANDLE))

    def run(self) -> tuple[str, ...]:
        """Release all devices of the lease, and return the sorted names of devices that the Matrix did not release."""
        group, machines = self._group, self._find_machines()
        lease_devices = {device.name: device for device in self._find_devices(machines)}
        groups = {parse_number(get_nested(group_record, "grp_id")) for group_record in self.snapshot.groups}
        for device in lease_devices.values():
            if device.machine is not None and device.machine not in self.snapshot.machines:
                raise ProtocolViolation(
                    f"the Matrix reports {device.name} in machine {device.machine}, but does not list this machine"
                )
            if device.group is not None and device.group not in groups:
                raise ProtocolViolation(
                    f"the Matrix reports {device.name} in group {device.group}, but does not list this group"
                )
        if not lease_devices and not machines and not self._has_edited_pool:
            return ()
        for mach_id, machine in machines.items():
            self._empty_machine(mach_id, machine, lease_devices)
        detached_devices = [device for name, device in lease_devices.items() if name not in self.stuck_names]
        group_devices = [
            d for d in detached_devices if self._is_in_group(d) and (d.machine is None or d.machine in machines)
        ]
        if group is not None and group_devices:
            self._move_out_of_group(group_devices, group)
        elif group is not None and self._has_edited_pool:
            # The pool was edited without a result: the process that edited it may have died.
            self.api.try_change("POST", "pool/cancel", self.api.build_pool_body(group))
        self._remove_marks(lease_devices.values(), machines)
        return tuple(sorted(self.stuck_names))

    def _find_machines(self) -> dict[int, MatrixObject]:
        """Return the Liqid machines of this lease by number, identified by names that only this program uses."""
        hosts = dict.fromkeys((*self.change.hosts, *self.snapshot.hosts.values()))
        names = {make_machine_name(self.change.tag.lease_id, host) for host in hosts}
        return {
            n: machine
            for n, machine in self.snapshot.machines.items()
            if str(get_nested(machine, "mach_name")) in names
        }

    def _find_devices(self, machines: Iterable[int]) -> list[LiqidDevice]:
        """Return the devices of this lease.

        These are the devices with the lease's mark. Unmarked devices in its machines also count if the lease claimed them or if
        they are compute devices.
        """
        lease_id, machine_numbers = self.change.tag.lease_id, set(machines)
        claimed_names = {name for names in self.change.hosts.values() for name in names}
        return [
            device
            for device in self.snapshot.devices.values()
            if (device.tag is not None and device.tag.lease_id == lease_id)
            or (
                device.tag is None
                and device.machine in machine_numbers
                and (device.name in claimed_names or device.is_compute)
            )
        ]

    def _empty_machine(self, mach_id: int, machine: MatrixObject, lease_devices: dict[str, LiqidDevice]) -> None:
        """Remove this lease's devices from one of its machines.

        The machine is deleted if it has no other devices. Raises Busy if another edit is in the way.
        """
        devices_inside = self.snapshot.list_devices_in(mach_id)
        foreign_devices = [device for device in devices_inside if device.name not in lease_devices]
        own_devices = [device for device in devices_inside if device.name in lease_devices]
        try:
            if self.options.attach_mode == "powered_off" and own_devices:
                self.api.send_change(
                    "PUT", f"power/shutdown/{get_nested(machine, 'grp_id')}/{get_nested(machine, 'mach_id')}"
                )
            if not foreign_devices:
                self._delete_machine(machine)
            elif own_devices and self._group is not None:
                self._disconnect_devices(own_devices, machine, self._group)
        except MatrixRefusal as error:
            if error.is_busy:
                raise Busy(f"{self.change.tag.lease_id}: {error}", ("an unknown user who edits the Matrix",)) from error
            self.stuck_names.update(device.name for device in own_devices)

    def _delete_machine(self, machine: MatrixObject) -> None:
        """Delete a machine of this lease. An edit that a dead process left behind is cancelled first."""
        path = f"machine/{get_nested(machine, 'mach_id')}"
        try:
            self.api.send_change("DELETE", path)
        except MatrixRefusal as error:
            if not (error.is_busy and error.mentions_number(get_nested(machine, "mach_id"))):
                raise
            # The machine and its edit belong to this lease: a dead process left the edit.
            self.api.try_change("POST", "fabric/edit/cancel", machine)
            self.api.send_change("DELETE", path)

    def _disconnect_devices(self, devices: list[LiqidDevice], machine: MatrixObject, group: MatrixObject) -> None:
        """Disconnect devices from a machine one by one.

        Deleting the machine would also move devices that other users added to it.
        """
        statuses = self.api.read_statuses(devices)
        with self.api.edit_machine(machine):
            for device in devices:
                relator = {"deviceStatus": statuses[device.name], "group": group}
                self.api.send_change(
                    "DELETE", f"relate/{device.path}", {"groupDeviceRelator": relator, "machine": machine}
                )

    def _is_in_group(self, device: LiqidDevice) -> bool:
        """Return True if a device is in the campaign's group."""
        return device.group is not None and device.group == parse_number(get_nested(self._group, "grp_id"))

    def _move_out_of_group(self, devices: list[LiqidDevice], group: MatrixObject) -> None:
        """Move devices from the campaign's group into the free pool of the Liqid Matrix.

        Raises Busy if another client edits the group.
        """
        try:
            with self.api.edit_pool(group, cancel_existing=self._has_edited_pool):
                statuses = self.api.read_statuses(devices)
                for device in devices:
                    body = {"deviceStatus": statuses[device.name], "group": group}
                    try:
                        self.api.send_change("DELETE", f"predevice/{device.path}", body)
                    except MatrixRefusal:
                        self.stuck_names.add(device.name)
        except MatrixRefusal as error:
            if error.is_busy:
                raise Busy(f"{self.change.tag.lease_id}: {error}", (f"group {self.options.group}",)) from error
            self.stuck_names.update(device.name for device in devices)

    def _remove_marks(self, lease_devices: Iterable[LiqidDevice], machines: dict[int, MatrixObject]) -> None:
        """Remove this lease's marks from devices that are now free or belong to other users.

        All other devices are stuck and keep their marks.
        """
        current_devices = self._read_current_devices()
        for device in lease_devices:
            current_device = current_devices.get(device.name, device)
            # A device that another user moved into another group must not be removed any more.
            if current_device.machine in machines or (
                current_device.machine is None and self._is_in_group(current_device)
            ):
                self.stuck_names.add(device.name)
            if device.name in self.stuck_names or device.tag is None:
                continue
            try:
                self.api.set_description(device, split_mark(device.text)[0])
            except MatrixRefusal:
                self.stuck_names.add(device.name)

    def _read_current_devices(self) -> dict[str, LiqidDevice]:
        """Read the current group and machine of every device, by device name.

        In a rehearsal, all devices are assumed to be free. Raises OutcomeUnknown if the Matrix does not answer.
        """
        if self.api.client.is_rehearsing:
            return {name: replace(device, group=None, machine=None) for name, device in self.snapshot.devices.items()}
        try:
            records = self.api.get_data("predevice")
        except FabricError as error:
            raise OutcomeUnknown(
                f"{self.change.tag.lease_id}: the devices were released, but this could not be confirmed: {error}"
            ) from error
        return {device.name: device for record in records if (device := parse_device(record, None)) is not None}
