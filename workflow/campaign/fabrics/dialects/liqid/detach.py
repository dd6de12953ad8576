"""Releasing on a Matrix, both levels: out of the machine into the group's pool, and out of the group into the system's.

A machine that is deleted leaves its devices in the group: without the second level they leak there. Marks go last, and only from
what the Matrix shows as free again, so that whatever stops this half way is found by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from campaign.errors import FabricError
from campaign.fabrics.control_plane.protocol import Change
from campaign.fabrics.dialects.liqid.api import Api, Refused
from campaign.fabrics.dialects.liqid.attach import EDITED
from campaign.fabrics.dialects.liqid.options import Options
from campaign.fabrics.dialects.liqid.parse import Raw, Seen, machine_name, member, number, seen, unmarked
from campaign.fabrics.dialects.liqid.snapshot import Snapshot
from campaign.fabrics.errors import Busy, OutcomeUnknown


class Detachment:
    """One release under way. stuck: devices that the Matrix would not let go."""

    def __init__(self, api: Api, options: Options, snapshot: Snapshot, change: Change) -> None:
        self.api, self.options, self.snapshot, self.change = api, options, snapshot, change
        self.stuck: set[str] = set()
        self._group = snapshot.group(options.group)
        self._edited = bool(change.handles.get(EDITED))

    def run(self) -> tuple[str, ...]:
        """See `ControlPlane.detach`."""
        group, machines = self._group, self._machines()
        ours = {device.name: device for device in self._ours(machines)}
        if not ours and not machines and not self._edited:
            return ()
        for mach_id, machine in machines.items():
            self._empty(mach_id, machine, ours)
        gone = [device for name, device in ours.items() if name not in self.stuck]
        pooled = [d for d in gone if self._pooled(d) and (d.machine is None or d.machine in machines)]
        if group is not None and pooled:
            self._out(pooled, group)
        elif group is not None and self._edited:
            # It was edited, and nothing came of it: whoever did may have died within.
            self.api.quietly("POST", "pool/cancel", self.api.pool_body(group))
        self._unmark(ours.values(), machines)
        return tuple(sorted(self.stuck))

    def _machines(self) -> dict[int, Raw]:
        """The machines of this lease: by their names, which nobody else gives."""
        hosts = dict.fromkeys((*self.change.hosts, *self.snapshot.hosts.values()))
        names = {machine_name(self.change.tag.lease_id, host) for host in hosts}
        return {n: raw for n, raw in self.snapshot.machines.items() if str(member(raw, "mach_name")) in names}

    def _ours(self, machines: Iterable[int]) -> list[Seen]:
        """What carries this lease's mark, and what was claimed, or computes, in its machines without any mark."""
        lease_id, inside = self.change.tag.lease_id, set(machines)
        named = {name for names in self.change.hosts.values() for name in names}
        return [
            device
            for device in self.snapshot.devices.values()
            if (device.tag is not None and device.tag.lease_id == lease_id)
            or (device.tag is None and device.machine in inside and (device.name in named or device.computes))
        ]

    def _empty(self, mach_id: int, machine: Raw, ours: dict[str, Seen]) -> None:
        inside = self.snapshot.inside(mach_id)
        foreign = [device for device in inside if device.name not in ours]
        mine = [device for device in inside if device.name in ours]
        try:
            if self.options.attach_mode == "powered_off" and mine:
                self.api.change("PUT", f"power/shutdown/{member(machine, 'grp_id')}/{member(machine, 'mach_id')}")
            if not foreign:
                self._delete(machine)
            elif mine and self._group is not None:
                self._unrelate(mine, machine, self._group)
        except Refused as error:
            if error.busy:
                raise Busy(f"{self.change.tag.lease_id}: {error}", ("somebody who edits the Matrix",)) from error
            self.stuck.update(device.name for device in mine)

    def _delete(self, machine: Raw) -> None:
        path = f"machine/{member(machine, 'mach_id')}"
        try:
            self.api.change("DELETE", path)
        except Refused as error:
            if not (error.busy and error.names(member(machine, "mach_id"))):
                raise
            # It is ours, and so is its edit: a dead process left it.
            self.api.quietly("POST", "fabric/edit/cancel", machine)
            self.api.change("DELETE", path)

    def _unrelate(self, mine: list[Seen], machine: Raw, group: Raw) -> None:
        """Take ours out one by one: deleting the machine would move what somebody else put there."""
        statuses = self.api.statuses(mine)
        with self.api.machine_edit(machine):
            for device in mine:
                relator = {"deviceStatus": statuses[device.name], "group": group}
                self.api.change("DELETE", f"relate/{device.path}", {"groupDeviceRelator": relator, "machine": machine})

    def _pooled(self, device: Seen) -> bool:
        """True for a device that is in our group."""
        return device.group is not None and device.group == number(member(self._group, "grp_id"))

    def _out(self, devices: list[Seen], group: Raw) -> None:
        try:
            with self.api.pool_edit(group, takes_over=self._edited):
                statuses = self.api.statuses(devices)
                for device in devices:
                    body = {"deviceStatus": statuses[device.name], "group": group}
                    try:
                        self.api.change("DELETE", f"predevice/{device.path}", body)
                    except Refused:
                        self.stuck.add(device.name)
        except Refused as error:
            if error.busy:
                raise Busy(f"{self.change.tag.lease_id}: {error}", (f"group {self.options.group}",)) from error
            self.stuck.update(device.name for device in devices)

    def _unmark(self, ours: Iterable[Seen], machines: dict[int, Raw]) -> None:
        """Take our marks away from what is free, or somebody else's by now; the rest is stuck, and keeps them."""
        now = self._now()
        for device in ours:
            is_now = now.get(device.name, device)
            # What somebody took into another group is no longer ours to remove.
            if is_now.machine in machines or (is_now.machine is None and self._pooled(is_now)):
                self.stuck.add(device.name)
            if device.name in self.stuck or device.tag is None:
                continue
            try:
                self.api.describe(device, unmarked(device.text)[0])
            except Refused:
                self.stuck.add(device.name)

    def _now(self) -> dict[str, Seen]:
        if self.api.client.rehearses:
            return {name: replace(device, group=None, machine=None) for name, device in self.snapshot.devices.items()}
        try:
            listed = self.api.get("predevice")
        except FabricError as error:
            raise OutcomeUnknown(
                f"{self.change.tag.lease_id}: released, but this could not be confirmed: {error}"
            ) from error
        return {device.name: device for each in listed if (device := seen(each, None)) is not None}
