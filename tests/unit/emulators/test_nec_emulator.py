"""The emulated CDIM is as strict as its API reference, and moves hardware only by applies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from campaign.emulators.catalog import open_emulator
from campaign.emulators.control_planes.hardware import Rack, rack
from campaign.emulators.control_planes.server import Asked, Reply

P = "/cdim/api/v1"
SCHEMA = json.loads((Path(__file__).parents[2] / "data" / "fabrics" / "nec" / "layout_apply_schema.json").read_text())
PUBLIC_CLIENT = {
    "operationID": 1,
    "operation": "connect",
    "sourceDeviceID": "io",
    "destinationDeviceID": "x",
    "dependencies": [],
}
Ask = Callable[..., Reply]


def client(hardware: Rack, **options: Any) -> Ask:
    emulator = open_emulator("nec", hardware, **options)

    def ask(method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Reply:
        part = "layout-apply" if path.startswith("/layout-apply") else "configuration-manager"
        reply = emulator.answer(Asked(method, P + path, query or {}, {}, body, "", part=part))
        assert reply is not None
        return reply

    return ask


def step(number: int, device: str, host: str = "host1", operation: str = "connect", after: tuple[int, ...] = ()) -> Any:
    ends = {"targetCPUID": f"cpu-{host}", "targetDeviceID": device}
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
    ask("GET", "/resources")  # which is when both lists are brought up to date
    (node, _) = ask("GET", "/nodes").body["nodes"]
    assert [part["device"]["deviceID"] for part in node["resources"]] == ["cpu-host1", gpu.uuid]
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


BODIES = [
    None,
    {},
    [],
    {"procedures": "none"},
    {"procedures": []},
    {"procedures": [7]},
    {"procedures": [{"operation": "connect"}]},
    {"procedures": [step(1, "x")]},
    {"procedures": [step(1, "")]},
    {"procedures": [step(1, "x") | {"operationID": "1"}]},
    {"procedures": [step(1, "x") | {"operationID": True}]},
    {"procedures": [step(1, "x") | {"dependencies": 1}]},
    {"procedures": [step(1, "x") | {"dependencies": ["1"]}]},
    {"procedures": [step(1, "x", operation="reboot")]},
    {"procedures": [step(1, "x") | {"more": 1}]},
    {"procedures": [{"operationID": 1, "operation": "boot", "targetDeviceID": "c", "dependencies": []}]},
    {"procedures": [{"operationID": 1, "operation": "boot", "targetCPUID": "c", "dependencies": []}]},
    {"procedures": [{"operationID": 1, "operation": "stop", "targetCPUID": "c", "dependencies": []}]},
    # What a public client of the product sends, alone and beside what the schema asks for.
    {"procedures": [PUBLIC_CLIENT]},
    {"procedures": [step(1, "x") | PUBLIC_CLIENT]},
]


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_what_the_schema_of_layout_apply_forbids_is_refused_and_nothing_else(body: Any, hardware: Rack) -> None:
    allowed = jsonschema.Draft202012Validator(SCHEMA["schema"]).is_valid(body)
    assert client(hardware)("POST", "/layout-apply", body).status == (202 if allowed else 400)


def test_a_key_that_its_worker_does_not_know_ends_it_for_everybody(hardware: Rack) -> None:
    ask, gpu = client(hardware), hardware.devices["gpu1"]
    number = ask("POST", "/layout-apply", {"procedures": [step(1, gpu.uuid) | PUBLIC_CLIENT]}).body["applyID"]
    assert {ask("GET", f"/layout-apply/{number}").body["status"] for _ in range(5)} == {"IN_PROGRESS"}
    assert ask("POST", "/layout-apply", {"procedures": []}).body["code"] == "E40010"
    reply = ask("PUT", f"/layout-apply/{number}", query={"action": "cancel"})
    assert (reply.status, reply.body["code"]) == (409, "E40028")


def test_a_step_that_waits_for_one_that_is_not_there_never_ends(hardware: Rack) -> None:
    ask = client(hardware)
    steps = [step(1, hardware.devices["gpu1"].uuid, after=(7,))]
    number = ask("POST", "/layout-apply", {"procedures": steps}).body["applyID"]
    assert {ask("GET", f"/layout-apply/{number}").body["status"] for _ in range(5)} == {"IN_PROGRESS"}


def test_services_have_their_own_addresses(hardware: Rack) -> None:
    emulator: Any = open_emulator("nec", hardware)
    for part, path, status in (
        ("configuration-manager", "/resources", 200),
        ("configuration-manager", "/layout-apply", 404),
        ("layout-apply", "/layout-apply", 200),
        ("layout-apply", "/nodes", 404),
    ):
        assert emulator.answer(Asked("GET", P + path, {}, {}, None, "", part=part)).status == status


def test_a_suspended_apply_blocks_until_it_is_cancelled(hardware: Rack) -> None:
    ask = client(hardware, ends="SUSPENDED", after=1)
    steps = [step(number, hardware.devices[f"gpu{number}"].uuid) for number in (1, 2)]
    path = "/layout-apply/" + ask("POST", "/layout-apply", {"procedures": steps}).body["applyID"]
    assert ask("GET", path).body["status"] == "SUSPENDED"
    assert len(hardware.free()) == 1
    assert ask("POST", "/layout-apply", {"procedures": []}).body["code"] == "E40027"
    assert ask("PUT", path, query={"action": "cancel"}).body["status"] == "FAILED"
    assert ask("POST", "/layout-apply", {"procedures": []}).status == 202
