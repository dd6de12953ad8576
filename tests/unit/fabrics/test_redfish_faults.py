"""Answers of a Redfish service that are lost, cut, wrong or late: never a lease that the rack has not, and never a leak."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.server import WireFault
from campaign.errors import FabricError
from campaign.fabrics.errors import Conflict, OutcomeUnknown
from tests.unit.fabrics.redfish_bench import SYSTEMS, bench, foreign, meanwhile

LOSSES = ["drop_before", "drop_after", "lie", "garbage", "html", "status"]


@pytest.mark.parametrize("kind", LOSSES)
def test_no_fault_makes_a_lease_that_the_rack_has_not(kind: Any, tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.selection()
        b.server.faults.add(WireFault(kind, "POST", SYSTEMS))
        with suppress(FabricError):
            b.fabric.compose(selection)
        if b.verified("one", selection):
            assert set(b.attached()) == set(selection.ids)
        assert b.gave_back()
        assert b.emulator.machine.systems == {}


@pytest.mark.parametrize("kind", LOSSES)
def test_no_fault_makes_a_leak(kind: Any, tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.compose()
        b.server.faults.add(WireFault(kind, "DELETE", f"{SYSTEMS}/*"))
        for _ in range(3):
            try:
                if b.fabric.release("one") == () and not b.fabric.held():
                    break
            except OutcomeUnknown:
                assert b.fabric.held(), "given up with the outcome unknown"
        assert b.fabric.held() == {}
        assert b.attached() == {}
        assert b.emulator.machine.systems == {}


@pytest.mark.parametrize("status", [404, 410])
def test_a_task_that_is_forgotten_is_read_back(status: int, tmp_path: Path) -> None:
    with bench(tmp_path, task_polls=2) as b:
        selection = b.selection()
        fault = WireFault("status_after", "GET", "*/TaskMonitors/*", after=1, status=status, body="gone")
        b.server.faults.add(fault)
        with pytest.raises(OutcomeUnknown, match="is gone"):
            b.fabric.compose(selection)
        assert b.verified("one", selection)  # it was done
        b.fabric.release("one")
        assert b.attached() == {}


def test_a_task_that_fails_is_what_the_operation_was(tmp_path: Path) -> None:
    with bench(tmp_path, task_polls=2) as b:
        selection = b.selection()
        meanwhile(b, "POST", SYSTEMS, lambda: foreign(b, blocks=("host2", "gpu1")))
        with pytest.raises(Conflict, match="ResourceBlockInUse"):
            b.fabric.compose(selection)
        assert b.fabric.held() == {}


def test_a_task_has_as_long_as_the_operation(tmp_path: Path) -> None:
    with bench(tmp_path, task_polls=1000, adapter={"operation_s": 3.0}) as b:
        selection = b.selection()
        with pytest.raises(OutcomeUnknown, match="not done in time"):
            b.fabric.compose(selection)
