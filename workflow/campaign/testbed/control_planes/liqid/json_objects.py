"""The JSON of a Matrix: its objects as they are sent, and what must come back in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from campaign.testbed.control_planes.liqid.matrix import Matrix, MatrixDevice, MatrixGroup, MatrixMachine, Refusal

FABR_ID = 1
COORDINATES = {"rack": 0, "shelf": 0, "node": 0}
PATHS = {"comp": "compute", "gpu": "gpu", "targ": "storage", "link": "network", "fpga": "fpga"}
_CLASSES = {"comp": "Compute", "gpu": "Gpu", "targ": "Ssd", "link": "Link", "fpga": "Fpga"}
_COUNTS = {"cpu-sockets": "comp", "gpu-count": "gpu", "storage-drive-count": "targ"}
_COUNTS |= {"network-adapter-count": "link", "fpga-count": "fpga"}


def group_json(group: MatrixGroup) -> dict[str, Any]:
    return {"fabr_id": FABR_ID, "grp_id": group.number, "group_name": group.name, "pod_id": -1}


def machine_json(machine: MatrixMachine) -> dict[str, Any]:
    """`site_note` is in no SDK: whoever echoes a machine must keep what he does not know."""
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
        "p2p": "off",
        "mtime": machine.mtime,
        "connection_history": [],
        "site_note": f"made for {machine.name}",
    }


def _addressed(device: MatrixDevice) -> dict[str, Any]:
    """What both lists of devices have."""
    return {
        "name": device.name,
        "fabr_id": FABR_ID,
        "fabr_gid": f"0x{device.number:04x}",
        "port_gid": f"0x{0x1000 + device.number:04x}",
        "swit_gid": "0x3001",
        "pod_id": -1,
        "lanes": 16 if device.part is None else device.part.width,
    }


def status_json(device: MatrixDevice) -> dict[str, Any]:
    return _addressed(device) | {
        "type": f"{_CLASSES[device.dev_type]}DeviceStatus",
        "dev_id": device.dev_id,
        "device_type": device.dev_type,
        "device_state": _state(device),
        "location": _location(device),
        "owner": dict(COORDINATES),
        "did": "0x2235",
        "vid": "0x10de",
        "site_note": f"in slot {device.slot}",
    }


def info_json(device: MatrixDevice) -> dict[str, Any]:
    part = device.part
    return {
        "name": device.name,
        "dev_id": device.dev_id,
        "device_type": device.dev_type,
        "device_state": _state(device),
        "location": _location(device),
        "model": device.model,
        "vendor": "emulated",
        "serial_num": "" if part is None else part.serial,
        "udesc": device.text,
        "buswidth": 16,
        "busgen": 4,
    }


def predevice_json(device: MatrixDevice, matrix: Matrix) -> dict[str, Any]:
    """No device id in it: only the name leads to the other lists."""
    group = matrix.groups.get(device.group or 0)
    machine = matrix.machines.get(device.machine or 0)
    return _addressed(device) | {
        "dev_type": device.dev_type,
        "flags": "0x00",
        "grp_id": 0 if group is None else group.number,
        "gname": "n/a" if group is None else group.name,
        "mach_id": "n/a" if machine is None else str(machine.number),
        "mname": "n/a" if machine is None else machine.name,
        "index": str(device.number),
        "owner_id": "0x1",
    }


def details_json(machine: MatrixMachine, matrix: Matrix) -> dict[str, Any]:
    inside = [device.dev_type for device in matrix.devices.values() if device.machine == machine.number]
    counts = {name: inside.count(dev_type) for name, dev_type in _COUNTS.items()}
    return {"mach_id": machine.number, "mach_name": machine.name, **counts, "os_name": "linux"}


def _state(device: MatrixDevice) -> str:
    return "failed" if device.part is not None and "broken" in device.part.quirks else "active"


def _location(device: MatrixDevice) -> dict[str, int]:
    return {"rack": 0, "shelf": device.shelf, "node": device.slot}


def snaked(value: Any) -> Any:
    """The same JSON with the names of its members in snake_case: real peers read both."""
    if isinstance(value, Mapping):
        return {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower(): snaked(each) for key, each in value.items()}
    return [snaked(each) for each in value] if isinstance(value, list) else value


def cameled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {re.sub(r"_([a-z0-9])", lambda m: m[1].upper(), key): cameled(each) for key, each in value.items()}
    return [cameled(each) for each in value] if isinstance(value, list) else value


def echoed(body: Any, given: Mapping[str, Any], what: str) -> None:
    """Raise Refusal unless `body` has every member that the Matrix gave, as it gave it; more is ignored."""
    if not isinstance(body, Mapping):
        raise Refusal(f"{what} expected")
    if wrong := [name for name, value in snaked(given).items() if body.get(name, ...) != value]:
        raise Refusal(f"{what} is not whole: {', '.join(wrong)}")


def member(body: Any, name: str) -> Any:
    return body.get(name) if isinstance(body, Mapping) else None
