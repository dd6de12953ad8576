"""The NEC CDIM adapter, against the emulated CDIM: what it believes, what it sends, and what it makes of faults."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from campaign.emulators.control_planes.server import WireFault
from campaign.fabrics.adapters.nec import NecOptions, layout, procedures
from campaign.fabrics.errors import Busy, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation, Unhealthy
from tests.contract.fabric_fixtures import CREDENTIALS
from tests.unit.fabrics import bench
from tests.unit.fabrics.bench import NODES, tried

DATA = Path(__file__).parents[2] / "data" / "fabrics" / "nec"
SCHEMA = jsonschema.Draft202012Validator(json.loads((DATA / "layout_apply_schema.json").read_text())["schema"])
opened = partial(bench.opened, "nec")


def test_a_lease_is_one_apply_for_all_its_hosts(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=4, looks=2) as b:
        selection = b.compose(devices=2, hosts=2)
        (asked,) = (one for one in b.server.changing() if one.path.endswith("/layout-apply"))
        steps = asked.body["procedures"]
        assert [step["dependencies"] for step in steps] == [[], [1], [], [3]]
        assert b.attached() == {name: host.host for host in selection.hosts for name in host.fabric}
        composition = b.obtained()
        assert composition.mismatches(selection.request.configuration) == ()
        assert b.gave_back()
        applies = [one for one in b.server.changing() if one.path.endswith("/layout-apply")]
        assert len(applies) == 2
        # What project CDIM's own layout-apply makes of them.
        assert all(SCHEMA.is_valid(one.body) for one in applies)


def test_each_service_is_asked_at_its_address_and_nobody_logs_in(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.compose()
        asked = {(one.part, one.path.split("/")[4]) for one in b.server.log}
        lists = {("configuration-manager", name) for name in ("resources", "nodes")}
        assert asked == {("layout-apply", "layout-apply"), *lists}
        assert all(one.header("Authorization") is None for one in b.server.log)
    with pytest.raises(ValueError, match="nobody asks for them"):
        NecOptions.model_validate({"url": "https://cdim:8280", "credentials": CREDENTIALS})


def test_lists_that_lag_behind_an_apply_are_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path, lag=3, options={"settle_s": 10.0}) as b:
        selection = b.compose()
        composition = b.obtained()
        assert composition.mismatches(selection.request.configuration) == ()
        assert b.gave_back()
        assert {device.state for device in b.fabric.inventory().devices} == {"free"}


def test_an_apply_whose_answer_was_lost_is_seen_when_lists_lag(tmp_path: Path) -> None:
    with opened(tmp_path, lag=4, options={"settle_s": 10.0}) as b:
        b.server.faults.add(WireFault("drop_after", method="POST"))
        with pytest.raises(OutcomeUnknown):
            b.compose()
        assert b.gave_back()


def test_busy_is_busy_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, busy=1) as b:
        selection = b.selection()
        with pytest.raises(Busy, match="E40010"):
            b.fabric.compose(selection)
        assert b.fabric.held() == {}
        assert not b.attached()
        b.fabric.compose(selection)
        assert len(b.attached()) == 2


@pytest.mark.parametrize("ends", ["FAILED", "SUSPENDED", "CANCELED"])
def test_an_apply_that_ends_halfway_is_itemised_and_can_be_released(ends: str, tmp_path: Path) -> None:
    with opened(tmp_path, ends=ends, after=1) as b:
        selection = b.selection()
        with pytest.raises(PartialFailure, match=ends) as caught:
            b.fabric.compose(selection)
        assert set(caught.value.done) == set(b.attached())
        assert len(caught.value.done) == len(caught.value.failed) == 1
        composition = b.obtained()
        assert composition.shortfall(selection.request.configuration)
        assert b.gave_back()


def test_a_suspended_apply_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path, ends="SUSPENDED") as b:
        device = next(iter(b.fabric.inventory().devices)).fabric_id
        steps = procedures("connect", {"host1": [device]}, {"host1": f"cpu-{NODES['host1']}"})
        b.fabric.plane.client.change("POST", "/cdim/api/v1/layout-apply", {"procedures": steps})
        b.fabric.plane.client.get("/cdim/api/v1/layout-apply/0000000001")
        with pytest.raises(Busy, match=r"E40027.*0000000001.*resume or cancel it"):
            b.compose()
        assert not [asked for asked in b.server.log if asked.method == "PUT"]


def test_a_suspended_apply_of_this_lease_is_cancelled_before_anything_else(tmp_path: Path) -> None:
    with opened(tmp_path, ends="SUSPENDED", after=1) as b:
        b.server.faults.add(WireFault("drop_before", method="PUT"))
        with pytest.raises(OutcomeUnknown):
            b.compose()
        assert len(b.attached()) == 1
        assert b.gave_back()


def test_an_apply_whose_answer_was_lost_is_not_forgotten_while_it_runs(tmp_path: Path) -> None:
    with opened(tmp_path, looks=7) as b:
        b.server.faults.add(WireFault("drop_after", method="POST"))
        with pytest.raises(OutcomeUnknown):
            b.compose()
        assert not b.attached()  # not yet
        with pytest.raises(Busy, match="may be this lease's own"):
            b.fabric.release("one")
        assert "one" in b.fabric.held()
        assert any(tried(lambda: b.fabric.release("one")) for _ in range(20))
        assert not b.attached()
        assert b.fabric.held() == {}


def test_an_apply_that_takes_too_long_is_waited_for_at_release(tmp_path: Path) -> None:
    with opened(tmp_path, options={"operation_s": 0.4, "poll_s": 0.1}, looks=5) as b:
        with pytest.raises(OutcomeUnknown, match=r"still IN_PROGRESS after 0.4 s"):
            b.compose()
        assert any(tried(lambda: b.fabric.release("one")) for _ in range(20))
        assert not b.attached()


def test_an_apply_that_was_refused_is_not_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path, looks=99) as b:
        b.server.faults.add(WireFault("status", method="POST", status=400, body='{"code": "E40001", "message": "no"}'))
        with pytest.raises(Incompatible, match="E40001 no"):
            b.compose()
        steps = procedures("connect", {"host2": ["somebody's"]}, {"host2": "theirs"})
        assert b.fabric.plane.client.change("POST", "/cdim/api/v1/layout-apply", {"procedures": steps}).status == 202
        assert b.gave_back()


def test_what_was_attached_before_is_somebody_elses(tmp_path: Path) -> None:
    with opened(tmp_path) as b:
        b.rack.attach("gpu1", "host1")
        holders = {device.holder for device in b.fabric.inventory().devices}
        assert holders == {None, "somebody, on host1"}
        b.compose()
        assert b.gave_back(left={b.rack.devices["gpu1"].uuid: "host1"})
        assert "disconnect" in b.server.changing()[-1].text


def test_hosts_of_others_take_no_place_from_ours(tmp_path: Path) -> None:
    others = tuple(f"other{number}" for number in range(3))
    with opened(tmp_path, hosts=(*others, "host1", "host2"), gpus=5) as b:
        for number, host in enumerate(others, start=1):
            b.rack.attach(f"gpu{number}", host)
        assert len(b.selection(devices=1, hosts=2).hosts) == 2


def test_a_broken_device_is_not_chosen(tmp_path: Path) -> None:
    with opened(tmp_path, gpus=2) as b:
        b.rack.devices["gpu1"].quirks.add("broken")
        with pytest.raises(Unhealthy):
            b.selection(devices=2)


def test_a_host_without_an_interface_is_named_with_what_to_set(tmp_path: Path) -> None:
    with (
        opened(tmp_path, options={"hosts": {"host1": "nowhere", "host2": "nowhere2"}}) as b,
        pytest.raises(Incompatible, match=r"host1 \(node nowhere\).*`hosts`"),
    ):
        b.selection()


# -- parsing --------------------------------------------------------------------------------------------------------------------


def sample(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def shown(**changes: Any) -> dict[str, tuple[str, str | None, str]]:
    options = NecOptions.model_validate({"url": "http://cdim", "hosts": NODES, **changes})
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


def test_the_model_is_the_system_files_name() -> None:
    options = NecOptions.model_validate({"url": "http://cdim", "models": {"NVIDIA A100-PCIE-40GB": "a100-40gb"}})
    found = layout(sample("resources.json"), sample("nodes.json"), options, [])
    assert {options.model(device.model) for device in found.devices} == {"a100-40gb", "pm9a3-1.92tb"}
    (drive,) = (device for device in found.devices if device.kind == "nvme")
    assert drive.host_id == "S64GNE0R"
    assert all(device.host_id is None for device in found.devices if device.kind == "gpu")


@pytest.mark.parametrize("damaged", [{}, {"resources": None}, {"resources": "<html>"}, [], 500])
def test_what_is_no_list_is_not_an_empty_pool(damaged: Any) -> None:
    options = NecOptions.model_validate({"url": "http://cdim"})
    with pytest.raises(ProtocolViolation, match="a list 'resources' was expected"):
        layout(damaged, {"nodes": []}, options, [])
