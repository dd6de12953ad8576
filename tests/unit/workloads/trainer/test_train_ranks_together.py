"""Several ranks as a run has them: one is lost, many runs in a row, models at their true size."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import StepEnd
from campaign.workloads.steady_warmup import NOT_STEADY, SHORT_WINDOW
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.model_catalog import find_model_info
from tests.campaign_files import one_cell, one_run

Spec = Callable[..., dict[str, Any]]
LONG = 10_000_000  # steps
TICKS = 40  # of processor time, with which a rank is past its start on a busy machine, too
FILE = TrainWorkload(name="nano", kind="train", model="bert-nano", precisions=("fp32",))


def wait_until_training(pids: list[int], patience_s: float = 30) -> None:
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        used = [int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11]) for pid in pids]
        if min(used) > TICKS:
            return
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


@pytest.mark.parametrize(
    ("sent", "status", "rank", "said"),
    [
        (signal.SIGSEGV, "crashed", 1, "rank 1 was ended by SIGSEGV"),
        (signal.SIGKILL, "crashed", 1, "SIGKILL from outside"),
        (signal.SIGSTOP, "comm_timeout", None, "exceeded its time limit"),
    ],
)
def test_a_lost_rank_ends_the_run_within_its_time_out_and_is_named(
    driver: Any, tmp_path: Path, nano_spec: Spec, sent: signal.Signals, status: str, rank: int | None, said: str
) -> None:
    run = one_run(tmp_path / "run", one_cell(devices=2, workload="nano"))
    pids = driver.start(run.directory, [nano_spec(measured_steps=LONG, time_out_s=3.0)] * 2)
    wait_until_training(pids)
    os.kill(pids[1], sent)
    codes = tuple(driver.finish(run.directory, 2, patience_s=30).codes)
    outcome = FILE.read(run, StepEnd(codes, 0.0, 1.0), Log(run.directory / "log"))
    assert (outcome.status, outcome.throughput_per_s) == (status, None), outcome
    assert outcome.failure is not None
    assert said in outcome.failure.reason
    assert outcome.failure.evidence
    if rank is not None:
        assert outcome.failure.rank == rank


def test_a_warm_up_is_lengthened_by_all_ranks_alike(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    outcome = driver.run(tmp_path, nano_spec(warmup_steps=4, warmup_steps_max=60), world_size=2)
    first, second = outcome.results
    assert (first.status, second.status) == ("ok", "ok"), outcome.log
    assert 20 <= first.warmup_steps == second.warmup_steps <= 60
    assert [len(result.step_times_s) for result in outcome.results] == [5, 5]
    assert all((NOT_STEADY in result.flags) <= (result.warmup_steps == 60) for result in outcome.results)


@pytest.mark.parametrize("most", [(20, 4000), (4000, 20)])
def test_rank_0_decides_how_long_a_warm_up_is_and_the_other_follows(
    driver: Any, tmp_path: Path, nano_spec: Spec, most: tuple[int, int]
) -> None:
    """Told differently, no rank makes a step that the other does not make."""
    specs = [nano_spec(warmup_steps=4, warmup_steps_max=each) for each in most]
    driver.start(tmp_path, specs)
    first, second = driver.finish(tmp_path, 2).results
    assert (first.status, second.status) == ("ok", "ok")
    assert 20 <= first.warmup_steps == second.warmup_steps <= most[0]


def test_a_window_by_time_has_as_many_steps_on_all_ranks(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    specs = [nano_spec(warmup_min_s=each, measured_min_s=each) for each in (1.0, 30.0)]
    driver.start(tmp_path, specs)
    first, second = driver.finish(tmp_path, 2).results
    assert (first.status, second.status) == ("ok", "ok")
    assert first.warmup_steps == second.warmup_steps > 2
    assert len(first.step_times_s) == len(second.step_times_s) > 5
    assert (SHORT_WINDOW in first.flags) == (first.window_s < 1.0)
    assert SHORT_WINDOW in second.flags


NEVER_STEADY = """
import os
from pathlib import Path
from campaign.workloads import steady_warmup
def has_trend(times_s):
    Path(os.environ["CAMPAIGN_OUT"], f"lengthened{os.environ['RANK']}").touch()
    return True
steady_warmup.has_trend = has_trend
main()
"""
"""A rank that lengthens its warm-up for ever."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "sent", "status"),
    [(0, signal.SIGKILL, "crashed"), (1, signal.SIGKILL, "crashed"), (0, signal.SIGSTOP, "comm_timeout")],
)
def test_a_rank_that_is_lost_in_a_lengthened_warm_up_ends_the_run(
    driver: Any, tmp_path: Path, nano_spec: Spec, lost: int, sent: signal.Signals, status: str
) -> None:
    run = one_run(tmp_path / "run", one_cell(devices=2, workload="nano"))
    spec = nano_spec(warmup_steps=4, warmup_steps_max=LONG, time_out_s=3.0)
    pids = driver.start(run.directory, [spec] * 2, NEVER_STEADY)
    end_s = time.monotonic() + 90
    while not all((run.directory / f"lengthened{rank}").exists() for rank in range(2)):
        assert time.monotonic() < end_s, (run.directory / "log").read_text()
        time.sleep(0.02)
    os.kill(pids[lost], sent)
    codes = tuple(driver.finish(run.directory, 2, patience_s=30).codes)
    assert codes[1 - lost] not in (0, None)
    outcome = FILE.read(run, StepEnd(codes, 0.0, 1.0), Log(run.directory / "log"))
    assert outcome.status == status
    assert outcome.throughput_per_s is None


