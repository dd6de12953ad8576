"""Parsing of a Matrix's answers: the envelope, lists of devices, and a snapshot of all of them. Pure.

Every answer has the form {"response": {"code", "errors", "data": [...]}}. Errors have it too, often with HTTP 200.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.errors import ProtocolViolation
from campaign.fabrics.http.response import at
from campaign.fabrics.protocol import Tag
from campaign.spec.hardware import Health

Raw = Mapping[str, Any]
"""Object as received from the Matrix. It is sent back complete, including members that this program does not use."""

PATHS = {"comp": "compute", "cpu": "compute", "gpu": "gpu", "targ": "storage", "ssd": "storage", "fpga": "fpga"}
PATHS |= dict.fromkeys(("link", "nic", "eth", "iba", "infi", "fibr"), "network")
"""Part of the addresses status/, predevice/ and relate/, by `dev_type`. Other types (memory, switches) are not composed."""
KINDS = {"gpu": "gpu", "storage": "nvme", "network": "nic", "fpga": "fpga"}
INFO = {"compute": "cpu", "gpu": "gpu", "storage": "ssd", "network": "link", "fpga": "fpga"}
"""Part of the address device/info/, for which both SDKs use different words."""
DESCRIBED = {"compute": "comp", "gpu": "gpu", "storage": "targ", "network": "link", "fpga": "fpga"}
"""Type in the address of a device's user description."""
COUNTED = {
    "gpu": "gpu-count",
    "storage": "storage-drive-count",
    "network": "network-adapter-count",
    "fpga": "fpga-count",
}
_BETWEEN = " | "
_NAME = re.compile(r"cc[0-9a-f]{14}")
_BUSY = re.compile(r"already (being|in) edit|being edited|\bin edit mode by|\bbusy\b|in progress", re.IGNORECASE)
_BROKEN = re.compile(r"fail|fault|error|offline|missing", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Envelope of an answer.

    code: 0 means success. errors: messages of errors. data: requested objects, always a list.
    """

    code: int
    errors: tuple[str, ...]
    data: tuple[Any, ...]

    @property
    def ok(self) -> bool:
        """True if the code is 0 and there are no errors."""
        return self.code == 0 and not self.errors

    @property
    def words(self) -> str:
        """Messages of all errors, or the code if there are none."""
        return "; ".join(self.errors) or f"code {self.code}"


def envelope(body: object) -> Envelope | None:
    """Parse the envelope of a Liqid answer from its JSON body, or return None if there is none."""
    response = at(body, "response")
    if not isinstance(response, Mapping):
        return None
    data = tuple(each for each in _listed(response.get("data")) if each is not None)
    return Envelope(number(response.get("code")) or 0, tuple(map(_message, _listed(response.get("errors")))), data)


def _listed(value: object) -> list[Any]:
    """Return a value as a list, which is empty for None."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _message(error: object) -> str:
    """Return the message of an error in an envelope."""
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("type") or f"code {error.get('code')}")
    return str(error)


def is_busy(message: str) -> bool:
    """Return True if a refusal is due to an edit, such as 'Machine 0x0001 is already being edited'."""
    return _BUSY.search(message) is not None


def numbers(message: str) -> tuple[int, ...]:
    """Return the hexadecimal and decimal numbers in a message."""
    return tuple(int(each, 0) for each in re.findall(r"0[xX][0-9a-fA-F]+|\b[1-9][0-9]*\b", message))


def number(value: object) -> int | None:
    """Convert an integer or a decimal or hexadecimal text to int. Return None for anything else, such as "n/a"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value) if isinstance(value, int) else int(value.strip(), 16 if "x" in value.lower() else 10)
    except ValueError:
        return None


def first_number(data: Iterable[Any]) -> int | None:
    """Return the first number in a list such as [3], ["0x3"] or [{"mach_id": 3}], or None if there is none."""
    for each in data:
        values = each.values() if isinstance(each, Mapping) else [each]
        for value in values:
            if (found := number(value)) is not None:
                return found
    return None


@dataclass(frozen=True, slots=True)
class LiqidDevice:
    """Device as a Liqid Matrix shows it.

    path: its part of an address, such as "gpu" or "compute". text: user description, unchanged. group: number of its group, or
    None in the free pool of the system. machine: number of its machine, or None in the free pool of the group.
    """

    name: str
    path: str
    device_id: str = ""
    model: str = ""
    serial: str = ""
    text: str = ""
    rack: int = 0
    shelf: int = 0
    group: int | None = None
    group_name: str = ""
    machine: int | None = None
    machine_name: str = ""
    health: Health = "ok"

    @property
    def computes(self) -> bool:
        """True for the compute device of a host."""
        return self.path == "compute"

    @property
    def tag(self) -> Tag | None:
        """Lease tag in the user description, or None if there is none."""
        return unmarked(self.text)[1]


def machine_name(lease_id: str, host: str) -> str:
    """Make the name of the Liqid machine that a lease creates for a host.

    It has letters and digits only and is always the same for the same lease and host.
    """
    return f"cc{hashlib.sha256(f'{lease_id}/{host}'.encode()).hexdigest()[:14]}"


def is_machine_name(name: object) -> bool:
    """Return True if a lease of this program may have given this name to a Liqid machine."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def marked(text: str, tag: Tag) -> str:
    """Return a user description with the mark of a lease. Text of other users is kept in front of the mark."""
    own, _ = unmarked(text)
    return f"{own}{_BETWEEN}{lease_tag.encode(tag)}" if own else lease_tag.encode(tag)


