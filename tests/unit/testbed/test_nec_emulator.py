"""The emulated CDIM is as strict as its API reference, and moves hardware only by applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.server import Asked, Reply
from campaign.testbed.emulators import open_dialect

P = "/cdim/api/v1"
Ask = Callable[..., Reply]


def client(hardware: Rack, **options: Any) -> Ask:
    dialect = open_dialect("nec", hardware, **options)

    def ask(method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Reply:
        reply = dialect.answer(Asked(method, P + path, query or {}, {}, body, ""))
        assert reply is not None
        return reply

    return ask


def step(number: int, device: str, host: str = "host1", operation: str = "connect", after: tuple[int, ...] = ()) -> Any:
    ends = {"sourceDeviceID": f"eeio-{host}", "destinationDeviceID": device}
    return {"operationID": number, "operation": operation, **ends, "dependencies": list(after)}


@pytest.fixture
def hardware() -> Rack:
    return rack(["host1", "host2"], [("gpu", "a100", 2)])


def test_an_apply_takes_its_time_and_lets_no_other_in(hardware: Rack) -> None:
    ask, gpu = client(hardware, looks=2), hardware.devices["gpu1"]
    reply = ask("POST", "/layout-apply", {"procedures": [step(1, gpu.uuid)]})
    assert (reply.status, len(reply.body["applyID"])) == (202, 10)
    assert ask("POST", "/layout-apply", {"procedures": []}).body["code"] == "E40010"
    path = f"/layout-apply/{reply.body['applyID']}"
    assert [ask("GET", path).body["status"] for _ in range(3)] == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED"]
    assert gpu.attached_to == "host1"
    (node, _) = ask("GET", "/nodes").body["nodes"]
    assert [part["device"]["deviceID"] for part in node["resources"]] == ["eeio-host1", gpu.uuid]
    assert ask("PUT", path, query={"action": "cancel"}).body["code"] == "E40022"


def test_steps_wait_for_what_they_depend_on(hardware: Rack) -> None:
    ask, gpu = client(hardware), hardware.devices["gpu1"]
    hardware.attach("gpu1", "host2")
    steps = [step(1, gpu.uuid, after=(2,)), step(2, gpu.uuid, "host2", "disconnect")]
    number = ask("POST", "/layout-apply", {"procedures": steps}).body["applyID"]
    assert ask("GET", f"/layout-apply/{number}").body["status"] == "COMPLETED"
    assert gpu.attached_to == "host1"


def test_nothing_is_attached_twice(hardware: Rack) -> None:
    ask, gpu = client(hardware), hardware.devices["gpu1"]
    hardware.attach("gpu1", "host2")
    for wrong in (step(1, gpu.uuid), step(1, gpu.uuid, operation="disconnect"), step(1, "no-such-device")):
        number = ask("POST", "/layout-apply", {"procedures": [wrong]}).body["applyID"]
        assert ask("GET", f"/layout-apply/{number}").body["status"] == "FAILED"
    assert gpu.attached_to == "host2"


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"procedures": "none"},
        {"procedures": [{"operation": "connect"}]},
        {"procedures": [step(1, "x"), step(1, "y")]},
        {"procedures": [step(1, "x", after=(7,))]},
        {"procedures": [step(1, "x") | {"dependencies": 1}]},
        {"procedures": [step(1, "x", operation="reboot")]},
        {"procedures": [step(1, "x") | {"targetCPUID": "y"}]},
    ],
    ids=str,
)
def test_what_the_schema_forbids_is_refused(body: Any, hardware: Rack) -> None:
    assert client(hardware)("POST", "/layout-apply", body).status == 400


def test_a_suspended_apply_blocks_until_it_is_cancelled(hardware: Rack) -> None:
    ask = client(hardware, ends="SUSPENDED", after=1)
    steps = [step(number, hardware.devices[f"gpu{number}"].uuid) for number in (1, 2)]
    path = "/layout-apply/" + ask("POST", "/layout-apply", {"procedures": steps}).body["applyID"]
    assert ask("GET", path).body["status"] == "SUSPENDED"
    assert len(hardware.free()) == 1
    assert ask("POST", "/layout-apply", {"procedures": []}).body["code"] == "E40027"
    assert ask("PUT", path, query={"action": "cancel"}).body["status"] == "FAILED"
    assert ask("POST", "/layout-apply", {"procedures": []}).status == 202


def test_what_is_rolled_back_is_undone(hardware: Rack) -> None:
    ask = client(hardware, ends="CANCELED", after=1, rollback="COMPLETED")
    steps = [step(number, hardware.devices[f"gpu{number}"].uuid) for number in (1, 2)]
    number = ask("POST", "/layout-apply", {"procedures": steps}).body["applyID"]
    found = ask("GET", f"/layout-apply/{number}").body
    assert (found["status"], found["rollbackStatus"]) == ("CANCELED", "COMPLETED")
    assert len(hardware.free()) == 2
