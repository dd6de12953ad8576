"""The emulated Redfish service is strict: what real hardware cannot do, it refuses, in the words of the registries."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.redfish import RedfishEmulator, ServiceVariant, open_emulator
from campaign.emulators.control_planes.server import HttpRequest, Reply

BLOCKS = "/redfish/v1/CompositionService/ResourceBlocks"
SYSTEMS = "/redfish/v1/Systems"
LOGIN = f"{ServiceVariant().user}:{ServiceVariant().password}"


@pytest.fixture
def hardware() -> Rack:
    return build_rack({"host1": ["drawer1", "drawer2"], "host2": ["drawer2"]}, [("gpu", "a100", 4), ("nvme", "ssd", 2)])


def ask(emulator: RedfishEmulator, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    split, _, query = path.partition("?")
    pairs = dict(pair.split("=", 1) for pair in query.split("&")) if query else {}
    login = {"Authorization": f"Basic {b64encode(LOGIN.encode()).decode()}"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    text = "" if body is None else json.dumps(body)
    return emulator.answer(HttpRequest(method, split, pairs, login | named, body, text))


def system(*blocks: str, name: str = "s") -> dict[str, Any]:
    return {"Name": name, "Links": {"ResourceBlocks": [{"@odata.id": f"{BLOCKS}/{block}"} for block in blocks]}}


def message(reply: Reply) -> str:
    return str(reply.body["error"]["code"]).rpartition(".")[2]


def test_the_odd_variant_has_the_shapes_that_were_recorded(hardware: Rack) -> None:
    data = Path(__file__).resolve().parents[2] / "data/fabrics/redfish"
    recorded_root, recorded_block = (
        json.loads((data / f"{name}_interface_emulator.json").read_text()) for name in ("root", "block")
    )
    quirks = ["linked_root", "linked_members", "untyped", "text_reserved", "errors_with_200"]
    emulator = open_emulator(hardware, quirks=quirks, auth=False)
    root, block = ask(emulator, "GET", "/redfish/v1/").body, ask(emulator, "GET", f"{BLOCKS}/gpu1").body
    assert {"Systems", "Chassis", "SessionService"} <= set(recorded_root["Links"]) & set(root["Links"])
    assert not set(root["Links"]) & (set(root) | set(recorded_root))
    assert ("ResourceBlockType" in block, "ResourceBlockType" in recorded_block) == (False, False)
    assert block["CompositionStatus"]["Reserved"] == recorded_block["CompositionStatus"]["Reserved"] == "false"
    assert "Members" in ask(emulator, "GET", BLOCKS).body["Links"]
    absent = ask(emulator, "GET", f"{SYSTEMS}/9")
    assert (absent.status, absent.body) == (200, "404")


def test_composing_moves_hardware_and_both_ends_say_so(hardware: Rack) -> None:
    emulator = open_emulator(hardware)
    reply = ask(emulator, "POST", SYSTEMS, system("host1", "gpu1", "nvme1"))
    assert (reply.status, reply.headers["Location"]) == (201, f"{SYSTEMS}/1")
    assert hardware.devices["gpu1"].attached_to == "host1"
    block = ask(emulator, "GET", f"{BLOCKS}/gpu1").body
    assert block["CompositionStatus"]["CompositionState"] == "Composed"
    assert block["Links"]["ComputerSystems"] == [{"@odata.id": f"{SYSTEMS}/1"}]
    assert ask(emulator, "DELETE", f"{SYSTEMS}/1").status == 204
    assert hardware.list_free_devices() == list(hardware.devices)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (system("host1", "gpu2"), 409, "ResourceBlockInUse"),
        (system("host2", "gpu1"), 400, "IncompatibleZone"),
        (system("host1", "gpu9"), 400, "ResourceBlockNotFound"),
        (system("gpu1"), 400, "ResourceBlockInvalid"),
        (system("host1", "host2"), 400, "ResourceBlockInvalid"),
        (system("host1", "gpu1", "gpu1"), 400, "ResourceBlockInvalid"),
        (system("host1", "gpu1", "gpu3"), 400, "ResourceExhaustion"),
        ({"Links": {}}, 400, "CreateFailedMissingReqProperties"),
        ({"Name": "x"}, 400, "PropertyMissing"),
        (system("host1") | {"Colour": "blue"}, 400, "PropertyUnknown"),
        (system("host2", name="theirs"), 409, "ResourceAlreadyExists"),
        ([], 400, "UnrecognizedRequestBody"),
    ],
)
def test_what_is_refused_changes_nothing(hardware: Rack, body: Any, status: int, word: str) -> None:
    emulator = open_emulator(hardware, limits={"MaxProcessor": 1})
    hardware.hosts["host3"] = hardware.hosts["host1"]
    emulator.composition.compose_system("theirs", "", ["host3", "gpu2"])
    changes = hardware.changes
    reply = ask(emulator, "POST", SYSTEMS, body)
    assert (reply.status, message(reply)) == (status, word)
    assert (hardware.changes, list(emulator.composition.systems)) == (changes, ["1"])


def test_nobody_gets_in_without_a_login(hardware: Rack) -> None:
    emulator = open_emulator(hardware, sessions_max=1)
    for headers in ({"Authorization": ""}, {"Authorization": "Basic !"}, {"X_Auth_Token": "guess"}):
        reply = ask(emulator, "GET", SYSTEMS, **headers)
        assert (reply.status, "WWW-Authenticate" in reply.headers) == (401, True)
    assert ask(emulator, "GET", "/redfish/v1/", Authorization="").status == 200
    sessions = "/redfish/v1/SessionService/Sessions"
    wrong = ask(emulator, "POST", sessions, {"UserName": "campaign", "Password": "wrong"}, Authorization="")
    assert wrong.status == 401
    right = {"UserName": "campaign", "Password": ServiceVariant().password}
    token = ask(emulator, "POST", sessions, right, Authorization="").headers["X-Auth-Token"]
    assert ask(emulator, "GET", SYSTEMS, Authorization="", X_Auth_Token=token).status == 200
    assert message(ask(emulator, "POST", sessions, right)) == "SessionLimitExceeded"


def test_decomposing_leaves_the_mark(hardware: Rack) -> None:
    emulator = open_emulator(hardware)
    emulator.composition.reserved.add("gpu1")
    ask(emulator, "POST", SYSTEMS, system("host1", "gpu1"))
    ask(emulator, "DELETE", f"{SYSTEMS}/1")
    status = ask(emulator, "GET", f"{BLOCKS}/gpu1").body["CompositionStatus"]
    assert (status["Reserved"], status["CompositionState"]) == (True, "Unused")


def test_a_task_is_done_when_it_says_so_and_then_forgotten(hardware: Rack) -> None:
    emulator = open_emulator(hardware, task_polls=2)
    reply = ask(emulator, "POST", SYSTEMS, system("host1", "gpu1"))
    monitor = reply.headers["Location"]
    assert reply.status == 202
    assert hardware.devices["gpu1"].attached_to is None
    assert ask(emulator, "GET", monitor).status == 202
    assert ask(emulator, "GET", "/redfish/v1/TaskService/Tasks").body["Members@odata.count"] == 1
    done = ask(emulator, "GET", monitor)
    assert (done.status, done.headers["Location"]) == (201, f"{SYSTEMS}/1")
    assert hardware.devices["gpu1"].attached_to == "host1"
    assert ask(emulator, "GET", monitor).status == 404


def test_pages_and_expansion(hardware: Rack) -> None:
    emulator = open_emulator(hardware, page=3)
    seen: list[str] = []
    path: str | None = f"{BLOCKS}?$expand=.($levels=2)"
    while path is not None:
        body = ask(emulator, "GET", path).body
        seen += [member["Id"] for member in body["Members"]]
        path = body.get("Members@odata.nextLink")
    assert seen == [*hardware.hosts, *hardware.devices]
    whole = ask(emulator, "GET", f"{BLOCKS}?$expand=.($levels=2)").body["Members"]
    assert whole[2]["Processors"][0]["Model"] == "a100"
    assert set(whole[2]["Links"]["Zones"][0]) == {"@odata.id"}
    assert ask(emulator, "GET", f"{BLOCKS}?$filter=x").status == 501
    assert ask(emulator, "GET", f"{BLOCKS}?$expand=x").status == 400
    assert ask(open_emulator(hardware, expand=False), "GET", f"{BLOCKS}?$expand=.").status == 501


def test_systems_that_are_on_are_not_deleted_where_that_is_the_rule(hardware: Rack) -> None:
    emulator = open_emulator(hardware, powered_off=True)
    path = ask(emulator, "POST", SYSTEMS, system("host1", "gpu1")).headers["Location"]
    reset = f"{path}/Actions/ComputerSystem.Reset"
    assert ask(emulator, "POST", reset, {"ResetType": "Explode"}).status == 400
    assert ask(emulator, "POST", f"{path}/Actions/ComputerSystem.Melt", {}).status == 400
    assert ask(emulator, "POST", reset, {"ResetType": "On"}).status == 204
    states = [ask(emulator, "GET", path).body["PowerState"] for _ in range(2)]
    assert states == ["Off", "On"]
    assert ask(emulator, "DELETE", path).status == 400
    assert ask(emulator, "POST", reset, {"ResetType": "ForceOff"}).status == 204
    ask(emulator, "GET", path)
    assert ask(emulator, "DELETE", path).status == 204
