"""The NEC CDIM adapter, against the emulated CDIM: what it believes, what it sends, and what it makes of faults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest

from campaign.errors import ConfigError, FabricError
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.dialects.nec import Options, open_fabric
from campaign.fabrics.dialects.nec.layout import layout, procedures
from campaign.fabrics.errors import (
    Busy,
    Incompatible,
    OutcomeUnknown,
    PartialFailure,
    ProtocolViolation,
    Unhealthy,
)
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.protocol import Request, Selection
from campaign.testbed.control_planes.faults import Fault
from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.server import Server
from campaign.testbed.emulators import open_dialect
from tests.contract.fabric_fixtures import configuration

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "nec"
SCHEMA = jsonschema.Draft202012Validator(json.loads((DATA / "layout_apply_schema.json").read_text())["schema"])
HOSTS = (HostSpec("host1", 8, 32.0), HostSpec("host2", 8, 32.0))
NODES = {"host1": "b477ea1c-db3d-48b3-9725-b0ce6e25ef01", "host2": "b9a1e642-da2e-403a-88f5-fa0eca0d9c52"}


GATEWAY: dict[str, Any] = {
    "prefix": "/cdim/api/v1/configuration-manager",
    "layout_apply_prefix": "/cdim/api/v1/layout-apply",
    "login": {},
    "credentials": {"user_env": "CDIM_USER", "password_env": "CDIM_PASSWORD"},
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDIM_USER", "campaign")
    monkeypatch.setenv("CDIM_PASSWORD", "learn-2-compose")


@contextmanager
def opened(
    tmp_path: Path,
    *,
    options: dict[str, Any] | None = None,
    gpus: int = 3,
    services: Literal["one", "gateway", "ports"] = "one",
    **emulated: Any,
) -> Iterator[tuple[ControlledFabric, Rack, Server]]:
    """Gives what carries out applies as the server: behind a gateway everything, at ports of their own layout-apply."""
    with ExitStack() as stack:
        hardware = rack(["host1", "host2"], [("gpu", "a100", gpus)])
        inside = "gateway" if services == "gateway" else "one"
        dialect = open_dialect("nec", hardware, nodes=NODES, services=inside, **emulated)
        applies = dialect.service("layout-apply") if services == "ports" else dialect  # type: ignore[attr-defined]
        server = stack.enter_context(Server(applies, tls=False))
        told: dict[str, Any] = {"url": server.url, "hosts": NODES, "poll_s": 0.01, "settle_s": 0}
        if services == "ports":
            lists = dialect.service("configuration-manager")  # type: ignore[attr-defined]
            told |= {"url": stack.enter_context(Server(lists, tls=False)).url, "layout_apply_url": server.url}
        elif services == "gateway":
            told |= GATEWAY
        told |= options or {}
        fabric = open_fabric(Options.model_validate(told), HOSTS, (PoolSpec("gpu", "a100", gpus),), tmp_path)
        stack.callback(fabric.close)
        yield fabric, hardware, server


def selected(fabric: ControlledFabric, lease_id: str = "one", devices: int = 2, **changes: Any) -> Selection:
    request = Request(lease_id, "demo", "tester", configuration(devices_per_host=devices, **changes))
    return fabric.select(request, fabric.inventory())


def attached(hardware: Rack) -> dict[str, str]:
    return {device.uuid: device.attached_to for device in hardware.devices.values() if device.attached_to}


@pytest.mark.parametrize(
    ("services", "api"), [("one", "eeio"), ("one", "cpu"), ("ports", "cpu"), ("gateway", "cpu"), ("gateway", "eeio")]
)
def test_a_lease_is_one_apply_for_all_its_hosts(services: Any, api: str, tmp_path: Path) -> None:
    options = {"api": api}
    with opened(tmp_path, options=options, gpus=4, services=services, api=api, looks=2) as (fabric, hardware, server):
        selection = selected(fabric, devices=2, hosts=2)
        fabric.compose(selection)
        (asked,) = (one for one in server.changing() if one.path.endswith("/layout-apply"))
        steps = asked.body["procedures"]
        assert [step["dependencies"] for step in steps] == [[], [1], [], [3]]
        assert attached(hardware) == {name: host.host for host in selection.hosts for name in host.fabric}
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.mismatches(selection.request.configuration) == ()
        assert fabric.release("one") == ()
        assert not attached(hardware)
        applies = [one for one in server.changing() if one.path.endswith("/layout-apply")]
        assert len(applies) == 2
        # What project CDIM's own layout-apply makes of them: it knows `api: cpu` alone.
        assert {SCHEMA.is_valid(one.body) for one in applies} == {api == "cpu"}


def test_services_behind_a_gateway_are_asked_with_a_token_and_those_at_ports_without(tmp_path: Path) -> None:
    with opened(tmp_path / "gateway", services="gateway") as (fabric, _, server):
        fabric.inventory()
        token, *rest = server.log
        assert (token.method, token.path) == ("POST", "/realms/CDIM/protocol/openid-connect/token")
        assert [asked.path for asked in rest] == [
            f"/cdim/api/v1/configuration-manager/{name}" for name in ("resources", "nodes")
        ]
        assert all((asked.header("Authorization") or "").startswith("Bearer ") for asked in rest)
    with opened(tmp_path / "ports", services="ports") as (fabric, _, server):
        fabric.compose(selected(fabric))
        assert {asked.path.split("/")[4] for asked in server.log} == {"layout-apply"}
        assert all(asked.header("Authorization") is None for asked in server.log)


def test_a_token_that_has_ended_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, services="gateway", token_s=31) as (fabric, hardware, server):
        selection = selected(fabric)
        server.dialect._tokens.clear()  # type: ignore[attr-defined]  # as a restarted login service has it
        fabric.compose(selection)
        assert len(attached(hardware)) == 2
        assert len([asked for asked in server.log if asked.path.endswith("/token")]) == 2


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"client_id": "account"}, "unauthorized_client.*direct access grants"),
        ({"client_id": "admin-cli"}, r"401.*see `login`"),  # has a token, and the gateway knows another client
        ({"realm": "master"}, "realm master issues no token"),
    ],
)
def test_who_is_not_let_in_is_told_by_whom(login: dict[str, str], words: str, tmp_path: Path) -> None:
    with (
        opened(tmp_path, services="gateway", options={"login": login}) as (fabric, _, _server),
        pytest.raises(FabricError, match=words) as caught,
    ):
        fabric.inventory()
    assert "learn-2-compose" not in str(caught.value)


def test_credentials_that_nobody_asks_for_are_refused(tmp_path: Path) -> None:
    told = {"url": "https://cdim:8280", "credentials": GATEWAY["credentials"]}
    with pytest.raises(ValueError, match="nobody asks for them: name the login service in `login`"):
        Options.model_validate(told)
    del told["credentials"]
    with (
        opened(tmp_path, services="gateway", options={"credentials": {}}) as (fabric, _, _server),
        pytest.raises(ConfigError, match="a user and a password are needed"),
    ):
        fabric.inventory()


def test_an_address_of_another_topology_says_so(tmp_path: Path) -> None:
    with (
        opened(tmp_path, services="gateway", options={"prefix": "/cdim/api/v1"}) as (fabric, _, _server),
        pytest.raises(FabricError, match=r"404.*see `prefix`"),
    ):
        fabric.inventory()


def test_lists_that_lag_behind_an_apply_are_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path, lag=3, options={"settle_s": 10.0}) as (fabric, hardware, _):
        selection = selected(fabric)
        fabric.compose(selection)
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.mismatches(selection.request.configuration) == ()
        assert fabric.release("one") == ()
        assert not attached(hardware)
        assert {device.state for device in fabric.inventory().devices} == {"free"}


def test_an_apply_whose_answer_was_lost_is_seen_when_lists_lag(tmp_path: Path) -> None:
    with opened(tmp_path, lag=4, options={"settle_s": 10.0}) as (fabric, hardware, server):
        server.faults.add(Fault("drop_after", method="POST"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric))
        assert fabric.release("one") == ()
        assert not attached(hardware)


def test_a_host_of_eight_costs_no_request_more_than_the_dialect_needs(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=8) as (fabric, _, server):
        selection = selected(fabric, devices=8)
        before = len(server.log)
        fabric.compose(selection)
        fabric.read_back("one")
        fabric.release("one")
        # twice an apply and its status; six looks (before and after each change, and until it is shown), each of two lists
        assert len(server.log) - before <= 2 * 2 + 6 * 2


def test_a_rehearsal_sends_nothing_and_shows_both_applies(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, _, server):
        composing, releasing = fabric.rehearse(selected(fabric))
        assert [sent.body["procedures"][1]["operation"] for sent in (*composing, *releasing)] == [
            "connect",
            "disconnect",
        ]
        assert server.changing() == []
        assert fabric.held() == {}
        fabric.compose(selected(fabric))
        assert [asked.body for asked in server.changing()] == [sent.body for sent in composing]


def test_busy_is_busy_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, busy=1) as (fabric, hardware, _):
        selection = selected(fabric)
        with pytest.raises(Busy, match="E40010"):
            fabric.compose(selection)
        assert fabric.held() == {}
        assert not attached(hardware)
        fabric.compose(selection)
        assert len(attached(hardware)) == 2


@pytest.mark.parametrize(
    ("ends", "rollback"),
    [("FAILED", None), ("SUSPENDED", None), ("CANCELED", None), ("CANCELED", "FAILED"), ("CANCELED", "SUSPENDED")],
)
def test_an_apply_that_ends_halfway_is_itemised_and_can_be_released(
    ends: str, rollback: str | None, tmp_path: Path
) -> None:
    with opened(tmp_path, ends=ends, after=1, rollback=rollback) as (fabric, hardware, _):
        selection = selected(fabric)
        with pytest.raises(PartialFailure, match=ends) as caught:
            fabric.compose(selection)
        assert set(caught.value.done) == set(attached(hardware))
        assert len(caught.value.done) == len(caught.value.failed) == 1
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.shortfall(selection.request.configuration)
        assert fabric.release("one") == ()
        assert not attached(hardware)
        assert fabric.held() == {}


def test_an_apply_that_was_rolled_back_left_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, ends="CANCELED", after=1, rollback="COMPLETED") as (fabric, hardware, _):
        with pytest.raises(Exception, match="rolled back: nothing was changed"):
            fabric.compose(selected(fabric))
        assert fabric.held() == {}
        assert not attached(hardware)


def test_a_suspended_apply_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path, ends="SUSPENDED") as (fabric, _, server):
        device = next(iter(fabric.inventory().devices)).fabric_id
        steps = procedures("connect", {"host1": [device]}, {"host1": f"cpu-{NODES['host1']}"}, "cpu")
        fabric.plane.client.change("POST", "/cdim/api/v1/layout-apply", {"procedures": steps})
        fabric.plane.client.get("/cdim/api/v1/layout-apply/0000000001")
        with pytest.raises(Busy, match=r"E40027.*0000000001.*resume or cancel it"):
            fabric.compose(selected(fabric))
        assert not [asked for asked in server.log if asked.method == "PUT"]


def test_a_suspended_apply_of_this_lease_is_cancelled_before_anything_else(tmp_path: Path) -> None:
    with opened(tmp_path, ends="SUSPENDED", after=1) as (fabric, hardware, server):
        server.faults.add(Fault("drop_before", method="PUT"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric))
        assert len(attached(hardware)) == 1
        assert fabric.release("one") == ()
        assert not attached(hardware)
        assert fabric.held() == {}


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "status", "lie", "garbage", "html"])
@pytest.mark.parametrize("moment", ["compose", "release"])
def test_no_fault_on_the_wire_leaves_a_device_behind(kind: Any, moment: str, tmp_path: Path) -> None:
    with opened(tmp_path, looks=1) as (fabric, hardware, server):
        selection = selected(fabric)
        if moment == "release":
            fabric.compose(selection)
        server.faults.add(Fault(kind, method="POST", body="{}" if kind == "lie" else ""))
        composed = moment == "release" or tried(lambda: fabric.compose(selection))
        composition = fabric.read_back("one")
        if composition is not None:
            assert {device.fabric_id for device in composition.devices} <= set(attached(hardware))
        if composed and kind != "lie" and moment == "compose":
            assert len(attached(hardware)) == 2
        for _ in range(4):  # as `operation.give_back`: an unknown outcome and a busy fabric are tried again
            if tried(lambda: fabric.release("one")) and fabric.read_back("one") is None:
                break
        assert not attached(hardware)
        assert fabric.held() == {}


def tried(call: Any) -> bool:
    try:
        return call() in (None, ())
    except (OutcomeUnknown, Busy, PartialFailure):
        return False


def test_an_apply_whose_answer_was_lost_is_not_forgotten_while_it_runs(tmp_path: Path) -> None:
    with opened(tmp_path, looks=7) as (fabric, hardware, server):
        server.faults.add(Fault("drop_after", method="POST"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric))
        assert not attached(hardware)  # not yet
        with pytest.raises(Busy, match="may be this lease's own"):
            fabric.release("one")
        assert "one" in fabric.held()
        assert any(tried(lambda: fabric.release("one")) for _ in range(20))
        assert not attached(hardware)
        assert fabric.held() == {}


def test_an_apply_that_takes_too_long_is_waited_for_at_release(tmp_path: Path) -> None:
    with opened(tmp_path, options={"operation_s": 0.4, "poll_s": 0.1}, looks=5) as (fabric, hardware, _):
        with pytest.raises(OutcomeUnknown, match=r"still IN_PROGRESS after 0.4 s"):
            fabric.compose(selected(fabric))
        assert any(tried(lambda: fabric.release("one")) for _ in range(20))
        assert not attached(hardware)


def test_an_apply_that_was_refused_is_not_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path, looks=99) as (fabric, hardware, server):
        server.faults.add(Fault("status", method="POST", status=400, body='{"code": "E40001", "message": "no"}'))
        with pytest.raises(Incompatible, match="E40001 no"):
            fabric.compose(selected(fabric))
        steps = procedures("connect", {"host2": ["somebody's"]}, {"host2": "theirs"}, "cpu")
        assert fabric.plane.client.change("POST", "/cdim/api/v1/layout-apply", {"procedures": steps}).status == 202
        assert fabric.release("one") == ()
        assert not attached(hardware)
        assert fabric.held() == {}


def test_what_was_attached_before_is_somebody_elses(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        hardware.attach("gpu1", "host1")
        holders = {device.holder for device in fabric.inventory().devices}
        assert holders == {None, "somebody, on host1"}
        fabric.compose(selected(fabric))
        assert fabric.release("one") == ()
        assert attached(hardware) == {hardware.devices["gpu1"].uuid: "host1"}
        assert "disconnect" in server.changing()[-1].text


def test_hosts_of_others_take_no_place_from_ours(tmp_path: Path) -> None:
    hardware = rack([f"other{number}" for number in range(3)] + ["host1", "host2"], [("gpu", "a100", 5)])
    for number in range(3):
        hardware.attach(f"gpu{number + 1}", f"other{number}")
    with Server(open_dialect("nec", hardware, nodes=NODES, services="one"), tls=False) as server:
        options = Options.model_validate({"url": server.url, "hosts": NODES})
        fabric = open_fabric(options, HOSTS, (), tmp_path)
        assert len(selected(fabric, devices=1, hosts=2).hosts) == 2
        fabric.close()


def test_a_broken_device_is_not_chosen(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=2) as (fabric, hardware, _):
        hardware.devices["gpu1"].quirks.add("broken")
        with pytest.raises(Unhealthy):
            selected(fabric, devices=2)


def test_a_host_without_an_interface_is_named_with_what_to_set(tmp_path: Path) -> None:
    with (
        opened(tmp_path, options={"hosts": {"host1": "nowhere", "host2": "nowhere2"}}) as (fabric, _, _server),
        pytest.raises(Incompatible, match=r"host1 \(node nowhere\).*`interfaces`"),
    ):
        selected(fabric)


# -- parsing --------------------------------------------------------------------------------------------------------------------


def sample(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def shown(**changes: Any) -> dict[str, tuple[str, str | None, str]]:
    options = Options.model_validate({"url": "http://cdim", "hosts": NODES, **changes})
    found = layout(sample("resources.json"), sample("nodes.json"), options, ["host1", "host2"])
    return {device.fabric_id[:4]: (device.state, device.attached_to, device.health) for device in found.devices}


def test_only_what_is_detected_enabled_well_and_unlinked_is_free() -> None:
    assert shown() == {
        "aaaa": ("free", None, "ok"),
        "bbbb": ("unavailable", None, "ok"),  # not detected
        "cccc": ("unavailable", None, "ok"),  # disabled
        "dddd": ("unavailable", None, "warning"),
        "eeee": ("failed", None, "critical"),
        "ffff": ("unavailable", None, "ok"),  # its administrator does not offer it
        "1111": ("in_use", "host1", "ok"),
        "2222": ("unknown", "host2", "ok"),  # linked, and not among the parts of the host
        "3333": ("unknown", "host1", "ok"),  # among the parts of the host, and not linked
        "4444": ("in_use", "b0000000-0000-4000-8000-000000000000", "ok"),  # a host that is not of this system
    }


def test_a_host_is_found_by_the_adapter_that_leads_into_the_fabric() -> None:
    """As the public client of the product reads it: a link of either of two types holds a device."""
    adapter = {
        "deviceID": "sa-1",
        "type": "sourceFabricAdapter",
        "attribute": {"deviceSpecificInformation": {"status": "eesv"}},
        "links": [{"type": "CPU", "deviceID": "cpu-1"}, {"type": "destinationFabricAdapter", "deviceID": "da-1"}],
    }
    down = {**adapter, "attribute": {"deviceSpecificInformation": {"status": "eedown"}}}
    well = {"health": "OK", "state": "Enabled"}
    gpus = [
        {"device": {"deviceID": name, "type": "GPU", "status": well, "links": links}, "detected": True}
        for name, links in {
            "g1": [{"type": "destinationFabricAdapter", "deviceID": "da-1"}],
            "g2": [{"type": "eeio", "deviceID": "da-1"}],
            "g3": [],
        }.items()
    ]
    nodes = {
        "nodes": [
            {"id": "n1", "resources": [{"device": adapter}, *gpus[:2]]},
            {"id": "n2", "resources": [{"device": down}]},
        ]
    }
    options = Options.model_validate({"url": "http://cdim", "api": "eeio", "hosts": {"host1": "n1", "host2": "n2"}})
    found = layout({"resources": gpus}, nodes, options, ["host1", "host2"])
    assert found.interfaces == {"host1": "da-1"}
    assert {device.fabric_id: (device.state, device.attached_to) for device in found.devices} == {
        "g1": ("in_use", "host1"),
        "g2": ("in_use", "host1"),
        "g3": ("free", None),
    }


def test_the_model_is_the_system_files_name() -> None:
    options = Options.model_validate({"url": "http://cdim", "models": {"NVIDIA A100-PCIE-40GB": "a100-40gb"}})
    found = layout(sample("resources.json"), sample("nodes.json"), options, [])
    assert {options.model(device.model) for device in found.devices} == {"a100-40gb", "pm9a3-1.92tb"}
    (drive,) = (device for device in found.devices if device.kind == "nvme")
    assert drive.host_id == "S64GNE0R"
    assert all(device.host_id is None for device in found.devices if device.kind == "gpu")


@pytest.mark.parametrize("damaged", [{}, {"resources": None}, {"resources": "<html>"}, [], 500])
def test_what_is_no_list_is_not_an_empty_pool(damaged: Any) -> None:
    options = Options.model_validate({"url": "http://cdim"})
    with pytest.raises(ProtocolViolation, match="a list 'resources' was expected"):
        layout(damaged, {"nodes": []}, options, [])
