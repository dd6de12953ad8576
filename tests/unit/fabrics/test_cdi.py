"""The Fujitsu CDI adapter, against the emulated fabric manager: the fabric chooses, and what it chose is what is claimed."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.cdi import name_uuid
from campaign.emulators.control_planes.server import WireFault
from campaign.errors import ConfigError, FabricError
from campaign.fabrics.adapters.cdi import KnownMachines, claimed, machines
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.http.openid import expires_s
from campaign.fabrics.state_file import HeldHost, Holding
from tests.unit.fabrics import bench

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "cdi"
opened = partial(bench.opened, "cdi")


@pytest.mark.parametrize("quirks", [{}, {"brief": True}, {"misspelt": True}])
def test_units_of_a_count_become_the_devices_that_the_fabric_chose(quirks: dict[str, Any], tmp_path: Path) -> None:
    with opened(tmp_path, **quirks) as b:
        before = b.fabric.inventory()
        selection = b.selection(storage="fabric-nvme")
        assert selection.hosts[0].ids == ("fabric1/a100-1", "fabric1/a100-2", "fabric1/ssd-1")
        b.fabric.compose(selection)
        composition = b.obtained()
        assert composition.mismatches(selection.request.configuration) == ()
        uuids = {f"GPU-{b.rack.devices[name].uuid}" for name in b.attached() if name.startswith("gpu")}
        assert {device.host_id for device in composition.hosts[0].devices} == uuids
        assert {device.fabric_id for device in composition.devices} == set(selection.ids)
        assert b.gave_back()
        assert b.fabric.inventory() == before


def test_units_keep_their_names_while_others_come_and_go(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose("one", 1)
        b.compose("two", 2)
        assert b.ids("two") == {"fabric1/a100-2", "fabric1/a100-3"}
        assert b.fabric.release("one") == ()
        again = b.again()
        assert b.ids("two", again) == {"fabric1/a100-2", "fabric1/a100-3"}
        assert [d.fabric_id for d in again.inventory().devices if d.state == "free" and d.model == "a100"] == [
            "fabric1/a100-1"
        ]
        assert again.release("two") == ()
        assert not b.attached()


def test_another_model_than_asked_for_is_obtained_flagged_and_released(tmp_path: Path) -> None:
    with opened(tmp_path, wrong=1) as b:
        selection = b.compose()
        composition = b.obtained()
        assert composition.mismatches(selection.request.configuration) == (
            "host1: fabric1/a100-1 is 'l4', 'a100' requested",
        )
        assert b.gave_back(tries=3)


def test_critical_and_attached_is_ours_to_release(tmp_path: Path) -> None:
    with opened(tmp_path, operation={"gpu1": "21", "gpu2": "10"}) as b:
        b.compose(devices=2)
        composition = b.obtained()
        assert sorted(device.health for device in composition.devices) == ["critical", "warning"]
        assert b.gave_back(tries=3)


def test_what_was_on_the_machine_before_is_foreign(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.rack.attach("gpu3", "host1")
        assert {device.holder for device in b.fabric.inventory().devices} == {None, "somebody, on host1"}
        b.server.faults.add(WireFault("drop_after", method="PATCH"))
        with pytest.raises(OutcomeUnknown):
            b.compose(devices=1)
        assert b.ids() == {"fabric1/a100-1"}  # what appeared since, and not gpu3
        assert b.gave_back(tries=3, left={"gpu3": "host1"})


def test_an_answer_with_the_whole_machine_is_not_taken_for_what_was_attached(tmp_path: Path) -> None:
    with opened(tmp_path, whole=True) as b:
        b.rack.attach("gpu1", "host1")
        b.compose()
        assert b.ids() == {"fabric1/a100-1", "fabric1/a100-2"}
        assert b.gave_back(tries=3, left={"gpu1": "host1"})


def test_what_was_refused_is_not_expected_any_more(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.server.faults.add(WireFault("status", method="PATCH", status=400, body="{}", after=1))
        with pytest.raises(PartialFailure):
            b.compose()
        b.rack.attach("gpu3", "host1")  # somebody else, on the same machine
        assert b.gave_back(tries=3, left={"gpu3": "host1"})


def test_what_the_fabric_will_not_let_go_is_said_in_its_words(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose()
        words = json.dumps({"status": 409, "detail": {"code": "E020999", "message": "in maintenance"}})
        b.server.faults.add(WireFault("status", method="DELETE", status=409, body=words))
        with pytest.raises(PartialFailure, match="a100-1: HTTP 409 E020999 in maintenance") as caught:
            b.fabric.release("one")
        assert caught.value.failed == ("fabric1/a100-1",)
        assert set(b.attached()) == {"gpu1"}
        b.server.faults.add(WireFault("html", method="DELETE"))
        with pytest.raises(OutcomeUnknown, match="a100-1: HTTP 500"):
            b.fabric.release("one")
        assert b.gave_back(tries=3)


def test_what_somebody_attaches_to_our_machine_meanwhile_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose(devices=1)
        b.rack.attach("gpu3", "host1")
        assert b.ids() == {"fabric1/a100-1"}
        assert b.gave_back(tries=3, left={"gpu3": "host1"})


def test_a_lie_about_detaching_is_found_out(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose(devices=1)
        b.server.faults.add(WireFault("lie", method="DELETE", status=204))
        assert b.fabric.release("one") == ("fabric1/a100-1",)
        assert "one" in b.fabric.held()
        assert b.gave_back()


def test_a_lost_request_that_is_carried_out_late_is_still_this_leases(tmp_path: Path) -> None:
    with opened(tmp_path, options={"settle_s": 20.0}) as b:
        b.server.faults.add(WireFault("drop_before", method="PATCH"))
        with pytest.raises(OutcomeUnknown):
            b.compose(devices=1)
        shown = b.fabric.plane.view
        looks: list[int] = []

        def late() -> Any:
            looks.append(1)
            if len(looks) == 2:  # the first look of a release finds nothing yet
                b.rack.attach("gpu2", "host1")
            return shown()

        b.fabric.plane.view = late  # type: ignore[method-assign]
        assert b.gave_back()


def test_a_crash_before_the_answer_was_noted_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        selection = b.selection()

        def killed(lease_id: str, name: str, handle: str) -> None:
            if not handle.startswith("?") and name.startswith("fabric1/"):
                raise KeyboardInterrupt
            remember(lease_id, name, handle)

        remember = b.fabric._remember
        b.fabric._remember = killed  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            b.fabric.compose(selection)
        again = b.again()
        assert b.ids(fabric=again) == {"fabric1/a100-1"}
        again.compose(selection)  # goes on where the other one was
        assert b.ids(fabric=again) == set(selection.ids)
        assert len(b.attached()) == 2
        again.close()
        assert b.gave_back()


def test_refused_at_once_nothing_is_held_and_refused_later_it_is_itemised(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        words = json.dumps({"status": 400, "detail": {"code": "E020400", "message": {"en": "no"}, "data": {}}})
        b.server.faults.add(WireFault("status", method="PATCH", status=400, body=words))
        with pytest.raises(Incompatible, match=r'E020400 \{"en": "no"\}'):
            b.compose()
        assert b.gave_back(tries=3)
        b.server.faults.add(WireFault("status", method="PATCH", status=400, body=words, after=1))
        with pytest.raises(PartialFailure) as caught:
            b.compose()
        assert (caught.value.done, caught.value.failed) == (("fabric1/a100-1",), ("fabric1/a100-2",))
        assert b.gave_back(tries=3)


def test_the_last_one_taken_by_somebody_is_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=1) as b:
        selection = b.selection(devices=1)
        attach = b.fabric.plane.attach

        def taken(*change: Any) -> None:
            b.rack.attach("gpu1", "host2")
            attach(*change)

        b.fabric.plane.attach = taken  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="another client took it"):
            b.fabric.compose(selection)
        assert b.fabric.held() == {}


# -- tokens ---------------------------------------------------------------------------------------------------------------------


def test_a_token_is_renewed_before_it_ends_and_when_it_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, token_s=31.0) as b:
        b.fabric.inventory()
        b.fabric.inventory()
        tokens = [asked for asked in b.server.log if asked.path.endswith("/token")]
        assert len(tokens) == 1
        b.server.emulator._tokens.clear()  # type: ignore[attr-defined]
        b.compose()
        assert len([asked for asked in b.server.log if asked.path.endswith("/token")]) == 2
    with opened(tmp_path / "short", token_s=29.0) as b:
        b.fabric.inventory()  # each read has a token of its own: 29 s are within the leeway
        assert len([asked for asked in b.server.log if asked.path.endswith("/token")]) == len(b.server.log) / 2


def test_a_wrong_password_is_named_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as b:
        monkeypatch.setenv("FABRIC_PASSWORD", "not-the-password")
        with pytest.raises(FabricError, match="realm cdi issues no token") as caught:
            b.fabric.inventory()
        assert "not-the-password" not in str(caught.value)
        monkeypatch.delenv("FABRIC_PASSWORD")
        with pytest.raises(ConfigError, match="FABRIC_PASSWORD is not set"):
            b.fabric.inventory()


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
    first, deleted = machines(sample("machines.json"))
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
        machines(damaged)


def test_only_what_appeared_since_is_taken_for_what_was_asked() -> None:
    (machine, _) = machines(sample("machines.json"))
    machine = replace(machine, resources=tuple(one for one in machine.resources if one.type == "gpu"))
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
    found = claimed({"host1": machine}, {"one": holding})
    assert found == {
        critical: "fabric1/A100-40G-1",
        warning: "fabric1/A100-40G-2",
    }
    first = "fabric1/NVIDIA Tesla T4-1"
    handles = {"before host1": "", first: "?1", "fabric1/A100-40G-1": "?1"}
    hosts = (HeldHost(name="host1", devices=("fabric1/A100-40G-1", first)),)
    mixed = claimed({"host1": machine}, {"one": holding.model_copy(update={"handles": handles, "hosts": hosts})})
    assert mixed == {critical: "fabric1/A100-40G-1", old: first}
    known = KnownMachines({"host1": machine}, found)
    assert known.of_unit("fabric1/A100-40G-3") is None
    assert known.of_unit(old) == ("host1", machine.resources[0])
    assert name_uuid("gpu1") != name_uuid("gpu2")
