"""Wall time, processor time and memory of a command and of all processes that it starts."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


@dataclass(frozen=True)
class Took:
    """Cost of a command.

    Attributes:
        wall_s: time from its start to its end
        cpu_s: user and system time of all its processes
        peak_mib: peak memory of the command's first process
    """

    wall_s: float
    cpu_s: float
    peak_mib: float


def run_timed(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> Took:
    """Run a command and wait for all its processes, orphans included.

    Raises RuntimeError with the end of the output if the command fails.
    """
    # A driver outlives whoever submitted it; its time counts.
    _adopt_orphans(True)
    before = _cpu_s()
    started = time.perf_counter()
    with (directory / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    _wait_for_orphans()
    # Daemons that are started between two measurements are nobody's to wait for.
    _adopt_orphans(False)
    if process.returncode:
        told = (directory / "output.txt").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{told}")
    return Took(wall_s, _cpu_s() - before, usage.ru_maxrss / 1024)


def measure_minimum(measure: Callable[[], Took], times: int) -> Took:
    """Return the measurement with the least processor time, because disturbances only add to it."""
    return min((measure() for _ in range(times)), key=lambda took: took.cpu_s)


def _adopt_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def _wait_for_orphans() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
