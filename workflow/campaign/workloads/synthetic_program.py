"""The program of the synthetic workload: `python synthetic_program.py SPEC.json` takes, or pretends to take, the steps of its file.

Only the standard library is imported. It publishes the power, memory and utilisation that its devices are to have
(`campaign.observe.telemetry.sources.program_gauges`).
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WHY = "asked for by the campaign"
FAILURES: Mapping[str, tuple[str, int]] = {
    "oom_device": (f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB ({_WHY})", 1),
    "oom_host": (f"MemoryError: {_WHY}", 1),
    "comm_timeout": (f"RuntimeError: Timed out waiting 5000ms for recv operation to complete ({_WHY})", 1),
    "crashed": (f"ValueError: {_WHY}", 1),
    "incomplete": (f"ended before the first result, as {_WHY}", 0),
}


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


if __name__ == "__main__":
    sys.exit(run_program(json.loads(Path(sys.argv[1]).read_text())))
