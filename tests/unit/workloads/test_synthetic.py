from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from campaign.plan.matrix import expand_matrix
from campaign.spec.cell import Configuration, Settings
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, StepEnd
from campaign.workloads.steady_warmup import NOT_STEADY
from campaign.workloads.synthetic import SyntheticWorkload, compute_step_s
from campaign.workloads.synthetic_program import publish_gauges, run_program
from tests.campaign_files import load, one_cell, one_run


def file(**values: Any) -> SyntheticWorkload:
    document = {"name": "s", "kind": "synthetic", "precisions": ["fp32"], "real_time": False, **values}
    return SyntheticWorkload.model_validate(document)


def outcome(directory: Path, model: SyntheticWorkload, **cell: Any) -> Outcome:
    workload, run = model, one_run(directory, one_cell(**cell))
    ended = subprocess.run(workload.step(run).argv, capture_output=True, text=True, check=False)
    return workload.read(run, StepEnd((ended.returncode,), 0.0, 1.0), Log.from_text(ended.stdout + ended.stderr))


@pytest.mark.parametrize(
    ("hosts", "devices", "local", "batch", "expected_ms"),
    [(1, 2, 2, 4, 5 + 4 * 2), (3, 2, 2, 1, 5 + 2 + 2 * 7), (1, 4, 1, 1, 5 + 2 + 0.75 * 8), (2, 4, 0, 2, 5 + 4 + 7 + 8)],
)
def test_the_truth_is_what_the_file_says(hosts: int, devices: int, local: int, batch: int, expected_ms: float) -> None:
    model = file(sample_ms=2, overhead_ms=5, host_ms=7, fabric_ms=8)
    cell = one_cell(batch=batch)
    at = Configuration("x", hosts, devices, local, devices, "d", "hybrid", "local")
    assert compute_step_s(model, type(cell)("", at, "s", batch, "fp32")) == pytest.approx(expected_ms / 1e3)


def test_without_noise_the_rate_is_the_true_one(tmp_path: Path) -> None:
    found = outcome(tmp_path, file(sample_ms=3, overhead_ms=1), hosts=2, devices=2, batch=4)
    assert found.status == "ok"
    assert found.throughput_per_s == pytest.approx(16 / 0.013)
    assert found.step_times_s == ((0.013,) * 3,)


def test_noise_differs_by_repetition_but_not_by_attempt(tmp_path: Path) -> None:
    model = file(noise_pct=5)
    first, again = outcome(tmp_path / "1", model), outcome(tmp_path / "2", model)
    assert first.step_times_s == again.step_times_s
    assert len(set(first.step_times_s[0])) == 3
    other = outcome(tmp_path / "3", model, id="1" * 20)
    assert other.step_times_s != first.step_times_s


@pytest.mark.parametrize("status", ["oom_device", "oom_host", "nan", "crashed", "incomplete", "comm_timeout"])
def test_failures_on_purpose_are_recognised(tmp_path: Path, status: str) -> None:
    model = file(failures=[{"when": "batch > 2", "status": status}])
    assert outcome(tmp_path / "a", model, batch=4).status == status
    assert outcome(tmp_path / "b", model, batch=2).status == "ok"


def test_an_option_axis_can_select_a_failure(tmp_path: Path) -> None:
    changes = {
        "workloads.steps.failures": [{"when": "size > 8", "status": "nan"}],
        "campaign.axes.options": {"size": [8, 9]},
    }
    campaign = load(tmp_path, changes)
    statuses = {
        cell.options["size"]: outcome(
            tmp_path / cell.id, campaign.workloads["steps"], options=dict(cell.options)
        ).status  # type: ignore[arg-type]
        for cell in expand_matrix(campaign).cells[:8]
    }
    assert statuses == {8: "ok", 9: "nan"}


def test_a_torn_result_is_incomplete(tmp_path: Path) -> None:
    run = one_run(tmp_path, one_cell())
    found = file().read(run, StepEnd((0,), 0.0, 1.0), Log.from_text('{"step_times_s": [0.1, '))
    assert found.status == "incomplete"


def test_warm_up_steps_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    specification = {
        "step_s": 0.1,
        "noise_pct": 0,
        "real_time": False,
        "warmup_steps": 5,
        "measured_steps": 2,
        "seed": "s",
        "fail": None,
    }
    assert run_program(specification) == 0
    assert json.loads(capsys.readouterr().out)["step_times_s"] == [0.1, 0.1]


def warmed(directory: Path, most: int | None, **values: Any) -> Outcome:
    settings = Settings(warmup_steps=10, warmup_steps_max=most, measured_steps=40, repetitions=1)
    model = file(sample_ms=1, noise_pct=0.5, **values)
    return outcome(directory, model, devices=1, batch=10, settings=settings)


def test_a_warm_up_goes_on_until_a_planted_curve_is_over(tmp_path: Path) -> None:
    curve = {"cold_pct": 80, "cold_steps": 25}
    cold, warm = warmed(tmp_path / "a", None, **curve), warmed(tmp_path / "b", 500, **curve)
    assert (cold.warmup_steps, cold.flags) == (10, ())
    assert cold.throughput_per_s is not None
    assert cold.throughput_per_s < 0.9 * 1000
    assert warm.throughput_per_s == pytest.approx(1000, rel=0.01)
    assert warm.warmup_steps is not None
    assert 100 <= warm.warmup_steps < 500
    assert warm.flags == ()
    assert len(warm.step_times_s[0]) == 40


def test_a_steady_program_makes_no_more_than_it_takes_to_see_that(tmp_path: Path) -> None:
    found = warmed(tmp_path, 500)
    assert (found.warmup_steps, found.flags) == (50, ())


def test_the_most_warm_up_steps_end_it_and_the_run_is_flagged(tmp_path: Path) -> None:
    found = warmed(tmp_path, 55, cold_pct=300, cold_steps=100)
    assert (found.status, found.warmup_steps, found.flags) == ("ok", 55, (NOT_STEADY,))


def test_the_window_is_that_of_the_measured_steps(tmp_path: Path) -> None:
    before = time.time()
    found = outcome(tmp_path / "a", file(sample_ms=20, real_time=True), batch=1)
    assert found.steady is not None
    start, end = found.steady
    assert before < start < end < time.time()
    assert end - start >= 0.99 * sum(found.step_times_s[0])
    assert outcome(tmp_path / "b", file()).steady is None  # nothing was measured in any window


def test_what_devices_are_to_take_is_published_while_a_run_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = file(power_w=250, utilisation_pct=80)
    run = one_run(tmp_path / "run", one_cell(hosts=2, devices=2, batch=1))
    gauges = json.loads(Path(model.step(run).argv[-1]).read_text())["gauges"]
    devices = [f"{host.name}/{number}" for host in run.composition.hosts for number in range(2)]
    assert gauges == {device: {"power_w": 250, "utilisation_pct": 80} for device in devices}
    (tmp_path / "gauges").mkdir()
    monkeypatch.setenv("CAMPAIGN_GAUGES", str(tmp_path / "gauges"))
    with publish_gauges(gauges):
        (found,) = (tmp_path / "gauges").iterdir()
        assert json.loads(found.read_text())["devices"] == gauges
    assert list((tmp_path / "gauges").iterdir()) == []
    with publish_gauges({}):
        assert list((tmp_path / "gauges").iterdir()) == []
