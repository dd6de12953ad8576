"""What a rank reports when the run is not ok, and the rank as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from campaign.common.errors import ConfigError, RecordError
from campaign.workloads.trainer.rank import classify_exception
from campaign.workloads.trainer.rank_interface import RankEnvironment, RankResult, read_results, write_result
from campaign.workloads.trainer.training_session import describe_full_memory

Spec = Callable[..., dict[str, Any]]
WHERE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
WHERE |= {"CAMPAIGN_SPEC": "/spec", "CAMPAIGN_OUT": "/out"}


def test_tf32_on_a_cpu_is_unsupported_and_nothing_is_run(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    outcome = driver.run(tmp_path, nano_spec(precision="tf32"), world_size=2)
    assert outcome.codes == [0, 0]
    for result in outcome.results:
        assert (result.status, result.step_times_s, result.window_s) == ("unsupported", (), None)
        assert "tf32" in result.reason


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precisions_are_in_force_where_they_are_asked_for(
    driver: Any, tmp_path: Path, nano_spec: Spec, precision: str
) -> None:
    spec = nano_spec(precision=precision, measured_steps=2, options={"emulation": "allow", "seq_len": 4})
    (result,) = driver.run(tmp_path, spec).results
    assert (result.status, result.precision, result.skipped_steps) == ("ok", precision, 0)


def test_a_loss_that_explodes_is_nan_and_keeps_its_rate(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    (result,) = driver.run(tmp_path, nano_spec(options={"learning_rate": 1e20})).results
    assert (result.status, result.loss_last) == ("nan", None)
    assert len(result.step_times_s) == 5
    assert result.window_s > 0
    assert "measured step 1 of 5" in result.evidence


def test_a_peer_that_never_comes_is_a_comm_timeout(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    rank = {"env": alone(tmp_path, nano_spec(time_out_s=2)), "log": str(tmp_path / "log")}
    driver.order({"cwd": str(tmp_path), "ranks": [rank]})
    driver.pids = driver.answer()["pids"]
    assert driver.finish(tmp_path, 1).codes == [1]
    (result, _) = read_results(tmp_path, 2)
    assert result is not None
    assert result.status == "comm_timeout"
    assert "[rank0]: " in (tmp_path / "log").read_text()


def alone(directory: Path, spec: dict[str, Any]) -> dict[str, str]:
    """The environment of rank 0 of 2 whose peer is missing."""
    from campaign.workloads.rank_launchers import find_free_port

    path = directory / "spec.json"
    path.write_text(json.dumps(spec))
    own = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": str(find_free_port())}
    return {**WHERE, **own, "CAMPAIGN_SPEC": str(path), "CAMPAIGN_OUT": str(directory)}


def as_program(directory: Path, spec: dict[str, Any]) -> tuple[int, RankResult | None]:
    (directory / "spec.json").write_text(json.dumps(spec))
    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    paths = {"CAMPAIGN_SPEC": str(directory / "spec.json"), "CAMPAIGN_OUT": str(directory)}
    command = [sys.executable, "-m", "campaign.workloads.trainer.rank"]
    done = subprocess.run(command, env={**os.environ, **own, **paths}, capture_output=True, check=False, timeout=120)
    return done.returncode, read_results(directory, 1)[0]


def test_a_rank_as_a_program_of_its_own(tmp_path: Path, nano_spec: Spec) -> None:
    (tmp_path / "rank0.json").write_text("left by an earlier attempt")
    code, result = as_program(tmp_path, nano_spec())
    assert result is not None
    assert (code, result.status) == (0, "ok")
    assert result.phases_s["import"] > 0.1


LITTLE_MEMORY = """
import resource
from pathlib import Path
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**29, taken + 2**29))
main()
"""


def test_more_host_memory_than_there_is(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    outcome = driver.run(tmp_path, nano_spec(batch=1024, options={"seq_len": 128}), program=LITTLE_MEMORY)
    (result,) = outcome.results
    assert (outcome.codes, result.status) == ([1], "oom_host")
    assert "memory" in result.evidence


def test_device_cuda_where_there_is_none_is_not_run_on_the_cpu(driver: Any, tmp_path: Path, nano_spec: Spec) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    (result,) = driver.run(tmp_path, nano_spec(device="cuda")).results
    assert (result.status, result.step_times_s) == ("crashed", ())
    assert "sees no device" in result.evidence


@pytest.mark.parametrize("missing", sorted(WHERE))
def test_the_missing_variable_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=missing):
        RankEnvironment.from_environment({name: value for name, value in WHERE.items() if name != missing})


@pytest.mark.parametrize(("address", "local_ranks"), [("127.0.0.1", 2), ("localhost", 2), ("host-7", None)])
def test_ranks_share_a_host_for_sure_on_loopback_only(address: str, local_ranks: int | None) -> None:
    assert RankEnvironment.from_environment({**WHERE, "MASTER_ADDR": address}).local_ranks == local_ranks


def test_a_rank_outside_its_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 0 to WORLD_SIZE - 1 = 1, not 2"):
        RankEnvironment.from_environment({**WHERE, "RANK": "2"})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."), "oom_device"),
        (MemoryError(), "oom_host"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried"),
            "oom_host",
        ),
        (
            RuntimeError("[unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete"),
            "comm_timeout",
        ),
        (RuntimeError("NCCL error in: x.cpp:1970, unhandled system error, ncclSystemError: System call"), "comm_error"),
        (ValueError("Expected more than 1 value per channel"), "crashed"),
    ],
)
def test_an_exception_is_classified(error: Exception, status: str) -> None:
    text = f"Traceback (most recent call last):\n{type(error).__module__}.{type(error).__name__}: {error}\n"
    found, reason, evidence = classify_exception(error, text)
    assert found == status
    assert reason
    assert evidence


def test_a_library_without_memory_is_believed_with_the_memory_that_was_in_use() -> None:
    error = RuntimeError("FIND was unable to find an engine to execute this computation")
    text = f"RuntimeError: {error}\n"
    full = describe_full_memory(76 * 2**30, 80 * 2**30)
    assert full == "peak memory use: 76.0 of 80.0 GiB"
    assert classify_exception(error, text, full) == (
        "oom_device",
        "the device's memory was full, so that a library could not allocate its own memory",
        f"RuntimeError: {error}\n{full}",
    )
    assert describe_full_memory(70 * 2**30, 80 * 2**30) == ""
    assert classify_exception(error, text)[0] == "crashed"


def test_results_are_read_by_rank_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    write_result(tmp_path, RankResult(rank=1, world_size=3, host="h", status="ok"))
    found = read_results(tmp_path, 3)
    assert (found[0], found[1] and found[1].rank, found[2]) == (None, 1, None)
    (tmp_path / "rank2.json").write_text("{")
    with pytest.raises(RecordError, match=r"rank2\.json"):
        read_results(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert-nano", "mobilenetv2-32px", "resnet50w16", "cspn"])
def test_the_reduced_sizes_learn_at_their_defaults(driver: Any, tmp_path: Path, model: str) -> None:
    (result,) = driver.run(tmp_path, {"model": model, "batch": 4, "measured_steps": 25}).results
    assert result.loss_last < result.loss_first * 0.8


STRAY = """
import warnings, torch
from campaign.workloads.trainer import timed_steps
whole = timed_steps.Training.warm_up
def warm_up(self):
    found = whole(self)
    warnings.warn("Aten Op fallback from XPU to CPU happends. This may have performance implications.")
    warnings.warn("torch has something else to say")
    self.model.register_parameter("stray", torch.nn.Parameter(torch.zeros(1, device="meta")))
    return found
timed_steps.Training.warm_up = warm_up
main()
"""


def test_a_run_whose_work_is_elsewhere_is_invalid_and_no_fallback_is_silenced(
    driver: Any, tmp_path: Path, nano_spec: Spec
) -> None:
    outcome = driver.run(tmp_path, nano_spec(), program=STRAY)
    (result,) = outcome.results
    assert (result.status, result.evidence, result.work_on) == ("invalid", "parameters on meta", ("cpu", "meta"))
    assert "Aten Op fallback from XPU to CPU happends" in outcome.log
    assert "something else" not in outcome.log
