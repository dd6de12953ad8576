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
from campaign.fabrics.http.response import get_nested
from campaign.fabrics.protocol import Tag
from campaign.spec.hardware import Health

MatrixObject = Mapping[str, Any]
"""Object as received from the Matrix. It is sent back complete, including members that this program does not use."""

PATH_BY_DEVICE_TYPE = {
    "comp": "compute",
    "cpu": "compute",
    "gpu": "gpu",
    "targ": "storage",
    "ssd": "storage",
    "fpga": "fpga",
}
PATH_BY_DEVICE_TYPE |= dict.fromkeys(("link", "nic", "eth", "iba", "infi", "fibr"), "network")
"""Part of the addresses status/, predevice/ and relate/, by `dev_type`. Other types (memory, switches) are not composed."""
KIND_BY_PATH = {"gpu": "gpu", "storage": "nvme", "network": "nic", "fpga": "fpga"}
INFO_PATH_BY_PATH = {"compute": "cpu", "gpu": "gpu", "storage": "ssd", "network": "link", "fpga": "fpga"}
"""Part of the address device/info/, for which both SDKs use different words."""
DESCRIPTION_TYPE_BY_PATH = {"compute": "comp", "gpu": "gpu", "storage": "targ", "network": "link", "fpga": "fpga"}
"""Type in the address of a device's user description."""
COUNT_KEY_BY_PATH = {
    "gpu": "gpu-count",
    "storage": "storage-drive-count",
    "network": "network-adapter-count",
    "fpga": "fpga-count",
}
_MARK_SEPARATOR = " | "
_MACHINE_NAME = re.compile(r"cc[0-9a-f]{14}")
_BUSY_MESSAGE = re.compile(
    r"already (being|in) edit|being edited|\bin edit mode by|\bbusy\b|in progress", re.IGNORECASE
)
_BROKEN_STATE = re.compile(r"fail|fault|error|offline|missing", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Envelope of an answer.

    code: 0 means success. errors: error messages. data: requested objects, always a list.
    """

    code: int
    errors: tuple[str, ...]
    data: tuple[Any, ...]

    @property
    def is_success(self) -> bool:
        """True if the code is 0 and there are no errors."""
        return self.code == 0 and not self.errors

    @property
    def message(self) -> str:
        """All error messages, or the code if there are none."""
        return "; ".join(self.errors) or f"code {self.code}"


def parse_envelope(body: object) -> Envelope | None:
    """Parse the envelope of a Liqid answer from its JSON body, or return None if there is none."""
    response = get_nested(body, "response")
    if not isinstance(response, Mapping):
        return None
    data = tuple(item for item in _as_list(response.get("data")) if item is not None)
    return Envelope(
        parse_number(response.get("code")) or 0, tuple(map(_format_error, _as_list(response.get("errors")))), data
    )


def _as_list(value: object) -> list[Any]:
    """Return a value as a list, or an empty list for None."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _format_error(error: object) -> str:
    """Return the message of an error in an envelope."""
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("type") or f"code {error.get('code')}")
    return str(error)


def is_busy_message(message: str) -> bool:
    """Return True if a refusal is due to an edit, such as 'Machine 0x0001 is already being edited'."""
    return _BUSY_MESSAGE.search(message) is not None


def find_numbers(message: str) -> tuple[int, ...]:
    """Return the hexadecimal and decimal numbers in a message."""
    return tuple(int(text, 0) for text in re.findall(r"0[xX][0-9a-fA-F]+|\b[1-9][0-9]*\b", message))


def parse_number(value: object) -> int | None:
    """Convert an integer or a decimal or hexadecimal text to int. Return None for anything else, such as "n/a"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value) if isinstance(value, int) else int(value.strip(), 16 if "x" in value.lower() else 10)
    except ValueError:
        return None


def find_first_number(data: Iterable[Any]) -> int | None:
    """Return the first number in a list such as [3], ["0x3"] or [{"mach_id": 3}], or None if there is none."""
    for item in data:
        values = item.values() if isinstance(item, Mapping) else [item]
        for value in values:
            if (result := parse_number(value)) is not None:
                return result
    return None


@dataclass(frozen=True, slots=True)
class LiqidDevice:
    """Device as a Liqid Matrix shows it.

    path: word for its type in addresses, such as "gpu" or "compute". text: user description, unchanged. group: number of its
    group, or None in the free pool of the system. machine: number of its machine, or None in the free pool of the group.
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
    def is_compute(self) -> bool:
        """True for the compute device of a host."""
        return self.path == "compute"

    @property
    def tag(self) -> Tag | None:
        """Lease tag in the user description, or None if there is none."""
        return split_mark(self.text)[1]


