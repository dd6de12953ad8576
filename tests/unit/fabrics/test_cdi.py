"""The Fujitsu CDI adapter, against the emulated fabric manager: the fabric chooses, and what it chose is what is claimed."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from campaign.errors import ConfigError, FabricError
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.dialects.cdi import Options, open_fabric
from campaign.fabrics.dialects.cdi.machines import Known, machines, owned
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.http.openid import expires_s
from campaign.fabrics.protocol import Request, Selection
from campaign.fabrics.state_file import HeldHost, Holding
from campaign.testbed.control_planes.cdi import name_uuid
from campaign.testbed.control_planes.faults import Fault
from campaign.testbed.control_planes.hardware import Rack, rack
from campaign.testbed.control_planes.server import Server
from campaign.testbed.emulators import open_dialect
from tests.contract.fabric_fixtures import configuration

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "cdi"
HOSTS = (HostSpec("host1", 8, 32.0), HostSpec("host2", 8, 32.0))
TENANT = "b3b65e79-ad41-4367-89d6-e4e7315141ef"
LOGIN = {"user_env": "CDI_USER", "password_env": "CDI_PASSWORD"}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDI_USER", "campaign")
    monkeypatch.setenv("CDI_PASSWORD", "learn-2-compose")


@contextmanager
def opened(
    tmp_path: Path, *, gpus: int = 3, options: dict[str, Any] | None = None, **emulated: Any
) -> Iterator[tuple[ControlledFabric, Rack, Server]]:
    pool = [("gpu", "a100", gpus), ("gpu", "l4", 1), ("nvme", "ssd", 1)]
    dialect = open_dialect("cdi", rack(["host1", "host2"], pool), **emulated)
    with Server(dialect, tls=False) as server:
        fabric = fabric_at(server, tmp_path, **(options or {}))
        yield fabric, dialect.rack, server
        fabric.close()


def fabric_at(server: Server, tmp_path: Path, **options: Any) -> ControlledFabric:
    pool = (PoolSpec("gpu", "a100", 3), PoolSpec("gpu", "l4", 1), PoolSpec("nvme", "ssd", 1))
    told = {"tenant": TENANT, "realm": "cdi", "client_id": "campaign", "credentials": LOGIN, "settle_s": 0.1}
    return open_fabric(Options.model_validate({"url": server.url, **told, **options}), HOSTS, pool, tmp_path)


def selected(fabric: ControlledFabric, lease_id: str = "one", devices: int = 2, **changes: Any) -> Selection:
    request = Request(lease_id, "demo", "tester", configuration(devices_per_host=devices, **changes))
    return fabric.select(request, fabric.inventory())


def attached(hardware: Rack) -> dict[str, str]:
    return {device.name: device.attached_to for device in hardware.devices.values() if device.attached_to}


def ids(fabric: ControlledFabric, lease_id: str = "one") -> set[str]:
    composition = fabric.read_back(lease_id)
    return set() if composition is None else {device.fabric_id for device in composition.devices}


def given_back(fabric: ControlledFabric, lease_id: str = "one") -> bool:
    """As `operation.give_back` does it: an unknown outcome is tried again."""
    for _ in range(3):
        try:
            if fabric.release(lease_id) == () and fabric.read_back(lease_id) is None:
                return True
        except (OutcomeUnknown, PartialFailure):
            continue
    return False


@pytest.mark.parametrize("quirks", [{}, {"brief": True}, {"misspelt": True}])
def test_units_of_a_count_become_the_devices_that_the_fabric_chose(quirks: dict[str, bool], tmp_path: Path) -> None:
    with opened(tmp_path, **quirks) as (fabric, hardware, _):
        before = fabric.inventory()
        selection = selected(fabric, storage="fabric-nvme")
        assert selection.hosts[0].ids == ("fabric1/a100-1", "fabric1/a100-2", "fabric1/ssd-1")
        fabric.compose(selection)
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.mismatches(selection.request.configuration) == ()
        uuids = {f"GPU-{hardware.devices[name].uuid}" for name in attached(hardware) if name.startswith("gpu")}
        assert {device.host_id for device in composition.hosts[0].devices} == uuids
        assert {device.fabric_id for device in composition.devices} == set(selection.ids)
        assert fabric.release("one") == ()
        assert not attached(hardware)
        assert fabric.inventory() == before


def test_units_keep_their_names_while_others_come_and_go(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        fabric.compose(selected(fabric, "one", 1))
        fabric.compose(selected(fabric, "two", 2))
        assert ids(fabric, "two") == {"fabric1/a100-2", "fabric1/a100-3"}
        assert fabric.release("one") == ()
        again = fabric_at(server, tmp_path)
        assert ids(again, "two") == {"fabric1/a100-2", "fabric1/a100-3"}
        assert [d.fabric_id for d in again.inventory().devices if d.state == "free" and d.model == "a100"] == [
            "fabric1/a100-1"
        ]
        assert again.release("two") == ()
        assert not attached(hardware)


def test_another_model_than_asked_for_is_obtained_flagged_and_released(tmp_path: Path) -> None:
    with opened(tmp_path, wrong=1) as (fabric, hardware, _):
        selection = selected(fabric)
        fabric.compose(selection)
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.mismatches(selection.request.configuration) == (
            "host1: fabric1/a100-1 is 'l4', 'a100' requested",
        )
        assert given_back(fabric)
        assert not attached(hardware)


def test_more_than_asked_for_is_obtained_flagged_and_released(tmp_path: Path) -> None:
    with opened(tmp_path, extra=1) as (fabric, hardware, _):
        selection = selected(fabric, devices=1)
        fabric.compose(selection)
        composition = fabric.read_back("one")
        assert composition is not None
        assert composition.mismatches(selection.request.configuration) == ("host1: 2 devices obtained, 1 requested",)
        assert {device.holder for device in composition.devices} == {"one"}
        assert given_back(fabric)
        assert not attached(hardware)


def test_critical_and_attached_is_ours_to_release(tmp_path: Path) -> None:
    with opened(tmp_path, operation={"gpu1": "21", "gpu2": "10"}) as (fabric, hardware, _):
        fabric.compose(selected(fabric, devices=2))
        composition = fabric.read_back("one")
        assert composition is not None
        assert sorted(device.health for device in composition.devices) == ["critical", "warning"]
        assert given_back(fabric)
        assert not attached(hardware)


def test_what_was_on_the_machine_before_is_foreign(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        hardware.attach("gpu3", "host1")
        assert {device.holder for device in fabric.inventory().devices} == {None, "somebody, on host1"}
        server.faults.add(Fault("drop_after", method="PATCH"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric, devices=1))
        assert ids(fabric) == {"fabric1/a100-1"}  # what appeared since, and not gpu3
        assert given_back(fabric)
        assert attached(hardware) == {"gpu3": "host1"}


def test_an_answer_with_the_whole_machine_is_not_taken_for_what_was_attached(tmp_path: Path) -> None:
    with opened(tmp_path, whole=True) as (fabric, hardware, _):
        hardware.attach("gpu1", "host1")
        fabric.compose(selected(fabric))
        assert ids(fabric) == {"fabric1/a100-1", "fabric1/a100-2"}
        assert given_back(fabric)
        assert attached(hardware) == {"gpu1": "host1"}


def test_what_was_refused_is_not_expected_any_more(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        server.faults.add(Fault("status", method="PATCH", status=400, body="{}", after=1))
        with pytest.raises(PartialFailure):
            fabric.compose(selected(fabric))
        hardware.attach("gpu3", "host1")  # somebody else, on the same machine
        assert given_back(fabric)
        assert attached(hardware) == {"gpu3": "host1"}


def test_what_the_fabric_will_not_let_go_is_said_in_its_words(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        fabric.compose(selected(fabric))
        words = json.dumps({"status": 409, "detail": {"code": "E020999", "message": "in maintenance"}})
        server.faults.add(Fault("status", method="DELETE", status=409, body=words))
        with pytest.raises(PartialFailure, match="a100-1: HTTP 409 E020999 in maintenance") as caught:
            fabric.release("one")
        assert caught.value.failed == ("fabric1/a100-1",)
        assert set(attached(hardware)) == {"gpu1"}
        server.faults.add(Fault("html", method="DELETE"))
        with pytest.raises(OutcomeUnknown, match="a100-1: HTTP 500"):
            fabric.release("one")
        assert given_back(fabric)
        assert not attached(hardware)


def test_what_somebody_attaches_to_our_machine_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, _):
        fabric.compose(selected(fabric, devices=1))
        hardware.attach("gpu3", "host1")
        assert ids(fabric) == {"fabric1/a100-1"}
        assert given_back(fabric)
        assert attached(hardware) == {"gpu3": "host1"}


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "status", "lie", "garbage", "html"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_no_fault_on_the_wire_leaves_a_device_behind(kind: Any, after: int, method: str, tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        server.faults.add(Fault(kind, method=method, after=after, body="{}" if kind == "lie" else ""))
        selection = selected(fabric)
        try:
            fabric.compose(selection)
        except OutcomeUnknown:
            assert (method, kind in ("drop_before", "drop_after", "status", "garbage", "html")) == ("PATCH", True)
        assert len(ids(fabric)) == len(attached(hardware))
        assert ids(fabric) <= set(selection.ids)
        assert given_back(fabric)
        assert not attached(hardware)
        assert fabric.held() == {}


def test_a_lie_about_detaching_is_found_out(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        fabric.compose(selected(fabric, devices=1))
        server.faults.add(Fault("lie", method="DELETE", status=204))
        assert fabric.release("one") == ("fabric1/a100-1",)
        assert "one" in fabric.held()
        assert fabric.release("one") == ()
        assert not attached(hardware)


def test_a_lost_request_that_is_carried_out_late_is_still_this_leases(tmp_path: Path) -> None:
    with opened(tmp_path, options={"settle_s": 20.0}) as (fabric, hardware, server):
        server.faults.add(Fault("drop_before", method="PATCH"))
        with pytest.raises(OutcomeUnknown):
            fabric.compose(selected(fabric, devices=1))
        shown = fabric.plane.view
        looks: list[int] = []

        def late() -> Any:
            looks.append(1)
            if len(looks) == 2:  # the first look of a release finds nothing yet
                hardware.attach("gpu2", "host1")
            return shown()

        fabric.plane.view = late  # type: ignore[method-assign]
        assert fabric.release("one") == ()
        assert not attached(hardware)


def test_a_crash_before_the_answer_was_noted_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        selection = selected(fabric)

        def killed(lease_id: str, name: str, handle: str) -> None:
            if not handle.startswith("?") and name.startswith("fabric1/"):
                raise KeyboardInterrupt
            remember(lease_id, name, handle)

        remember = fabric._remember
        fabric._remember = killed  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            fabric.compose(selection)
        again = fabric_at(server, tmp_path)
        assert ids(again) == {"fabric1/a100-1"}
        again.compose(selection)  # goes on where the other one was
        assert ids(again) == set(selection.ids)
        assert len(attached(hardware)) == 2
        assert given_back(again)
        assert not attached(hardware)


def test_refused_at_once_nothing_is_held_and_refused_later_it_is_itemised(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, hardware, server):
        words = json.dumps({"status": 400, "detail": {"code": "E020400", "message": {"en": "no"}, "data": {}}})
        server.faults.add(Fault("status", method="PATCH", status=400, body=words))
        with pytest.raises(Incompatible, match=r'E020400 \{"en": "no"\}'):
            fabric.compose(selected(fabric))
        assert given_back(fabric)
        server.faults.add(Fault("status", method="PATCH", status=400, body=words, after=1))
        with pytest.raises(PartialFailure) as caught:
            fabric.compose(selected(fabric))
        assert (caught.value.done, caught.value.failed) == (("fabric1/a100-1",), ("fabric1/a100-2",))
        assert given_back(fabric)
        assert not attached(hardware)


def test_the_last_one_taken_by_somebody_is_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=1) as (fabric, hardware, _):
        selection = selected(fabric, devices=1)
        attach = fabric.plane.attach

        def taken(*change: Any) -> None:
            hardware.attach("gpu1", "host2")
            attach(*change)

        fabric.plane.attach = taken  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="another client took it"):
            fabric.compose(selection)
        assert fabric.held() == {}


def test_a_host_of_eight_costs_no_request_more_than_the_dialect_needs(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=8) as (fabric, _, server):
        selection = selected(fabric, devices=8)
        before = len(server.log)
        fabric.compose(selection)
        fabric.read_back("one")
        fabric.release("one")
        looks = 4 * (1 + 3)  # around each change: the machines, and how many are left of each of three models
        assert len(server.log) - before <= 8 + 8 + looks


def test_a_rehearsal_sends_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as (fabric, _, server):
        composing, releasing = fabric.rehearse(selected(fabric))
        assert [sent.method for sent in (*composing, *releasing)] == ["PATCH", "PATCH", "DELETE", "DELETE"]
        assert "(chosen by the fabric)" in json.dumps(releasing[0].body)
        assert [asked.path.rpartition("/")[2] for asked in server.changing()] == ["token"]
        fabric.compose(selected(fabric))
        assert [asked.body for asked in server.changing()[1:]] == [sent.body for sent in composing]


# -- tokens ---------------------------------------------------------------------------------------------------------------------


def test_a_token_is_renewed_before_it_ends_and_when_it_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, token_s=31.0) as (fabric, _, server):
        fabric.inventory()
        fabric.inventory()
        tokens = [asked for asked in server.log if asked.path.endswith("/token")]
        assert len(tokens) == 1
        server.dialect._tokens.clear()  # type: ignore[attr-defined]
        fabric.compose(selected(fabric))
        assert len([asked for asked in server.log if asked.path.endswith("/token")]) == 2
    with opened(tmp_path / "short", token_s=29.0) as (fabric, _, server):
        fabric.inventory()  # each read has a token of its own: 29 s are within the leeway
        assert len([asked for asked in server.log if asked.path.endswith("/token")]) == len(server.log) / 2


def test_a_wrong_password_is_named_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as (fabric, _, _server):
        monkeypatch.setenv("CDI_PASSWORD", "not-the-password")
        with pytest.raises(FabricError, match="realm cdi issues no token") as caught:
            fabric.inventory()
        assert "not-the-password" not in str(caught.value)
        monkeypatch.delenv("CDI_PASSWORD")
        with pytest.raises(ConfigError, match="CDI_PASSWORD is not set"):
            fabric.inventory()


def test_a_tokens_own_end_counts() -> None:
    payload = urlsafe_b64encode(json.dumps({"exp": 1731509783}).encode()).decode().rstrip("=")
    assert expires_s(f"h.{payload}.s", {"expires_in": 9_999_999}) == 1731509783
    for broken in ("opaque", "a.b.c", f"h.{payload[:-3]}.s"):
        assert abs(expires_s(broken, {"expires_in": 60}) - time.time() - 60) < 5


@pytest.mark.parametrize("odd", [10**400, None, [], {}, "soon"])
def test_an_end_that_is_no_time_is_a_minute(odd: Any) -> None:
    payload = urlsafe_b64encode(json.dumps({"exp": odd}).encode()).decode().rstrip("=")
    assert abs(expires_s(f"h.{payload}.s", {"expires_in": odd}) - time.time() - 60) < 5


# -- parsing --------------------------------------------------------------------------------------------------------------------


def sample(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def test_machines_as_public_clients_know_them() -> None:
    first, deleted = machines(sample("machines.json"), ["gpu", "storage"])
    assert (first.name, first.fabric, deleted.fabric) == ("example-machine-01", "fabric1", "fabric")
    assert [(one.type, one.model, one.health) for one in first.resources] == [
        ("storage", None, "ok"),  # what the machine boots from is not of the pool
        ("gpu", "NVIDIA Tesla T4", "ok"),
        ("gpu", "A100-40G", "critical"),
        ("gpu", "A100-40G", "warning"),
    ]
    assert deleted.resources == ()


@pytest.mark.parametrize("damaged", [None, 500, "<html>", [], {}, {"data": {}}, {"data": {"machines": [{}]}}])
def test_what_is_no_list_is_not_an_empty_fabric(damaged: Any) -> None:
    with pytest.raises(ProtocolViolation, match="fabric manager"):
        machines(damaged, ["gpu"])


def test_only_what_appeared_since_is_taken_for_what_was_asked() -> None:
    (machine, _) = machines(sample("machines.json"), ["gpu"])
    old, critical, warning = (one.uuid for one in machine.resources)
    holding = Holding(
        campaign="demo",
        owner="tester",
        since_s=0.0,
        hosts=(HeldHost(name="host1", devices=("fabric1/A100-40G-1", "fabric1/A100-40G-2", "fabric1/A100-40G-3")),),
        handles={
            "before host1": old,
            "fabric1/A100-40G-1": critical,
            "fabric1/A100-40G-2": "?1700000000",
            "fabric1/A100-40G-3": "",
        },
    )
    found = owned({"host1": machine}, {"one": holding})
    assert {uuid: owner.unit for uuid, owner in found.items()} == {
        critical: "fabric1/A100-40G-1",
        warning: "fabric1/A100-40G-2",
    }
    first = "fabric1/NVIDIA Tesla T4-1"
    handles = {"before host1": "", first: "?1", "fabric1/A100-40G-1": "?1"}
    hosts = (HeldHost(name="host1", devices=("fabric1/A100-40G-1", first)),)
    mixed = owned({"host1": machine}, {"one": holding.model_copy(update={"handles": handles, "hosts": hosts})})
    assert {uuid: owner.unit for uuid, owner in mixed.items()} == {critical: "fabric1/A100-40G-1", old: first}
    known = Known({"host1": machine}, found)
    assert known.of_unit("fabric1/A100-40G-3") is None
    assert known.of_unit(old) == ("host1", machine.resources[0])
    assert name_uuid("gpu1") != name_uuid("gpu2")
