"""Program of the synthetic workload, which takes or pretends to take steps: `python synthetic_program.py SPEC.json`.

Only the standard library is imported. The program publishes the specified power, memory and utilisation of its devices for
telemetry (`campaign.observe.telemetry.sources.program_gauges`).
"""

import json
import math
import os
import random
import runpy
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_REQUEST_REMARK = "simulated failure"
FAILURES: Mapping[str, tuple[str, int]] = {
    "oom_device": (f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB ({_REQUEST_REMARK})", 1),
    "oom_host": (f"MemoryError: {_REQUEST_REMARK}", 1),
    "comm_timeout": (f"RuntimeError: Timed out waiting 5000ms for recv operation to complete ({_REQUEST_REMARK})", 1),
    "crashed": (f"ValueError: {_REQUEST_REMARK}", 1),
    "incomplete": (f"ended before the first result ({_REQUEST_REMARK})", 0),
}


@contextmanager
def publish_gauges(devices: Mapping[str, Mapping[str, float]]) -> Iterator[None]:
    """Publish gauge values for the telemetry samplers on this machine as long as the context is open.

    Nothing is published if there are no devices or if CAMPAIGN_GAUGES does not name a directory.

    Args:
        devices: for each device, values by gauge.
    """
    directory = os.environ.get("CAMPAIGN_GAUGES")
    if not devices or not directory or not Path(directory).is_dir():
        yield
        return
    machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    start_ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    file = Path(directory, f"{machine}.{os.getpid()}.json")
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"started": start_ticks, "devices": devices}), encoding="utf-8")
    partial.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def run_program(specification: Mapping[str, Any]) -> int:
    """Take the steps that the specification demands, print their times, and return the exit code."""
    with publish_gauges(specification.get("gauges", {})):
        return _take_steps(specification)


class _StepSequence:
    """Sequence of steps with the durations that the specification demands."""

    def __init__(self, specification: Mapping[str, Any]) -> None:
        self._specification = specification
        self._noise = random.Random(specification["seed"])
        self._steps_done = 0

    def take_steps(self, count: int) -> list[float]:
        """Take a number of further steps, and return their durations in seconds."""
        return [self._take_step() for _ in range(count)]

    def _take_step(self) -> float:
        specification = self._specification
        step_s = specification["step_s"] * max(0.01, 1 + self._noise.gauss(0, specification["noise_pct"] / 100))
        if specification.get("cold_pct"):
            step_s *= 1 + specification["cold_pct"] / 100 * math.exp(-self._steps_done / specification["cold_steps"])
        self._steps_done += 1
        if not specification["real_time"]:
            return float(step_s)
        start_s = time.perf_counter()
        time.sleep(step_s)
        return time.perf_counter() - start_s


def _take_steps(specification: Mapping[str, Any]) -> int:
    fail = specification["fail"]
    if fail == "time_limit":
        while True:
            time.sleep(3600)
    if fail in FAILURES:
        message, code = FAILURES[fail]
        print(message, flush=True)
        return code
    steps = _StepSequence(specification)
    warmup, max_warmup_steps = specification["warmup_steps"], specification.get("warmup_steps_max")
    times, is_steady = steps.take_steps(warmup), None
    if max_warmup_steps is not None:
        # Loaded as a file, because this program cannot import the package.
        rule = runpy.run_path(str(Path(__file__).with_name("steady_warmup.py")))
        is_steady = rule["extend_warmup"](times, steps.take_steps, warmup, max_warmup_steps)
    started_at = time.time()
    measured_times = steps.take_steps(specification["measured_steps"])
    window = (started_at, time.time()) if specification["real_time"] else None
    loss = None if fail == "nan" else 1.0
    warmup_facts = {"warmup_steps": len(times), "warmup_is_steady": is_steady}
    print(json.dumps({"step_times_s": measured_times, "loss": loss, "window": window, **warmup_facts}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
