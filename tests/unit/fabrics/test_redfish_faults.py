"""Tasks of a Redfish service that are forgotten, that fail or that never end. Answers that are lost, cut or wrong: test_vendors."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.emulators.control_planes.server import WireFault
from campaign.fabrics.errors import Conflict, OutcomeUnknown
from tests.unit.fabrics.redfish_bench import SYSTEMS, bench, foreign, meanwhile


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