def unmarked(text: str) -> tuple[str, Tag | None]:
    """Split a user description into the text of other users and the lease tag, or None if there is no mark."""
    own, _, last = text.rpartition(_BETWEEN)
    tag = lease_tag.decode(last)
    return (text, None) if tag is None else (own, tag)


def seen(predevice: Raw, info: Raw | None) -> LiqidDevice | None:
    """Build a device from its entries in two lists of the Liqid Matrix.

    Returns None for a type that cannot be composed (switches, enclosures).

    Args:
        predevice: entry in the list of devices with their groups and machines.
        info: entry in the list of device properties, or None if there is none.
    """
    path = PATHS.get(str(at(predevice, "dev_type")).lower())
    name = at(predevice, "name")
    if path is None or not isinstance(name, str) or not name:
        return None
    location = at(info, "location")
    pci = [_text(at(info, each)) for each in ("pci_vendor", "pci_device")]
    group = number(at(predevice, "grp_id"))
    return LiqidDevice(
        name,
        path,
        # An id is a hexadecimal number. The SDKs use 0 for an id that is missing or not readable.
        device_id=_text(at(info, "dev_id")) if number(at(info, "dev_id")) else "",
        model=_text(at(info, "model")) or (":".join(pci) if all(pci) else ""),
        serial=_text(at(info, "serial_num")),
        text=_text(at(info, "udesc")),
        rack=number(at(location, "rack")) or 0,
        shelf=number(at(location, "shelf")) or 0,
        group=group if group is not None and group > 0 else None,
        group_name=_text(at(predevice, "gname")),
        machine=number(at(predevice, "mach_id")) or None,
        machine_name=_text(at(predevice, "mname")),
        health="critical" if _BROKEN.search(_text(at(info, "device_state"))) else "ok",
    )


def _text(value: object) -> str:
    """Return a text value, or an empty text for placeholders such as "n/a" and for values of other types."""
    return value if isinstance(value, str) and value.lower() not in ("n/a", "null", "none") else ""


def state_of(data: Iterable[Any]) -> str:
    """Return the state of an accepted operation ("Pending", "SUCCESS", "FAILURE"), or "" if the data has none."""
    return next((str(found) for each in data if (found := at(each, "command_execution_state"))), "")


def link_of(data: Iterable[Any]) -> str | None:
    """Return the link to the status of an accepted operation, or None if the data has none."""
    for each in data:
        for link in _listed(at(each, "links")):
            if isinstance(href := at(link, "href"), str) and href:
                return href
    return None


