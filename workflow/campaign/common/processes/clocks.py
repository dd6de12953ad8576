"""Clocks of this machine, and the changes that they undergo.

The wall clock can be set, so it is used for timestamps only.
"""

from __future__ import annotations

import time
from typing import NamedTuple

_MIN_CLOCK_JUMP_S, _MAX_SLEW_RATE = 0.05, 1e-3
_MAX_READ_TIME_S = 1e-3


class ClockReading(NamedTuple):
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
    def read(cls) -> ClockReading:
        """Read all clocks at almost the same moment.

        The clocks are read again if the process loses its core between two of them.
        """
        for _ in range(10):
            running_s = time.monotonic()
            reading = cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), running_s)
            if time.monotonic() - running_s < _MAX_READ_TIME_S:
                break
        return reading

    def describe_change_since(self, earlier: ClockReading) -> str:
        """Describe how a clock was set or the machine was suspended since an earlier reading.

        The result is empty if neither happened. Slewing of the clock does not count.
        """
        elapsed_s = self.since_boot_s - earlier.since_boot_s
        tolerance_s = _MIN_CLOCK_JUMP_S + _MAX_SLEW_RATE * elapsed_s
        shift_s = self.wall_s - earlier.wall_s - elapsed_s
        suspended_s = elapsed_s - (self.running_s - earlier.running_s)
        if suspended_s > tolerance_s:
            return f"the machine was suspended for {suspended_s:.1f} s"
        return f"the clock was set by {shift_s:+.1f} s" if abs(shift_s) > tolerance_s else ""


_START_READING = ClockReading.read()


def get_timestamp_s() -> float:
    """Return the Unix time in seconds, extrapolated from the wall clock at the start of this process.

    The difference of two timestamps of one process is the time that passed.
    """
    return _START_READING.wall_s + time.clock_gettime(time.CLOCK_BOOTTIME) - _START_READING.since_boot_s
