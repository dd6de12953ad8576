"""Boxes of CXL memory: the life of a module, as far as their one public client shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.errors import FabricError
from campaign.fabrics import open_fabric
from campaign.fabrics.control_plane.controlled_fabric import ControlledFabric
from campaign.fabrics.dialects.h3.memory_box import MemoryBox, entry
from campaign.fabrics.errors import Incompatible, ProtocolViolation
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.protocol import Request, Selection
from campaign.lease.lifecycle import acquire, release
from campaign.testbed.control_planes.faults import Fault
from campaign.testbed.control_planes.h3 import CxlBoxes, open_dialect
from campaign.testbed.control_planes.hardware import rack
from campaign.testbed.control_planes.server import Server
from campaign.testbed.emulators import reached
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.memory_plane import Killed

HOSTS = (HostSpec("host1", 8, 32.0), HostSpec("host2", 8, 32.0))
MAPPING = "/h3api/v1/Switches/0/VCSMapping"


class Boxes:
    """Two emulated boxes of two modules each."""

    def __init__(self, directory: Path, **options: Any) -> None:
        dialect = open_dialect(rack(["host1", "host2"], [("memory", "cxl-128", 4)]), api="cxl", **options)
        assert isinstance(dialect, CxlBoxes)
        self.dialect, self.directory = dialect, directory
        self.server = Server(dialect, directory / "tls")

    def open(self, **options: Any) -> ControlledFabric:
        pool = tuple(PoolSpec("memory", "cxl-128", 2, drawer) for drawer in self.server.urls)
        told = {**reached("h3", self.server), "poll_s": 0, "offline": True, **options}
        fabric = open_fabric("h3", told, HOSTS, pool, self.directory / "state")
        assert isinstance(fabric, ControlledFabric)
        return fabric

    def attached(self) -> list[str | None]:
        return [device.attached_to for device in self.dialect.rack.devices.values()]

    def steps(self) -> list[tuple[str, str]]:
        """What changed something: method, and the operation or the end of the path."""
        changing = (one for one in self.server.changing() if one.path.startswith(MAPPING))
        return [(one.method, one.body["Operation"] if one.body else one.path.rpartition("/")[2]) for one in changing]


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Callable[..., Boxes]]:
    opened: list[Boxes] = []

    def make(**options: Any) -> Boxes:
        opened.append(Boxes(tmp_path, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.server.close()
        assert one.dialect.violations == []


def selected(fabric: ControlledFabric, devices: int = 3) -> Selection:
    wanted = configuration(devices_per_host=devices, device="cxl-128")
    return fabric.select(Request("one", "demo", "tester", wanted), fabric.inventory())


@pytest.mark.parametrize("unassigned", ["no_key", "empty", "na"])
def test_a_module_is_composed_assigned_unassigned_and_deleted(boxes: Callable[..., Boxes], unassigned: str) -> None:
    site = boxes(unassigned=unassigned)
    fabric = site.open()
    selection = selected(fabric, 1)
    request = selection.request
    lease = acquire(fabric, request, site.directory / "leases", wait_s=0, poll_s=0)
    assert lease.mismatches == ()
    assert [device.kind for device in lease.composition.devices] == ["memory"]
    assert site.attached().count("host1") == 1
    assert release(fabric, lease, poll_s=0)["state"] == "RELEASED"
    (_, compose), (_, assign), (unassign, memory), (_, delete) = site.steps()
    assert (compose, assign, unassign, delete) == ("compose", "assign", "DELETE", "delete")
    assert memory
    assert site.attached() == [None] * 4
    assert {device.state for device in fabric.inventory().devices} == {"free"}


@pytest.mark.parametrize("kind", ["drop_before", "drop_after"])
@pytest.mark.parametrize("before", range(4))
def test_a_lost_answer_is_read_back_and_nothing_is_left(boxes: Callable[..., Boxes], kind: Any, before: int) -> None:
    site = boxes()
    fabric = site.open()
    selection = selected(fabric)
    site.server.faults.add(Fault(kind, "POST", MAPPING, 1, before))
    try:
        fabric.compose(selection)
    except FabricError:
        fabric.compose(selection)
    composition = fabric.read_back("one")
    assert composition is not None
    assert composition.mismatches(selection.request.configuration) == ()
    site.server.faults.add(Fault(kind, "DELETE", f"{MAPPING}/*", 1, before))
    for _ in range(2):
        try:
            fabric.release("one")
        except FabricError:
            continue
    assert fabric.read_back("one") is None
    assert {device.state for device in fabric.inventory().devices} == {"free"}


@pytest.mark.parametrize("step", range(1, 6))
def test_a_process_that_dies_in_the_middle_leaves_nothing_that_the_next_cannot_release(
    boxes: Callable[..., Boxes], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = boxes()
    fabric = site.open()
    selection = selected(fabric)
    ordered, left = MemoryBox._ordered, [step]

    def deadly(box: MemoryBox, *args: Any) -> Any:
        answer = ordered(box, *args)
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(MemoryBox, "_ordered", deadly)
        with pytest.raises(Killed):
            fabric.compose(selection)
    heir = site.open()
    if step % 2:
        heir.compose(selection)
        assert site.attached().count("host1") == 3
    assert heir.release("one") == ()
    assert site.attached() == [None] * 4
    assert {device.state for device in heir.inventory().devices} == {"free"}


def test_what_somebody_else_composed_is_left_alone(boxes: Callable[..., Boxes]) -> None:
    site = boxes()
    other = site.open(agent={"kind": "none"})
    box = next(iter(other.plane._boxes.values()))  # type: ignore[attr-defined]
    box.compose("0")
    fabric = site.open()
    shown = {device.fabric_id: device for device in fabric.inventory().devices}
    assert shown["drawer1/memory0"].state == "reserved"
    assert "drawer1/memory0" not in selected(fabric).ids
    fabric.compose(selected(fabric))
    assert fabric.release("one") == ()
    assert [memory.port for memory in box.read().memories] == ["0"]


def test_what_somebody_else_composed_in_place_of_ours_is_left_alone(boxes: Callable[..., Boxes]) -> None:
    site = boxes()
    fabric = site.open()
    fabric.compose(selected(fabric, 1))
    box = fabric.plane._boxes["drawer1"]  # type: ignore[attr-defined]
    (ours,) = box.read().memories
    box.unassign(ours.id)
    box.delete(ours.id)
    theirs = box.compose(ours.port)
    assert fabric.release("one") == ()
    assert [memory.id for memory in box.read().memories] == [theirs]
    assert not fabric.held()


def test_nothing_is_composed_that_could_not_be_taken_back_safely(boxes: Callable[..., Boxes]) -> None:
    site = boxes()
    with pytest.raises(Incompatible, match="offline: true"):
        selected(site.open(offline=False))
    with pytest.raises(Incompatible, match=r"no host on port 0 for host1 .*there are: "):
        selected(site.open(hosts={"host1": "0"}))
    assert site.steps() == []


def test_a_release_with_other_addresses_is_told(boxes: Callable[..., Boxes]) -> None:
    site = boxes()
    site.server.faults.add(Fault("status", "GET", "/h3api/v1/Switches", -1, 0, 404, "{}"))
    with pytest.raises(ProtocolViolation, match="other addresses"):
        site.open(reads_max=2).inventory()


def test_the_place_of_a_port_is_fixed() -> None:
    ports = ("0", "7", "8", "12", "13", "23", "24", "29", "31", "x")
    assert [entry(port) for port in ports] == [0, 7, None, None, 8, 18, None, 19, 21, None]
