"""The clock of an emulated device: work takes the seconds that the device would need, whatever this machine's core needs for it.

A thread says after each part of its work how long a device takes for that part (`advance`), and sleeps for what is left of it. What
it was busy meanwhile, computing or waiting for a core, counts; what it was blocked for, in a collective or for input, does not: the
device waits there, too. A part that took longer than on the device is made up for in the parts after it, and what could not be made
up for is `late_s`.
"""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_LEAST_SLEEP_S = 20e-6


class Pacer:
    """The clock of one device; for the one thread that made it.

    paced_s: seconds of the device so far; late_s: by how much the thread is behind it now.
    """

    def __init__(self) -> None:
        self._busy = _busy_s if _SCHEDSTAT.exists() else time.thread_time
        self._owed_s = 0.0
        self._busy_s = self._busy()
        self.paced_s = 0.0

    def advance(self, seconds: float) -> None:
        """The device has worked for so many seconds more: sleep until the thread has taken as long."""
        busy_s = self._busy()
        self._owed_s += seconds - (busy_s - self._busy_s)
        self._busy_s = busy_s
        self.paced_s += seconds
        if self._owed_s > _LEAST_SLEEP_S:
            started_s = time.perf_counter()
            time.sleep(self._owed_s)
            # A sleep ends late by the scheduler's grain and the wait for a core: that is part of the time that was owed.
            self._owed_s -= time.perf_counter() - started_s
            self._busy_s = self._busy()

    @property
    def late_s(self) -> float:
        return max(0.0, -self._owed_s)


def _busy_s() -> float:
    """Seconds that this thread has computed or waited for a core (Linux, Documentation/scheduler/sched-stats.rst)."""
    computed_ns, waited_ns, _ = _SCHEDSTAT.read_text().split()
    return (int(computed_ns) + int(waited_ns)) / 1e9
