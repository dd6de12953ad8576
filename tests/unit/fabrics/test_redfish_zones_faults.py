"""A chassis with zones that changes under our hands, refuses, takes its time, or does not tell the truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.errors import FabricError
from campaign.fabrics.errors import Busy, Conflict, OutcomeUnknown, PartialFailure
from campaign.testbed.control_planes.faults import Fault
from tests.unit.fabrics.zones_chassis import ZONES, Build, chassis_in, composed, names, request


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    yield from chassis_in(tmp_path)


# -- two writers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("etags", ["given", "required"])
def test_a_zone_that_changed_since_it_was_read_is_read_again(build: Build, etags: str) -> None:
    chassis = build(etags=etags)
    fabric = chassis.open()

    chassis.before("PATCH", lambda: chassis.describe("H1", "renamed"))
    composed(fabric)
    assert len(chassis.sent()) == 2
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    fabric.release("one")
    assert chassis.zone(1)["Description"] == "renamed"


def test_what_another_writer_adds_is_never_overwritten(build: Build) -> None:
    chassis = build(etags="given")
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    chassis.before("PATCH", lambda: chassis.rack.attach("gpu4", "host1"))
    with pytest.raises(Conflict, match="host port H1"):
        fabric.compose(selection)
    assert chassis.listed(1) == ["hostport2_H1", "gpu4"]
    assert not fabric.held()


def test_what_another_writer_adds_while_we_release_is_kept(build: Build) -> None:
    chassis = build(etags="required")
    fabric = chassis.open()
    composed(fabric)
    chassis.before("PATCH", lambda: chassis.rack.attach("gpu4", "host1"))
    assert fabric.release("one") == ()
    assert chassis.listed(1) == ["hostport2_H1", "gpu4"]


# -- tasks, refusals, several zones ----------------------------------------------------------------------------------------


def test_a_change_may_be_a_task(build: Build) -> None:
    chassis = build(task_polls=2)
    fabric = chassis.open()
    composed(fabric)
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    assert fabric.release("one") == ()
    assert len(chassis.rack.free()) == 4


def test_a_task_that_is_forgotten_is_told_by_reading_back(build: Build) -> None:
    chassis = build(task_polls=2)
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    chassis.server.faults.add(Fault("status", "GET", "*TaskMonitors*", status=404))
    with pytest.raises(OutcomeUnknown, match="reading back"):
        fabric.compose(selection)
    assert chassis.rack.attached("host1") == []
    fabric.compose(selection)
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]


def test_a_second_zone_that_is_refused_is_itemised(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = fabric.select(request(devices=2, hosts=2), fabric.inventory())
    chassis.server.faults.add(Fault("status", "PATCH", f"{ZONES}/2", times=1, status=409, body="locked"))
    with pytest.raises(PartialFailure, match="host port H2") as caught:
        fabric.compose(selection)
    first, second = (host.fabric for host in selection.hosts)
    assert (caught.value.done, caught.value.failed) == (first, second)
    assert fabric.release("one") == ()
    assert len(chassis.rack.free()) == 4
    assert not fabric.held()


def test_a_busy_chassis_keeps_everything_as_it_was(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    chassis.server.faults.add(Fault("status", "PATCH", status=409, body="busy"))
    with pytest.raises(Busy):
        fabric.compose(selection)
    assert not fabric.held()
    fabric.compose(selection)
    chassis.server.faults.add(Fault("status", "PATCH", status=409, body="busy"))
    with pytest.raises(Busy):
        fabric.release("one")
    assert names(fabric.read_back("one")) == ["gpu1", "gpu2"]
    assert fabric.release("one") == ()


def test_what_the_chassis_does_not_let_go_is_named_and_stays_claimed(build: Build) -> None:
    chassis = build()
    fabric = chassis.open()
    composed(fabric)
    chassis.server.faults.add(Fault("status", "PATCH", status=400, body="device is hot"))
    assert fabric.release("one") == ("gpu1", "gpu2")
    assert list(fabric.held()) == ["one"]
    assert fabric.release("one") == ()


# -- faults on the wire ----------------------------------------------------------------------------------------------------

FAULTS = [
    Fault("drop_before"),
    Fault("drop_after"),
    Fault("status", status=500),
    Fault("status", status=503),
    Fault("status_after", status=500, body="500"),
    Fault("lie"),
    Fault("lie", status=204),
    Fault("garbage"),
    Fault("html"),
    Fault("stale"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.status}")
@pytest.mark.parametrize("when", ["composing", "releasing"])
def test_no_fault_makes_a_lease_that_is_not_there_or_leaves_one_behind(build: Build, fault: Fault, when: str) -> None:
    chassis = build(task_polls=2 if fault.kind in ("drop_after", "status_after") else 0)
    fabric = chassis.open()
    selection = fabric.select(request(), fabric.inventory())
    if when == "releasing":
        fabric.compose(selection)
    method, path = ("GET", f"{ZONES}*") if fault.kind == "stale" else ("PATCH", f"{ZONES}/1")
    chassis.server.faults.add(Fault(fault.kind, method, path, 1, 0, fault.status, fault.body))
    act = (lambda: fabric.compose(selection)) if when == "composing" else (lambda: fabric.release("one"))
    try:
        act()
    except FabricError:
        assert list(fabric.held()) in (["one"], [])
    composition = fabric.read_back("one")
    there = {device.name for device in chassis.rack.attached("host1")}
    assert set(names(composition) if composition else ()) <= there
    chassis.server.faults.clear()
    assert fabric.release("one") == ()
    assert len(chassis.rack.free()) == 4
    assert chassis.zone(1)["Description"] == "Zone of host port H1"
    assert not fabric.held()
