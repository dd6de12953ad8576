"""The adapter for Redfish composition, against an emulated service in its variants, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import FabricError
from campaign.emulators.control_planes.hardware import RackHost, build_rack
from campaign.emulators.control_planes.server import HttpFaultKind, WireFault
from campaign.fabrics.adapters.redfish.answers import ResourceMissingError
from campaign.fabrics.adapters.redfish.service import RedfishOptions, RedfishService
from campaign.fabrics.control_plane.protocol import LeaseChange
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, PartialFailure
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.protocol import LeaseRequest, Tag
from campaign.lease.lifecycle import acquire_lease, check_lease, release_lease
from campaign.lease.reconcile import reconcile_leases
from tests.unit.fabrics.redfish_bench import BLOCKS, PEERS, SYSTEMS, bench, foreign, meanwhile, wanted

IN_USE = '{"error": {"code": "Composition.1.1.ResourceBlockInUse"}}'

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "paged": {"page": 3},
    "not expanding": {"expand": False},
    "not expanding, paged": {"expand": False, "page": 4},
    "tasks": {"task_polls": 3},
    "as odd as an interface emulator": {
        "quirks": ["text_reserved", "linked_members", "scalar_types", "bare_answers"],
        "expand": False,
    },
    "no description": {"quirks": ["no_description"]},
    "off": {"powered_off": True, "adapter": {"attach_mode": "powered_off"}},
    "basic": {"adapter": {"auth": "basic"}},
    **PEERS,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_lease_is_composed_read_back_and_given_back(name: str, tmp_path: Path) -> None:
    with bench(tmp_path, **VARIANTS[name]) as b:
        before = b.fabric.read_inventory()
        selection = b.compose("one", 2, hosts=2, storage="fabric-nvme")
        assert b.verified("one", selection)
        composition = b.obtained()
        assert b.attached() == {
            device.fabric_id: host.name for host in composition.hosts for device in (*host.devices, *host.storage)
        }
        assert len(b.attached()) == 3 * 2
        assert {device.fabric_id for device in composition.devices} == set(selection.fabric_ids)
        assert b.fabric.find_visible_devices(composition) == {device.fabric_id for device in composition.devices}
        assert b.gave_back()
        assert b.fabric.read_inventory() == before
        assert b.fabric.list_lease_tags() == {}


@pytest.mark.parametrize("name", ["plain", "tasks", "no description", "off", *PEERS])
def test_another_process_goes_on_with_it(name: str, tmp_path: Path) -> None:
    with bench(tmp_path, **VARIANTS[name]) as b:
        selection = b.compose()
        again = b.again()
        changes = len(b.server.list_changes())
        again.compose(selection)  # only logs in
        assert [asked.path for asked in b.server.list_changes()[changes:] if "Session" not in asked.path] == []
        assert again.list_lease_tags()["one"].lease_id == "one"
        assert again.release("one") == ()
        again.close()
        assert b.attached() == {}


def test_what_is_sent_is_what_the_specification_has(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose()
        ((path, body),) = b.asked("POST")
        assert path == SYSTEMS
        assert body["Name"] == "composable-campaign lease=one host=host1"
        assert body["Description"].startswith("composable-campaign lease=one campaign=demo owner=tester since=")
        refs = [{"@odata.id": f"{BLOCKS}/{name}"} for name in ("host1", "gpu1", "gpu2")]
        assert body["Links"] == {"ResourceBlocks": refs}
        b.fabric.release("one")
        assert b.asked("DELETE") == [(f"{SYSTEMS}/1", None)]
        assert b.asked("PATCH") == []


def test_requests_are_few(tmp_path: Path) -> None:
    hardware = build_rack(["host1", "host2"], [("gpu", "a100", 8)])
    with bench(tmp_path, built=hardware) as b:
        b.fabric.read_inventory()
        first = len(b.server.log)
        assert first == 7  # root, session, service, zones, capabilities, blocks, systems
        selection = b.compose("one", 8)
        assert b.verified("one", selection)
        assert b.fabric.release("one") == ()
        asked = [asked for asked in b.server.log[first:] if not asked.path.startswith("/_hosts")]
        assert sum(asked.method != "GET" for asked in asked) == 1 + 1
        # what it is now: to select by, to compose, to read back; to release: whether it is held, what it has, what is left
        assert sum(asked.method == "GET" for asked in asked) <= 2 * 6


def test_two_thousand_devices(tmp_path: Path) -> None:
    hardware = build_rack([f"host{number}" for number in range(32)], [("gpu", "a100", 2000)])
    with bench(tmp_path, built=hardware) as b:
        assert len(b.fabric.read_inventory().devices) == 2000
        assert len(b.server.log) == 7


def test_a_session_is_ended_and_one_that_was_lost_is_opened_again(tmp_path: Path) -> None:
    with bench(tmp_path, sessions_max=1) as b:
        b.fabric.read_inventory()
        other = b.again(tmp_path / "other")
        with pytest.raises(Busy, match="SessionLimitExceeded"):
            other.read_inventory()
        b.emulator.access.sessions.clear()
        selection = b.compose()
        assert b.verified("one", selection)
        b.fabric.release("one")
        b.fabric.close()
        assert b.emulator.access.sessions == {}
        other.read_inventory()
        other.close()


def test_a_session_that_ends_before_a_change_does_the_change_once(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.selection()
        b.server.faults.add_fault(WireFault("status", "POST", SYSTEMS, status=401, body="{}"))
        b.fabric.compose(selection)
        assert [path for path, _ in b.asked("POST")] == [SYSTEMS, SYSTEMS]
        assert list(b.emulator.composition.systems) == ["1"]


def test_a_wrong_password_is_said_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_PASSWORD", "hunter22")
    for auth in ("session", "basic"):
        with bench(tmp_path, adapter={"auth": auth}) as b, pytest.raises(FabricError, match="credentials") as caught:
            b.fabric.read_inventory()
        assert "hunter22" not in str(caught.value)


# -- who holds what --------------------------------------------------------------------------------------------------------


def test_what_others_hold_is_named_and_left_alone(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        made = foreign(b)
        b.emulator.composition.reserved.add("gpu1")
        inventory = b.fabric.read_inventory()
        assert {host.name: host.holder for host in inventory.hosts} == {"host1": None, "host2": "system theirs"}
        held = {d.fabric_id: (d.state, d.holder) for d in inventory.devices if d.state != "free"}
        assert held.pop("gpu3") == ("in_use", "system theirs")
        assert held.pop("gpu1")[0] == "reserved"
        assert held == {}
        selection = b.compose("one", 6)
        assert not {"gpu1", "gpu3"} & set(selection.fabric_ids)
        with pytest.raises(Conflict, match="theirs"):
            b.selection("two", 1)
        b.fabric.release("one")
        assert b.fabric.release("theirs") == ()
        assert b.emulator.composition.systems == {made.id: made}
        assert b.emulator.composition.reserved == {"gpu1"}
        assert b.attached() == {"gpu3": "host2"}


def test_a_host_that_somebody_reserved_is_held(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.emulator.composition.reserved.add("host1")
        assert [host.host for host in b.selection().hosts] == ["host2"]


def test_a_block_that_is_taken_between_reading_and_composing(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.selection("one", 3)
        meanwhile(b, "POST", SYSTEMS, lambda: foreign(b, blocks=("host2", "gpu3")))
        with pytest.raises(Conflict):
            b.fabric.compose(selection)
        assert b.attached() == {"gpu3": "host2"}
        assert b.fabric.list_lease_tags() == {}


def test_the_second_host_refused_is_a_partial_failure(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.selection("one", 2, hosts=2)
        b.server.faults.add_fault(WireFault("status", "POST", SYSTEMS, after=1, status=409, body=IN_USE))
        with pytest.raises(PartialFailure) as caught:
            b.fabric.compose(selection)
        assert (caught.value.completed_ids, caught.value.failed_ids) == (("gpu1", "gpu2"), ("gpu3", "gpu4"))
        assert b.gave_back()


def test_a_system_of_a_former_try_that_lacks_devices_is_a_partial_failure(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.compose()
        b.emulator.composition.systems["1"].devices.remove("gpu2")
        b.rack.detach("gpu2")
        with pytest.raises(PartialFailure, match="composed this system without gpu2") as caught:
            b.fabric.compose(selection)
        assert (caught.value.completed_ids, caught.value.failed_ids) == (("gpu1",), ("gpu2",))
        assert b.gave_back()


# -- both ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["kept", "own"])
@pytest.mark.parametrize("quirk", ["composes_nothing", "unused_while_composed"])
def test_success_that_is_none_is_never_verified(quirk: str, names: str, tmp_path: Path) -> None:
    with bench(tmp_path, quirks=[quirk], names=names, creates="object") as b:
        selection = b.compose()
        assert not b.verified("one", selection)
        assert {b.fabric.read_inventory().find_device(name).state for name in selection.fabric_ids} == {"unknown"}  # type: ignore[union-attr]
        assert b.gave_back()
        assert b.emulator.composition.systems == {}


def test_a_device_that_only_the_hardware_knows_to_be_attached_is_unknown(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.rack.attach("gpu1", "host2")
        device = b.fabric.read_inventory().find_device("gpu1")
        assert device is not None
        assert device.state == "unknown"
        assert "gpu1" not in b.selection("one", 7).fabric_ids


def test_a_system_that_is_not_deleted_is_no_release(tmp_path: Path) -> None:
    with bench(tmp_path, quirks=["deletes_nothing"]) as b:
        selection = b.compose()
        assert set(b.fabric.release("one")) == set(selection.fabric_ids)
        assert list(b.fabric.list_lease_tags()) == ["one"]


# -- rules -----------------------------------------------------------------------------------------------------------------


def test_zones_are_who_reaches_what(tmp_path: Path) -> None:
    hardware = build_rack({"host1": ["drawer1"], "host2": ["drawer2"]}, [("gpu", "a100", 8)])
    with bench(tmp_path, built=hardware) as b:
        assert set(b.selection("one", 4).fabric_ids) == {"gpu1", "gpu2", "gpu3", "gpu4"}
        with pytest.raises(Incompatible, match="cabling"):
            b.selection("one", 5)


def test_limits_are_kept(tmp_path: Path) -> None:
    with bench(tmp_path, limits={"MaxProcessor": 3}) as b:
        b.compose("one", 3)
        assert b.fabric.describe_capabilities().max_devices_per_host == 3
        b.fabric.release("one")
        with pytest.raises(Incompatible, match="allows at most 3 blocks of type Processor"):
            b.selection("two", 4)


def test_a_host_that_the_service_does_not_know_gets_nothing(tmp_path: Path) -> None:
    hardware = build_rack(["host1", "host2"], [("gpu", "a100", 8)])
    with bench(tmp_path, built=hardware, adapter={"hosts": {"host2": "ComputeBlock7"}}) as b:
        assert {host.host for host in b.selection().hosts} == {"host1"}
        with pytest.raises((NoMatch, Incompatible)):
            b.selection("two", 1, hosts=2)


def test_names_of_the_fabric_are_mapped(tmp_path: Path) -> None:
    hardware = build_rack(["host1"], [("gpu", "NVIDIA A100-PCIE-40GB", 1), ("gpu", "Weird GPU", 1)])
    hardware.hosts["blade7"] = RackHost("blade7", drawers=("drawer1", "drawer2"))
    with bench(tmp_path, built=hardware, adapter={"models": {"NVIDIA A100-PCIE-40GB": "a100"}}) as b:
        devices = {device.fabric_id: device for device in b.fabric.read_inventory().devices}
        assert [devices[name].model for name in ("gpu1", "gpu2")] == ["a100", "weird-gpu"]
        assert devices["gpu1"].host_id == hardware.devices["gpu1"].uuid


def test_health_and_links_are_told(tmp_path: Path) -> None:
    hardware = build_rack(["host1"], [("gpu", "a100", 3)])
    hardware.devices["gpu1"].quirks.add("broken")
    hardware.devices["gpu2"].quirks.add("degraded_link")
    with bench(tmp_path, built=hardware) as b:
        b.emulator.composition.states["gpu3"] = "Failed"
        devices = {device.fabric_id: device for device in b.fabric.read_inventory().devices}
        assert devices["gpu1"].health == "critical"
        assert devices["gpu2"].link is not None
        assert (devices["gpu2"].link.width, devices["gpu2"].link.width_max) == (8, 16)
        assert devices["gpu3"].state == "failed"
        assert b.selection("one", 1).fabric_ids == ("gpu2",)


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ({"composes": False}, "CompositionService"),
        ({"use_case": "ComputerSystemConstrainedComposition"}, "chooses devices by constraints"),
    ],
)
def test_a_service_that_composes_no_exact_devices_is_only_read(
    variant: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with bench(tmp_path, **variant) as b:
        assert len(b.fabric.read_inventory().devices) == 10
        assert says in b.fabric.describe_capabilities().read_only
        change = LeaseChange(Tag("one", "demo", "tester", 0.0, ("gpu1",)), {"host1": ("gpu1",)})
        with pytest.raises(Incompatible, match=says) as caught:
            b.fabric.plane.attach(change, lambda name, handle: None)
        assert "read-only" in caught.value.rule
        assert b.server.list_changes()[1:] == []


def test_a_service_that_wants_a_version_of_what_is_deleted_is_told_that_any_will_do(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose()
        b.server.faults.add_fault(WireFault("status", "DELETE", f"{SYSTEMS}/1", status=428, body="{}"))
        assert b.gave_back()
        sent = [asked.find_header("If-Match") for asked in b.server.log if asked.method == "DELETE"]
        assert sent == [None, "*"]


def test_a_lease_without_its_state_is_found_by_its_name(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.compose()
        elsewhere = b.again(tmp_path / "elsewhere")
        assert set(elsewhere.list_lease_tags()["one"].devices) == set(selection.fabric_ids)
        assert elsewhere.release("one") == ()
        elsewhere.close()
        assert b.attached() == {}


def test_a_lease_without_devices_holds_its_host(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose("one", 0)
        assert b.fabric.plane.read_view().holders == {"host1": "one"}
        assert b.fabric.release("one") == ()
        assert b.emulator.composition.systems == {}


def test_power_is_only_touched_where_it_is_asked_for(tmp_path: Path) -> None:
    with bench(tmp_path, powered_off=True) as b:
        b.compose()
        assert [made.power for made in b.emulator.composition.systems.values()] == ["Off"]
        assert len(b.asked("POST")) == 1
    with bench(tmp_path / "2", powered_off=True, adapter={"attach_mode": "powered_off"}) as b:
        b.compose()
        assert [made.power for made in b.emulator.composition.systems.values()] == ["On"]
        assert b.gave_back()
        resets = [body["ResetType"] for path, body in b.asked("POST") if path.endswith("Reset")]
        assert resets == ["On", "ForceOff"]


def test_expansion_that_is_advertised_and_refused_is_done_without(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.server.faults.add_fault(WireFault("status", "GET", BLOCKS, status=501, body="{}"))
        shallow = b.fabric.read_inventory()
        asked = [asked.query.get("$expand") for asked in b.server.log if asked.path == BLOCKS]
        assert asked == [".($levels=2)", "."]
        assert [device.link for device in shallow.devices] == [None] * 10
    with bench(tmp_path / "2") as b:
        b.server.faults.add_fault(WireFault("status", "GET", BLOCKS, times=2, status=400, body="{}"))
        assert [d.fabric_id for d in b.fabric.read_inventory().devices] == [d.fabric_id for d in shallow.devices]


def test_a_service_that_hides_its_root_is_logged_in_to_first(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.server.faults.add_fault(WireFault("status", "GET", "/redfish/v1/", status=403, body="Missing Header"))
        assert len(b.fabric.read_inventory().devices) == 10


def test_a_system_that_is_gone_already_is_given_back(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose()
        machine = b.emulator.composition
        meanwhile(b, "DELETE", f"{SYSTEMS}/1", lambda: machine.decompose_system(machine.systems["1"]))
        assert b.fabric.release("one") == ()
        assert b.attached() == {}


def test_what_cannot_change_is_read_once(tmp_path: Path) -> None:
    with bench(tmp_path, expand=False) as b:
        first = b.fabric.read_inventory()
        before = len(b.server.log)
        shown = {device.fabric_id: device.model for device in b.fabric.plane.read_view().devices}
        assert shown == {device.fabric_id: device.called for device in first.devices if not device.local}
        again = [asked.path for asked in b.server.log[before:]]
        assert len(again) == 1 + 12 + 1  # the blocks, each of them, and the systems
        assert not any("Processors" in path or "Drives" in path for path in again)


def test_what_a_second_host_would_not_give_back_stays_held(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose("one", 2, hosts=2)
        b.server.faults.add_fault(WireFault("status", "DELETE", f"{SYSTEMS}/2", status=409, body="{}"))
        assert set(b.fabric.release("one")) == {"gpu3", "gpu4"}
        assert b.attached() == {"gpu3": "host2", "gpu4": "host2"}
        assert b.fabric.release("one") == ()
        assert b.attached() == {}


def test_a_busy_service_is_left_as_it_is(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.compose()
        b.server.faults.add_fault(WireFault("status", "DELETE", f"{SYSTEMS}/1", status=409, body="{}"))
        with pytest.raises(Busy):
            b.fabric.release("one")
        assert b.verified("one", selection)


def test_every_system_of_a_lease_is_deleted_whatever_hosts_are_named(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose()
        b.fabric.plane.read_view()
        assert b.fabric.plane.detach(LeaseChange(Tag("one", "demo", "tester", 0.0, ()), {})) == ()
        assert b.emulator.composition.systems == {}


# -- exclusive use ---------------------------------------------------------------------------------------------------------


def test_a_block_that_somebody_takes_while_composing_is_no_lease_and_the_next_is(tmp_path: Path) -> None:
    with bench(tmp_path, quirks=["double_allocates"]) as b:
        meanwhile(b, "POST", SYSTEMS, lambda: foreign(b, blocks=("host2", "gpu1")))
        lease = acquire_lease(
            b.fabric, LeaseRequest("one", "demo", "tester", wanted()), tmp_path / "j", wait_s=0, poll_s=0
        )
        assert {device.fabric_id for device in lease.composition.devices} == {"gpu2", "gpu3"}
        (reason,) = (entry["reason"] for entry in lease.journal.read_last_use() if entry.get("state") == "ABORTING")
        assert "gpu1: also held by system theirs" in reason
        theirs = [made for made in b.emulator.composition.systems.values() if made.name == "theirs"]
        assert [made.devices for made in theirs] == [["gpu1"]]


@pytest.mark.parametrize("blocks", [("host2", "gpu1"), ("host1", "gpu8")])
def test_what_somebody_takes_later_ends_the_lease(blocks: tuple[str, ...], tmp_path: Path) -> None:
    with bench(tmp_path, quirks=["double_allocates"]) as b:
        lease = acquire_lease(
            b.fabric, LeaseRequest("one", "demo", "tester", wanted()), tmp_path / "j", wait_s=0, poll_s=0
        )
        assert check_lease(b.fabric, lease) == ()
        foreign(b, blocks=blocks)
        assert any("also held by system theirs" in problem for problem in check_lease(b.fabric, lease))
        composition = b.obtained()
        shared = "gpu1" if "gpu1" in blocks else "host1"
        assert f"{shared}: also held by system theirs" in composition.list_mismatches(wanted())
        assert release_lease(b.fabric, lease, poll_s=0)["state"] == "RELEASED"
        assert [made.name for made in b.emulator.composition.systems.values()] == ["theirs"]


# -- names that are not kept -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "lie"])
def test_a_lost_answer_leaves_nothing_behind(name: str, kind: HttpFaultKind, tmp_path: Path) -> None:
    with bench(tmp_path, **PEERS[name]) as b:
        request = LeaseRequest("one", "demo", "tester", wanted())
        b.fabric.read_inventory()
        b.server.faults.add_fault(WireFault(kind, "POST", SYSTEMS))
        lease = acquire_lease(b.fabric, request, tmp_path / "j", wait_s=0, poll_s=0)
        assert len(b.emulator.composition.systems) == 1
        assert lease.mismatches == ()
        assert release_lease(b.fabric, lease, poll_s=0)["state"] == "RELEASED"
        assert (b.attached(), b.emulator.composition.systems) == ({}, {})


@pytest.mark.parametrize("name", PEERS)
def test_a_system_that_cannot_be_deleted_is_leaked_and_reconciled_later(name: str, tmp_path: Path) -> None:
    with bench(tmp_path, **PEERS[name]) as b:
        lease = acquire_lease(
            b.fabric, LeaseRequest("one", "demo", "tester", wanted()), tmp_path / "j", wait_s=0, poll_s=0
        )
        b.server.faults.add_fault(WireFault("status", "DELETE", f"{SYSTEMS}/*", times=-1, status=409, body="{}"))
        assert release_lease(b.fabric, lease, wait_s=0, poll_s=0)["state"] == "LEAKED"
        assert len(b.attached()) == 2
        b.server.faults.clear_faults()
        again = b.again()
        (orphan,) = reconcile_leases(again, tmp_path / "j", is_alive=lambda _: False, dry_run=False, poll_s=0)
        again.close()
        assert (orphan.lease_id, orphan.outcome) == ("one", "released")
        assert (b.attached(), b.emulator.composition.systems) == ({}, {})


def test_an_address_that_was_given_anew_is_not_ours(tmp_path: Path) -> None:
    with bench(tmp_path, names="own") as b:
        b.compose()
        machine = b.emulator.composition
        machine.decompose_system(machine.systems["1"])
        machine._number = 0
        made = machine.compose_system("theirs", "", ("host2", "gpu7"))
        assert made.id == "1"
        assert b.fabric.release("one") == ()
        assert list(machine.systems) == ["1"]
        assert b.attached() == {"gpu7": "host2"}


def test_a_system_that_the_service_does_not_list_yet_is_deleted_by_its_address(tmp_path: Path) -> None:
    with bench(tmp_path, names="own") as b:
        b.compose()
        b.server.faults.add_fault(WireFault("stale", "GET", SYSTEMS))
        assert b.fabric.release("one") == ()
        assert (b.attached(), b.emulator.composition.systems) == ({}, {})


def test_a_body_that_is_an_error_is_no_resource_whatever_its_status(tmp_path: Path) -> None:
    with bench(tmp_path, **PEERS["interface emulator 1.0.5"]) as b:
        service, absent = RedfishService(HttpClient(RedfishOptions(url=b.server.url))), f"{SYSTEMS}/none"
        assert service.find_resource(absent) is None
        assert service.read_collection({"ResourceZones": {"@odata.id": absent}}, "ResourceZones") == []
        with pytest.raises(ResourceMissingError):
            service.send_change("DELETE", absent)
        with pytest.raises(OutcomeUnknown, match="HTTP 500"):
            service.send_change("POST", SYSTEMS, {"Name": "x"})
        for body in ('{"error": "no such thing"}', '[{"Id": "none"}, 409]', '[{"Id": "none"}, 404]'):
            b.server.faults.add_fault(WireFault("lie", "GET", absent, body=body))
        assert service.find_resource(absent) is None
        with pytest.raises(Busy):
            service.find_resource(absent)
        assert service.find_resource(absent) is None
        service.client.close()
