"""What `ControlledFabric` promises whatever the adapter: claims first, nothing foreign touched, both ends and the host believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions, FabricView
from campaign.fabrics.errors import (
    Busy,
    Conflict,
    NoMatch,
    OutcomeUnknown,
    PartialFailure,
    ProtocolViolation,
    Unhealthy,
)
from campaign.fabrics.host_agents.protocol import HostBusy
from campaign.fabrics.protocol import LeaseRequest, Tag
from campaign.lease.journal import Journal, is_owned
from campaign.lease.lifecycle import acquire_lease, check_lease, release_lease
from campaign.lease.reconcile import reconcile_leases
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.bench import obtained
from tests.unit.fabrics.memory_plane import Killed, MemoryPlane, RackAgent

HOSTS = (HostSpec(name="host1", cores=8, memory_gib=32.0), HostSpec(name="host2", cores=8, memory_gib=32.0))
POOL = (PoolSpec(kind="gpu", model="a100", count=4, drawer="drawer1"),)


def hardware() -> Rack:
    return build_rack(["host1", "host2"], [("gpu", "a100", 4), ("nvme", "ssd", 1)])


def opened(directory: Path, plane: MemoryPlane, *, looks: bool = True) -> ControlledFabric:
    return ControlledFabric(plane, HOSTS, directory / "memory.json", RackAgent(plane) if looks else None, POOL)


@pytest.fixture
def plane() -> MemoryPlane:
    return MemoryPlane(hardware())


@pytest.fixture
def fabric(plane: MemoryPlane, tmp_path: Path) -> ControlledFabric:
    return opened(tmp_path, plane)


def asked(lease_id: str = "one", devices: int = 2) -> LeaseRequest:
    return LeaseRequest(lease_id, "demo", "tester", configuration(devices_per_host=devices))


def composed(fabric: ControlledFabric, request: LeaseRequest) -> None:
    fabric.compose(fabric.select_devices(request, fabric.read_inventory()))


def test_what_somebody_else_attached_is_named_and_never_taken_or_detached(
    fabric: ControlledFabric, plane: MemoryPlane
) -> None:
    plane.rack.attach("gpu1", "host1")
    (foreign,) = [device for device in fabric.read_inventory().devices if device.fabric_id == "gpu1"]
    assert foreign.holder == "an unknown user on host1"
    composed(fabric, asked(devices=3))
    fabric.release("one")
    assert plane.rack.devices["gpu1"].attached_to == "host1"
    with pytest.raises(Conflict, match="an unknown user on host1"):
        fabric.select_devices(asked(devices=4), fabric.read_inventory())


def test_what_was_taken_between_selection_and_composing_is_not_touched(
    fabric: ControlledFabric, plane: MemoryPlane
) -> None:
    selection = fabric.select_devices(asked(), fabric.read_inventory())
    plane.rack.attach(selection.fabric_ids[0], "host2")
    before = plane.rack.changes
    with pytest.raises(Conflict, match="an unknown user on host2"):
        fabric.compose(selection)
    assert plane.rack.changes == before
    assert not fabric.list_lease_tags()


def test_what_broke_or_vanished_between_selection_and_composing_is_not_composed(
    fabric: ControlledFabric, plane: MemoryPlane
) -> None:
    selection = fabric.select_devices(asked(), fabric.read_inventory())
    plane.rack.devices[selection.fabric_ids[0]].quirks.add("broken")
    with pytest.raises(Unhealthy):
        fabric.compose(selection)
    del plane.rack.devices[selection.fabric_ids[0]]
    with pytest.raises(NoMatch, match=selection.fabric_ids[0]):
        fabric.compose(selection)


def test_a_busy_fabric_leaves_no_claim(fabric: ControlledFabric, plane: MemoryPlane) -> None:
    plane.faults = ["busy"]
    with pytest.raises(Busy):
        composed(fabric, asked())
    assert not fabric.list_lease_tags()
    assert fabric.read_back("one") is None


@pytest.mark.parametrize("fault", ["partial", "lost_before", "lost_after", "killed_amid"])
def test_whatever_ends_composing_can_be_given_back(
    fault: str, fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path
) -> None:
    plane.faults = [fault]
    with pytest.raises((PartialFailure, OutcomeUnknown, Killed)):
        composed(fabric, asked(devices=4))
    again = opened(tmp_path, plane)
    assert again.read_back("one") is not None
    assert again.release("one") == ()
    assert again.read_back("one") is None
    assert len(plane.rack.list_free_devices()) == 5
    assert not plane.marks


def test_a_claim_alone_is_known_to_reconciliation(fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path) -> None:
    """Killed after the claim and before the first request."""
    plane.faults = ["killed_amid"]
    with pytest.raises(Killed):
        acquire_lease(fabric, asked(devices=1), tmp_path / "leases", wait_s=0, poll_s=0)
    journals = tmp_path / "leases"
    assert Journal(journals, "one").state in ("COMPOSING", "ABORTING", "FABRIC_FREE", "RELEASED")
    for orphan in reconcile_leases(fabric, journals, is_alive=lambda _: False, dry_run=False, poll_s=0):
        assert orphan.outcome == "released"
    assert not fabric.list_lease_tags()
    assert not is_owned(journals, "one")


def test_a_lie_is_never_a_lease(fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path) -> None:
    plane.faults = ["lie", "lie", "lie"]
    with pytest.raises(Exception, match="reports less than was composed"):
        acquire_lease(fabric, asked(), tmp_path / "leases", wait_s=0, poll_s=0)
    assert len(plane.rack.list_free_devices()) == 5
    assert Journal(tmp_path / "leases", "one").state == "RELEASED"


def test_without_the_state_file_the_marks_on_the_fabric_are_enough(
    fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path
) -> None:
    composed(fabric, asked())
    before = fabric.read_back("one")
    (tmp_path / "memory.json").unlink()
    assert set(fabric.list_lease_tags()["one"].devices) == {d.fabric_id for d in before.devices} if before else False
    assert fabric.read_back("one") == before
    assert fabric.release("one") == ()
    assert len(plane.rack.list_free_devices()) == 5


def test_without_marks_the_claims_are_enough(tmp_path: Path) -> None:
    plane = MemoryPlane(hardware(), tags=False)
    fabric = opened(tmp_path, plane)
    composed(fabric, asked())
    found = obtained(fabric)
    assert len(found.devices) == 2
    # Somebody takes one of them away and gives it to another host: no longer ours, whatever the claim says.
    taken = found.devices[0]
    other = next(name for name in plane.rack.hosts if name != taken.attached_to)
    plane.rack.detach(taken.fabric_id)
    plane.rack.attach(taken.fabric_id, other)
    left = obtained(fabric)
    assert len(left.devices) == 1
    assert {d.holder for d in fabric.read_inventory().devices if d.fabric_id == taken.fabric_id} == {
        f"an unknown user on {other}"
    }
    assert fabric.release("one") == ()
    assert plane.rack.devices[taken.fabric_id].attached_to == other


def test_what_carries_another_mark_by_now_is_not_detached(fabric: ControlledFabric, plane: MemoryPlane) -> None:
    composed(fabric, asked())
    plane.marks["gpu1"] = Tag("other", "theirs", "them", 1.0, ())
    assert fabric.release("one") == ()
    assert plane.rack.devices["gpu1"].attached_to is not None
    assert plane.log.count("detach gpu1") == 0


def test_what_the_host_does_not_see_is_no_lease(fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path) -> None:
    plane.rack.devices["gpu1"].quirks.add("never_visible")
    with pytest.raises(Exception, match="not visible to the host"):
        acquire_lease(fabric, asked(devices=4), tmp_path / "leases", wait_s=0, poll_s=0, visibility_timeout_s=0.05)
    assert len(plane.rack.list_free_devices()) == 5


def test_a_rescan_shows_what_the_host_then_tells_of_its_links(
    fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path
) -> None:
    plane.rack.devices["gpu1"].quirks |= {"needs_rescan", "degraded_link"}
    lease = acquire_lease(fabric, asked(devices=4), tmp_path / "leases", wait_s=0, poll_s=0, visibility_timeout_s=0.05)
    assert lease.mismatches == ("gpu1: link x8 gen 4, x16 gen 4 possible",)
    release_lease(fabric, lease, poll_s=0)


def test_where_nobody_looks_on_the_hosts_nothing_is_said_to_be_seen(plane: MemoryPlane, tmp_path: Path) -> None:
    for looks in (True, False):
        fabric = opened(tmp_path / str(looks), plane, looks=looks)
        lease = acquire_lease(fabric, asked(), tmp_path / str(looks), wait_s=0, poll_s=0)
        assert bool(fabric.list_devices_to_verify(lease.composition)) == looks
        assert (lease.make_document()["times"]["host_visible_s"] is not None) == looks
        release_lease(fabric, lease, poll_s=0)


def test_models_have_the_names_of_the_system_file_and_what_the_fabric_calls_them_is_kept(tmp_path: Path) -> None:
    plane = MemoryPlane(build_rack(["host1"], [("gpu", "NVIDIA A100 80GB", 1), ("gpu", "Weird  GPU", 1)]))
    model = ControlPlaneOptions(url="http://x", models={"NVIDIA A100 80GB": "a100"}).map_model
    fabric = ControlledFabric(plane, HOSTS, tmp_path / "memory.json", map_model=model)
    told = [(device.model, device.called) for device in fabric.read_inventory().devices]
    assert told == [("a100", "NVIDIA A100 80GB"), ("weird-gpu", "Weird  GPU")]
    assert "called" not in fabric.read_inventory().devices[0].document()


def test_a_link_below_what_the_site_expects_is_told(fabric: ControlledFabric, tmp_path: Path) -> None:
    request = LeaseRequest("one", "demo", "tester", configuration(devices_per_host=1), links={"a100": (16, 5)})
    lease = acquire_lease(fabric, request, tmp_path / "leases", wait_s=0, poll_s=0)
    assert lease.mismatches == ("gpu1: link x16 gen 4, x16 gen 5 expected of 'a100'",)


class Shared(MemoryPlane):
    """Shows what `doubled` names at a second end, or hosts that somebody else has too."""

    doubled: str | None = None
    hosts: dict[str, tuple[str, ...]] | None = None

    def read_view(self) -> FabricView:
        view = super().read_view()
        second = [replace(d, attached_to="host9", holder=None) for d in view.devices if d.fabric_id == self.doubled]
        return replace(view, devices=(*second, *view.devices), shared_hosts=self.hosts or {})


def test_what_several_have_is_no_lease(tmp_path: Path) -> None:
    plane = Shared(hardware())
    fabric = opened(tmp_path, plane)
    composed(fabric, asked())
    plane.doubled = "gpu1"
    found = obtained(fabric)
    words = "gpu1: also held by an unknown user on host9"
    assert found.list_shortfalls(asked().configuration) == ("host1: 1 devices obtained, 2 requested", words)
    plane.doubled, plane.hosts = None, {"host1": ("theirs",), "host2": ("others",)}
    found = obtained(fabric)
    assert found.list_shortfalls(asked().configuration) == ("host1: also held by theirs",)
    assert fabric.release("one") == ()


def test_hosts_let_go_before_the_fabric_takes_away(fabric: ControlledFabric, plane: MemoryPlane) -> None:
    composed(fabric, asked())
    fabric.release("one")
    verbs = [line.split()[0] for line in plane.log]
    assert verbs == ["attach", "attach", "drain", "drain", "detach", "detach"]


def test_what_a_host_still_uses_is_not_detached_and_said_to_be_leaked(
    fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path
) -> None:
    lease = acquire_lease(fabric, asked(), tmp_path / "leases", wait_s=0, poll_s=0)
    agent = fabric._host_view._agent
    assert isinstance(agent, RackAgent)
    agent.busy = {"host1": "pid 4711 python"}
    with pytest.raises(HostBusy, match="4711"):
        fabric.release("one")
    document = release_lease(fabric, lease, poll_s=0)
    assert document["state"] == "LEAKED"
    assert "4711" in str(document["faults"])
    assert plane.rack.devices["gpu1"].attached_to == "host1"
    again = opened(tmp_path, plane)
    again._host_view._agent = agent
    (orphan,) = reconcile_leases(again, tmp_path / "leases", is_alive=lambda _: False, dry_run=False, poll_s=0)
    assert orphan.outcome == "leaked"
    again.force = True
    (orphan,) = reconcile_leases(again, tmp_path / "leases", is_alive=lambda _: False, dry_run=False, poll_s=0)
    assert orphan.outcome == "released"
    assert len(plane.rack.list_free_devices()) == 5


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("fault", ["stuck", "silent"])
def test_what_is_stuck_stays_with_its_lease(fault: str, tags: bool, tmp_path: Path) -> None:
    plane = MemoryPlane(hardware(), tags=tags)
    fabric = opened(tmp_path, plane)
    composed(fabric, asked())
    plane.faults = [fault]
    (stuck,) = fabric.release("one")
    assert set(fabric.list_lease_tags()["one"].devices) == {stuck}
    assert fabric.release("one") == ()
    assert not fabric.list_lease_tags()


def test_a_device_that_goes_away_degrades_the_lease(
    fabric: ControlledFabric, plane: MemoryPlane, tmp_path: Path
) -> None:
    lease = acquire_lease(fabric, asked(), tmp_path / "leases", wait_s=0, poll_s=0)
    assert check_lease(fabric, lease) == ()
    plane.rack.detach("gpu1")
    assert check_lease(fabric, lease) == ("gpu1: no longer attached",)
    assert release_lease(fabric, lease, poll_s=0)["state"] == "RELEASED"


@pytest.mark.parametrize("where", ["host1", "a host of nobody"])
def test_what_the_fabric_contradicts_itself_about_is_not_dropped(where: str, tmp_path: Path) -> None:
    class Doubtful(MemoryPlane):
        doubts = False

        def read_view(self) -> FabricView:
            view = super().read_view()
            if not self.doubts:
                return view
            odd = [replace(d, state="unknown", attached_to=where) if d.fabric_id == "gpu1" else d for d in view.devices]
            return replace(view, devices=tuple(odd))

    plane = Doubtful(hardware(), tags=False)
    fabric = opened(tmp_path, plane)
    composed(fabric, asked())
    plane.doubts = True
    assert fabric.release("one") == ("gpu1",)
    assert fabric.list_lease_tags()["one"].devices == ("gpu1",)
    plane.doubts = False
    assert fabric.release("one") == ()
    assert len(plane.rack.list_free_devices()) == 5


@pytest.mark.parametrize(
    "error", [TypeError, KeyError, AttributeError, ValueError, IndexError, OverflowError, RecursionError]
)
def test_what_no_adapter_foresaw_is_the_fabrics_fault(error: type[Exception], tmp_path: Path) -> None:
    class Odd(MemoryPlane):
        def read_view(self) -> FabricView:
            raise error("odd")

    with pytest.raises(ProtocolViolation, match=f"unexpected data.*{error.__name__}"):
        opened(tmp_path, Odd(hardware())).read_inventory()


def test_what_somebody_reserved_is_not_free_and_named(tmp_path: Path) -> None:
    class Reserving(MemoryPlane):
        def read_view(self) -> FabricView:
            view = super().read_view()
            return replace(
                view,
                devices=tuple(
                    replace(d, state="reserved") if d.fabric_id in ("gpu1", "gpu2") else d for d in view.devices
                ),
            )

    fabric = opened(tmp_path, Reserving(hardware()))
    assert {d.fabric_id for d in fabric.read_inventory().devices if d.holder} == {"gpu1", "gpu2"}
    with pytest.raises(Conflict, match="another client, which reserved it"):
        fabric.select_devices(asked(devices=3), fabric.read_inventory())
    composed(fabric, asked(devices=2))


def test_a_fabric_that_chooses_may_swap_devices_between_hosts_of_a_lease(
    fabric: ControlledFabric, plane: MemoryPlane
) -> None:
    request = LeaseRequest("one", "demo", "tester", configuration(hosts=2, devices_per_host=2))
    composed(fabric, request)
    first, second = (plane.rack.list_attached_devices(name)[0].name for name in ("host1", "host2"))
    for name, host in ((first, "host2"), (second, "host1")):
        plane.rack.detach(name)
        plane.rack.attach(name, host)
    found = obtained(fabric)
    assert found.list_mismatches(request.configuration) == ()
    assert {d.fabric_id for host in found.hosts if host.name == "host2" for d in host.devices} >= {first}
    assert fabric.release("one") == ()
    assert len(plane.rack.list_free_devices()) == 5


def test_a_mark_without_an_owner_is_completed_by_the_claim(fabric: ControlledFabric, plane: MemoryPlane) -> None:
    composed(fabric, asked())
    plane.marks = {name: replace(tag, campaign="", owner="") for name, tag in plane.marks.items()}
    assert fabric.list_lease_tags()["one"].owner == "tester"


def test_planning_needs_no_control_plane(tmp_path: Path) -> None:
    class Gone(MemoryPlane):
        def read_view(self) -> None:  # type: ignore[override]
            raise AssertionError("a plan asked the control plane")

    fabric = opened(tmp_path, Gone(hardware()))
    assert len(fabric.select_planned_devices(asked(devices=4)).fabric_ids) == 4
    with pytest.raises(NoMatch):
        fabric.select_planned_devices(asked(devices=5))


@pytest.mark.parametrize("words", ["plain", "mit Ümlaut und = Zeichen", "a b\tc", "", "x" * 200])
def test_a_tag_survives_its_text(words: str) -> None:
    tag = Tag("demo.c.1", words, words, 1_700_000_000.0, ())
    text = lease_tag.encode_tag(tag)
    assert text.isascii()
    assert lease_tag.decode_tag(f"  {text}\n") == tag
    assert all(
        lease_tag.decode_tag(other) is None for other in (None, 3, "", "somebody's", text[:-12], f"{text} and more")
    )
