"""Detection of external disturbances that invalidate the times of a run.

Disturbances are a stop, a suspension, a debugger, or a clock that is set. Durations and deadlines of a run use the monotonic
clock, and the wall clock gives only timestamps. Checks are half a second apart. A stop of a rank is detected even if it begins and
ends between two checks. A stop of a process that a rank has started is detected only if it lasts until a check.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from campaign.common.processes.clocks import ClockReading

DISTURBANCE_POLL_INTERVAL_S = 0.5
_MAX_OVERSLEEP_S = 5.0  # The scheduler never delays a process for this long after its sleep.
_STOPPED_STATES = {"T": "is stopped", "t": "is stopped by a debugger"}
_T = TypeVar("_T")


class DisturbanceMonitor:
    """Monitor of disturbances of one run, from the start of its processes to their end.

    Attributes:
        first_disturbance: description of the first disturbance, or an empty string.
        started_s: start of the run in Unix seconds.
    """

    def __init__(self) -> None:
        self.first_disturbance = ""
        self._start_reading = ClockReading.read()
        self.started_s = self._start_reading.wall_s
        self._previous_handler: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGCONT, self._handle_continue_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGCONT, self._previous_handler)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run, by the monotonic clock."""
        return time.monotonic() - self._start_reading.running_s

    @property
    def ended_s(self) -> float:
        """Current Unix time in seconds, extrapolated from the wall clock at the start of the run."""
        return self.started_s + self.elapsed_s

    def call_with_timeout(self, function: Callable[[float], _T], timeout_s: float) -> _T:
        """Call a function that waits up to a timeout, and record a disturbance if this process is held up meanwhile.

        Args:
            function: function that waits for the given number of seconds at most.
            timeout_s: timeout in seconds. A negative one counts as 0.
        """
        start_s = time.monotonic()
        result = function(max(0.0, timeout_s))
        late_s = time.monotonic() - start_s - max(0.0, timeout_s)
        if late_s > _MAX_OVERSLEEP_S:
            self._record_disturbance(f"the driver was blocked for {late_s:.0f} s")
        return result

    def check_processes(self, pids: Collection[int]) -> None:
        """Check the child processes with these pids, all their descendants, and the clocks for disturbances."""
        for pid in pids:
            with suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG) is not None:
                    self._record_disturbance(f"process {pid} was stopped")
        process_tree = set(_walk_process_trees(pids))
        for pid in process_tree:
            state, tracer = _read_process_state(pid)
            if state in _STOPPED_STATES and not (state == "t" and tracer in process_tree):
                self._record_disturbance(f"process {pid} {_STOPPED_STATES[state]}")
            elif tracer and tracer not in process_tree:
                self._record_disturbance(f"process {pid} is held by a debugger (process {tracer})")
        self.check_clocks()

    def check_clocks(self) -> None:
        """Record a disturbance if a clock was set or the machine was suspended since the start of the run."""
        self._record_disturbance(ClockReading.read().describe_change_since(self._start_reading))

    def _handle_continue_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Record that the run was stopped and continued (SIGCONT)."""
        self._record_disturbance("the run was suspended and continued")

    def _record_disturbance(self, description: str) -> None:
        self.first_disturbance = self.first_disturbance or description


def _walk_process_trees(pids: Collection[int]) -> Iterator[int]:
    """Yield processes and their descendants, as far as the first thread of each process started them.

    Reading the children of every thread would take too long.
    """
    for pid in pids:
        yield pid
        with suppress(OSError):
            yield from _walk_process_trees(
                [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
            )


def _read_process_state(pid: int) -> tuple[str, int]:
    """Return the letter of a process's state and the pid of its tracer (0 if there is none).

    The letter is empty if the process has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return "", 0
    fields = dict(line.split(":", 1) for line in lines[:12] if ":" in line)
    return fields.get("State", "?").split()[0][:1], int(fields.get("TracerPid", "0"))