@dataclass(frozen=True)
class Snapshot:
    """Groups, machines and devices of a Liqid Matrix at one moment.

    devices: by name. machines: unchanged objects by number. inconsistent_devices: names of devices with contradictory records.
    hosts: host name by the name of its compute device.
    """

    devices: Mapping[str, LiqidDevice]
    groups: tuple[Raw, ...] = ()
    machines: Mapping[int, Raw] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)

    def group(self, name: str) -> Raw | None:
        """Return the group with this name, or None if the Liqid Matrix has none."""
        return next((group for group in self.groups if at(group, "group_name") == name), None)

    def machine(self, name: str) -> Raw | None:
        """Return the machine with this name, or None if the Liqid Matrix has none."""
        return next((each for each in self.machines.values() if at(each, "mach_name") == name), None)

    def compute_of(self, host: str) -> str:
        """Return the name of a host's compute device, even if the Matrix does not have it."""
        return next((compute for compute, name in self.hosts.items() if name == host), host)

    @cached_property
    def _inside(self) -> dict[int, list[LiqidDevice]]:
        """Devices in each machine, by the number of the machine."""
        found: dict[int, list[LiqidDevice]] = {}
        for device in self.devices.values():
            if device.machine is not None:
                found.setdefault(device.machine, []).append(device)
        return found

    def inside(self, machine: int) -> tuple[LiqidDevice, ...]:
        """Return the devices in the machine with this number."""
        return tuple(self._inside.get(machine, ()))

    def hosts_in(self, machine: int) -> list[str]:
        """Return the names of the hosts in the machine with this number. Normally there is one.

        The name is that of the system file, or that of the Matrix if the system file has none.
        """
        return [self.hosts.get(device.name, device.name) for device in self.inside(machine) if device.computes]

    def lease_of(self, machine: int) -> str | None:
        """Return the lease that created the machine with this number, or None if no lease of this program did.

        A lease created a machine if it marked a device in it and would give the machine this name.
        """
        return self._leases.get(machine)

    @cached_property
    def _leases(self) -> dict[int, str]:
        """Lease that created each machine, by the number of the machine."""
        found: dict[int, str] = {}
        for machine in self._inside:
            hosts, name = self.hosts_in(machine), self.name_of(machine)
            for device in self.inside(machine):
                tag = device.tag
                if tag is not None and name in {machine_name(tag.lease_id, host) for host in hosts}:
                    found.setdefault(machine, tag.lease_id)
        return found

    def name_of(self, machine: int) -> str:
        """Return the name of the machine with this number, or the number in hexadecimal form if it has no name."""
        found = at(self.machines.get(machine), "mach_name")
        return found if isinstance(found, str) else f"0x{machine:04x}"

    def holder(self, device: LiqidDevice) -> str | None:
        """Return the holder of a device (a lease, a machine or a group), or None if no holder is known.

        The holder is the lease of its mark, unless the device is in a machine of another user.
        """
        tag = device.tag
        if device.machine is not None:
            lease = self.lease_of(device.machine)
            if lease is None:
                return f"machine {self.name_of(device.machine)}"
            return lease if tag is not None else None
        if tag is not None:
            return tag.lease_id
        return None if device.group is None else f"group {device.group_name or device.group}"


def assemble(
    groups: Sequence[Any],
    machines: Mapping[int, Raw],
    predevices: Iterable[Any],
    infos: Mapping[str, Sequence[Any]],
    details: Mapping[int, Raw | None],
    hosts: Mapping[str, str],
) -> Snapshot:
    """Build the snapshot of a Liqid Matrix from its lists of groups, machines and devices.

    Raises ProtocolViolation if two devices have the same name.

    Args:
        groups: list of groups.
        machines: machines by number.
        predevices: list of devices with their groups and machines.
        infos: lists of device properties, by path of the devices.
        details: contents of this program's machines, by number; None for a machine that no longer exists.
        hosts: host name by the name of its compute device.
    """
    by_name = {path: {str(at(each, "name")): each for each in listed} for path, listed in infos.items()}
    devices: dict[str, LiqidDevice] = {}
    for each in predevices:
        bare = seen(each, None)
        if bare is None:
            continue
        if bare.name in devices:
            raise ProtocolViolation(f"the Matrix lists two devices named {bare.name}")
        devices[bare.name] = seen(each, by_name.get(bare.path, {}).get(bare.name)) or bare
    whole = tuple(group for group in groups if isinstance(group, Mapping))
    return Snapshot(devices, whole, machines, _odd(devices, machines, details), hosts)


def _odd(
    devices: Mapping[str, LiqidDevice], machines: Mapping[int, Raw], details: Mapping[int, Raw | None]
) -> frozenset[str]:
    """Return the names of devices for which the list of devices and the machine itself disagree.

    Devices without an entry in the list of properties are included.
    """
    odd = {device.name for device in devices.values() if not device.device_id}
    for device in devices.values():
        if device.machine is None:
            continue
        machine = machines.get(device.machine)
        named = device.machine_name in ("", at(machine, "mach_name"))
        if machine is None or number(at(machine, "grp_id")) != device.group or not named:
            odd.add(device.name)
    for machine_id, told in details.items():
        for path, counter in COUNTED.items():
            there = [d.name for d in devices.values() if d.machine == machine_id and d.path == path]
            count = number(at(told, counter))
            if told is None or (count is not None and count != len(there)):
                odd.update(there)
    return frozenset(odd)
