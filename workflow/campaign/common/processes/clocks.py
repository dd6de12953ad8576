"""The clocks of this machine, and what happens to them: the wall clock can be set, and gives stamps only."""

from __future__ import annotations

import time
from typing import NamedTuple

_JUMP_S, _SLEW = 0.05, 1e-3
_EXACT_S = 1e-3


class Clocks(NamedTuple):
    """What they show at one moment. wall_s: Unix seconds; since_boot_s: never set; running_s: the same, less suspensions."""

    wall_s: float
    since_boot_s: float
    running_s: float

    @classmethod
    def now(cls) -> Clocks:
        for _ in range(10):  # a process that loses its core between two of them reads them anew
            running_s = time.monotonic()
            found = cls(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), running_s)
            if time.monotonic() - running_s < _EXACT_S:
                break
        return found

    def changed_since(self, before: Clocks) -> str:
        """How a clock was set or stood still meanwhile, in words; empty: neither. What a clock is slewed by does not count."""
        passed_s = self.since_boot_s - before.since_boot_s
        most_s = _JUMP_S + _SLEW * passed_s
        set_s = self.wall_s - before.wall_s - passed_s
        asleep_s = passed_s - (self.running_s - before.running_s)
        if asleep_s > most_s:
            return f"the machine was suspended for {asleep_s:.1f} s"
        return f"the clock was set by {set_s:+.1f} s" if abs(set_s) > most_s else ""


_START = Clocks.now()


def stamp_s() -> float:
    """Unix seconds by the clock as it was when this process started: between two stamps of a process lies the time that passed."""
    return _START.wall_s + time.clock_gettime(time.CLOCK_BOOTTIME) - _START.since_boot_s
