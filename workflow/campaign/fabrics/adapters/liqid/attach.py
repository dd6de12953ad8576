"""Composition and release of a lease's devices on a Matrix.

Composing marks the devices, creates machines, moves devices into the group and then into the machines, and commits. The order is
that of Liqid's own SDK. Every step first checks if it was already done, so that the work of a dead process is continued.

A deleted machine leaves its devices in the group. Devices are therefore released from both, or they would never become free.
Marks are removed last, and only from devices that the Matrix shows as free again. Whatever interrupts a release can thus be
found by the marks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.liqid.api import Api, LiqidOptions, MatrixRefused
from campaign.fabrics.adapters.liqid.snapshot import (
    LiqidDevice,
    Raw,
    Snapshot,
    first_number,
    machine_name,
    marked,
    number,
    numbers,
    seen,
    unmarked,
)
from campaign.fabrics.control_plane.protocol import Change, Remember
from campaign.fabrics.errors import (
    Busy,
    Conflict,
    Incompatible,
    NoMatch,
    OutcomeUnknown,
    PartialFailure,
    ProtocolViolation,
)
from campaign.fabrics.http.response import at

EDITED = "pool/edit"
"""Handle of a lease that edits or has edited its group's pool. A later edit of this pool may be its own."""


@dataclass
class HostPart:
    """Devices that one host of a lease gets, with the Liqid machine that holds them.

    devices: compute device of the host first. machine: existing or newly created machine, or None.
    """

    host: str
    name: str
    devices: tuple[LiqidDevice, ...]
    machine: Raw | None = None
    made: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the assigned devices, without the compute device of the host."""
        return tuple(device.name for device in self.devices if not device.computes)

    @property
    def missing(self) -> tuple[LiqidDevice, ...]:
        """Devices that are not in the machine yet."""
        there = number(at(self.machine, "mach_id"))
        return tuple(device for device in self.devices if there is None or device.machine != there)


def plan(change: Change, snapshot: Snapshot, group: Raw | None) -> list[HostPart]:
    """Assign the devices of a lease to Liqid machines, one machine per host. Pure.

    Raises NoMatch if the Matrix lacks a device, Conflict, with the holders, if other users have devices.

    Args:
        change: devices by host.
        snapshot: current state of the Matrix.
        group: the campaign's group, or None if it does not exist.
    """
    lease_id, parts = change.tag.lease_id, []
    taken: dict[str, str] = {}
    for host, names in change.hosts.items():
        wanted = (snapshot.compute_of(host), *names)
        if lost := [name for name in wanted if name not in snapshot.devices]:
            raise NoMatch(f"{lease_id}: the Matrix has no {', '.join(lost)} (for {host}); see `hosts` of its options")
        name = machine_name(lease_id, host)
        part = HostPart(host, name, tuple(snapshot.devices[name] for name in wanted), snapshot.machine(name))
        parts.append(part)
        for device in part.devices:
            if holder := _other(device, part, snapshot, lease_id, group):
                taken[device.name] = holder
    if taken:
        what = ", ".join(f"{name} by {holder}" for name, holder in taken.items())
        raise Conflict(f"{lease_id}: no longer free: {what}", dict.fromkeys(taken.values()))
    return parts


def _other(device: LiqidDevice, part: HostPart, snapshot: Snapshot, lease_id: str, group: Raw | None) -> str | None:
    """Return the holder that prevents a lease from taking a device, or None if the lease can take it or has it already."""
    tag = device.tag
    if tag is not None and tag.lease_id != lease_id:
        return tag.lease_id
    if device.machine is not None:
        return None if snapshot.name_of(device.machine) == part.name else f"machine {snapshot.name_of(device.machine)}"
    if device.group is None or (tag is not None and device.group == number(at(group, "grp_id"))):
        return None
    return f"group {device.group_name or device.group}"


class Attachment:
    """Composition of one lease on a Liqid Matrix, in progress.

    attached_ids: names of devices that are connected. assignments: devices and machine of each host.
    """

    def __init__(self, api: Api, options: LiqidOptions, snapshot: Snapshot, change: Change, remember: Remember) -> None:
        """Prepare the composition. Raises Incompatible if the group is missing and must not be created."""
        self.api, self.options, self.snapshot, self.change, self.remember = api, options, snapshot, change, remember
        self.done: list[str] = []
        self.parts: list[HostPart] = []
        self._group = snapshot.group(options.group)
        if self._group is None and not options.create_group:
            names = ", ".join(str(at(group, "group_name")) for group in snapshot.groups) or "none"
            rule = f"the Matrix has no group {options.group!r}; there are: {names}"
            raise Incompatible(f"{rule}. Name one of them (`group`), or set `create_group: true`", rule)

    def run(self) -> None:
        """Mark the devices of the lease, create its machines and connect the devices.

        Raises Busy if another edit is in the way before any device is connected; the caller must then undo the steps done so
        far. Raises PartialFailure if the Matrix refuses a step later.
        """
        lease_id = self.change.tag.lease_id
        self.parts = plan(self.change, self.snapshot, self._group)
        try:
            for device in (device for part in self.parts for device in part.devices if device.tag is None):
                self.api.describe(device, marked(device.text, self.change.tag))
            if self.change.p2p or any(part.missing for part in self.parts):
                self._compose()
        except MatrixRefused as error:
            if error.busy and not self.done:
                hint = "if nobody does that any more, cancel it in Liqid's own console"
                raise Busy(f"{lease_id}: {error}; {hint}", self._editors(error)) from error
            failed = [name for part in self.parts for name in part.ids if name not in self.done]
            raise PartialFailure(f"{lease_id}: {error}", self.done, failed) from error

    def _editors(self, error: MatrixRefused) -> list[str]:
        """Return the holders of the edit that caused a refusal, for messages.

        They are the machines that the refusal names, or a user who edits the group.
        """
        told = numbers(str(error).partition(": ")[2])
        machines = [f"machine {self.snapshot.name_of(n)}" for n in told if n in self.snapshot.machines]
        about_machine = machines and "machine" in str(error).lower()
        return machines if about_machine else [f"somebody who edits group {self.options.group}"]

    def _compose(self) -> None:
        """Create missing machines, move devices into the group, and connect them machine by machine."""
        for part in self.parts:
            if part.machine is None:
                self._make_machine(part)
        group = self._made_group()
        statuses = self._pooled(group)
        for part in self.parts:
            self._connect(part, group, statuses)

    def _made_group(self) -> Raw:
        """Return the campaign's group on the Liqid Matrix, and create it if it is missing."""
        if self._group is None:
            where, name = self.api.place(), self.options.group
            new = first_number(self.api.get("group/nextid"))
            body = {"fabr_id": where.fabr_id, "grp_id": new, "group_name": name, "pod_id": -1}
            self.api.change("POST", "group", body)
            rehearses = self.api.client.rehearses
            self._group = body if rehearses else Snapshot({}, self.api.get("group")).group(name)
        if self._group is None:
            raise ProtocolViolation(f"the Matrix made group {self.options.group}, but does not list it")
        return self._group

    def _make_machine(self, part: HostPart) -> None:
        """Create the Liqid machine of a host in the campaign's group, and remember its number."""
        mach_id = first_number(self.api.get("machine/nextid"))
        if mach_id is None:
            raise ProtocolViolation("GET machine/nextid: no number in the answer")
        if self.api.client.rehearses:  # no machine is created, so the next number stays the same
            mach_id += sum(part.machine is not None for part in self.parts)
        body: dict[str, Any] = {
            "index": None,
            "mach_id": mach_id,
            "grp_id": at(self._made_group(), "grp_id"),
            "fabr_id": self.api.place().fabr_id,
            "fabr_gid": None,
            "port_gid": None,
            "swit_gid": None,
            "comp_name": part.name,
            "mach_name": part.name,
            "p2p": "off",
            "mtime": None,
            "connection_history": [],
        }
        made = self.api.change("POST", "machine", body)
        part.machine = next((each for each in made if at(each, "mach_name") == part.name), body)
        part.made = True
        self.remember(part.host, str(at(part.machine, "mach_id")))

    def _pooled(self, group: Raw) -> dict[str, Raw]:
        """Move devices from the free pool of the Liqid Matrix into the campaign's group.

        Returns:
            Status objects, by name, of all devices that must still be connected.
        """
        moving = [device for part in self.parts for device in part.missing]
        outside = [device for device in moving if device.group is None]
        if not outside:
            return self.api.statuses(moving)
        before = self.change.handles.get(EDITED, "")
        self.remember(EDITED, str(at(group, "grp_id")))
        try:
            with self.api.pool_edit(group, takes_over=bool(before)):
                statuses = self.api.statuses(moving)
                for device in outside:
                    body = {"deviceStatus": statuses[device.name], "group": group}
                    self.api.change("POST", f"predevice/{device.path}", body)
        except MatrixRefused:
            self.remember(
                EDITED, before
            )  # the edit never began or was cancelled, so an existing edit belongs to another client
            raise
        return statuses

    def _connect(self, part: HostPart, group: Raw, statuses: dict[str, Raw]) -> None:
        """Connect the missing devices to the machine of a host.

        The power action of the attach mode follows, and peer-to-peer is enabled if the change requests it.
        """
        if moving := part.missing:
            part.machine = machine = self._whole(part)
            with self.api.machine_edit(machine):
                for device in moving:
                    relator = {"deviceStatus": statuses[device.name], "group": group}
                    body = {"groupDeviceRelator": relator, "machine": machine}
                    self.api.change("POST", f"relate/{device.path}", body)
            if (what := {"reboot": "reboot", "powered_off": "start"}.get(self.options.attach_mode)) is not None:
                ids = f"{at(group, 'grp_id')}/{at(machine, 'mach_id')}"
                self.api.change("PUT", f"power/{what}/{ids}")
        if self.change.p2p:
            self._join(part, group)
        self.done.extend(part.ids)

    def _join(self, part: HostPart, group: Raw) -> None:
        """Enable peer-to-peer between the devices of a machine, if it is off.

        A Matrix refuses to set a value that is already set.
        """
        machine = self._whole(part)
        if str(at(machine, "p2p")).lower() != "on":
            self.api.change("POST", "machine/p2p", {**machine, "p2p": "on"})

    def _whole(self, part: HostPart) -> Raw:
        """Read the complete object of a machine from the Liqid Matrix, including members that this program does not use.

        Raises Incompatible if the Matrix gave a new machine another name, ProtocolViolation if the Matrix does not list it.
        """
        assert part.machine is not None  # created or found before
        if self.api.client.rehearses:
            return part.machine
        mach_id = at(part.machine, "mach_id")
        for listed in self.api.get("machine", mach_id=mach_id):
            if (name := at(listed, "mach_name")) == part.name:
                return cast(Raw, listed)
            if part.made and number(at(listed, "mach_id")) == number(mach_id):
                # The machine is still empty, and its name would not show that it belongs to this lease.
                self.api.quietly("DELETE", f"machine/{mach_id}")
                rule = f"the Matrix calls machine {part.name}, which it made, {name!r}; leases are found by these names"
                raise Incompatible(f"{self.change.tag.lease_id}: {rule}", rule)
        raise ProtocolViolation(f"the Matrix made machine {part.name}, but does not list it")


