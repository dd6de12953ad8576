"""The emulated fabric manager: tokens that end, tenants, and devices that it chooses by a condition and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from campaign.emulators.catalog import open_emulator
from campaign.emulators.control_planes.cdi import name_uuid
from campaign.emulators.control_planes.hardware import Rack, rack
from campaign.emulators.control_planes.server import Asked, Reply

TENANT = "b3b65e79-ad41-4367-89d6-e4e7315141ef"
P = "/fabric_manager/api/v1/machines"
HOST1, HOST2 = name_uuid("host1"), name_uuid("host2")
FORM = {
    "client_id": "c",
    "client_secret": "",
    "username": "campaign",
    "password": "learn-2-compose",
    "scope": "openid",
    "response_type": "id_token token",
    "grant_type": "password",
}
Ask = Callable[..., Reply]


def client(hardware: Rack, **options: Any) -> Ask:
    emulator = open_emulator("cdi", hardware, **options)

    def ask(method: str, path: str, body: Any = None, token: str | None = None, **query: str) -> Reply:
        headers = {"Authorization": f"Bearer {token if token is not None else good}"}
        reply = emulator.answer(Asked(method, path, {"tenant_uuid": TENANT, **query}, headers, body, ""))
        assert reply is not None
        return reply

    good = login(emulator, FORM).body.get("access_token", "")
    return ask


def login(emulator: Any, form: dict[str, str]) -> Reply:
    path = "/id_manager/realms/cdi/protocol/openid-connect/token"
    reply: Reply = emulator.answer(Asked("POST", path, {}, {}, None, urlencode(form)))
    return reply


def update(machine: str, **wanted: Any) -> dict[str, Any]:
    machines = [{"mach_uuid": machine, "resources": [{"res_specs": [{"res_type": "gpu", "res_num": 1, **wanted}]}]}]
    return {"tenants": {"tenant_uuid": TENANT, "machines": machines}}


def model(name: str) -> dict[str, Any]:
    return {"res_spec": {"condition": [{"column": "model", "operator": "eq", "value": name}]}}


@pytest.fixture
def hardware() -> Rack:
    return rack(["host1", "host2"], [("gpu", "a100", 2), ("gpu", "l4", 1)])


def test_only_a_token_of_the_tenant_opens(hardware: Rack) -> None:
    ask = client(hardware)
    assert ask("GET", P).status == 200
    assert ask("GET", P, token="").status == 401
    assert ask("GET", P, token="other").status == 401
    assert ask("GET", P, tenant_uuid="other").status == 403
    assert client(hardware, token_s=-1.0)("GET", P).status == 401
    emulator = open_emulator("cdi", hardware)
    assert login(emulator, FORM | {"password": "no"}).status == 401
    assert login(emulator, {**FORM, "grant_type": "client_credentials"}).status == 400
    assert login(emulator, {"username": "campaign", "password": "learn-2-compose"}).status == 400


def test_it_chooses_by_model_until_there_is_none_left(hardware: Rack) -> None:
    ask = client(hardware)
    condition = json.dumps({"column": "model", "operator": "eq", "value": "a100"})
    counts = []
    for _ in range(2):
        path = f"{P}/{HOST1}/available-reserved-resources"
        counts.append(ask("GET", path, res_type="gpu", condition=condition).body["reserved_res_num_per_fabric"])
        reply = ask("PATCH", f"{P}/{HOST1}/update", update(HOST1, **model("a100")))
        (resource,) = reply.body["data"]["machines"][0]["resources"]
        assert resource["res_serial_num"].startswith("GPU-")
    assert counts == [2, 1]
    reply = ask("PATCH", f"{P}/{HOST1}/update", update(HOST1, **model("a100")))
    assert (reply.status, reply.body["detail"]["code"]) == (404, "E020410")
    assert {device.name for device in hardware.attached("host1")} == {"gpu1", "gpu2"}


def test_a_device_is_detached_from_the_machine_that_has_it(hardware: Rack) -> None:
    ask = client(hardware)
    hardware.attach("gpu1", "host1")
    body = {"res_uuid": name_uuid("gpu1")}
    assert ask("DELETE", f"{P}/{HOST2}/update", update(HOST2, **body)).status == 404
    assert ask("DELETE", f"{P}/{HOST1}/update", update(HOST1, **body, res_type="storage")).status == 404
    assert hardware.devices["gpu1"].attached_to == "host1"
    assert ask("DELETE", f"{P}/{HOST1}/update", update(HOST1, **body)).status == 204
    assert hardware.devices["gpu1"].attached_to is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        update(HOST2, **model("a100")),
        update(HOST1),
        update(HOST1, res_spec="a100"),
        update(HOST1, **model("a100"), res_uuid="chosen by us"),
        update(HOST1, res_spec={"condition": [{"column": "vendor", "operator": "eq", "value": "x"}]}),
    ],
    ids=str,
)
def test_a_body_that_is_not_understood_changes_nothing(body: Any, hardware: Rack) -> None:
    reply = client(hardware)("PATCH", f"{P}/{HOST1}/update", body)
    assert reply.status in (400, 404)
    assert reply.body["detail"]["code"]
    assert len(hardware.free()) == 3


def test_quirks_are_committed_as_often_as_told(hardware: Rack) -> None:
    ask = client(hardware, wrong=1, operation={"gpu3": "21"})
    for _ in range(2):
        ask("PATCH", f"{P}/{HOST1}/update", update(HOST1, **model("a100")))
    assert {device.name for device in hardware.attached("host1")} == {"gpu3", "gpu1"}
    (machine,) = ask("GET", f"{P}/{HOST1}").body["data"]["machines"]
    assert [one["res_op_status"] for one in machine["resources"]] == ["0", "0", "21"]
