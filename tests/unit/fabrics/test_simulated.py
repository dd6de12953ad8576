"""The simulated fabric's own behaviour: faults, latencies, transactions, slots that others hold."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from campaign.fabrics.banks import MODE_RULES
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown
from campaign.fabrics.protocol import HostSelection, LeaseRequest, Selection
from campaign.fabrics.simulated import SimulatedFabric, SimulatedOptions, make_host_id
from campaign.fabrics.state_file import StateFile
from campaign.spec.hardware import Composition
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import obtained

TWO = configuration(devices_per_host=2)
SLOT1, SLOT2, SLOT3 = (f"falcon1/drawer1/slot{number}" for number in (1, 2, 3))


def simulated(tmp_path: Path, *faults: str | dict[str, Any], hosts: int = 2, **options: Any) -> SimulatedFabric:
    listed = [{"kind": fault} if isinstance(fault, str) else fault for fault in faults]
    specs = [HostSpec(name=f"host{number}", cores=4, memory_gib=16.0) for number in range(1, hosts + 1)]
    pool = [PoolSpec(kind="gpu", model="a100", count=4), PoolSpec(kind="gpu", model="h100", count=1)]
    return SimulatedFabric(SimulatedOptions.model_validate({"faults": listed} | options), specs, pool, tmp_path)


def request(lease_id: str = "one", wanted: Any = TWO) -> LeaseRequest:
    return LeaseRequest(lease_id, "demo", "me", wanted)


def compose(fabric: SimulatedFabric, lease_id: str = "one", wanted: Any = TWO) -> Composition:
    fabric.compose(fabric.select_devices(request(lease_id, wanted), fabric.read_inventory()))
    composition = obtained(fabric, lease_id)
    return composition


def ids(composition: Composition) -> list[str]:
    return [device.fabric_id for device in composition.devices]


def test_busy_changes_nothing_and_passes(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, {"kind": "busy", "times": 2})
    for _ in range(2):
        with pytest.raises(Busy):
            compose(fabric)
        assert not fabric.list_lease_tags()
    assert ids(compose(fabric)) == [SLOT1, SLOT2]


def test_a_fault_happens_only_to_what_it_names(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, {"kind": "busy", "lease": "demo.*"}, {"kind": "short_attach", "device": "*/slot2"})
    assert ids(compose(fabric, "other")) == [SLOT1]
    with pytest.raises(Busy):
        compose(fabric, "demo.x")


def test_faults_are_counted_across_processes(tmp_path: Path) -> None:
    with pytest.raises(Busy):
        compose(simulated(tmp_path, "busy"))
    assert ids(compose(simulated(tmp_path, "busy"))) == [SLOT1, SLOT2]


def test_a_short_attachment_reports_success_and_reads_back_short(tmp_path: Path) -> None:
    composition = compose(simulated(tmp_path, "short_attach"))
    assert ids(composition) == [SLOT2]
    assert composition.list_shortfalls(TWO) == ("host1: 1 devices obtained, 2 requested",)


def test_a_substituted_device_is_reported_as_what_it_is(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "substituted_device")
    composition = compose(fabric)
    assert composition.list_shortfalls(TWO) == ()
    assert composition.list_mismatches(TWO) == ("host1: falcon1/drawer1/slot5 is 'h100', 'a100' requested",)
    assert set(fabric.list_lease_tags()["one"].devices) == {"falcon1/drawer1/slot5", SLOT2}
    assert fabric.release("one") == ()
    assert {device.state for device in fabric.read_inventory().devices} == {"free"}


def test_a_degraded_link_is_reported_until_release(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "degraded_link")
    assert compose(fabric).list_mismatches(TWO) == (f"{SLOT1}: link x8 gen 4, x16 gen 4 possible",)
    fabric.release("one")
    assert compose(fabric).list_mismatches(TWO) == ()


def test_a_device_that_is_never_visible_stays_so_after_a_rescan(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "device_never_visible")
    composition = compose(fabric)
    assert fabric.find_visible_devices(composition) == {SLOT2}
    fabric.rescan_hosts(composition)
    assert fabric.find_visible_devices(composition) == {SLOT2}


def test_a_device_that_needs_a_rescan_is_seen_after_it(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "needs_rescan")
    composition = compose(fabric)
    assert fabric.find_visible_devices(composition) == {SLOT2}
    fabric.rescan_hosts(composition)
    assert fabric.find_visible_devices(composition) == {SLOT1, SLOT2}


def test_a_failed_device_stays_failed_after_release(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "device_fails")
    composition = compose(fabric)
    assert [device.health for device in composition.devices] == ["critical", "ok"]
    assert fabric.find_visible_devices(composition) == {SLOT2}
    assert fabric.release("one") == ()
    broken = fabric.read_inventory().find_device(SLOT1)
    assert broken is not None
    assert (broken.state, broken.health, broken.holder) == ("failed", "critical", None)
    assert ids(compose(fabric)) == [SLOT2, SLOT3]


def test_a_failure_to_come_is_not_there_yet(tmp_path: Path) -> None:
    composition = compose(simulated(tmp_path, {"kind": "device_fails", "after_s": 3600}))
    assert composition.list_mismatches(TWO) == ()


def test_a_leaked_device_and_its_host_stay_with_the_lease(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "leak")
    compose(fabric)
    assert fabric.release("one") == (SLOT1,)
    assert fabric.list_lease_tags()["one"].devices == (SLOT1,)
    assert [host.holder for host in fabric.read_inventory().hosts] == ["one", None]
    assert fabric.release("one") == ()
    assert not fabric.list_lease_tags()


def test_a_lost_reply_to_release_has_released(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, "unknown_release")
    compose(fabric)
    with pytest.raises(OutcomeUnknown):
        fabric.release("one")
    assert fabric.read_back("one") is None


def test_hosts_see_devices_only_after_they_enumerated(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, enumerate_s=3600.0)
    assert fabric.find_visible_devices(compose(fabric)) == frozenset()


def test_latencies_are_slept_per_operation_and_per_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    fabric = simulated(tmp_path, operation_s=5.0, attach_s=2.0, detach_s=1.0)
    compose(fabric)
    assert slept == [5.0, 2.0, 2.0]
    fabric.release("one")
    assert slept[3:] == [5.0, 1.0, 1.0]


def test_one_transaction_at_a_time(tmp_path: Path) -> None:
    fabric, other = simulated(tmp_path), simulated(tmp_path)
    compose(fabric)
    with StateFile(tmp_path / "simulated.json").lock_transaction("theirs"):
        with pytest.raises(Busy, match="theirs") as caught:
            compose(other, "two")
        with pytest.raises(Busy, match="theirs"):
            other.release("one")
    assert caught.value.holders == ("theirs",)
    assert list(other.list_lease_tags()) == ["one"]
    assert other.release("one") == ()


def test_the_fabric_refuses_a_selection_against_its_rules(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, hosts=4)
    spread = tuple(HostSelection(f"host{n}", fabric=(f"falcon1/drawer1/slot{n}",)) for n in range(1, 5))
    with pytest.raises(Incompatible) as caught:
        fabric.compose(Selection(request(), spread))
    assert MODE_RULES["advanced"] in caught.value.rule
    assert not fabric.list_lease_tags()


def test_a_rule_that_another_lease_makes_bite_is_a_conflict(tmp_path: Path) -> None:
    fabric = simulated(tmp_path, hosts=4)
    compose(fabric, "three", configuration(hosts=3))
    with pytest.raises(Conflict) as selecting:
        fabric.select_devices(request("four", configuration()), fabric.read_inventory())
    late = Selection(request("four"), (HostSelection("host4", fabric=("falcon1/drawer1/slot4",)),))
    with pytest.raises(Conflict) as composing:
        fabric.compose(late)
    assert selecting.value.holders == composing.value.holders == ("three",)
    assert list(fabric.list_lease_tags()) == ["three"]


def test_a_lease_id_of_another_owner_is_no_repetition(tmp_path: Path) -> None:
    fabric = simulated(tmp_path)
    selection = fabric.select_devices(request(), fabric.read_inventory())
    fabric.compose(selection)
    theirs = Selection(LeaseRequest("one", "demo", "somebody else", TWO), selection.hosts)
    with pytest.raises(Conflict, match="for me"):
        fabric.compose(theirs)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [("gpu", r"GPU-[0-9a-f-]{36}"), ("nvme", "[0-9A-F]{16}"), ("nic", "02(:[0-9a-f]{2}){5}")],
)
def test_host_ids_look_like_what_hosts_report(kind: str, pattern: str) -> None:

    assert re.fullmatch(pattern, make_host_id(kind, SLOT1))
    assert make_host_id(kind, SLOT1) == make_host_id(kind, SLOT1) != make_host_id(kind, SLOT2)


def test_hosts_name_their_ports(tmp_path: Path) -> None:
    assert [host.ports for host in simulated(tmp_path).read_inventory().hosts] == [("falcon1/H1",), ("falcon1/H2",)]
