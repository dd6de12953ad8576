"""Steps on a real CPU process, and with stand-ins of a GPU's driver: what is planted is found, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from campaign.observe.device_state import DeviceProcess, DeviceSettings, DeviceState
from campaign.observe.devices import (
    bench,
    copies,
    counters,
    full_memory,
    precision_in_force,
    products,
    repeatability,
    state,
    timers,
)
from campaign.observe.devices.document import CheckedDevice, CheckSpec, StepResult
from campaign.observe.telemetry.sources import SamplerOptions, open_probes
from campaign.processes.marked import MARK
from campaign.workloads.trainer import precision
from campaign.workloads.trainer.rank_interface import RankEnvironment
from tests.unit.observe.devices.devices_data import GPUS, PACED, bad, check, cpu, gpu

_MARK = f"devices-test/{os.getpid()}/"


def on_cpu(pace: float | None = None) -> bench.Bench:
    device = CheckedDevice(name="cpu0", host="h", fabric_id="0", attach="local", model="cpu-rank", kind="cpu")
    own = device.model_copy(update={"pace": {"fp32": pace} if pace else {}})
    spec = CheckSpec(steps=("state",), form="short", devices=(own,), mark=_MARK, seconds=0.3, training_s=0.3)
    return bench.open_bench(spec, RankEnvironment(0, 1, 0, Path(), Path()))


def of_step(found: StepResult) -> CheckedDevice:
    return cpu({}).model_copy(update={"steps": (found,)})


def test_the_timer_of_steps_is_right() -> None:
    found = timers.measure(on_cpu())
    assert not bad(check(of_step(found)), PACED)


@pytest.mark.parametrize("factor", [1.03, 0.97])
def test_a_timer_that_is_three_percent_off_is_found(factor: float) -> None:
    def timed(work: Callable[[], object]) -> float:
        started_s = time.perf_counter()
        work()
        return factor * (time.perf_counter() - started_s)

    found = timers.measure(on_cpu(), timed)
    assert found.values["timer_off_pct"] == pytest.approx(100 * (factor - 1), abs=0.5)
    assert [(each.quantity, each.verdict) for each in bad(check(of_step(found)), PACED)] == [
        ("timer_off_pct", "failed")
    ]


def test_a_device_at_half_its_pace_is_found() -> None:
    # 0.2 GFLOP/s are little work, which any machine holds.
    found = products.measure(on_cpu(0.1))
    assert found.values["fp32_gflops"] == pytest.approx(0.1, rel=0.1)
    slow = PACED.model_validate({**PACED.model_dump(), "emulation": {"pace": {"cpu-rank": {"fp32": 0.2}}}})
    right = PACED.model_validate({**PACED.model_dump(), "emulation": {"pace": {"cpu-rank": {"fp32": 0.1}}}})
    assert [each.verdict for each in bad(check(of_step(found)), slow)] == ["failed"]
    assert not bad(check(of_step(found)), right)


def test_rates_of_a_core_are_those_of_its_processor_time() -> None:
    found = products.measure(on_cpu())
    assert found.values["fp32_tflops"] > 0.0005
    assert "tf32" in found.facts["left out"]
    assert copies.measure_memory(on_cpu()).values["memory_gb_per_s"] > 0.1
    assert copies.measure_host_link(on_cpu()).values.keys() == {"h2d_gb_per_s", "d2h_gb_per_s"}


def test_training_by_the_built_in_trainer_gives_a_rate() -> None:
    found = repeatability.measure(on_cpu())
    assert found.faults == ()
    assert found.values["samples_per_s"] > 0
    assert found.facts["steps"] >= 6


def test_the_precisions_that_are_asked_for_are_in_force() -> None:
    found = precision_in_force.measure(on_cpu())
    assert found.faults == ()
    assert found.facts["in force"] == {name: name for name in found.facts["in force"]}
    assert {"fp32", "bf16"} <= found.facts["in force"].keys()


def test_a_precision_that_is_not_in_force_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "autocast", lambda *_: nullcontext())
    found = precision_in_force.measure(on_cpu())
    assert "bf16 is asked for, and fp32 is in force" in found.faults


def test_running_out_of_memory_is_classified_and_gives_everything_back() -> None:
    found = full_memory.measure(on_cpu())
    assert found.faults == ()
    assert found.facts["classified"] == {"eager": "oom_host"}
    assert found.values["memory_gib"] == pytest.approx(2.0, abs=0.2)
    assert not bad(check(of_step(found)), PACED)


def test_memory_that_is_not_classified_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> object:
        raise RuntimeError("something went wrong")

    monkeypatch.setattr(full_memory, "_WAYS", {"eager": fails})
    assert full_memory.measure(on_cpu()).faults == ("running out of memory (eager) is classified as crashed",)


def test_a_look_of_telemetry_has_a_price() -> None:
    assert counters.measure(on_cpu()).values["look_ms"] > 0
    probes, _ = open_probes(SamplerOptions(0.1))
    assert "cpu_busy_s" in counters._read(probes)["host"]


@pytest.fixture
def leftover() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a run of this check has left."""
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    environment = {**os.environ, MARK: f"{_MARK}2"}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_nothing_is_left_where_nothing_was() -> None:
    assert state.clean(on_cpu()).faults == ()


def test_a_process_that_was_left_is_found_and_named(leftover: subprocess.Popen[bytes]) -> None:
    (fault,) = state.clean(on_cpu()).faults
    assert f"process {leftover.pid} (" in fault
    assert "was left by a run" in fault


def on_gpu(monkeypatch: pytest.MonkeyPatch, seen: DeviceState) -> bench.Bench:
    """A device whose driver tells this; nothing can be computed on it."""
    monkeypatch.setattr(state, "states_here", lambda: {seen.settings.uuid: seen})
    spec = CheckSpec(
        steps=("state",), form="short", devices=(gpu(uuid="GPU-1"),), mark=_MARK, seconds=0.3, training_s=0.3
    )

    class Stub:
        type = "cuda"

    found: Any = bench.Bench(spec, RankEnvironment(0, 1, 0, Path(), Path()), Stub(), None)  # type: ignore[arg-type]
    found.__dict__["identity"] = {"uuid": "1"}  # torch leaves "GPU-" out
    made: bench.Bench = found
    return made


def test_a_device_that_nobody_else_uses_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = DeviceSettings("GPU-1", persistence=True, power_limit_w=700.0, pcie_width=16)
    seen = DeviceState(settings, (DeviceProcess(os.getpid(), "python", 400.0),), 500.0, 3, 0)
    found = state.measure(on_gpu(monkeypatch, seen))
    assert found.faults == ()
    assert found.facts["settings"]["power_limit_w"] == 700.0
    assert state.pcie_of("1")["pcie_width"] == 16


def test_errors_strangers_and_memory_in_use_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    others = (DeviceProcess(1, "init", 9000.0),)
    seen = DeviceState(DeviceSettings("GPU-1"), others, 9400.0, 0, 2, True)
    words = state.measure(on_gpu(monkeypatch, seen)).faults
    assert words == (
        "process 1 (init) uses the device",
        "2 uncorrectable ECC errors since the driver was loaded",
        "remapping of a broken row of memory has failed",
        "9400 MiB are in use before anything runs",
    )


def test_another_device_than_the_composition_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = on_gpu(monkeypatch, DeviceState(DeviceSettings("GPU-2")))
    made.__dict__["identity"] = {"uuid": "2"}
    assert state.measure(made).faults == ("the process has device 2, and the composition has GPU-1",)
    assert GPUS.devices["h200"].runs_on == "cuda"
