"""What every fabric of the table promises (see `campaign.fabrics.protocol.Fabric`)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from campaign.common.errors import ConfigError, FabricError
from campaign.emulators.control_planes.server import HttpFaultKind, WireFault
from campaign.fabrics import list_fabric_modules, load_fabric_kind, open_fabric
from campaign.fabrics.errors import Conflict, NoMatch, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.protocol import Fabric
from campaign.lease.journal import Journal, is_owned
from campaign.lease.lifecycle import acquire_lease, release_lease
from campaign.lease.reconcile import reconcile_leases
from tests.contract.fabric_fixtures import SERVERS, SYSTEMS, System, configuration, start, stop_emulators

WITH_FAULTS = [name for name in SYSTEMS if "faults" in load_fabric_kind(SYSTEMS[name].fabric).options.model_fields]
COMPOSING = {name: system.composes for name, system in SYSTEMS.items() if system.emulated}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]


@pytest.fixture(autouse=True)
def nothing_is_left_listening() -> Iterator[None]:
    yield
    violations = [each for server in SERVERS.values() for each in getattr(server.emulator, "violations", ())]
    stop_emulators()
    assert violations == []


@pytest.fixture
def fabric(system: System, tmp_path: Path) -> Fabric:
    return system.open(tmp_path)


def composed(fabric: Fabric, system: System, lease_id: str) -> None:
    fabric.compose(fabric.select_devices(system.request(lease_id), fabric.read_inventory()))


def holders(fabric: Fabric) -> set[str | None]:
    inventory = fabric.read_inventory()
    return {device.holder for device in inventory.devices} | {host.holder for host in inventory.hosts}


def test_selecting_changes_nothing(fabric: Fabric, system: System) -> None:
    inventory = fabric.read_inventory()
    first = fabric.select_devices(system.request(), inventory)
    assert fabric.select_devices(system.request(), inventory) == first
    assert fabric.read_inventory() == inventory
    assert not fabric.list_lease_tags()


def test_composing_twice_is_composing_once(fabric: Fabric, system: System) -> None:
    selection = fabric.select_devices(system.request("one"), fabric.read_inventory())
    fabric.compose(selection)
    before = fabric.read_back("one")
    fabric.compose(selection)
    assert before is not None
    assert fabric.read_back("one") == before
    assert list(fabric.list_lease_tags()) == ["one"]


def test_what_was_obtained_is_read_back_from_both_ends(fabric: Fabric, system: System) -> None:
    selection = fabric.select_devices(system.request("one"), fabric.read_inventory())
    fabric.compose(selection)
    composition = fabric.read_back("one")
    assert composition is not None
    assert composition.list_mismatches(system.fits_once) == ()
    assert {device.fabric_id for device in composition.devices} == set(selection.fabric_ids)
    assert fabric.find_visible_devices(composition) == set(selection.fabric_ids)
    assert {(device.holder, device.state) for device in composition.devices} == {("one", "in_use")}
    assert all(device.host_id for device in composition.devices) or not fabric.describe_capabilities().gives_host_id


def test_a_composition_differs_from_another_configuration(fabric: Fabric, system: System) -> None:
    composed(fabric, system, "one")
    composition = fabric.read_back("one")
    assert composition is not None
    wrong = configuration(devices_per_host=3, device="h100", storage="local")
    assert any("2 devices obtained, 3 requested" in found for found in composition.list_mismatches(wrong))
    assert any(
        f"'{system.fits_once.device}', 'h100' requested" in found for found in composition.list_mismatches(wrong)
    )


def test_composition_document_is_the_same_for_two_leases_of_the_same_hardware(fabric: Fabric, system: System) -> None:
    documents, empty = [], fabric.read_inventory()
    for lease_id in ("one", "two"):
        fabric.compose(fabric.select_devices(system.request(lease_id), fabric.read_inventory()))
        composition = fabric.read_back(lease_id)
        assert composition is not None
        documents.append(composition.document())
        assert fabric.release(lease_id) == ()
        assert fabric.read_back(lease_id) is None
        assert not fabric.list_lease_tags()
    assert documents[0] == documents[1]
    fabric.return_displaced_devices()
    assert fabric.read_inventory() == empty


def test_the_tag_says_whose_it_is(fabric: Fabric, system: System) -> None:
    composed(fabric, system, "one")
    tag = fabric.list_lease_tags()["one"]
    assert (tag.campaign, tag.owner) == ("demo", "tester")
    assert abs(tag.since_s - time.time()) < 60
    composition = fabric.read_back("one")
    assert composition is not None
    assert set(tag.devices) == {device.fabric_id for device in composition.devices}


def test_releasing_twice_is_harmless_and_frees_everything(fabric: Fabric, system: System) -> None:
    before = fabric.read_inventory()
    composed(fabric, system, "one")
    assert fabric.read_inventory() != before
    assert fabric.release("one") == ()
    assert fabric.release("one") == ()
    assert fabric.release("never heard of") == ()
    assert fabric.read_inventory() == before
    assert fabric.read_back("one") is None


def test_selecting_what_is_held_names_the_holder(fabric: Fabric, system: System) -> None:
    composed(fabric, system, "one")
    with pytest.raises(Conflict, match="held by one") as caught:
        fabric.select_devices(system.request("two"), fabric.read_inventory())
    assert "one" in caught.value.holders


def test_composing_what_was_taken_meanwhile_names_the_holder_and_changes_nothing(
    fabric: Fabric, system: System
) -> None:
    stale = fabric.read_inventory()
    composed(fabric, system, "one")
    with pytest.raises(Conflict, match="one") as caught:
        fabric.compose(fabric.select_devices(system.request("two"), stale))
    assert caught.value.holders == ("one",)
    assert list(fabric.list_lease_tags()) == ["one"]


def test_what_could_never_fit_is_not_a_conflict(fabric: Fabric, system: System) -> None:
    composed(fabric, system, "one")
    with pytest.raises(NoMatch):
        fabric.select_devices(
            system.request("two", configuration=configuration(hosts=9, devices_per_host=0, attach="local")),
            fabric.read_inventory(),
        )


def test_hosts_that_are_not_allowed_are_not_used(fabric: Fabric, system: System) -> None:
    with pytest.raises(NoMatch, match="mars"):
        fabric.select_devices(system.request(allowed_hosts=("mars",)), fabric.read_inventory())
    last = system.hosts[-1].name
    selection = fabric.select_devices(system.request(allowed_hosts=(last,)), fabric.read_inventory())
    assert [host.host for host in selection.hosts] == [last]


def test_another_process_sees_what_is_held(fabric: Fabric, system: System, tmp_path: Path) -> None:
    composed(fabric, system, "one")
    fabric.close()
    again = system.open(tmp_path)
    assert again.read_inventory() == fabric.read_inventory()
    assert again.release("one") == ()
    assert holders(fabric) == {None}


def test_a_damaged_state_file_is_named(fabric: Fabric, system: System, tmp_path: Path) -> None:
    composed(fabric, system, "one")
    (state,) = tmp_path.glob("*.json")
    state.write_text(state.read_text()[:40])
    with pytest.raises(ProtocolViolation, match=state.name):
        fabric.read_inventory()


def test_two_processes_that_race_for_the_last_device_get_one_lease(system: System, tmp_path: Path) -> None:
    racers = [start("race", system.name, tmp_path, f"racer{number}") for number in range(2)]
    try:
        while len(list(tmp_path.glob("*.there"))) < 2:
            assert all(racer.poll() is None for racer in racers)
            time.sleep(0.01)
        (tmp_path / "go").touch()
        until = time.monotonic() + 20
        while all(racer.poll() is None for racer in racers) and time.monotonic() < until:
            time.sleep(0.01)
        lost = [racer for racer in racers if racer.poll() is not None]
        assert [racer.poll() for racer in lost] == [3], lost[0].says()
        (won,) = (racer for racer in racers if racer not in lost)
        assert won.says() == "READY"
        assert list(system.open(tmp_path).list_lease_tags()) == [f"racer{racers.index(won)}"]
    finally:
        for racer in racers:
            racer.end()


@pytest.mark.parametrize("moment", ["die_before", "die_amid", "die_after"])
def test_a_killed_owner_leaves_nothing_after_reconciliation(moment: str, system: System, tmp_path: Path) -> None:
    if moment == "die_amid" and system.open(tmp_path).describe_capabilities().atomic:
        moment = "die_after"  # nothing is in its midst
    owner = start(moment, system.name, tmp_path, "one")
    assert owner.wait() == -signal.SIGKILL, owner.says()
    owner.end()
    journals, fabric = tmp_path / "leases", system.open(tmp_path)
    assert Journal(journals, "one").state == "COMPOSING"
    assert not is_owned(journals, "one")

    clean = partial(reconcile_leases, fabric, journals, is_alive=partial(is_owned, journals), poll_s=0)
    (orphan,) = clean(dry_run=True)
    assert (orphan.lease_id, orphan.campaign, orphan.outcome) == ("one", "demo", "would_release")
    assert bool(orphan.devices) == (moment != "die_before")
    (orphan,) = clean(dry_run=False)
    assert orphan.outcome == "released"
    assert not fabric.list_lease_tags()
    assert holders(fabric) == {None}
    assert Journal(journals, "one").state == "RELEASED"
    assert clean(dry_run=False) == []


def test_a_full_disk_keeps_no_device(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    fabric, journals = system.open(tmp_path), tmp_path / "journals"
    free = fabric.read_inventory()
    lease = acquire_lease(fabric, system.request("one"), journals, wait_s=5, poll_s=0.01)
    with monkeypatch.context() as disk:
        disk.setattr("campaign.lease.journal.append_json", full)
        disk.setattr("campaign.fabrics.state_file.write_atomic", full)
        assert release_lease(fabric, lease, poll_s=0.01)["leaked"] == []
        assert not system.open(tmp_path).list_lease_tags()
    reconcile_leases(fabric, journals, is_alive=partial(is_owned, journals), dry_run=False)
    assert Journal(journals, "one").state == "RELEASED"
    assert fabric.read_inventory() == free


def test_a_lease_of_a_killed_owner_is_taken_over(system: System, tmp_path: Path) -> None:
    owner = start("hold", system.name, tmp_path, "one")
    try:
        assert owner.says() == "READY"
        fabric, journals = system.open(tmp_path), tmp_path / "leases"
        assert is_owned(journals, "one")
        assert reconcile_leases(fabric, journals, is_alive=partial(is_owned, journals), dry_run=False) == []
        with pytest.raises(Conflict, match=f"process {owner.pid} .* alive"):
            acquire_lease(fabric, system.request("one"), journals, wait_s=0, poll_s=0)
    finally:
        owner.end()
    held = fabric.list_lease_tags()["one"]
    lease = acquire_lease(fabric, system.request("one", owner="heir"), journals, wait_s=0, poll_s=0)
    assert {device.fabric_id for device in lease.composition.devices} == set(held.devices)
    document = release_lease(fabric, lease, poll_s=0)
    assert (document["state"], document["adoptions"], document["owner"]) == ("RELEASED", 1, "heir")
    # composed by the dead process, released by this one: nothing was composed twice
    assert document["operations"] == 2
    assert holders(fabric) == {None}


@pytest.mark.parametrize("name", WITH_FAULTS)
def test_a_partial_failure_is_itemised_and_releasable(name: str, tmp_path: Path) -> None:
    system = SYSTEMS[name]
    fabric = system.open(tmp_path, faults=[{"kind": "partial_attach", "device": "*slot2"}])
    selection = fabric.select_devices(system.request("one"), fabric.read_inventory())
    with pytest.raises(PartialFailure) as caught:
        fabric.compose(selection)
    assert set(caught.value.completed_ids) | set(caught.value.failed_ids) == set(selection.fabric_ids)
    assert len(caught.value.failed_ids) == 1
    composition = fabric.read_back("one")
    assert composition is not None
    assert {device.fabric_id for device in composition.devices} == set(caught.value.completed_ids)
    assert set(fabric.list_lease_tags()["one"].devices) == set(selection.fabric_ids)
    assert fabric.release("one") == ()
    assert holders(fabric) == {None}


@pytest.mark.parametrize("name", WITH_FAULTS)
@pytest.mark.parametrize(("kind", "happened"), [("unknown_outcome", True), ("lost_request", False)])
def test_an_unknown_outcome_is_told_by_reading_back(name: str, kind: str, happened: bool, tmp_path: Path) -> None:
    system = SYSTEMS[name]
    fabric = system.open(tmp_path, faults=[{"kind": kind}])
    selection = fabric.select_devices(system.request("one"), fabric.read_inventory())
    with pytest.raises(OutcomeUnknown):
        fabric.compose(selection)
    assert (fabric.read_back("one") is not None) == happened
    fabric.compose(selection)
    composition = fabric.read_back("one")
    assert composition is not None
    assert composition.list_mismatches(system.fits_once) == ()


@pytest.mark.parametrize("name", COMPOSING)
@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
def test_a_lost_answer_is_told_by_reading_back(name: str, kind: HttpFaultKind, tmp_path: Path) -> None:
    system = SYSTEMS[name]
    fabric = system.open(tmp_path)
    (server,) = SERVERS.values()
    selection = fabric.select_devices(system.request("one"), fabric.read_inventory())
    server.faults.add_fault(WireFault(kind, *COMPOSING[name]))
    with pytest.raises(OutcomeUnknown):
        fabric.compose(selection)
    assert "one" in fabric.list_lease_tags()
    fabric.compose(selection)
    composition = fabric.read_back("one")
    assert composition is not None
    assert composition.list_mismatches(system.fits_once) == ()
    assert {device.fabric_id for device in composition.devices} == set(selection.fabric_ids)
    assert sum(device.attached_to is not None for device in server.emulator.rack.devices.values()) == len(
        selection.fabric_ids
    )
    assert fabric.release("one") == ()
    assert server.emulator.rack.list_free_devices() == list(server.emulator.rack.devices)


@pytest.mark.parametrize("name", COMPOSING)
def test_a_rehearsal_sends_nothing_and_shows_what_is_then_sent(name: str, tmp_path: Path) -> None:
    system = SYSTEMS[name]
    fabric = system.open(tmp_path)
    assert fabric.control_plane_access is not None
    (server,) = SERVERS.values()
    selection = fabric.select_devices(system.request("one"), fabric.read_inventory())
    before = len(server.list_changes())
    composing, releasing = fabric.control_plane_access.preview_requests(selection)
    assert len(server.list_changes()) == before
    assert not fabric.list_lease_tags()
    fabric.compose(selection)
    sent = server.list_changes()[before:]
    shown = [(one.method, urlsplit(one.url).path) for one in composing]
    assert sorted(shown) == sorted((asked.method, asked.path) for asked in sent)
    assert fabric.release("one") == ()
    assert [one.method for one in releasing] == [asked.method for asked in server.list_changes()[before + len(sent) :]]


@pytest.mark.parametrize("name", COMPOSING)
def test_a_success_that_is_none_is_no_lease(name: str, tmp_path: Path) -> None:
    """A peer that says yes and does nothing."""
    system = SYSTEMS[name]
    fabric = system.open(tmp_path)
    (server,) = SERVERS.values()
    fabric.read_inventory()
    server.faults.add_fault(WireFault("lie", *COMPOSING[name], times=-1))
    with pytest.raises(FabricError):
        acquire_lease(fabric, system.request("one"), tmp_path / "leases", wait_s=0, poll_s=0, max_attempts=1)
    server.faults.clear_faults()
    reconcile_leases(fabric, tmp_path / "leases", is_alive=lambda _: False, dry_run=False, poll_s=0)
    assert not fabric.list_lease_tags()
    assert server.emulator.rack.list_free_devices() == list(server.emulator.rack.devices)
    assert Journal(tmp_path / "leases", "one").state == "RELEASED"


def test_a_row_says_what_others_need(system: System) -> None:
    """A new kind is one module with `FABRIC = FabricKind(..)`; this names what its row lacks."""
    kind = load_fabric_kind(system.fabric)
    where = f"FABRIC of {list_fabric_modules()[system.fabric]}"
    assert kind.summary, f"{where}: give `summary`, one line for lists"
    assert kind.options.model_config.get("extra") == "forbid", f"{where}: `options` must be closed (extra='forbid')"
    assert kind.options.__doc__, f"{where}: `options` needs a docstring; it is in the reference of all keys"
    fabric = system.open(Path("/nonexistent")) if not system.emulated else None
    verified = fabric is None or fabric.describe_capabilities().verified
    assert (kind.unverified == "") == (verified and not system.emulated), (
        f"{where}: `unverified` says what was not tried on the real product, and `verified=False` in its capabilities"
    )
    undescribed = [
        f"{definition['title']}.{name}"
        for schema in (kind.options.model_json_schema(),)
        for definition in (schema, *schema.get("$defs", {}).values())
        for name, described in definition.get("properties", {}).items()
        if not described.get("description")
    ]
    assert undescribed == [], f"{where}: these options need a description"


def test_an_example_fits_exactly_once(fabric: Fabric, system: System) -> None:
    where = f"FABRIC of {list_fabric_modules()[system.fabric]}: `example`"
    try:
        composed(fabric, system, "one")
    except FabricError as error:
        pytest.fail(f"{where}: its configuration must fit into its hosts and pool: {error}")
    with pytest.raises(Conflict):
        pytest.fail(
            f"{where}: must fit once only: {fabric.select_devices(system.request('two'), fabric.read_inventory())}"
        )


def test_a_control_plane_is_offered_where_there_is_one(fabric: Fabric, system: System) -> None:
    assert (fabric.control_plane_access is not None) == system.emulated


def test_planning_needs_no_control_plane(system: System, tmp_path: Path) -> None:
    away = {"url": "http://127.0.0.1:1"} if system.emulated and "boxes" not in system.options else {}
    fabric = open_fabric(system.fabric, {**system.options, **away}, system.hosts, system.pool, tmp_path)
    selection = fabric.select_planned_devices(system.request())
    assert len(selection.hosts) == system.fits_once.hosts


def test_unknown_names_and_options_are_refused_with_what_there_is(system: System, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="static, simulated"):
        load_fabric_kind("liquid")
    with pytest.raises(ConfigError, match=f"'{system.fabric}': .*colour"):
        open_fabric(system.fabric, {**system.options, "colour": "blue"}, system.hosts, system.pool, tmp_path)


def test_a_fabric_is_imported_only_when_named() -> None:
    script = (
        "import sys, campaign.fabrics as f; print([module for module in f.FABRICS.values() if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
