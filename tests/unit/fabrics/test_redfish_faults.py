"""Tasks of a Redfish service that are forgotten, that fail or that never end; answers that are lost, cut or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.control_planes.server import WireFault
from campaign.fabrics.errors import Busy, Conflict, OutcomeUnknown, PartialFailure
from tests.unit.fabrics.redfish_bench import SYSTEMS, bench, foreign, meanwhile


@pytest.mark.parametrize("status", [404, 410])
def test_a_task_that_is_forgotten_is_read_back(status: int, tmp_path: Path) -> None:
    with bench(tmp_path, task_polls=2) as b:
        selection = b.selection()
        fault = WireFault("status_after", "GET", "*/TaskMonitors/*", after=1, status=status, body="gone")
        b.server.faults.add_fault(fault)
        with pytest.raises(OutcomeUnknown, match="no longer exists"):
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
        assert b.fabric.list_lease_tags() == {}


def test_a_task_has_as_long_as_the_operation(tmp_path: Path) -> None:
    with bench(tmp_path, task_polls=1000, adapter={"operation_s": 3.0}) as b:
        selection = b.selection()
        with pytest.raises(OutcomeUnknown, match="not completed in time"):
            b.fabric.compose(selection)


CHANGES = {"compose": ("POST", SYSTEMS), "release": ("DELETE", f"{SYSTEMS}/*")}
"""Method and path of what attaches and detaches."""


@pytest.mark.parametrize("fault", ["drop_before", "drop_after", "status", "lie", "garbage", "html"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("moment", CHANGES)
def test_no_fault_on_the_wire_leaves_a_device_behind(moment: str, after: int, fault: Any, tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        selection = b.selection()
        if moment == "release":
            b.fabric.compose(selection)
        b.server.faults.add_fault(WireFault(fault, *CHANGES[moment], after=after, body="{}" if fault == "lie" else ""))
        composed = moment == "release" or tried(lambda: b.fabric.compose(selection))
        assert len(b.ids()) == len(b.attached())
        assert b.ids() <= set(selection.fabric_ids)
        if composed and fault != "lie":
            assert len(b.attached()) == 2
        assert b.gave_back(tries=4)
        assert b.emulator.composition.systems == {}


def tried(call: Any) -> bool:
    """False where a call of a fabric did not do all of it, or nobody knows."""
    try:
        return call() in (None, ())
    except (OutcomeUnknown, Busy, PartialFailure):
        return False
