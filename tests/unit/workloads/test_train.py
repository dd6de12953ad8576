from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.launch_prefix import Launch
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, StepEnd
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.rank_interface import RankResult, TrainSpec, write_result
from campaign.workloads.trainer_runs import list_devices_used
from tests.campaign_files import one_cell, one_run

FILE = TrainWorkload(name="nano", kind="train", model="bert-nano", precisions=("fp32",), options={"seq_len": 16})


def result(rank: int, window_s: float | None = 0.5, **values: Any) -> RankResult:
    steps = (window_s / 3,) * 3 if window_s else ()
    given = {"status": "ok", "step_times_s": steps, "window_s": window_s, "loss_first": 2.0, "loss_last": 1.0, **values}
    return RankResult(rank=rank, world_size=2, host="h", **given)


def outcome(directory: Path, *results: RankResult, codes: Any = (0, 0), log: str = "", **ended: Any) -> Outcome:
    run = one_run(directory / "run", one_cell(devices=2, workload="nano"))
    for found in results:
        write_result(run.directory, found)
    return FILE.read(run, StepEnd(codes, 0.0, 1.0, **ended), Log.from_text(log))


def test_the_specification_is_one_that_the_ranks_read(tmp_path: Path) -> None:
    run = one_run(tmp_path, one_cell(workload="nano", options={"seq_len": 32}))
    step = FILE.step(run)
    specification = TrainSpec.model_validate(json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text()))
    assert specification.resolve_options()["seq_len"] == 32
    assert (specification.batch, specification.warmup_steps, specification.measured_steps) == (4, 1, 3)
    assert (step.per_rank, step.preload) == (True, "campaign.workloads.trainer")
    assert step.environment["CAMPAIGN_OUT"] == str(run.directory)


def test_data_parallel_is_one_process_for_the_devices_of_a_host(tmp_path: Path) -> None:
    cell = one_cell(devices=4, workload="nano", options={"parallel": "dp"})
    run = one_run(tmp_path, cell)
    workload = FILE
    step = workload.step(run)
    specification = TrainSpec.model_validate(json.loads(Path(step.environment["CAMPAIGN_SPEC"]).read_text()))
    assert (step.per_rank, specification.replicas, specification.batch) == (False, 4, 4)
    assert {step.environment[name] for name in ("RANK", "LOCAL_RANK")} == {"0"}
    assert step.environment["WORLD_SIZE"] == "1"
    write_result(tmp_path, result(0).model_copy(update={"world_size": 1}))
    found = workload.read(run, StepEnd((0,), 0.0, 1.0), Log.from_text(""))
    assert (found.status, found.throughput_per_s) == ("ok", pytest.approx(4 * 4 * 3 / 0.5))
    assert "one host only" in (workload.unsupported_reason(one_cell(hosts=2, options={"parallel": "dp"}), "cuda") or "")
    assert workload.unsupported_reason(cell, "cuda") is None


def test_one_device_shares_its_work_with_nobody(tmp_path: Path) -> None:
    step = FILE.step(one_run(tmp_path, one_cell(devices=1, options={"parallel": "dp"})))
    assert (step.per_rank, json.loads((tmp_path / "spec.json").read_text())["replicas"]) == (True, 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulation": 3}, "cannot be divided into 3 micro-steps"),
        ({"parallel": "fsdp", "measure_communication": True}, "supported with 'parallel: ddp' only"),
        ({"parallel": "fsdp", "accumulation": 2}, None),
        ({"measure_communication": True}, None),
    ],
)
def test_combinations_that_do_not_exist_are_refused(options: dict[str, Any], said: str | None) -> None:
    objection = FILE.unsupported_reason(one_cell(workload="nano", options=options), "cpu")
    assert (said in (objection or "")) if said else objection is None


