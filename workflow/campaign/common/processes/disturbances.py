"""Detection of external disturbances that invalidate the times of a run.

Disturbances are a stop, a suspension, a debugger, or a clock that is set. Durations and deadlines of a run are by the monotonic
clock, and the wall clock gives timestamps only. Checks are half a second
apart. A stop of a rank is noticed even if it begins and ends between two checks. A stop of a process that a rank has started is
noticed only if it lasts until a check.
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

from campaign.common.processes.clocks import Clocks

LOOK_S = 0.5
_LATE_S = 5.0  # no scheduler delays a process for so long after its sleep
_STOPPED = {"T": "is stopped", "t": "is stopped by a debugger"}
_T = TypeVar("_T")


class Disturbances:
    """Monitor of disturbances of one run, from the start of its processes to their end.

    Attributes:
        first_disturbance: description of the first disturbance, or an empty string.
        started_s: start of the run in Unix seconds.
    """

    def __init__(self) -> None:
        self.found = ""
        self._before = Clocks.now()
        self.started = self._before.wall_s
        self._handler: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGCONT, self._continued)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGCONT, self._handler)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run, by the monotonic clock."""
        return time.monotonic() - self._before.running_s

    @property
    def ended(self) -> float:
        """Unix seconds of the present moment, by the wall clock as it was at the start of the run."""
        return self.started + self.elapsed_s

    def wait(self, wait: Callable[[float], _T], seconds: float) -> _T:
        """Call a function that waits up to a timeout, and record a disturbance if this process is held up meanwhile.

        Args:
            function: function that waits for the given number of seconds at most.
            timeout_s: timeout in seconds. A negative one counts as 0.
        """
        before_s = time.monotonic()
        answer = wait(max(0.0, seconds))
        late_s = time.monotonic() - before_s - max(0.0, seconds)
        if late_s > _LATE_S:
            self._note(f"everything stood still for {late_s:.0f} s")
        return answer

    def look(self, children: Collection[int]) -> None:
        """Check the child processes with these pids, all their descendants, and the clocks for disturbances."""
        for pid in children:
            with suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG) is not None:
                    self._note(f"process {pid} was stopped")
        family = set(_families(children))
        for pid in family:
            state, tracer = _state(pid)
            if state in _STOPPED and not (state == "t" and tracer in family):
                self._note(f"process {pid} {_STOPPED[state]}")
            elif tracer and tracer not in family:
                self._note(f"process {pid} is held by a debugger (process {tracer})")
        self.look_at_clocks()

    def look_at_clocks(self) -> None:
        """Record a disturbance if a clock was set or the machine was suspended since the start of the run."""
        self._note(Clocks.now().changed_since(self._before))

    def _continued(self, _number: int, _frame: FrameType | None) -> None:
        """Record that the run was stopped and continued (SIGCONT)."""
        self._note("the run was suspended, and went on")

    def _note(self, words: str) -> None:
        self.found = self.found or words


def _families(pids: Collection[int]) -> Iterator[int]:
    """Yield processes and their descendants, as far as the first thread of each process started them.

    Reading the children of every thread would take too long.
    """
    for pid in pids:
        yield pid
        with suppress(OSError):
            yield from _families(
                [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
            )


def _state(pid: int) -> tuple[str, int]:
    """Return the letter of a process's state and the pid of its tracer (0 if there is none).

    The letter is empty if the process has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return "", 0
    words = dict(line.split(":", 1) for line in lines[:12] if ":" in line)
    return words.get("State", "?").split()[0][:1], int(words.get("TracerPid", "0"))