def make_machine_name(lease_id: str, host: str) -> str:
    """Make the name of the Liqid machine that a lease creates for a host.

    The name consists of letters and digits, and is always the same for the same lease and host.
    """
    return f"cc{hashlib.sha256(f'{lease_id}/{host}'.encode()).hexdigest()[:14]}"


def is_machine_name(name: object) -> bool:
    """Return True if a machine name has the form that leases of this program use."""
    return isinstance(name, str) and _MACHINE_NAME.fullmatch(name) is not None


def add_mark(text: str, tag: Tag) -> str:
    """Return a user description with the mark of a lease. Text of other users is kept in front of the mark."""
    user_text, _ = split_mark(text)
    return f"{user_text}{_MARK_SEPARATOR}{lease_tag.encode_tag(tag)}" if user_text else lease_tag.encode_tag(tag)


def split_mark(text: str) -> tuple[str, Tag | None]:
    """Split a user description into other users' text and the lease tag (None if there is no mark)."""
    user_text, _, mark = text.rpartition(_MARK_SEPARATOR)
    tag = lease_tag.decode_tag(mark)
    return (text, None) if tag is None else (user_text, tag)


def parse_device(predevice: MatrixObject, info: MatrixObject | None) -> LiqidDevice | None:
    """Build a device from its entries in two lists of the Liqid Matrix.

    Returns None for a type that cannot be composed (switches, enclosures).

    Args:
        predevice: entry in the list of devices with their groups and machines.
        info: entry in the list of device properties, or None if there is none.
    """
    path = PATH_BY_DEVICE_TYPE.get(str(get_nested(predevice, "dev_type")).lower())
    name = get_nested(predevice, "name")
    if path is None or not isinstance(name, str) or not name:
        return None
    location = get_nested(info, "location")
    pci_ids = [_text_or_empty(get_nested(info, key)) for key in ("pci_vendor", "pci_device")]
    group = parse_number(get_nested(predevice, "grp_id"))
    return LiqidDevice(
        name,
        path,
        # An id is a hexadecimal number. The SDKs use 0 for an id that is missing or not readable.
        device_id=_text_or_empty(get_nested(info, "dev_id")) if parse_number(get_nested(info, "dev_id")) else "",
        model=_text_or_empty(get_nested(info, "model")) or (":".join(pci_ids) if all(pci_ids) else ""),
        serial=_text_or_empty(get_nested(info, "serial_num")),
        text=_text_or_empty(get_nested(info, "udesc")),
        rack=parse_number(get_nested(location, "rack")) or 0,
        shelf=parse_number(get_nested(location, "shelf")) or 0,
        group=group if group is not None and group > 0 else None,
        group_name=_text_or_empty(get_nested(predevice, "gname")),
        machine=parse_number(get_nested(predevice, "mach_id")) or None,
        machine_name=_text_or_empty(get_nested(predevice, "mname")),
        health="critical" if _BROKEN_STATE.search(_text_or_empty(get_nested(info, "device_state"))) else "ok",
    )


def _text_or_empty(value: object) -> str:
    """Return a text value, or an empty string for placeholders such as "n/a" and for values of other types."""
    return value if isinstance(value, str) and value.lower() not in ("n/a", "null", "none") else ""


def find_execution_state(data: Iterable[Any]) -> str:
    """Return the state of an accepted operation ("Pending", "SUCCESS", "FAILURE"), or "" if the data has none."""
    return next((str(state) for item in data if (state := get_nested(item, "command_execution_state"))), "")


def find_status_link(data: Iterable[Any]) -> str | None:
    """Return the link to the status of an accepted operation, or None if the data has none."""
    for item in data:
        for link in _as_list(get_nested(item, "links")):
            if isinstance(href := get_nested(link, "href"), str) and href:
                return href
    return None


