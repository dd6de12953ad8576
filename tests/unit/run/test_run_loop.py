"""What a driver makes of a run that telemetry has seen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from campaign.observe.telemetry.run_telemetry import TelemetrySummary
from campaign.run.launched_run import RunLaunch
from campaign.run.run_loop import DriverSession, invalidate_if_devices_idle
from campaign.spec.record import Status
from campaign.workloads.protocol import Outcome, StepEnd
from tests.campaign_files import one_cell


@pytest.mark.parametrize(
    ("status", "unused", "expected"),
    [("ok", ("gpu:1 on h was never busy",), "invalid"), ("ok", (), "ok"), ("crashed", ("gpu:1",), "crashed")],
)
def test_a_run_whose_devices_did_nothing_is_invalid(status: Status, unused: tuple[str, ...], expected: Status) -> None:
    found = invalidate_if_devices_idle(
        Outcome(status, throughput_per_s=5.0), TelemetrySummary(unused_device_messages=unused)
    )
    assert found.status == expected
    if expected == "invalid":
        assert found.failure is not None
        assert found.failure.evidence == unused[0]
        assert found.throughput_per_s == 5.0, "kept, and not believed"


def test_a_process_that_stays_on_a_device_is_waited_for_once_in_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = TelemetrySummary(disturbances=("another process used gpu:0 before and during the run: pid 7",))
    ended = RunLaunch(StepEnd((0,), 0.0, 1.0), Outcome("ok", throughput_per_s=5.0), used)
    launched: list[Path] = []

    def launch(session: DriverSession, launcher: Any, workload: Any, run: Any, log: Path) -> RunLaunch:
        launched.append(log)
        return ended

    session: Any = object.__new__(DriverSession)  # of a lease of which nothing else counts here
    cell = one_cell()
    session.campaign = SimpleNamespace(workloads={cell.workload: None}, protocol=SimpleNamespace(attempts=3))
    session.results, session.lease = SimpleNamespace(logs=tmp_path, directory=tmp_path), "lease"
    session.uses_slurm = session.is_first_start_pending = False
    session.lasting_disturbances = set()
    for name, function in (("_build_run", SimpleNamespace), ("_find_objection", None), ("_launch_once", launch)):
        replacement = function if name == "_launch_once" else lambda *_, made=function: made and made(runs_on="gpu")
        monkeypatch.setattr(DriverSession, name, replacement)
    first, second = (session.execute_run(None, cell, repetition) for repetition in (1, 2))
    assert [path.name for path in launched] == [f"{cell.id}.{n}.log" for n in (1, 1, 1, 2)]
    assert first.outcome.status == second.outcome.status == "ok"
    assert (first.samples, second.ended.flags) == (used, ())
