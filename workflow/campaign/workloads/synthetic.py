"""The reference workload: step times that are known beforehand, so that everything behind them can be checked.

Run as a program (`python -m campaign.workloads.synthetic SPEC.json`) it takes, or pretends to take, exactly these times, and
publishes the power, memory and utilisation that its devices are to have (`campaign.observe.telemetry.sources.gauges`).
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from campaign.documents.cell import Cell
    from campaign.workloads.logs import Log
    from campaign.workloads.protocol import Ended, Outcome, Run, Step
    from campaign.workloads.workload_file import SyntheticWorkload

FAILURES: Mapping[str, tuple[str, int]] = {
    "oom_device": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (asked for by the campaign)",
        1,
    ),
    "oom_host": ("MemoryError: asked for by the campaign", 1),
    "comm_timeout": (
        "RuntimeError: Timed out waiting 5000ms for recv operation to complete (asked for by the campaign)",
        1,
    ),
    "crashed": ("ValueError: asked for by the campaign", 1),
    "incomplete": ("ended before the first result, as asked for by the campaign", 0),
}


def true_step_s(file: SyntheticWorkload, cell: Cell) -> float:
    """The ground truth: expected seconds of a step of this cell (see SyntheticWorkload)."""
    c = cell.configuration
    share = c.fabric_devices_per_host / c.devices_per_host
    return (
        file.overhead_ms + cell.batch * file.sample_ms + (c.hosts - 1) * file.host_ms + share * file.fabric_ms
    ) / 1e3


@dataclass(frozen=True)
class Synthetic:
    file: SyntheticWorkload

    def objection(self, cell: Cell, runs_on: str) -> str | None:
        return None

    def step(self, run: Run) -> Step:
        from campaign.documents.expression import parse
        from campaign.workloads.protocol import Step

        axes = run.cell.axes()
        fail = next(
            (f.status for f in self.file.failures if parse(f.when, axes.keys(), f"workload {self.file.name}")(axes)),
            None,
        )
        specification = {
            "step_s": true_step_s(self.file, run.cell),
            "noise_pct": self.file.noise_pct,
            "real_time": self.file.real_time,
            "warmup_steps": run.cell.settings.warmup_steps,
            "measured_steps": run.cell.settings.measured_steps,
            "seed": f"{run.cell.settings.seed}/{run.cell.id}/{run.repetition}",
            "fail": fail,
            "gauges": _gauges(self.file, run),
        }
        path = run.directory / "spec.json"
        path.write_text(json.dumps(specification))
        # The file itself, not the module: nothing but the standard library is imported, so that a run costs 20 ms.
        argv = (sys.executable, "-I", "-S", str(Path(__file__)), str(path))
        return Step(argv, {}, run.ranks_by_host, per_rank=False, takes_devices=False)

    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        from campaign.documents.record import Failure
        from campaign.workloads.failures import classify
        from campaign.workloads.protocol import Outcome

        limits = {"timed_out": ended.timed_out, "memory_limit_hit": ended.memory_limit_hit}
        if verdict := classify(log, ended.codes, killed_by_us=any(limits.values()), **limits):
            return Outcome(*verdict)
        printed = ""
        for line in log.lines([b"{"]):
            printed = line if line.startswith("{") else printed
        try:
            result: dict[str, Any] = json.loads(printed)
        except ValueError:  # nothing printed, or not all of it
            return Outcome("incomplete", Failure(reason="no result in the output", evidence=log.tail()))
        steps = tuple(result["step_times_s"])
        nan = result["loss"] is None
        return Outcome(
            status="nan" if nan else "ok",
            failure=Failure(reason="the loss is not a number", evidence=printed[:400]) if nan else None,
            throughput_per_s=run.cell.batch_global * len(steps) / sum(steps),
            step_times_s=(steps,),
            window_s=(sum(steps),),
            steady=tuple(result["window"]) if result["window"] else None,
        )


def _gauges(file: SyntheticWorkload, run: Run) -> dict[str, dict[str, float]]:
    """What the file says of a device, for each that the run uses."""
    values = {"power_w": file.power_w, "memory_mib": file.memory_mib, "utilisation_pct": file.utilisation_pct}
    given = {name: value for name, value in values.items() if value is not None}
    devices = [f"{host}/{number}" for host, count in run.ranks_by_host.items() for number in range(count)]
    return dict.fromkeys(devices, given) if given else {}


@contextmanager
def published(devices: Mapping[str, Mapping[str, float]]) -> Iterator[None]:
    """Let samplers of this machine see values of devices, where there are any."""
    directory = os.environ.get("CAMPAIGN_GAUGES")
    if not devices or not directory or not Path(directory).is_dir():
        yield
        return
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    started = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    file = Path(directory, f"{machine}.{os.getpid()}.json")
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"started": started, "devices": devices}))
    partial.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def run_program(specification: Mapping[str, Any]) -> int:
    """Take the steps that the specification asks for and print their times; gives the exit code."""
    with published(specification.get("gauges", {})):
        return _take_steps(specification)


def _take_steps(specification: Mapping[str, Any]) -> int:
    fail = specification["fail"]
    if fail == "time_limit":
        while True:
            time.sleep(3600)
    if fail in FAILURES:
        message, code = FAILURES[fail]
        print(message, flush=True)
        return code
    noise = random.Random(specification["seed"])
    times: list[float] = []
    window_started = 0.0
    for index in range(specification["warmup_steps"] + specification["measured_steps"]):
        step_s = specification["step_s"] * max(0.01, 1 + noise.gauss(0, specification["noise_pct"] / 100))
        if index == specification["warmup_steps"]:
            window_started = time.time()
        if specification["real_time"]:
            started = time.perf_counter()
            time.sleep(step_s)
            step_s = time.perf_counter() - started
        if index >= specification["warmup_steps"]:
            times.append(step_s)
    window = (window_started, time.time()) if specification["real_time"] else None
    print(json.dumps({"step_times_s": times, "loss": None if fail == "nan" else 1.0, "window": window}), flush=True)
    return 0


def open_workload(file: SyntheticWorkload) -> Synthetic:
    return Synthetic(file)


if __name__ == "__main__":
    sys.exit(run_program(json.loads(Path(sys.argv[1]).read_text())))