@dataclass(frozen=True)
class MatrixSnapshot:
    """Groups, machines and devices of a Liqid Matrix at one moment.

    devices: by name. machines: unchanged objects by number. inconsistent_devices: names of devices with contradictory records.
    hosts: host name by the name of its compute device.
    """

    devices: Mapping[str, LiqidDevice]
    groups: tuple[MatrixObject, ...] = ()
    machines: Mapping[int, MatrixObject] = field(default_factory=dict)
    inconsistent_devices: frozenset[str] = frozenset()
    hosts: Mapping[str, str] = field(default_factory=dict)

    def find_group(self, name: str) -> MatrixObject | None:
        """Return the group with this name, or None if the Liqid Matrix has none."""
        return next((group for group in self.groups if get_nested(group, "group_name") == name), None)

    def find_machine(self, name: str) -> MatrixObject | None:
        """Return the machine with this name, or None if the Liqid Matrix has none."""
        return next((machine for machine in self.machines.values() if get_nested(machine, "mach_name") == name), None)

    def find_compute_device(self, host: str) -> str:
        """Return the name of a host's compute device, even if the Matrix does not have it."""
        return next((compute for compute, name in self.hosts.items() if name == host), host)

    @cached_property
    def _devices_by_machine(self) -> dict[int, list[LiqidDevice]]:
        """Devices in each machine, by the number of the machine."""
        devices: dict[int, list[LiqidDevice]] = {}
        for device in self.devices.values():
            if device.machine is not None:
                devices.setdefault(device.machine, []).append(device)
        return devices

    def list_devices_in(self, machine: int) -> tuple[LiqidDevice, ...]:
        """Return the devices in the machine with this number."""
        return tuple(self._devices_by_machine.get(machine, ()))

    def list_hosts_in(self, machine: int) -> list[str]:
        """Return the names of the hosts in the machine with this number. Normally there is one.

        Names come from the system file, or from the Matrix for hosts that the system file does not list.
        """
        return [
            self.hosts.get(device.name, device.name) for device in self.list_devices_in(machine) if device.is_compute
        ]

    def find_lease(self, machine: int) -> str | None:
        """Return the lease that created the machine with this number, or None if no lease of this program did.

        A lease created a machine if it marked a device in it and would give the machine this name.
        """
        return self._leases_by_machine.get(machine)

    @cached_property
    def _leases_by_machine(self) -> dict[int, str]:
        """Lease that created each machine, by the number of the machine."""
        leases: dict[int, str] = {}
        for machine in self._devices_by_machine:
            hosts, name = self.list_hosts_in(machine), self.format_machine_name(machine)
            for device in self.list_devices_in(machine):
                tag = device.tag
                if tag is not None and name in {make_machine_name(tag.lease_id, host) for host in hosts}:
                    leases.setdefault(machine, tag.lease_id)
        return leases

    def format_machine_name(self, machine: int) -> str:
        """Return the name of the machine with this number, or the number in hexadecimal form if it has no name."""
        name = get_nested(self.machines.get(machine), "mach_name")
        return name if isinstance(name, str) else f"0x{machine:04x}"

    def find_holder(self, device: LiqidDevice) -> str | None:
        """Return the holder of a device (a lease, a machine or a group), or None if no holder is known.

        The holder is the lease of its mark, unless the device is in a machine of another user.
        """
        tag = device.tag
        if device.machine is not None:
            lease = self.find_lease(device.machine)
            if lease is None:
                return f"machine {self.format_machine_name(device.machine)}"
            return lease if tag is not None else None
        if tag is not None:
            return tag.lease_id
        return None if device.group is None else f"group {device.group_name or device.group}"


def build_snapshot(
    groups: Sequence[Any],
    machines: Mapping[int, MatrixObject],
    predevices: Iterable[Any],
    infos: Mapping[str, Sequence[Any]],
    details: Mapping[int, MatrixObject | None],
    hosts: Mapping[str, str],
) -> MatrixSnapshot:
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
    by_name = {path: {str(get_nested(record, "name")): record for record in records} for path, records in infos.items()}
    devices: dict[str, LiqidDevice] = {}
    for record in predevices:
        device_without_info = parse_device(record, None)
        if device_without_info is None:
            continue
        if device_without_info.name in devices:
            raise ProtocolViolation(f"the Matrix lists two devices named {device_without_info.name}")
        devices[device_without_info.name] = (
            parse_device(record, by_name.get(device_without_info.path, {}).get(device_without_info.name))
            or device_without_info
        )
    valid_groups = tuple(group for group in groups if isinstance(group, Mapping))
    return MatrixSnapshot(
        devices, valid_groups, machines, _find_inconsistent_devices(devices, machines, details), hosts
    )


def _find_inconsistent_devices(
    devices: Mapping[str, LiqidDevice], machines: Mapping[int, MatrixObject], details: Mapping[int, MatrixObject | None]
) -> frozenset[str]:
    """Return the names of devices for which the list of devices and the machine itself disagree.

    Devices without an entry in the list of properties are included.
    """
    names = {device.name for device in devices.values() if not device.device_id}
    for device in devices.values():
        if device.machine is None:
            continue
        machine = machines.get(device.machine)
        has_machine_name = device.machine_name in ("", get_nested(machine, "mach_name"))
        if machine is None or parse_number(get_nested(machine, "grp_id")) != device.group or not has_machine_name:
            names.add(device.name)
    for machine_id, detail in details.items():
        for path, counter in COUNT_KEY_BY_PATH.items():
            names_inside = [d.name for d in devices.values() if d.machine == machine_id and d.path == path]
            count = parse_number(get_nested(detail, counter))
            if detail is None or (count is not None and count != len(names_inside)):
                names.update(names_inside)
    return frozenset(names)
