"""The clock of an emulated device: work takes the seconds that the device would need, whatever this machine's core needs for it.

A thread says after each part of its work how long a device takes for that part (`advance`), and sleeps for what is left of it. What
it was busy meanwhile, computing or waiting for a core, counts; what it was blocked for, in a collective or for input, does not: the
device waits there, too. A part that took longer than on the device is made up for in the parts after it, and what could not be made
up for is `late_s`.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import get_native_id

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_LEAST_SLEEP_S = 20e-6
_LEARNING = 0.1


class Pacer:
    """The clock of one device, for the thread that made it or the last one that has called `begin`.

    paced_s: seconds of the device so far; late_s: by how much the thread was behind it when it last came to the end of a part.
    """

    def __init__(self) -> None:
        self._owed_s = self._oversleep_s = 0.0
        self._thread = 0
        self._close: Callable[[], object] = int
        self.paced_s = 0.0
        self.begin()

    def begin(self) -> None:
        """From here on the calling thread does the work of the device; what it has done before does not count."""
        if self._thread != (thread := get_native_id()):
            self._close()
            self._thread = thread
            # Kept open, because it is read twice for every part: opening it takes ten times as long as reading it.
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY) if _SCHEDSTAT.exists() else None
            self._close = weakref.finalize(self, _close, self._schedstat)
        self._busy_s = self._busy()

    def advance(self, seconds: float) -> None:
        """The device has worked for so many seconds more: sleep until the thread has taken as long."""
        busy_s, started_s = self._busy(), time.perf_counter()
        self._owed_s += seconds - (busy_s - self._busy_s)
        self._busy_s = busy_s
        self.paced_s += seconds
        if self._owed_s > _LEAST_SLEEP_S + self._oversleep_s:
            asleep_s = self._owed_s - self._oversleep_s
            time.sleep(asleep_s)
            # A sleep ends late by the scheduler's grain and the wait for a core: that is part of the time that was owed.
            self._busy_s, ended_s = self._busy(), time.perf_counter()
            self._owed_s -= ended_s - started_s
            # How late is learned, so that work that is behind half of the time is ahead the other half.
            self._oversleep_s += _LEARNING * (ended_s - started_s - asleep_s - self._oversleep_s)

    def forget(self) -> None:
        """Make up for nothing that is late now."""
        self._owed_s = max(0.0, self._owed_s)

    @property
    def late_s(self) -> float:
        return max(0.0, -self._owed_s)

    def _busy(self) -> float:
        """Seconds that the thread has computed or waited for a core (Linux, Documentation/scheduler/sched-stats.rst)."""
        if self._schedstat is None:
            return time.thread_time()
        # What it has computed stands there, too, but by some kernels only as it was at the scheduler's last tick.
        return time.thread_time() + int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
