"""Numbers that explain a rate: of all ranks, of a device, for each byte; absent where they cannot be known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.spec.hardware import Composition, Device
from campaign.workloads.failures import PACE_NOT_HELD
from campaign.workloads.protocol import Outcome, Run, RunStorage
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.rank_interface import RankResult, TrainSpec
from campaign.workloads.trainer_runs import compute_efficiency, compute_pace_loss, reject_lost_pace
from tests.campaign_files import one_cell, one_run

FILE = TrainWorkload(name="nano", kind="train", model="bert-nano", precisions=("fp32",), options={"input": "storage"})


def run_with(directory: Path, **values: Any) -> Run:
    run = one_run(directory / "run", one_cell(devices=2, workload="nano", **values.pop("cell", {})))
    return Run(run.cell, 1, run.composition, run.directory, "cpu", **values)


def result(rank: int = 0, **values: Any) -> RankResult:
    values = {"step_times_s": (0.5, 0.5, 0.5), **values}
    return RankResult(rank=rank, world_size=2, host="h", status="ok", samples_per_step=4, **values)


def test_a_step_of_all_ranks_and_what_one_device_did_of_its_peak(tmp_path: Path) -> None:
    first = result(flops_per_step=8e12, allreduce_bytes_per_step=10**9)
    found = compute_efficiency(run_with(tmp_path, peak_tflops=20.0), [first, result(1)], 2.0)
    # Three steps (tests.campaign_files) of two ranks in two seconds.
    assert found == {
        "flops_per_step": 16e12,
        "achieved_tflops": pytest.approx(16 * 3 / 2 / 2),
        "mfu_pct": pytest.approx(100 * 12 / 20),
        "flops_per_allreduce_byte": 8000.0,
    }


def test_what_cannot_be_known_is_absent(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    assert compute_efficiency(run, [result(), result(1)], 2.0) == {}
    assert set(compute_efficiency(run, [result(flops_per_step=1e9), result(1)], 2.0)) == {
        "flops_per_step",
        "achieved_tflops",
    }
    assert compute_efficiency(run, [result(flops_per_step=1e9, input_read_s=0.1), result(1)], 0.0) == {}


def test_the_rank_that_waited_longest_and_the_bytes_of_all(tmp_path: Path) -> None:
    ranks = [
        result(0, input_bytes_per_step=10**9, input_read_s=0.5),
        result(1, input_bytes_per_step=10**9, input_read_s=0.7),
    ]
    assert compute_efficiency(run_with(tmp_path), ranks, 3.0) == {
        "input_wait_s": 0.7,
        "input_gb_per_s": pytest.approx(2.0),
    }
    resident = [result(0, input_bytes_per_step=10**9), result(1, input_bytes_per_step=10**9)]
    assert compute_efficiency(run_with(tmp_path), resident, 3.0) == {}


def test_ranks_are_told_where_the_configuration_s_storage_is_and_how_many_share_it(tmp_path: Path) -> None:
    run = run_with(tmp_path, storage=RunStorage(Path("/fast"), 0.5))
    step = FILE.step(run)
    spec = TrainSpec.model_validate(json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text()))
    assert (spec.storage_dir, spec.storage_gb_per_s, spec.storage_ranks) == (Path("/fast"), 0.5, 2)


def test_ranks_are_told_the_pace_of_their_devices(tmp_path: Path) -> None:
    file = FILE.model_copy(update={"options": {}})

    def pace(**values: Any) -> tuple[float, ...]:
        run = run_with(tmp_path / str(values), **values)
        (host,) = run.composition.hosts
        devices = tuple(Device(model, "gpu", model, "host1", "", local=True) for model in ("fast", "slow"))
        step = file.step(replace(run, composition=Composition((replace(host, devices=devices),))))
        return TrainSpec.model_validate(json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text())).pace_gflops

    assert pace(pace={"slow": 2.5, "fast": 9.0}) == (9.0, 2.5)
    assert pace() == ()


def paced(*lost_s: tuple[float, ...]) -> Outcome:
    results = [
        result(rank, step_times_s=(1.0, 1.0, 1.0), window_s=3.0, pace_lost_s=lost) for rank, lost in enumerate(lost_s)
    ]
    return reject_lost_pace(Outcome("ok", throughput_per_s=1.0, metrics=compute_pace_loss(results, 3.0)))


def test_a_run_whose_pace_was_not_held_is_invalid_and_says_what_to_do() -> None:
    # In every step the slowest rank's: 0.02 + 0.03 of 3 s.
    held = paced((0.02, 0.0, 0.0), (0.0, 0.03, 0.0))
    assert held.status == "ok"
    assert held.metrics == {"pace_lost_pct": pytest.approx(100 * 0.05 / 3)}
    lost = paced((0.02, 0.0, 0.02), (0.0, 0.03, 0.0))
    assert lost.status == "invalid"
    assert lost.failure is not None
    assert lost.failure.reason == PACE_NOT_HELD
    assert "2.3 % of the window was lost" in (lost.failure.evidence or "")
    assert "lower emulation.pace" in (lost.failure.evidence or "")


def test_without_a_pace_nothing_is_lost() -> None:
    assert compute_pace_loss([result(), result(1)], 3.0) == {}


def test_ranks_that_do_not_read_are_told_of_no_storage(tmp_path: Path) -> None:
    run = run_with(tmp_path, storage=RunStorage(Path("/fast"), 0.5), cell={"options": {"input": "resident"}})
    step = FILE.step(run)
    spec = TrainSpec.model_validate(json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text()))
    assert (spec.storage_dir, spec.storage_gb_per_s) == (None, None)


def test_storage_without_a_place_is_refused_with_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage: \{local: \{path"):
        FILE.step(run_with(tmp_path))