def assumed(change: Change, snapshot: Snapshot, group: str, parts: list[HostPart]) -> Snapshot:
    """Predict the snapshot of a Liqid Matrix after a change, so that a rehearsal can continue.

    Args:
        change: change that was rehearsed.
        snapshot: snapshot before the change.
        group_name: name of the campaign's group.
        assignments: devices and machine of each host.
    """
    devices, machines, groups = dict(snapshot.devices), dict(snapshot.machines), snapshot.groups
    if snapshot.group(group) is None:
        groups = (*groups, {"group_name": group, "grp_id": max((_id(each) for each in groups), default=0) + 1})
    raw = next(each for each in groups if at(each, "group_name") == group)
    for part in parts:
        assert part.machine is not None  # every assignment has a machine by now
        mach_id = _id(part.machine, "mach_id")
        machines[mach_id] = part.machine
        for device in part.devices:
            text = marked(device.text, change.tag)
            devices[device.name] = replace(
                device, text=text, group=_id(raw), group_name=group, machine=mach_id, machine_name=part.name
            )
    return replace(snapshot, devices=devices, machines=machines, groups=groups, odd=frozenset())


def _id(raw: Raw, name: str = "grp_id") -> int:
    """Return the integer in a member of an object, or 0 if it has none."""
    return number(at(raw, name)) or 0


