"""The emulated Sunfish stores what it is told, has the agent do it, and can come to disagree with it."""

from __future__ import annotations

from typing import Any

import pytest

from campaign.emulators.catalog import open_emulator
from campaign.emulators.control_planes.hardware import Rack, rack
from campaign.emulators.control_planes.server import Asked, Reply

F = "/redfish/v1/Fabrics/CXL"


@pytest.fixture
def hardware() -> Rack:
    return rack({"host1": ["drawer1"], "host2": ["drawer1", "drawer2"]}, [("gpu", "a100", 2)])


def ask(emulator: Any, method: str, path: str, body: Any = None) -> Reply | None:
    reply: Reply | None = emulator.answer(Asked(method, path, {}, {}, body, ""))
    return reply


def told(reply: Reply | None) -> tuple[int, Any]:
    assert reply is not None
    return reply.status, reply.body


def body(host: str = "host1", device: str = "gpu1", name: str = "c1") -> dict[str, Any]:
    ends = {"InitiatorEndpoints": host, "TargetEndpoints": device}
    links = {end: [{"@odata.id": f"{F}/Endpoints/{which}"}] for end, which in ends.items()}
    whole = {"@odata.type": "#Connection.v1_1_0.Connection", "@odata.id": f"{F}/Connections/{name}", "Id": name}
    return {**whole, "Name": name, "ConnectionType": "Memory", "Links": links}


def test_the_reference_server_asks_nobody_and_has_its_root_at_one_address(hardware: Rack) -> None:
    emulator = open_emulator("sunfish", hardware)
    assert told(ask(emulator, "GET", "/redfish/v1"))[0] == 404
    status, root = told(ask(emulator, "GET", "/redfish/v1/"))
    assert (status, "Links" in root) == (200, False)
    fabric = told(ask(emulator, "GET", F))[1]
    assert told(ask(emulator, "GET", fabric["Endpoints"]["@odata.id"]))[0] == 404
    assert told(ask(emulator, "GET", f"{F}/Endpoints"))[0] == 200
    assert told(ask(emulator, "GET", f"{F}/Connections"))[0] == 404
    ask(emulator, "POST", f"{F}/Connections", body())
    assert len(told(ask(emulator, "GET", f"{F}/Connections"))[1]["Members"]) == 1


def test_what_a_new_connection_must_have(hardware: Rack) -> None:
    emulator, whole = open_emulator("sunfish", hardware), body()
    for needed, status in (("@odata.type", 400), ("@odata.id", 500)):
        lacking = {name: value for name, value in whole.items() if name != needed}
        assert told(ask(emulator, "POST", f"{F}/Connections", lacking))[0] == status
        assert (emulator.agent.connections, emulator.store) == ({}, {})
    neither = {name: value for name, value in lacking.items() if name != "Id"}
    assert told(ask(emulator, "POST", f"{F}/Connections", neither))[0] == 200


@pytest.mark.parametrize(("deletions", "status"), [("dropped", None), ("500", 500)])
def test_a_deletion_that_ends_in_an_error_splits_store_and_agent_for_good(
    deletions: str, status: int | None, hardware: Rack
) -> None:
    emulator = open_emulator("sunfish", hardware, deletions=deletions)
    assert told(ask(emulator, "POST", f"{F}/Connections", body()))[0] == 200
    reply = ask(emulator, "DELETE", f"{F}/Connections/c1")
    assert (reply and reply.status) == status
    assert ask(emulator, "DELETE", f"{F}/Connections/c1") is None
    assert hardware.devices["gpu1"].attached_to is None
    assert told(ask(emulator, "GET", f"{F}/Connections/c1"))[0] == 200
    assert told(ask(emulator, "GET", "/_agent/redfish/v1/Fabrics/CXL/Connections/c1"))[0] == 404
    assert "Links" not in told(ask(emulator, "GET", f"{F}/Endpoints/gpu1"))[1]  # a copy that nobody brings up to date
    assert ask(emulator, "DELETE", f"{F}/Connections") is None  # a collection
    assert told(ask(emulator, "DELETE", f"{F}/Connections/c9"))[0] == 404


def test_a_creation_that_is_not_stored_is_made_all_the_same(hardware: Rack) -> None:
    emulator = open_emulator("sunfish", hardware, unstored=True)
    assert told(ask(emulator, "POST", f"{F}/Connections", body()))[0] == 500
    assert (hardware.devices["gpu1"].attached_to, emulator.store) == ("host1", {})


def test_a_connection_is_created_with_200_and_a_second_is_refused_in_text(hardware: Rack) -> None:
    emulator = open_emulator("sunfish", hardware)
    reply = ask(emulator, "POST", f"{F}/Connections", body())
    assert reply is not None
    assert (reply.status, "Location" in reply.headers) == (200, False)
    assert hardware.devices["gpu1"].attached_to == "host1"
    status, text = told(ask(emulator, "POST", f"{F}/Connections", body()))
    assert (status, "already exists" in text) == (409, True)
    assert told(ask(emulator, "POST", f"{F}/Connections", body("host2", name="c2")))[0] == 500  # it is attached
    assert told(ask(emulator, "POST", f"{F}/Connections", body("host1", "gpu2", "c3")))[0] == 500  # no cable
    assert hardware.devices["gpu2"].attached_to is None
    assert told(ask(emulator, "DELETE", f"{F}/Connections/c1"))[0] == 200
    assert hardware.devices["gpu1"].attached_to is None


def test_ends_that_do_not_exist_are_not_looked_at(hardware: Rack) -> None:
    emulator = open_emulator("sunfish", hardware)
    assert told(ask(emulator, "POST", f"{F}/Connections", body(device="gpu99")))[0] == 200
    assert len(hardware.free()) == 2


def test_an_agent_that_is_down_changes_nothing(hardware: Rack) -> None:
    emulator = open_emulator("sunfish", hardware, down=True)
    assert ask(emulator, "POST", f"{F}/Connections", body()) is None
    assert (emulator.store, len(hardware.free())) == ({}, 2)


def test_what_a_client_can_send_never_raises(hardware: Rack) -> None:
    emulator = open_emulator("sunfish", hardware)
    for odd in (
        None,
        [],
        "text",
        5,
        {},
        {"ConnectionType": "Memory"},
        {"ConnectionType": "Memory", "Id": 7, "Links": {}},
    ):
        assert told(ask(emulator, "POST", f"{F}/Connections", odd))[0] in (400, 500)
    assert told(ask(emulator, "PUT", f"{F}/Connections/c1", {}))[0] == 500
    assert told(ask(emulator, "GET", f"{F}/Nowhere"))[0] == 404