def test_the_steady_state_is_when_all_ranks_were_measured(tmp_path: Path) -> None:
    first, last = result(0, 0.5, window_started=10.0), result(1, 0.75, window_started=10.1, phases_s={"model": 0.3})
    found = outcome(tmp_path, first, last)
    assert found.steady == (10.1, 10.5)
    assert found.phases_s == {"model": 0.3, "first_step": pytest.approx(10.1)}  # the step was started at 0
    assert outcome(tmp_path / "apart", first, result(1, window_started=99.0)).steady is None
    assert outcome(tmp_path / "unknown", first, result(1)).steady is None


def test_what_was_communicated_goes_to_the_metrics(tmp_path: Path) -> None:
    found = outcome(tmp_path, result(0), result(1, allreduce_bytes_per_step=8, exposed_communication_s=0.25))
    assert (found.metrics["allreduce_bytes_per_step"], found.metrics["exposed_communication_s"]) == (8.0, 0.25)
    assert "communication_bytes_per_step" not in found.metrics


def test_tf32_is_refused_on_a_processor_and_nowhere_else() -> None:
    workload = FILE
    assert "CPU core" in (workload.unsupported_reason(one_cell(precision="tf32"), "cpu") or "")
    assert "Intel GPU" in (workload.unsupported_reason(one_cell(precision="tf32"), "xpu") or "")
    assert workload.unsupported_reason(one_cell(precision="tf32"), "cuda") is None
    assert workload.unsupported_reason(one_cell(precision="fp32"), "cpu") is None


def test_the_slowest_rank_makes_the_rate(tmp_path: Path) -> None:
    found = outcome(tmp_path, result(0, 0.5), result(1, 0.75, host_memory_peak_bytes=2**21))
    assert found.status == "ok"
    assert found.throughput_per_s == pytest.approx(4 * 2 * 3 / 0.75)
    assert found.window_s == (0.5, 0.75)
    assert found.metrics["host_memory_peak_mib"] == 2.0
    assert len(found.step_times_s) == 2


def test_a_loss_that_is_not_a_number_keeps_the_rate_and_says_so(tmp_path: Path) -> None:
    found = outcome(tmp_path, result(0), result(1, status="nan", reason="loss is not finite"))
    assert found.status == "nan"
    assert found.failure is not None
    assert found.failure.rank == 1
    assert found.throughput_per_s is not None


def test_the_rank_that_failed_first_is_the_cause_not_those_that_lost_it(tmp_path: Path) -> None:
    lost = result(0, None, status="comm_error", reason="connection closed by peer")
    cause = result(1, None, status="oom_device", reason="out of memory")
    found = outcome(tmp_path, lost, cause, codes=(1, 1))
    assert found.status == "oom_device"
    assert found.failure is not None
    assert found.failure.rank == 1


@pytest.mark.parametrize(
    ("ended", "log", "codes", "status"),
    [
        ({"timed_out": True}, "", (-9, -9), "time_limit"),
        ({"memory_limit_hit": True}, "", (-9, -9), "oom_host"),
        ({}, "MemoryError\n", (1, 1), "oom_host"),
        ({}, "", (0, 0), "incomplete"),
        ({}, "", (0, -11), "crashed"),
    ],
)
def test_ranks_without_a_result_are_explained(tmp_path: Path, ended: Any, log: str, codes: Any, status: str) -> None:
    found = outcome(tmp_path, result(0), codes=codes, log=log, **ended)
    assert found.status == status
    assert found.throughput_per_s is None
    assert found.failure is not None


def test_a_rank_that_hung_in_its_exit_is_flagged(tmp_path: Path) -> None:
    found = outcome(tmp_path, result(0), result(1, flags=("emulated",)), exit_hang=(1,))
    assert (found.status, found.flags) == ("ok", ("emulated", "exit_hang"))


UUIDS = ("GPU-5f6b2f1c-0e0f-3c1f-8d3e-000000000001", "GPU-5f6b2f1c-0e0f-3c1f-8d3e-000000000002")


