"""State and rules of an emulated Matrix: devices, groups, machines, and the two kinds of editing, with their JSON forms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from campaign.emulators.control_planes.hardware import Rack, RackDevice, RackError

MAX_MACHINE_ID = 0x3FFF
_CREATION_TIME = 1_767_225_600_000
"""Creation time of machines, in an undocumented unit."""
LIQID_DEVICE_TYPES = {"gpu": "gpu", "nvme": "targ", "nic": "link", "fpga": "fpga"}
"""Liqid's type of a device by its kind in the rack. Compute devices have the type `comp`."""
_ERROR_TYPES = {400: "BAD_REQUEST", 401: "UNAUTHORIZED", 403: "FORBIDDEN", 404: "NOT_FOUND", 409: "CONFLICT"}
_ERROR_TYPES |= {422: "UNPROCESSABLE", 500: "INTERNAL"}


class LiqidRefusal(Exception):
    """Error for a request that the Matrix refuses. Nothing was changed."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.type = _ERROR_TYPES[code]


@dataclass
class MatrixDevice:
    """One device of the Matrix.

    A device without a group is in the free pool of the system. A device without a machine is in the free pool of its group.
    """

    name: str
    dev_type: str
    number: int
    rack_device: RackDevice | None
    model: str
    shelf: int
    slot: int
    group: int | None = None
    machine: int | None = None
    description: str = ""

    @property
    def dev_id(self) -> str:
        """Device id in the form of Liqid."""
        return f"0x{self.number:08x}"


@dataclass
class MatrixGroup:
    """Group of devices and machines."""

    number: int
    name: str
    editing: bool = False
    pending: dict[str, bool] = field(default_factory=dict)  # By device: True if it is added, False if it is removed.


@dataclass
class MatrixMachine:
    """Machine: one compute device and the devices attached to it."""

    number: int
    group: int
    name: str
    comp_name: str
    mtime: int
    p2p: str = "off"
    pending: dict[str, bool] = field(default_factory=dict)


class LiqidMatrix:
    """State of a Matrix. The methods enforce its rules."""

    def __init__(self, rack: Rack, computes: Mapping[str, str], groups: Sequence[str]) -> None:
        """Create the Matrix for a rack.

        Args:
            rack: emulated hardware.
            computes: name of each host's compute device, by host name.
            groups: names of the existing groups.
        """
        self.rack = rack
        self.hosts = {computes.get(host, host): host for host in rack.hosts}
        self.devices: dict[str, MatrixDevice] = {}
        for index, name in enumerate(self.hosts):
            self.devices[name] = MatrixDevice(name, "comp", index + 1, None, "compute", 0, index + 1)
        shelves = {drawer: n for n, drawer in enumerate(dict.fromkeys(d.drawer for d in rack.devices.values()), 1)}
        for index, rack_device in enumerate(rack.devices.values()):
            self.devices[rack_device.name] = MatrixDevice(
                rack_device.name,
                LIQID_DEVICE_TYPES[rack_device.kind],
                0x1001 + index,
                rack_device,
                rack_device.model,
                shelves[rack_device.drawer],
                rack_device.slot,
            )
        self.groups = {number: MatrixGroup(number, name) for number, name in enumerate(groups, 1)}
        self.machines: dict[int, MatrixMachine] = {}
        self.editing: int | None = None

    def find_group(self, number: object) -> MatrixGroup:
        """Return a group by number. Raises LiqidRefusal if there is none."""
        if not isinstance(number, int) or number not in self.groups:
            raise LiqidRefusal(f"Group {number} does not exist", 404)
        return self.groups[number]

    def add_group(self, number: object, name: object) -> MatrixGroup:
        """Add an empty group. Raises LiqidRefusal if the number or the name cannot be used."""
        if not isinstance(number, int) or number <= 0 or number in self.groups:
            raise LiqidRefusal(f"Group id {number} is not usable")
        if not isinstance(name, str) or not name or name in {group.name for group in self.groups.values()}:
            raise LiqidRefusal(f"Group name {name!r} is not usable")
        self.groups[number] = MatrixGroup(number, name)
        return self.groups[number]

    def remove_group(self, number: int) -> None:
        """Remove a group with its machines. Its devices go to the free pool of the system."""
        if self.find_group(number).editing:
            raise LiqidRefusal(f"Group {number} is already being edited", 409)
        machine_numbers = [machine.number for machine in self.machines.values() if machine.group == number]
        for machine in machine_numbers:
            self._reject_if_edited(machine)
        for machine in machine_numbers:
            self.remove_machine(machine)
        for device in self.devices.values():
            if device.group == number:
                device.group = None
        del self.groups[number]

    def begin_pool_edit(self, number: object) -> None:
        """Begin to edit the pool of a group. Only one group can be edited at a time, and none while a machine is edited."""
        group = self.find_group(number)
        if (
            edited_group := next((candidate for candidate in self.groups.values() if candidate.editing), None)
        ) is not None:
            raise LiqidRefusal(f"Group {edited_group.number} is already being edited", 409)
        if self.editing is not None:
            self._reject_if_edited(self.editing)
        group.editing = True

    def finish_pool_edit(self, number: object, *, keep: bool) -> None:
        """End the edit of a pool. If `keep` is False, the changes are discarded."""
        group = self.find_group(number)
        if not group.editing:
            raise LiqidRefusal(f"Group {number} is not in edit mode")
        for name, is_added in group.pending.items() if keep else ():
            self.devices[name].group = group.number if is_added else None
        group.pending.clear()
        group.editing = False

    def change_pool_member(self, number: object, name: object, *, add: bool) -> None:
        """Add a device to the edited pool of a group, or remove it."""
        group, device = self.find_group(number), self.find_device(name)
        if not group.editing:
            raise LiqidRefusal(f"Group {number} is not in edit mode")
        if any(device.name in any_group.pending for any_group in self.groups.values()):
            raise LiqidRefusal(f"Device {name} is already part of an edit")
        if add and device.group is not None:
            raise LiqidRefusal(f"Device {name} belongs to group {device.group} already")
        if not add and (device.group != group.number or device.machine is not None):
            raise LiqidRefusal(f"Device {name} is not in the free pool of group {number}")
        group.pending[device.name] = add

    def find_machine(self, number: object) -> MatrixMachine:
        """Return a machine by number. Raises LiqidRefusal if there is none."""
        if not isinstance(number, int) or number not in self.machines:
            raise LiqidRefusal(f"Machine {number} does not exist", 404)
        return self.machines[number]

    def add_machine(self, number: object, group: object, name: object, comp_name: object) -> MatrixMachine:
        """Add an empty machine to a group. Raises LiqidRefusal if the number or the name cannot be used."""
        self.find_group(group)
        if not isinstance(number, int) or not 1 <= number <= MAX_MACHINE_ID or number in self.machines:
            raise LiqidRefusal(f"Machine id {number} is not usable")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9]+", name):
            raise LiqidRefusal(f"Machine name {name!r} must be letters and digits", 422)
        if name in {machine.name for machine in self.machines.values()}:
            raise LiqidRefusal(f"Machine name {name} exists already")
        assert isinstance(group, int)  # find_group() refuses any other type.
        self.machines[number] = MatrixMachine(number, group, name, str(comp_name or name), _CREATION_TIME)
        return self.machines[number]

    def remove_machine(self, number: int) -> None:
        """Remove a machine. Its devices go to the free pool of its group, not to that of the system."""
        self.find_machine(number)
        self._reject_if_edited(number)
        for device in self.devices.values():
            if device.machine == number:
                device.machine = None
                if device.rack_device is not None:
                    self.rack.detach(device.rack_device.name)
        del self.machines[number]

    def begin_machine_edit(self, number: object) -> None:
        """Begin to edit a machine. Only one machine can be edited at a time."""
        machine = self.find_machine(number)
        if self.editing is not None:
            self._reject_if_edited(self.editing)
        self.editing = machine.number

    def _reject_if_edited(self, number: int) -> None:
        """Raise LiqidRefusal if the machine is being edited."""
        if self.editing == number:
            raise LiqidRefusal(f"Machine 0x{number:04x} is already being edited", 409)

    def _find_edited_machine(self, number: object) -> MatrixMachine:
        """Return the machine if it is being edited. Raises LiqidRefusal otherwise."""
        machine = self.find_machine(number)
        if self.editing != machine.number:
            raise LiqidRefusal(f"Machine 0x{machine.number:04x} is not being edited")
        return machine

    def cancel_machine_edit(self, number: object) -> None:
        """End the edit of a machine and discard the changes."""
        self._find_edited_machine(number).pending.clear()
        self.editing = None

    def relate_device(self, number: object, name: object, *, add: bool) -> None:
        """Add a device to the edited machine, or remove it. The change takes effect with `reprogram_machine`."""
        machine, device = self._find_edited_machine(number), self.find_device(name)
        if device.name in machine.pending:
            raise LiqidRefusal(f"Device {name} is already part of the edit")
        if add and (device.group != machine.group or device.machine is not None):
            raise LiqidRefusal(f"Device {name} is not in the free pool of group {machine.group}")
        if not add and device.machine != machine.number:
            raise LiqidRefusal(f"Device {name} is not in machine 0x{machine.number:04x}")
        machine.pending[device.name] = add

    def reprogram_machine(self, number: object) -> None:
        """Apply the changes of an edited machine: all its devices are connected and disconnected now, or none."""
        machine = self._find_edited_machine(number)
        member_names = {name for name, device in self.devices.items() if device.machine == machine.number}
        member_names |= {name for name, is_added in machine.pending.items() if is_added}
        member_names -= {name for name, is_added in machine.pending.items() if not is_added}
        computes = [name for name in member_names if self.devices[name].dev_type == "comp"]
        if len(computes) > 1:
            raise LiqidRefusal(f"Machine 0x{machine.number:04x} would have {len(computes)} compute devices")
        host = self.hosts[computes[0]] if computes else None
        self._check_cabling(member_names, host)
        for name, is_added in machine.pending.items():
            self.devices[name].machine = machine.number if is_added else None
        for device in self.devices.values():
            if device.rack_device is not None and (device.name in member_names or device.name in machine.pending):
                if host is not None and device.name in member_names:
                    self.rack.attach(device.rack_device.name, host)
                else:
                    self.rack.detach(device.rack_device.name)
        machine.comp_name = computes[0] if computes else machine.name
        machine.pending.clear()
        self.editing = None

    def set_p2p(self, number: object, p2p: object) -> MatrixMachine:
        """Switch peer-to-peer access between the GPUs of a machine.

        Raises LiqidRefusal if the setting is unchanged, or if the machine has fewer than two GPUs.
        """
        machine = self.find_machine(number)
        self._reject_if_edited(machine.number)
        gpus = [device for device in self.devices.values() if device.machine == number and device.dev_type == "gpu"]
        if p2p not in ("on", "off") or p2p == machine.p2p:
            raise LiqidRefusal(f"P2P of machine 0x{machine.number:04x} is {machine.p2p} already")
        if len(gpus) < 2:
            raise LiqidRefusal(f"Machine 0x{machine.number:04x} has {len(gpus)} GPUs")
        machine.p2p = str(p2p)
        return machine

    def _check_cabling(self, member_names: set[str], host: str | None) -> None:
        """Check that the devices work and that the host is cabled to their drawers. Raises LiqidRefusal otherwise."""
        for name in sorted(member_names):
            rack_device = self.devices[name].rack_device
            if rack_device is None or host is None:
                continue
            if "broken" in rack_device.quirks:
                raise LiqidRefusal(f"Device {name} did not come up", 500)
            if rack_device.drawer not in self.rack.hosts[host].drawers:
                raise LiqidRefusal(str(RackError(f"{host} is not cabled to {rack_device.drawer}")))

    def find_device(self, name: object) -> MatrixDevice:
        """Return a device by name. Raises LiqidRefusal if there is none."""
        if not isinstance(name, str) or name not in self.devices:
            raise LiqidRefusal(f"Device {name} does not exist", 404)
        return self.devices[name]

    def find_device_by_id(self, dev_type: str, dev_id: str) -> MatrixDevice:
        """Return a device by type and id. Raises LiqidRefusal if there is none."""
        for device in self.devices.values():
            if device.dev_type == dev_type and device.dev_id == dev_id.lower():
                return device
        raise LiqidRefusal(f"Device {dev_type} {dev_id} does not exist", 404)

    @property
    def is_idle(self) -> bool:
        """True if no group and no machine is in edit mode."""
        return self.editing is None and not any(group.editing for group in self.groups.values())


FABR_ID = 1
COORDINATES = {"rack": 0, "shelf": 0, "node": 0}
DEVICE_PATHS = {"comp": "compute", "gpu": "gpu", "targ": "storage", "link": "network", "fpga": "fpga"}
"""Word for each type of device in the paths status/, predevice/ and relate/."""
DEVICE_INFO_PATHS = {"comp": "cpu", "gpu": "gpu", "targ": "ssd", "link": "link", "fpga": "fpga"}
"""Word for each type of device in the path device/info/."""
_DEVICE_TYPE_NAMES = {"comp": "compute", "gpu": "gpu", "targ": "target/SSD", "link": "ethernet_link", "fpga": "fpga"}
"""Value of `device_type` in a record, for each type of device."""
_STATUS_CLASSES = {"comp": "Compute", "gpu": "Gpu", "targ": "Ssd", "link": "Link", "fpga": "Fpga"}
_CAPACITY_MB = 4_000_000
_EXTRA_MEMBER = "site_note"
"""Member that no SDK has. A client that echoes an object may keep it or drop it."""
_UNCHECKED_MEMBERS = (_EXTRA_MEMBER, "flags", "hconn")
"""Members that are not compared. The Java SDK receives the last two as hexadecimal text and sends numbers back."""
_DETAIL_COUNT_TYPES = {
    "gpu-count": "gpu",
    "storage-drive-count": "targ",
    "network-adapter-count": "link",
    "fpga-count": "fpga",
}


def group_to_json(group: MatrixGroup) -> dict[str, Any]:
    """Convert a group to the JSON object of the REST API."""
    return {"fabr_id": FABR_ID, "grp_id": group.number, "group_name": group.name, "pod_id": -1}


def machine_to_json(machine: MatrixMachine) -> dict[str, Any]:
    """Convert a machine to the JSON object of the REST API."""
    return {
        "index": machine.number - 1,
        "mach_id": machine.number,
        "grp_id": machine.group,
        "fabr_id": FABR_ID,
        "fabr_gid": f"0x{0x100 + machine.number:04x}",
        "port_gid": f"0x{0x200 + machine.number:04x}",
        "swit_gid": "0x3001",
        "comp_name": machine.comp_name,
        "mach_name": machine.name,
        "p2p": machine.p2p,
        "mtime": machine.mtime,
        "connection_history": [],
        _EXTRA_MEMBER: f"made for {machine.name}",
    }


def _build_address_members(device: MatrixDevice) -> dict[str, Any]:
    """Return the members that both lists of devices have in common."""
    return {
        "name": device.name,
        "fabr_id": FABR_ID,
        "fabr_gid": f"0x{device.number:04x}",
        "port_gid": f"0x{0x1000 + device.number:04x}",
        "swit_gid": "0x3001",
        "pod_id": -1,
        "lanes": 16 if device.rack_device is None else device.rack_device.width,
    }


def _build_description_members(device: MatrixDevice) -> dict[str, Any]:
    """Return the members that the status and the information of a device have in common."""
    return {
        "name": device.name,
        "dev_id": device.dev_id,
        "device_type": _DEVICE_TYPE_NAMES[device.dev_type],
        "device_state": _get_device_state(device),
        "conn_type": "pcie",
        "fabric_type": "gen4",
        "fabr_gid": f"0x{device.number:04x}",
        "flags": "0x0000000000000000",
        "index": device.number,
        "location": _build_device_location(device),
        "owner": dict(COORDINATES),
        "pod_id": -1,
        "sled_id": "0x00000000",
    }


def status_to_json(device: MatrixDevice) -> dict[str, Any]:
    """Convert a device to the JSON object of its status."""
    extra_members: dict[str, Any] = (
        {"capacity(MB)": _CAPACITY_MB} if device.dev_type == "targ" else {"unique": f"u-{device.name}"}
    )
    extra_members |= {"hconn": "n/a"} if device.dev_type == "comp" else {}
    kind, ids = f"{_STATUS_CLASSES[device.dev_type]}DeviceStatus", {"did": "0x2235", "vid": "0x10de"}
    extra_members |= {"type": kind, "flags2": "0x0000000000000000", **ids, _EXTRA_MEMBER: f"in slot {device.slot}"}
    return _build_address_members(device) | _build_description_members(device) | extra_members


def info_to_json(device: MatrixDevice) -> dict[str, Any]:
    """Convert a device to the JSON object of its information."""
    rack_device = device.rack_device
    return _build_description_members(device) | {
        "model": device.model,
        "vendor": "emulated",
        "serial_num": "" if rack_device is None else rack_device.serial,
        "udesc": device.description,
        "buswidth": "16",
        "busgen": "4",
    }


def predevice_to_json(device: MatrixDevice, matrix: LiqidMatrix) -> dict[str, Any]:
    """Convert a device to its JSON object in the list of predevices.

    It has no device id, so only the name links it to the other lists.
    """
    group = matrix.groups.get(device.group or 0)
    machine = matrix.machines.get(device.machine or 0)
    return _build_address_members(device) | {
        "dev_type": device.dev_type,
        "flags": "0x00",
        "grp_id": 0 if group is None else group.number,
        "gname": "n/a" if group is None else group.name,
        "mach_id": "n/a" if machine is None else str(machine.number),
        "mname": "n/a" if machine is None else machine.name,
        "index": str(device.number),
        "owner_id": "0x1",
    }


def machine_details_to_json(machine: MatrixMachine, matrix: LiqidMatrix) -> dict[str, Any]:
    """Convert a machine to the JSON object of its details, with the number of its devices."""
    member_types = [device.dev_type for device in matrix.devices.values() if device.machine == machine.number]
    counts: dict[str, Any] = {name: member_types.count(dev_type) for name, dev_type in _DETAIL_COUNT_TYPES.items()}
    counts["cpu-sockets"] = str(member_types.count("comp"))
    details = {"mach_id": machine.number, "mach_name": machine.name, **counts, "os_name": "linux"}
    return details | {"created": machine.mtime, "modified": machine.mtime}


def group_details_to_json(group: MatrixGroup, matrix: LiqidMatrix) -> dict[str, Any]:
    """Convert a group to the JSON object of its details, with the number of its devices and machines."""
    member_types = [device.dev_type for device in matrix.devices.values() if device.group == group.number]
    counts = {"cpu-count": "comp", "storage-drive-count": "targ", "network-adapter-count": "link"}
    machines = sum(machine.group == group.number for machine in matrix.machines.values())
    type_counts: dict[str, Any] = {name: member_types.count(dev_type) for name, dev_type in counts.items()}
    return {"grp_id": group.number, "group_name": group.name, **type_counts, "total-machines": machines}


def device_counts_to_json(matrix: LiqidMatrix) -> dict[str, int]:
    """Return the number of devices of the Matrix by type."""
    types = [device.dev_type for device in matrix.devices.values()]
    return {f"{dev_type}_cnt": types.count(dev_type) for dev_type in (*DEVICE_PATHS, "plx")}


def _get_device_state(device: MatrixDevice) -> str:
    """Return the state that the Matrix reports for a device."""
    return "failed" if device.rack_device is not None and "broken" in device.rack_device.quirks else "active"


def _build_device_location(device: MatrixDevice) -> dict[str, int]:
    """Return the location that the Matrix reports for a device."""
    return {"rack": 0, "shelf": device.shelf, "node": device.slot}


def to_snake_case(value: Any) -> Any:
    """Return JSON data with member names in snake_case, because the Java SDK uses both forms."""
    if isinstance(value, Mapping):
        return {
            re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower(): to_snake_case(item) for key, item in value.items()
        }
    return [to_snake_case(item) for item in value] if isinstance(value, list) else value


def check_echoed_object(body: Any, original: Mapping[str, Any], object_type: str) -> None:
    """Check that a client sent back an object completely and unchanged. Additional members are ignored.

    Only members that the SDKs have are compared. Raises LiqidRefusal if one is missing or changed.
    """
    if not isinstance(body, Mapping):
        raise LiqidRefusal(f"{object_type} expected")
    expected_members = {
        name: value for name, value in to_snake_case(original).items() if name not in _UNCHECKED_MEMBERS
    }
    if differing_names := [name for name, value in expected_members.items() if body.get(name, ...) != value]:
        raise LiqidRefusal(f"{object_type} is not whole: {', '.join(differing_names)}")


def get_member(body: Any, name: str) -> Any:
    """Return a member of a JSON object, or None if it is missing or the value is not an object."""
    return body.get(name) if isinstance(body, Mapping) else None
