"""The timer of steps against the system's wall clock. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from campaign.observe.devices.bench import Bench
from campaign.observe.devices.document import StepResult

_WINDOW_S, _REPEATS = 0.1, 3
Timed = Callable[[Callable[[], object]], float]
"""Seconds that some work takes, by the timer that is judged."""


def measure(bench: Bench, timed: Timed | None = None) -> StepResult:
    """By how many percent the timer is off: a pair of events on a GPU, the clock that steps are timed with on a CPU.

    The timer starts between two looks at the wall clock, and so it ends: what lies between these is unclear. The repeat counts in
    which that is least.
    """
    timed = timed or (_by_clock if bench.on_cpu else partial(_by_events, bench))
    square = None if bench.on_cpu else torch.randn(4096, 4096, device=bench.device)
    found = []
    for _ in range(_REPEATS + 1):
        looks = [time.time()]

        def work(looks: list[float] = looks) -> None:
            looks.append(time.time())
            time.sleep(_WINDOW_S) if square is None else bench.busy_for(5 * _WINDOW_S, lambda: square @ square)
            looks.append(time.time())

        seconds = timed(work)
        looks.append(time.time())
        least_s, most_s = looks[2] - looks[1], looks[3] - looks[0]
        wall_s = (least_s + most_s) / 2
        found.append(((most_s - least_s) / 2 / wall_s, seconds / wall_s - 1))
    unclear, off = min(found[1:])
    return StepResult(step="timers", values={"timer_off_pct": 100 * off}, spread_pct={"timer_off_pct": 100 * unclear})


def _by_clock(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _by_events(bench: Bench, work: Callable[[], object]) -> float:
    first, last = (bench.gpus.Event(enable_timing=True) for _ in range(2))
    bench.gpus.synchronize(bench.device)
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3
