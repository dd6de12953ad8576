"""Acquiring, checking, releasing and reconciling leases, with every fault that the simulated fabric can commit."""

from __future__ import annotations

import threading
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError, FabricError, LaunchError
from campaign.fabrics.errors import (
    Busy,
    Conflict,
    HostNotVisible,
    Incompatible,
    NoMatch,
    OutcomeUnknown,
    PartialFailure,
    ProtocolViolation,
    Unhealthy,
)
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.fabrics.simulated import SimulatedFabric, SimulatedOptions
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import collect_operation_times
from campaign.lease.fabric_calls import WaitBudget
from campaign.lease.journal import Journal, is_owned
from campaign.lease.lifecycle import HeldLease, acquire_lease, check_lease, mark_in_use, release_lease
from campaign.lease.reconcile import reconcile_leases
from campaign.spec.site_hardware import HostSpec, PoolSpec
from campaign.spec.system_file import SystemFile
from tests.contract.fabric_fixtures import configuration

TWO = configuration(devices_per_host=2)
SLOT1, SLOT2, SLOT3 = (f"falcon1/drawer1/slot{number}" for number in (1, 2, 3))


class Bench:
    """A simulated fabric and a journal directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journals = directory / "leases"
        self.fabric = self.open()

    def open(self, *faults: str | dict[str, Any]) -> Fabric:
        listed = [{"kind": fault} if isinstance(fault, str) else fault for fault in faults]
        hosts = [HostSpec(name=f"host{number}", cores=4, memory_gib=16.0) for number in (1, 2)]
        pool = [PoolSpec(kind="gpu", model="a100", count=4), PoolSpec(kind="gpu", model="h100", count=1)]
        self.fabric = SimulatedFabric(SimulatedOptions.model_validate({"faults": listed}), hosts, pool, self.directory)
        return self.fabric

    def acquire(self, lease_id: str = "one", wanted: Any = TWO, **changes: Any) -> HeldLease:
        timing = {"wait_s": 0.0, "poll_s": 0.0, "visibility_timeout_s": 0.0} | changes
        return acquire_lease(self.fabric, LeaseRequest(lease_id, "demo", "me", wanted), self.journals, **timing)

    def release(self, lease: HeldLease) -> dict[str, Any]:
        return release_lease(self.fabric, lease, wait_s=0, poll_s=0)

    def reconcile(self, **changes: Any) -> list[tuple[str, str]]:
        options = {"is_alive": partial(is_owned, self.journals), "dry_run": False, "wait_s": 0, "poll_s": 0} | changes
        return [(orphan.lease_id, orphan.outcome) for orphan in reconcile_leases(self.fabric, self.journals, **options)]

    def states(self, lease_id: str = "one") -> list[str]:
        return [entry["state"] for entry in Journal(self.journals, lease_id).read_last_use() if "state" in entry]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_straight_way(bench: Bench) -> None:
    lease = bench.acquire()
    ready = lease.make_document()
    assert ready["state"] == "READY"
    assert ready["times"]["requested_s"] <= ready["times"]["fabric_done_s"] <= ready["times"]["ready_s"]
    assert ready["times"]["released_s"] is None
    assert ready["obtained"] == lease.composition.document()
    assert ready["requested"]["devices_per_host"] == 2
    mark_in_use(lease)
    mark_in_use(lease)
    document = bench.release(lease)
    way = "PLANNED RESERVED COMPOSING FABRIC_OK HOST_VISIBLE READY IN_USE DRAINING DETACHING FABRIC_FREE RELEASED"
    assert " ".join(bench.states()) == way
    assert (document["operations"], document["retries"], document["faults"], document["leaked"]) == (2, 0, [], [])
    assert document["times"]["released_s"] >= ready["times"]["ready_s"]
    assert not bench.fabric.list_lease_tags()
    assert not is_owned(bench.journals, "one")


def test_what_operations_took_is_journaled_and_makes_a_file_of_times(bench: Bench) -> None:
    bench.fabric._options = bench.fabric._options.model_copy(update={"attach_s": 0.02, "detach_s": 0.01})
    for name in ("one", "two"):
        bench.release(bench.acquire(name))
    composing, releasing = Journal(bench.journals, "one").make_document()["timed"]
    assert (composing["of"], releasing["of"]) == ("composing", "release")
    inventory, *attached = composing["rows"]
    assert inventory[0] == "inventory"
    assert [row[:4] for row in attached] == [["attach", "gpu", "falcon1/drawer1", ""]] * 2
    assert composing["seconds"] >= sum(row[4] for row in composing["rows"]) >= 0.04
    system = SystemFile(name="bench", fabric={"kind": "simulated"}, hosts=[HostSpec(name="host[1-2]")])
    site = Site(system, bench.directory / "results")
    site.journals_directory.parent.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no lease in .* has operation times"):
        collect_operation_times(site)
    bench.journals.rename(site.journals_directory)
    times = collect_operation_times(site)
    assert [session.name for session in times.sessions] == ["demo"]
    assert [len(times.select_seconds(each)) for each in ("attach", "detach", "rest")] == [4, 4, 2]
    assert min(times.select_seconds("attach", box="falcon1/drawer1")) >= 0.02


def test_the_intent_is_on_disk_before_the_first_mutating_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    compose = bench.fabric.compose

    def spy(selection: Any) -> None:
        document = Journal(bench.journals, "one").make_document()
        seen.append((document["state"], document["selected"][0]["fabric"]))
        compose(selection)

    monkeypatch.setattr(bench.fabric, "compose", spy)
    bench.acquire()
    assert seen == [("COMPOSING", [SLOT1, SLOT2])]


def test_releasing_again_gives_the_same_document_and_spares_the_next_owner(bench: Bench) -> None:
    lease = bench.acquire()
    assert bench.release(lease) == bench.release(lease)
    heir = bench.acquire()
    bench.release(lease)
    assert list(bench.fabric.list_lease_tags()) == ["one"]
    assert is_owned(bench.journals, "one")
    assert bench.release(heir)["state"] == "RELEASED"


@pytest.mark.parametrize(
    ("faults", "operations", "errors", "slots"),
    [
        (["unknown_outcome"], 1, ["OutcomeUnknown"], {SLOT1, SLOT2}),
        (["lost_request"], 3, ["OutcomeUnknown"], {SLOT1, SLOT2}),
        (["partial_attach"], 3, ["PartialFailure"], {SLOT1, SLOT2}),
        (["partial_attach", "leak"], 4, ["PartialFailure"], {SLOT1, SLOT2}),
        (["partial_attach", "unknown_release"], 3, ["PartialFailure", "OutcomeUnknown"], {SLOT1, SLOT2}),
        (["short_attach"], 3, [], {SLOT1, SLOT2}),
        (["device_fails"], 3, [], {SLOT2, SLOT3}),
        (["needs_rescan"], 2, [], {SLOT1, SLOT2}),
    ],
)
def test_a_transient_fault_is_overcome_and_written_down(
    bench: Bench, faults: list[str], operations: int, errors: list[str], slots: set[str]
) -> None:
    bench.open(*faults)
    lease = bench.acquire()
    document = lease.make_document()
    assert {device.fabric_id for device in lease.composition.devices} == slots
    assert (document["state"], document["operations"]) == ("READY", operations)
    assert [fault["error"] for fault in document["faults"]] == errors
    assert set(bench.fabric.list_lease_tags()["one"].devices) == slots
    assert bench.release(lease)["state"] == "RELEASED"
    assert not bench.fabric.list_lease_tags()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("partial_attach", PartialFailure),
        ("short_attach", ProtocolViolation),
        ("lost_request", OutcomeUnknown),
        ("device_never_visible", HostNotVisible),
        ("device_fails", Unhealthy),
    ],
)
def test_a_lasting_fault_ends_in_its_error_with_nothing_held(bench: Bench, kind: str, error: type[FabricError]) -> None:
    bench.open({"kind": kind, "times": 99})
    with pytest.raises(error):
        bench.acquire()
    assert not bench.fabric.list_lease_tags()
    assert bench.states()[-1] == "RELEASED"
    assert not is_owned(bench.journals, "one")


def test_not_visible_is_rescanned_once_then_given_back(bench: Bench) -> None:
    bench.open("device_never_visible")
    with pytest.raises(HostNotVisible, match="even after a rescan") as caught:
        bench.acquire()
    assert caught.value.devices == (SLOT1,)
    done = [entry["operation"] for entry in Journal(bench.journals, "one").read_last_use() if "operation" in entry]
    assert done == ["compose", "rescan", "release"]


@pytest.mark.parametrize("kind", ["substituted_device", "degraded_link"])
def test_obtained_differs_from_requested_is_flagged_and_usable(bench: Bench, kind: str) -> None:
    bench.open(kind)
    lease = bench.acquire()
    assert len(lease.mismatches) == 1
    assert lease.make_document()["mismatches"] == list(lease.mismatches)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [(configuration(devices_per_host=9), NoMatch), (configuration(attach="local", local_devices_per_host=1), NoMatch)],
)
def test_the_impossible_is_not_waited_for(bench: Bench, wanted: Any, error: type[FabricError]) -> None:
    with pytest.raises(error):
        bench.acquire(wanted=wanted, wait_s=60.0)
    assert bench.states() == ["PLANNED", "RELEASED"]


def test_a_rule_of_the_fabric_is_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    options = {"chassis": [{"name": "f", "drawers": [{"name": "d", "mode": "standard_two_hosts"}]}]}
    bench.fabric = SimulatedFabric(
        SimulatedOptions.model_validate(options),
        [HostSpec(name="host1", cores=4, memory_gib=16.0)],
        [PoolSpec(kind="gpu", model="a100", count=8)],
        tmp_path,
    )
    with pytest.raises(Incompatible):
        bench.acquire(wanted=configuration(devices_per_host=8), wait_s=60.0)
    assert bench.states() == ["PLANNED", "RELEASED"]


def test_waiting_names_the_holder_and_gives_up_in_time(bench: Bench) -> None:
    bench.acquire("holder", configuration(hosts=2))
    told: list[str] = []
    with pytest.raises(Conflict, match=r"held by holder; waited 0\.05 s without success") as caught:
        bench.acquire("waiter", wait_s=0.05, poll_s=0.01, on_wait=told.append)
    assert caught.value.holders == ("holder",)
    assert "holder" in told[0]
    assert bench.states("waiter") == ["PLANNED", "RELEASED"]
    assert len(Journal(bench.journals, "waiter").make_document()["waits"]) == 1


def test_whom_one_waits_for_is_not_told_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    turn = WaitBudget(60.0, 0.0, told.append)
    for number in range(300):
        turn.wait_once(Conflict(f"held by lease {number // 100}", ()))
    assert told == ["held by lease 0"]
    monkeypatch.setattr(turn, "_next_report_s", 0.0)  # a minute later
    turn.wait_once(Conflict("held by lease 2", ()))
    assert told == ["held by lease 0", "held by lease 2"]


def test_a_waiting_lease_gets_its_turn(bench: Bench) -> None:
    holder = bench.acquire("holder", configuration(hosts=2))
    waiting = threading.Event()
    timer = threading.Thread(target=lambda: (waiting.wait(10), bench.release(holder)))
    timer.start()
    lease = bench.acquire("waiter", wait_s=30.0, poll_s=0.01, on_wait=lambda _: waiting.set())
    timer.join()
    assert lease.make_document()["state"] == "READY"
    assert waiting.is_set()


def test_busy_is_waited_for_and_counts_as_retry(bench: Bench) -> None:
    bench.open({"kind": "busy", "times": 3})
    document = bench.acquire(wait_s=30.0).make_document()
    assert (document["retries"], document["operations"], document["faults"]) == (3, 4, [])
    bench.open({"kind": "busy", "times": 9, "lease": "two"})
    with pytest.raises(Busy):
        bench.acquire("two", configuration())
    assert list(bench.fabric.list_lease_tags()) == ["one"]


def test_an_interrupt_gives_everything_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    compose = bench.fabric.compose

    def interrupted(selection: Any) -> None:
        compose(selection)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.fabric, "compose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.acquire()
    assert not bench.fabric.list_lease_tags()
    assert bench.states()[-3:] == ["ABORTING", "FABRIC_FREE", "RELEASED"]


def test_what_leaks_is_named_and_released_later(bench: Bench) -> None:
    lease = bench.acquire()
    bench.open({"kind": "leak", "times": 4, "device": SLOT2})
    document = bench.release(lease)
    assert (document["state"], document["leaked"]) == ("LEAKED", [SLOT2])
    assert bench.reconcile() == [("one", "released")], "the fourth attempt leaks, the fifth does not"
    assert not bench.fabric.list_lease_tags()
    assert bench.reconcile() == []


def test_a_lease_whose_id_has_leaked_is_not_begun(bench: Bench) -> None:
    bench.open({"kind": "leak", "times": 99, "device": SLOT1})
    bench.release(bench.acquire())
    with pytest.raises(PartialFailure, match=SLOT1):
        bench.acquire()
    assert bench.states()[-1] == "LEAKED"
    assert bench.reconcile() == [("one", "leaked")]


def test_broken_devices_degrade_a_lease(bench: Bench) -> None:
    bench.open({"kind": "device_fails", "after_s": 0.2, "device": SLOT2})
    lease = bench.acquire()
    mark_in_use(lease)
    problems: tuple[str, ...] = ()
    for _ in range(500):
        if problems := check_lease(bench.fabric, lease):
            break
        threading.Event().wait(0.01)
    # It may fail between the look at the chassis and the one at the host.
    assert problems[0] in (f"{SLOT2}: health critical", f"{SLOT2}: no longer visible to its host")
    assert lease.make_document()["state"] == "DEGRADED"
    assert check_lease(bench.fabric, lease) == (f"{SLOT2}: health critical",)
    assert lease.make_document()["degraded"] == list(problems)
    assert bench.release(lease)["state"] == "RELEASED"


def test_a_lease_that_vanished_is_degraded(bench: Bench) -> None:
    lease = bench.acquire()
    assert check_lease(bench.fabric, lease) == ()
    bench.fabric.release("one")
    assert check_lease(bench.fabric, lease) == (f"{SLOT1}: no longer attached", f"{SLOT2}: no longer attached")


def abandoned(bench: Bench, lease_id: str = "one", wanted: Any = TWO) -> HeldLease:
    """A lease whose owner died: the kernel has dropped its lock."""
    lease = bench.acquire(lease_id, wanted)
    lease.ownership.close()
    return lease


def test_an_abandoned_lease_is_taken_over_as_it_is(bench: Bench) -> None:
    left = abandoned(bench)
    lease = bench.acquire()
    assert lease.composition == left.composition
    document = lease.make_document()
    assert (document["adoptions"], document["operations"]) == (1, 1)
    assert document["times"]["fabric_done_s"] < document["times"]["ready_s"]


def test_whoever_lost_a_lease_cannot_release_it(bench: Bench) -> None:
    left = abandoned(bench)
    bench.acquire()
    bench.release(left)
    assert list(bench.fabric.list_lease_tags()) == ["one"]


def test_an_abandoned_lease_of_another_configuration_is_given_back_first(bench: Bench) -> None:
    abandoned(bench, wanted=configuration(devices_per_host=3))
    lease = bench.acquire()
    assert lease.mismatches == ()
    assert lease.make_document()["requested"]["devices_per_host"] == 2
    assert set(bench.fabric.list_lease_tags()["one"].devices) == {SLOT1, SLOT2}


def test_an_abandoned_half_composition_is_composed_anew(bench: Bench) -> None:
    journal = Journal(bench.journals, "one")
    bench.open("partial_attach")
    request = LeaseRequest("one", "demo", "dead", TWO)
    selection = bench.fabric.select_devices(request, bench.fabric.read_inventory())
    with pytest.raises(PartialFailure):
        bench.fabric.compose(selection)
    requested = {name: value for name, value in asdict(TWO).items() if name != "system"}
    journal.enter_state("PLANNED", campaign="demo", owner="dead", requested=requested)
    journal.enter_state("RESERVED")
    journal.enter_state("COMPOSING")
    lease = bench.acquire()
    assert lease.mismatches == ()
    assert bench.states()[3:7] == ["UNKNOWN", "PARTIAL", "ABORTING", "FABRIC_FREE"]


def test_a_lease_of_another_directory_is_neither_taken_over_nor_reconciled(bench: Bench) -> None:
    lease = bench.acquire()
    other = Bench(bench.directory)
    other.journals = bench.directory / "elsewhere"
    with pytest.raises(Conflict, match=r"held by me \(campaign demo\)"):
        other.acquire()
    assert other.reconcile() == []
    bench.release(lease)
    assert other.acquire().make_document()["state"] == "READY"


def test_leases_without_any_journal_are_released_only_on_request(bench: Bench) -> None:
    abandoned(bench)
    bench.journals = bench.directory / "lost"
    assert bench.reconcile() == []
    for owners in ((), ("another",)):
        assert bench.reconcile(unjournaled_owners=owners) == [("one", "other_owner")]
        assert bench.fabric.list_lease_tags()
    assert bench.reconcile(unjournaled_owners=["another", "me"]) == [("one", "released")]
    assert not bench.fabric.list_lease_tags()


def test_reconciling_spares_the_living_and_the_young(bench: Bench) -> None:
    bench.acquire("living", configuration())
    abandoned(bench, "dead", configuration())
    assert bench.reconcile(dry_run=True) == [("dead", "would_release")]
    assert bench.reconcile(grace_s=3600.0) == [("dead", "too_young")]
    assert set(bench.fabric.list_lease_tags()) == {"living", "dead"}
    assert bench.reconcile() == [("dead", "released")]
    assert set(bench.fabric.list_lease_tags()) == {"living"}


def test_a_claim_of_death_does_not_override_a_live_lock(bench: Bench) -> None:
    bench.acquire()
    assert bench.reconcile(is_alive=lambda _: False) == []
    assert list(bench.fabric.list_lease_tags()) == ["one"]


def test_a_fabric_that_fails_while_reconciling_is_reported(bench: Bench) -> None:
    abandoned(bench)
    bench.open({"kind": "busy", "times": 99})
    assert bench.reconcile() == [("one", "leaked")]
    bench.open()
    assert bench.reconcile() == [("one", "released")]


def test_the_chosen_hosts_are_told_before_anything_is_attached_to_them(bench: Bench) -> None:
    told: list[Any] = []

    def before_compose(hosts: Any) -> None:
        told.append((list(hosts), Journal(bench.journals, "one").state, list(bench.fabric.list_lease_tags())))

    lease = bench.acquire(before_compose=before_compose)
    assert told == [([host.name for host in lease.composition.hosts], "RESERVED", [])]
    told.clear()
    lease.ownership.close()
    bench.acquire(before_compose=before_compose)
    assert told == [], "what is adopted is not attached again"


def test_hosts_are_told_again_when_the_fabric_is_tried_again(bench: Bench) -> None:
    told: list[Any] = []
    bench.open("partial_attach")
    bench.acquire(before_compose=told.append)
    assert told == [["host1"], ["host1"]]


@pytest.mark.parametrize("error", [LaunchError("Slurm refuses"), KeyboardInterrupt()])
def test_hosts_that_cannot_be_kept_for_the_lease_are_left_alone(bench: Bench, error: BaseException) -> None:
    def before_compose(hosts: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        bench.acquire(before_compose=before_compose)
    assert not bench.fabric.list_lease_tags()
    assert Journal(bench.journals, "one").state == "RELEASED"
    assert not any(
        "operation" in entry and entry["operation"] == "compose"
        for entry in Journal(bench.journals, "one").read_entries()
    )
    assert bench.acquire().make_document()["state"] == "READY"