def test_communication_is_measured_after_the_window_and_nothing_of_the_run_changes(
    driver: Any, tmp_path: Path, nano_spec: Spec
) -> None:
    plain = driver.run(tmp_path / "plain", nano_spec(), world_size=2)
    asked = driver.run(tmp_path / "asked", nano_spec(options={"measure_communication": True}), world_size=2)
    for without, with_it in zip(plain.results, asked.results, strict=True):
        assert (without.exposed_communication_s, without.allreduce_s) == (None, None)
        assert with_it.allreduce_s > 0
        assert with_it.exposed_communication_s < max(with_it.step_times_s)
        assert with_it.loss_last == without.loss_last
        assert len(with_it.step_times_s) == 5


def test_data_parallel_replicas_are_one_rank(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    outcome = driver.run(tmp_path, nano_spec(replicas=2, options={"parallel": "dp"}))
    (result,) = outcome.results
    assert (result.status, result.world_size, result.samples_per_step) == ("ok", 1, 4)
    assert result.allreduce_bytes_per_step is None
    # Weights to one of two devices and gradients back from it, on average over both.
    assert result.communication_bytes_per_step == result.gradient_bytes
    assert outcome.log == ""


LARGE = pytest.mark.skipif(
    "CAMPAIGN_TRUE_SIZE" not in os.environ, reason="a minute and 15 GB; asked for by CAMPAIGN_TRUE_SIZE=1"
)
TRUE_SIZES = [
    ("mobilenetv2", 2, {"image_px": 64}),
    ("resnet50", 2, {"image_px": 64}),
    ("yolov5l", 1, {"image_px": 64}),
    pytest.param("bert-base", 1, {"seq_len": 128}, marks=LARGE),
    pytest.param("bert-large", 1, {"seq_len": 128}, marks=LARGE),
    pytest.param("gpt2", 1, {"seq_len": 128}, marks=LARGE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch", "options"), TRUE_SIZES)
def test_the_models_of_the_studies_train_at_their_true_size_on_two_ranks(
    driver: Any, tmp_path: Path, model: str, batch: int, options: dict[str, Any]
) -> None:
    spec = {"model": model, "batch": batch, "options": options, "warmup_steps": 0, "measured_steps": 1}
    outcome = driver.run(tmp_path, spec, world_size=2, patience_s=300)
    assert [result and result.status for result in outcome.results] == ["ok", "ok"], outcome.log
    for result in outcome.results:
        assert result.parameters == find_model_info(model).parameters
        assert result.allreduce_bytes_per_step == 4 * result.parameters


NO_LAYER = """
from campaign.workloads.trainer import models
build = models.build_model
def shallow(*args, **kwargs):
    trainable = build(*args, **kwargs)
    del trainable.network.layers[:]
    return trainable
models.build_model = shallow
main()
"""
"""Compiling takes seconds a layer; embedding and output are enough to compile."""
PLAIN_CODE = """
from torch._inductor import config
config.compile_threads, config.aot_inductor.debug_compile, config.cpp.simdlen, config.cpp.vec_isa_ok = 1, True, 1, True
"""
"""C++ that is neither optimised nor vectorised, of which no other process is told: it is compiled in half of the time."""
NO_CODE = """
from functools import partialmethod
from torch.nn import Module
Module.compile = partialmethod(Module.compile, backend="aot_eager")
"""
"""Graphs are captured and divided as for compiled code, and no C++ is made of them: that takes each rank half a minute."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "ranks", "before"),
    [("ddp", 1, PLAIN_CODE), ("ddp", 2, NO_CODE), ("fsdp", 2, NO_CODE)],
    ids=["one", "ddp", "fsdp"],
)
def test_a_compiled_model_trains_as_it_does_without(
    driver: Any, tmp_path: Path, nano_spec: Spec, parallel: str, ranks: int, before: str
) -> None:
    def loss(compiled: bool) -> float:
        spec = nano_spec(options={"parallel": parallel, "compile": compiled})
        results = driver.run(tmp_path / str(compiled), spec, ranks, patience_s=300, program=before + NO_LAYER).results
        assert results[0].status == "ok", results[0]
        assert results[0].phases_s["warmup"] > 0
        return float(results[0].loss_last)

    assert loss(True) == pytest.approx(loss(False), rel=1e-4)
