"""Clocks of this machine, and the changes that they undergo.

The wall clock can be set, so it is used for timestamps only.
"""

from __future__ import annotations

import time
from typing import NamedTuple

_JUMP_S, _SLEW = 0.05, 1e-3
_EXACT_S = 1e-3


class Clocks(NamedTuple):
    """Reading of all clocks at one moment.

    Attributes:
        wall_s: Unix seconds.
        since_boot_s: seconds since boot, by a clock that is never set.
        running_s: the same without suspensions of the machine.
    """

    wall_s: float
    since_boot_s: float
    running_s: float

    @classmethod
    def now(cls) -> Clocks:
        """Read all clocks at almost the same moment.

        The clocks are read again if the process loses its core between two of them.
        """
        for _ in range(10):  # repeat if the process loses its core between two readings
            running_s = time.monotonic()
            found = cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), running_s)
            if time.monotonic() - running_s < _EXACT_S:
                break
        return found

    def changed_since(self, before: Clocks) -> str:
        """Describe how a clock was set or the machine was suspended since an earlier reading.

        The result is empty if neither happened. Slewing of the clock does not count.
        """
        passed_s = self.since_boot_s - before.since_boot_s
        most_s = _JUMP_S + _SLEW * passed_s
        set_s = self.wall_s - before.wall_s - passed_s
        asleep_s = passed_s - (self.running_s - before.running_s)
        if asleep_s > most_s:
            return f"the machine was suspended for {asleep_s:.1f} s"
        return f"the clock was set by {set_s:+.1f} s" if abs(set_s) > most_s else ""


_START = Clocks.now()


def stamp_s() -> float:
    """Return the Unix time in seconds, by the wall clock as it was when this process started.

    The difference of two timestamps of one process is the time that passed.
    """
    return _START.wall_s + time.clock_gettime(time.CLOCK_BOOTTIME) - _START.since_boot_s
