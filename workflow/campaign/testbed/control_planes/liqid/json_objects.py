"""The JSON of a Matrix: its objects as they are sent, and what must come back in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from campaign.testbed.control_planes.liqid.matrix import Matrix, MatrixDevice, MatrixGroup, MatrixMachine, Refusal

FABR_ID = 1
COORDINATES = {"rack": 0, "shelf": 0, "node": 0}
PATHS = {"comp": "compute", "gpu": "gpu", "targ": "storage", "link": "network", "fpga": "fpga"}
"""Word of a kind of device in status/, predevice/ and relate/."""
INFO_PATHS = {"comp": "cpu", "gpu": "gpu", "targ": "ssd", "link": "link", "fpga": "fpga"}
"""And in device/info/."""
_TYPES = {"comp": "compute", "gpu": "gpu", "targ": "target/SSD", "link": "ethernet_link", "fpga": "fpga"}
"""And as the `device_type` of a record."""
_CLASSES = {"comp": "Compute", "gpu": "Gpu", "targ": "Ssd", "link": "Link", "fpga": "Fpga"}
_CAPACITY_MB = 4_000_000
_NOTE = "site_note"
"""A member that is in no SDK: whoever echoes an object may have dropped it, and may have kept it."""
_COUNTS = {
    "gpu-count": "gpu",
    "storage-drive-count": "targ",
    "network-adapter-count": "link",
    "fpga-count": "fpga",
}


def group_json(group: MatrixGroup) -> dict[str, Any]:
    return {"fabr_id": FABR_ID, "grp_id": group.number, "group_name": group.name, "pod_id": -1}


def machine_json(machine: MatrixMachine) -> dict[str, Any]:
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
        _NOTE: f"made for {machine.name}",
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


def _described(device: MatrixDevice) -> dict[str, Any]:
    """What a device's status and its information have."""
    return {
        "name": device.name,
        "dev_id": device.dev_id,
        "device_type": _TYPES[device.dev_type],
        "device_state": _state(device),
        "conn_type": "pcie",
        "fabric_type": "gen4",
        "fabr_gid": f"0x{device.number:04x}",
        "flags": "0x0000000000000000",
        "index": device.number,
        "location": _location(device),
        "owner": dict(COORDINATES),
        "pod_id": -1,
        "sled_id": "0x00000000",
    }


def status_json(device: MatrixDevice) -> dict[str, Any]:
    own = {"capacity(MB)": _CAPACITY_MB} if device.dev_type == "targ" else {"unique": f"u-{device.name}"}
    return (
        _addressed(device)
        | _described(device)
        | own
        | ({"hconn": "n/a"} if device.dev_type == "comp" else {})
        | {
            "type": f"{_CLASSES[device.dev_type]}DeviceStatus",
            "flags2": "0x0000000000000000",
            "did": "0x2235",
            "vid": "0x10de",
            _NOTE: f"in slot {device.slot}",
        }
    )


def info_json(device: MatrixDevice) -> dict[str, Any]:
    part = device.part
    return _described(device) | {
        "model": device.model,
        "vendor": "emulated",
        "serial_num": "" if part is None else part.serial,
        "udesc": device.text,
        "buswidth": "16",
        "busgen": "4",
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
    counts: dict[str, Any] = {name: inside.count(dev_type) for name, dev_type in _COUNTS.items()}
    counts["cpu-sockets"] = str(inside.count("comp"))
    whole = {"mach_id": machine.number, "mach_name": machine.name, **counts, "os_name": "linux"}
    return whole | {"created": machine.mtime, "modified": machine.mtime}


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
    """Raise Refusal unless `body` has every member that the Matrix gave and the SDKs know, as it gave it; more is ignored."""
    if not isinstance(body, Mapping):
        raise Refusal(f"{what} expected")
    expected = {name: value for name, value in snaked(given).items() if name != _NOTE}
    if wrong := [name for name, value in expected.items() if body.get(name, ...) != value]:
        raise Refusal(f"{what} is not whole: {', '.join(wrong)}")


def member(body: Any, name: str) -> Any:
    return body.get(name) if isinstance(body, Mapping) else None