class Detachment:
    """Release of one lease on a Liqid Matrix, in progress.

    stuck_names: names of devices that the Matrix did not release.
    """

    def __init__(self, api: Api, options: LiqidOptions, snapshot: Snapshot, change: Change) -> None:
        """Prepare the release of the lease of a change."""
        self.api, self.options, self.snapshot, self.change = api, options, snapshot, change
        self.stuck: set[str] = set()
        self._group = snapshot.group(options.group)
        self._edited = bool(change.handles.get(EDITED))

    def run(self) -> tuple[str, ...]:
        """Release all devices of the lease, and return the sorted names of devices that the Matrix did not release."""
        group, machines = self._group, self._machines()
        ours = {device.name: device for device in self._ours(machines)}
        groups = {number(at(each, "grp_id")) for each in self.snapshot.groups}
        for device in ours.values():
            if device.machine is not None and device.machine not in self.snapshot.machines:
                raise ProtocolViolation(
                    f"the Matrix shows {device.name} in machine {device.machine}, which it does not list"
                )
            if device.group is not None and device.group not in groups:
                raise ProtocolViolation(
                    f"the Matrix shows {device.name} in group {device.group}, which it does not list"
                )
        if not ours and not machines and not self._edited:
            return ()
        for mach_id, machine in machines.items():
            self._empty(mach_id, machine, ours)
        gone = [device for name, device in ours.items() if name not in self.stuck]
        pooled = [d for d in gone if self._pooled(d) and (d.machine is None or d.machine in machines)]
        if group is not None and pooled:
            self._out(pooled, group)
        elif group is not None and self._edited:
            # The pool was edited without a result: the process that edited it may have died.
            self.api.quietly("POST", "pool/cancel", self.api.pool_body(group))
        self._unmark(ours.values(), machines)
        return tuple(sorted(self.stuck))

    def _machines(self) -> dict[int, Raw]:
        """Return the Liqid machines of this lease by number. Their names identify them, because no other user gives such names."""
        hosts = dict.fromkeys((*self.change.hosts, *self.snapshot.hosts.values()))
        names = {machine_name(self.change.tag.lease_id, host) for host in hosts}
        return {n: raw for n, raw in self.snapshot.machines.items() if str(at(raw, "mach_name")) in names}

    def _ours(self, machines: Iterable[int]) -> list[LiqidDevice]:
        """Return the devices of this lease.

        They carry its mark. Without any mark, devices in its machines count if the lease claimed them or if they are compute
        devices.
        """
        lease_id, inside = self.change.tag.lease_id, set(machines)
        named = {name for names in self.change.hosts.values() for name in names}
        return [
            device
            for device in self.snapshot.devices.values()
            if (device.tag is not None and device.tag.lease_id == lease_id)
            or (device.tag is None and device.machine in inside and (device.name in named or device.computes))
        ]

    def _empty(self, mach_id: int, machine: Raw, ours: dict[str, LiqidDevice]) -> None:
        """Remove this lease's devices from one of its machines.

        The machine is deleted if it has no other devices. Raises Busy if another edit is in the way.
        """
        inside = self.snapshot.inside(mach_id)
        foreign = [device for device in inside if device.name not in ours]
        mine = [device for device in inside if device.name in ours]
        try:
            if self.options.attach_mode == "powered_off" and mine:
                self.api.change("PUT", f"power/shutdown/{at(machine, 'grp_id')}/{at(machine, 'mach_id')}")
            if not foreign:
                self._delete(machine)
            elif mine and self._group is not None:
                self._unrelate(mine, machine, self._group)
        except MatrixRefused as error:
            if error.busy:
                raise Busy(f"{self.change.tag.lease_id}: {error}", ("somebody who edits the Matrix",)) from error
            self.stuck.update(device.name for device in mine)

    def _delete(self, machine: Raw) -> None:
        """Delete a machine of this lease. If an edit of a dead process is in the way, cancel it first."""
        path = f"machine/{at(machine, 'mach_id')}"
        try:
            self.api.change("DELETE", path)
        except MatrixRefused as error:
            if not (error.busy and error.names(at(machine, "mach_id"))):
                raise
            # The machine is of this lease, and so is its edit: a dead process left it.
            self.api.quietly("POST", "fabric/edit/cancel", machine)
            self.api.change("DELETE", path)

    def _unrelate(self, mine: list[LiqidDevice], machine: Raw, group: Raw) -> None:
        """Disconnect devices from a machine one by one.

        Deleting the machine would also move devices that other users added to it.
        """
        statuses = self.api.statuses(mine)
        with self.api.machine_edit(machine):
            for device in mine:
                relator = {"deviceStatus": statuses[device.name], "group": group}
                self.api.change("DELETE", f"relate/{device.path}", {"groupDeviceRelator": relator, "machine": machine})

    def _pooled(self, device: LiqidDevice) -> bool:
        """Return True if a device is in the campaign's group."""
        return device.group is not None and device.group == number(at(self._group, "grp_id"))

    def _out(self, devices: list[LiqidDevice], group: Raw) -> None:
        """Move devices from the campaign's group into the free pool of the Liqid Matrix.

        Raises Busy if another client edits the group.
        """
        try:
            with self.api.pool_edit(group, takes_over=self._edited):
                statuses = self.api.statuses(devices)
                for device in devices:
                    body = {"deviceStatus": statuses[device.name], "group": group}
                    try:
                        self.api.change("DELETE", f"predevice/{device.path}", body)
                    except MatrixRefused:
                        self.stuck.add(device.name)
        except MatrixRefused as error:
            if error.busy:
                raise Busy(f"{self.change.tag.lease_id}: {error}", (f"group {self.options.group}",)) from error
            self.stuck.update(device.name for device in devices)

    def _unmark(self, ours: Iterable[LiqidDevice], machines: dict[int, Raw]) -> None:
        """Remove this lease's marks from devices that are free or belong to other users by now.

        All other devices are stuck and keep their marks.
        """
        now = self._now()
        for device in ours:
            is_now = now.get(device.name, device)
            # A device that another user moved into another group must not be removed any more.
            if is_now.machine in machines or (is_now.machine is None and self._pooled(is_now)):
                self.stuck.add(device.name)
            if device.name in self.stuck or device.tag is None:
                continue
            try:
                self.api.describe(device, unmarked(device.text)[0])
            except MatrixRefused:
                self.stuck.add(device.name)

    def _now(self) -> dict[str, LiqidDevice]:
        """Read the current group and machine of every device, by name of the device.

        In a rehearsal, all devices are assumed to be free. Raises OutcomeUnknown if the Matrix does not answer.
        """
        if self.api.client.rehearses:
            return {name: replace(device, group=None, machine=None) for name, device in self.snapshot.devices.items()}
        try:
            listed = self.api.get("predevice")
        except FabricError as error:
            raise OutcomeUnknown(
                f"{self.change.tag.lease_id}: released, but this could not be confirmed: {error}"
            ) from error
        return {device.name: device for each in listed if (device := seen(each, None)) is not None}
