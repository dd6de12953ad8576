"""What disturbs a run from outside, so that its times mean nothing: a stop, a suspension, a debugger, a clock that is set.

Durations and deadlines of a run are by the monotonic clock, and the wall clock gives stamps only. Between two looks, half a second
apart, a stop of a rank is still noticed; one of a process that a rank has started is noticed when a look finds it.
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
_LATE_S = 5.0  # no scheduler lets a process wait for so long that has slept until then
_STOPPED = {"T": "is stopped", "t": "is stopped by a debugger"}
_T = TypeVar("_T")


class Disturbances:
    """A watch on one run, from the start of its processes to their end. found: the first disturbance, in words; empty for none.

    started: Unix seconds.
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
        return time.monotonic() - self._before.running_s

    @property
    def ended(self) -> float:
        """Unix seconds, by the clock as it was at the start."""
        return self.started + self.elapsed_s

    def wait(self, wait: Callable[[float], _T], seconds: float) -> _T:
        """Wait by `wait` for so long at most. It is noticed when this process is held up meanwhile."""
        before_s = time.monotonic()
        answer = wait(max(0.0, seconds))
        late_s = time.monotonic() - before_s - max(0.0, seconds)
        if late_s > _LATE_S:
            self._note(f"everything stood still for {late_s:.0f} s")
        return answer

    def look(self, children: Collection[int]) -> None:
        """Look at processes that this one has started, at those that they have started, and at the clocks."""
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
        self._note(Clocks.now().changed_since(self._before))

    def _continued(self, _number: int, _frame: FrameType | None) -> None:
        self._note("the run was suspended, and went on")

    def _note(self, words: str) -> None:
        self.found = self.found or words


def _families(pids: Collection[int]) -> Iterator[int]:
    """Processes, and those below them that their first threads have started: to ask every thread would take too long."""
    for pid in pids:
        yield pid
        with suppress(OSError):
            yield from _families(
                [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
            )


def _state(pid: int) -> tuple[str, int]:
    """The letter of a process's state, and the process that traces it (0: none); empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return "", 0
    words = dict(line.split(":", 1) for line in lines[:12] if ":" in line)
    return words.get("State", "?").split()[0][:1], int(words.get("TracerPid", "0"))