def told(rank: int, uuid: str) -> RankResult:
    return result(rank, work_on=(f"cuda:{rank}",), device_uuid=uuid.removeprefix("GPU-"))


def on_gpus(directory: Path, *results: RankResult, launcher: Any = "slurm", log: str = "", **device: Any) -> Outcome:
    """The outcome of ranks that were given the first two of these devices."""
    devices = tuple(Device(f"s{n}", "gpu", "a100", uuid, "", local=True, **device) for n, uuid in enumerate(UUIDS))
    run = one_run(directory / "run", one_cell(devices=2, workload="nano"))
    run = replace(
        run, runs_on="cuda", launcher=launcher, composition=Composition((ComposedHost("h", 4, 8.0, devices),))
    )
    for found in results:
        write_result(run.directory, found)
    return FILE.judge_run(run, StepEnd((0, 0), 0.0, 1.0), Log.from_text(log))


def test_a_run_says_which_devices_its_work_was_on(tmp_path: Path) -> None:
    found = on_gpus(tmp_path, told(0, UUIDS[0]), told(1, UUIDS[1]))
    assert (found.status, found.failure) == ("ok", None)
    assert found.ran_on == tuple(f"cuda:{n} {uuid.removeprefix('GPU-')}" for n, uuid in enumerate(UUIDS))


def test_a_run_says_what_torch_loaded_where_ranks_are_and_all_devices_of_one_process(tmp_path: Path) -> None:
    first = told(0, UUIDS[0]).model_copy(update={"in_force": {"cudnn": "92000", "nccl": "2.29.1"}, "numa": "node 0"})
    second = told(1, UUIDS[1]).model_copy(update={"in_force": {"cudnn": "92000", "nccl": "2.27.7"}})
    found = on_gpus(tmp_path, first, second)
    assert (found.in_force, found.numa) == ({"cudnn": "92000", "nccl": "2.27.7 and 2.29.1"}, ("node 0",))
    alone = first.model_copy(update={"replica_uuids": (UUIDS[1],)})
    assert list_devices_used([alone]) == (f"cuda:0 {UUIDS[0].removeprefix('GPU-')}", UUIDS[1])


@pytest.mark.parametrize(
    ("second", "reason", "given"),
    [
        (UUIDS[0], "several ranks used one device", {}),
        ("GPU-5f6b2f1c-0e0f-3c1f-8d3e-00000000000f", "a rank used a device that does not belong to the run", {}),
        (
            "GPU-5f6b2f1c-0e0f-3c1f-8d3e-00000000000f",
            "a rank used a device that does not belong to the run",
            {"launcher": "local"},
        ),
        # Parts of devices show their whole.
        (UUIDS[0], None, {"launch": Launch(fraction="1/2")}),
    ],
)
def test_ranks_on_other_devices_make_a_run_invalid(
    tmp_path: Path, second: str, reason: str | None, given: dict[str, Any]
) -> None:
    found = on_gpus(tmp_path, told(0, UUIDS[0]), told(1, second), **given)
    assert (found.status, found.failure and found.failure.reason) == ("invalid" if reason else "ok", reason)


def test_a_framework_that_fell_back_to_the_cpu_makes_a_run_invalid(tmp_path: Path) -> None:
    line = "UserWarning: Aten Op fallback from XPU to CPU happends. This may have performance implications."
    run = replace(one_run(tmp_path / "run", one_cell(devices=1, workload="nano")), runs_on="xpu")
    write_result(run.directory, result(0).model_copy(update={"world_size": 1}))
    found = FILE.judge_run(run, StepEnd((0,), 0.0, 1.0), Log.from_text(f"{line}\n"))
    assert found.failure is not None
    assert (found.status, found.failure.evidence) == ("invalid", line)
    assert (
        FILE.judge_run(replace(run, runs_on="cpu"), StepEnd((0,), 0.0, 1.0), Log.from_text(f"{line}\n")).status == "ok"
    )
