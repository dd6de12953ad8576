"""Everything that a Matrix shows at one moment, and whose it is. Pure, but for `read`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from campaign.fabrics.dialects.liqid.api import Api, Refused
from campaign.fabrics.dialects.liqid.parse import (
    COUNTED,
    INFO,
    Raw,
    Seen,
    is_machine_name,
    machine_name,
    member,
    number,
    seen,
)
from campaign.fabrics.errors import ProtocolViolation


@dataclass(frozen=True)
class Snapshot:
    """devices: by name; machines: by number, as they came; odd: devices whose two ends disagree; hosts: by their compute device."""

    devices: Mapping[str, Seen]
    groups: tuple[Raw, ...] = ()
    machines: Mapping[int, Raw] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)

    def group(self, name: str) -> Raw | None:
        return next((group for group in self.groups if member(group, "group_name") == name), None)

    def machine(self, name: str) -> Raw | None:
        return next((each for each in self.machines.values() if member(each, "mach_name") == name), None)

    def compute_of(self, host: str) -> str:
        """The name of a host's compute device, whether the Matrix has it or not."""
        return next((compute for compute, name in self.hosts.items() if name == host), host)

    @cached_property
    def _inside(self) -> dict[int, list[Seen]]:
        found: dict[int, list[Seen]] = {}
        for device in self.devices.values():
            if device.machine is not None:
                found.setdefault(device.machine, []).append(device)
        return found

    def inside(self, machine: int) -> tuple[Seen, ...]:
        return tuple(self._inside.get(machine, ()))

    def hosts_in(self, machine: int) -> list[str]:
        """Hosts (system file's names; the Matrix's where that has none) in a machine; one, if all is well."""
        return [self.hosts.get(device.name, device.name) for device in self.inside(machine) if device.computes]

    def lease_of(self, machine: int) -> str | None:
        """The lease that a machine was made for: one that marks something in it, and would name it so. None: foreign."""
        return self._leases.get(machine)

    @cached_property
    def _leases(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for machine in self._inside:
            hosts, name = self.hosts_in(machine), self.name_of(machine)
            for device in self.inside(machine):
                tag = device.tag
                if tag is not None and name in {machine_name(tag.lease_id, host) for host in hosts}:
                    found.setdefault(machine, tag.lease_id)
        return found

    def name_of(self, machine: int) -> str:
        found = member(self.machines.get(machine), "mach_name")
        return found if isinstance(found, str) else f"0x{machine:04x}"

    def holder(self, device: Seen) -> str | None:
        """Who has a device: a lease by its mark, unless the device is in what somebody else made; None: nobody, or nobody says."""
        tag = device.tag
        if device.machine is not None:
            lease = self.lease_of(device.machine)
            if lease is None:
                return f"machine {self.name_of(device.machine)}"
            return lease if tag is not None else None
        if tag is not None:
            return tag.lease_id
        return None if device.group is None else f"group {device.group_name or device.group}"


def read(api: Api, hosts: Mapping[str, str], groups: Sequence[Any] = ()) -> Snapshot:
    """Read everything: as many requests for two devices as for two thousand, and one more for each machine of ours.

    groups: those known from before; they are listed anew only when a device is in one that is not among them.
    """
    machines, predevices = (api.get(path) for path in ("machine", "predevice"))
    found = [device for each in predevices if (device := seen(each, None)) is not None]
    known = {None, *(number(member(group, "grp_id")) for group in groups)}
    if not groups or any(device.group not in known for device in found):
        groups = api.get("group")
    infos = {path: api.get(f"device/info/{INFO[path]}") for path in dict.fromkeys(device.path for device in found)}
    by_number = {n: each for each in machines if (n := number(member(each, "mach_id"))) is not None}
    ours = [n for n, each in by_number.items() if is_machine_name(member(each, "mach_name"))]
    details = {n: _details(api, by_number[n]) for n in ours}
    return assemble(groups, by_number, predevices, infos, details, hosts)


def _details(api: Api, machine: Raw) -> Raw | None:
    """A machine's own account of what is in it; None for one that is gone since it was listed."""
    try:
        data = api.get(f"machine/details/{member(machine, 'mach_id')}")
    except Refused:
        return None
    return next((each for each in data if isinstance(each, Mapping)), None)


def assemble(
    groups: Sequence[Any],
    machines: Mapping[int, Raw],
    predevices: Iterable[Any],
    infos: Mapping[str, Sequence[Any]],
    details: Mapping[int, Raw | None],
    hosts: Mapping[str, str],
) -> Snapshot:
    """The snapshot out of what was listed. Raises ProtocolViolation when two devices have one name."""
    by_name = {path: {str(member(each, "name")): each for each in listed} for path, listed in infos.items()}
    devices: dict[str, Seen] = {}
    for each in predevices:
        bare = seen(each, None)
        if bare is None:
            continue
        if bare.name in devices:
            raise ProtocolViolation(f"the Matrix lists two devices named {bare.name}")
        devices[bare.name] = seen(each, by_name.get(bare.path, {}).get(bare.name)) or bare
    whole = tuple(group for group in groups if isinstance(group, Mapping))
    return Snapshot(devices, whole, machines, _odd(devices, machines, details), hosts)


def _odd(devices: Mapping[str, Seen], machines: Mapping[int, Raw], details: Mapping[int, Raw | None]) -> frozenset[str]:
    """Devices of which the list of devices and the machine itself tell different things, or that one list does not know."""
    odd = {device.name for device in devices.values() if not device.device_id}
    for device in devices.values():
        if device.machine is None:
            continue
        machine = machines.get(device.machine)
        named = device.machine_name in ("", member(machine, "mach_name"))
        if machine is None or number(member(machine, "grp_id")) != device.group or not named:
            odd.add(device.name)
    for machine_id, told in details.items():
        for path, counter in COUNTED.items():
            there = [d.name for d in devices.values() if d.machine == machine_id and d.path == path]
            count = number(member(told, counter))
            if told is None or (count is not None and count != len(there)):
                odd.update(there)
    return frozenset(odd)
