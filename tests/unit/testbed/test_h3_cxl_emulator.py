"""The emulated CXL box: the life of a memory as its one public client sees it, and nothing that this client never sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from campaign.testbed.control_planes.h3 import CxlBoxes, open_dialect
from campaign.testbed.control_planes.h3.cxl import DEVICE_PORTS, HOST_PORTS, MAPPING, SWITCH
from campaign.testbed.control_planes.hardware import rack
from campaign.testbed.control_planes.server import Asked, Reply

JSON = {"Content-Type": "application/json; charset=UTF-8"}


def box(**options: Any) -> CxlBoxes:
    found = open_dialect(rack(["host1", "host2"], [("memory", "cxl-128", 4)], drawers=1), api="cxl", **options)
    assert isinstance(found, CxlBoxes)
    return found


def ask(dialect: CxlBoxes, method: str, path: str, body: Any = None, headers: Mapping[str, str] = JSON) -> Reply:
    return dialect.answer(Asked(method, path, {}, headers, body, json.dumps(body), part="drawer1"))


def compose(port: int, entry: int | None = None) -> dict[str, str]:
    place = DEVICE_PORTS.index(port) if entry is None else entry
    return {"DSPort": str(port), "EntryIdx": str(place), "Operation": "compose"}


def assign(memory: str, port: int) -> dict[str, str]:
    return {"USPort": str(port), "MemoryId": memory, "Operation": "assign"}


def delete(memory: str) -> dict[str, str]:
    return {"MemoryId": memory, "Operation": "delete"}


def states(dialect: CxlBoxes) -> dict[str, int]:
    devices = ask(dialect, "POST", f"{SWITCH}/CXLDevices").body["CXLDevices"]
    return {device["PortNumber"]: device["CompositionState"] for device in devices}


@pytest.mark.parametrize(
    ("unassigned", "shown"), [("no_key", {}), ("empty", {"HostPort": ""}), ("na", {"HostPort": "NA"})]
)
def test_a_memory_lives_from_compose_to_delete(unassigned: str, shown: dict[str, str]) -> None:
    dialect = box(unassigned=unassigned)
    assert ask(dialect, "GET", "/h3api/v1/Switches").body["Switches"] == ["0"]
    ports = {port["PortNumber"]: port for port in ask(dialect, "POST", f"{SWITCH}/Ports").body["Ports"]}
    host = next(n for n, port in ports.items() if port["PortType"] == "USP" and port["HostPlatformDetected"] == "host2")
    assert ask(dialect, "GET", f"{SWITCH}/Ports/{host}").body["PCIeType"].lower() == "gen5"
    memory = ask(dialect, "POST", MAPPING, compose(2)).body["MemoryId"]
    assert states(dialect) == {"0": 0, "1": 0, "2": 1, "3": 0}
    assert ask(dialect, "GET", MAPPING).body["VCSMapping"] == {memory: {"DS": "2", **shown}}
    assert ask(dialect, "POST", MAPPING, assign(memory, int(host))).status == 200
    assert dialect.rack.devices["memory3"].attached_to == "host2"
    assert ask(dialect, "GET", MAPPING).body["VCSMapping"] == {memory: {"DS": "2", "HostPort": host}}
    assert ask(dialect, "DELETE", f"{MAPPING}/{memory}").body is None
    assert ask(dialect, "GET", MAPPING).body["VCSMapping"] == {memory: {"DS": "2", **shown}}
    assert ask(dialect, "POST", MAPPING, delete(memory)).status == 200
    assert states(dialect)["2"] == 0
    assert dialect.rack.free() == list(dialect.rack.devices)
    assert dialect.violations == []


def test_the_entry_of_a_device_port_is_fixed() -> None:
    assert [(port, DEVICE_PORTS.index(port)) for port in (0, 7, 13, 23, 29, 31)] == [
        (0, 0), (7, 7), (13, 8), (23, 18), (29, 19), (31, 21),
    ]  # fmt: skip


def test_redfish_is_there_as_far_as_the_client_reads_it() -> None:
    dialect = box()
    assert ask(dialect, "GET", "/redfish/v1").body.keys() == {"Chassis", "Fabrics"}
    (chassis,) = ask(dialect, "GET", "/redfish/v1/Chassis").body["Members"]
    assert ask(dialect, "GET", chassis["@odata.id"]).body.keys() == {"SerialNumber", "PCIeDevices"}


NEVER_SENT: dict[str, tuple[Any, ...]] = {
    "a slash at the end": ("GET", "/redfish/v1/"),
    "a read of all ports": ("GET", f"{SWITCH}/Ports"),
    "a path of an older page": ("PATCH", "/h3api/v1/CXLDevices/1/MemChunks/1"),
    "a body of a read": ("GET", MAPPING, {}),
    "a number for a string": ("POST", MAPPING, compose(2) | {"EntryIdx": 2}),
    "the entry of another port": ("POST", MAPPING, compose(2, 3)),
    "no such module": ("POST", MAPPING, compose(5)),
    "composed twice": ("POST", MAPPING, compose(1)),
    "assigned twice": ("POST", MAPPING, assign("1", HOST_PORTS[1])),
    "assigned to a device port": ("POST", MAPPING, assign("1", 3)),
    "assigned while unknown": ("POST", MAPPING, assign("9", HOST_PORTS[0])),
    "deleted while assigned": ("POST", MAPPING, delete("1")),
    "unassigned while unknown": ("DELETE", f"{MAPPING}/9"),
    "without a content type": ("GET", MAPPING, None, {}),
    "with a login": ("GET", MAPPING, None, JSON | {"Authorization": "Basic eDp5"}),
}


@pytest.mark.parametrize("name", NEVER_SENT)
def test_what_the_client_never_sent_is_refused_and_noted(name: str) -> None:
    dialect = box()
    ask(dialect, "POST", MAPPING, compose(1))
    ask(dialect, "POST", MAPPING, assign("1", HOST_PORTS[0]))
    assert ask(dialect, *NEVER_SENT[name]).status == 400
    assert len(dialect.violations) == 1
    assert len(dialect.rack.free()) == 3


def test_what_does_not_fit_in_a_cxl_box_is_none() -> None:
    with pytest.raises(ValueError, match="gpu1 is none"):
        open_dialect(rack(["host1"], [("gpu", "a100", 1)]), api="cxl")
    with pytest.raises(ValueError, match="22 modules"):
        open_dialect(rack(["host1"], [("memory", "cxl-128", 23)], drawers=1), api="cxl")
