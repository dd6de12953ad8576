"""GROMACS: md.log, or what mdrun prints.

ns/day depend on the system that is simulated: compare runs of one input only. Without -resethway or -resetstep the rate
includes the start, where GROMACS tunes PME and balances its domains. Of md.log the line `Finished mdrun` is the end; what mdrun
prints has none. A gmx without MPI under mpirun simulates the same system once for each rank, and each prints a plausible rate.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, Reading, Scope, Verdict, agree

_BEGIN = re.compile(r"\s*:-\) +GROMACS - .*mdrun")
_TIME = re.compile(rf"\s*Time: +{F} +({F}) +{F}\s*$")
_UNITS = re.compile(r"\s*((?:\([\w/]+\)\s+)*\(ns/day\)\s+\(hour/ns\))\s*$")
_RATE = re.compile(rf"Performance: +((?:{F}\s+)*{F})\s*$")
_RESET = "resetting all time and cycle counters"
_HOURS = 24.0


class Gromacs:
    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.at_once = False
        self.begin()

    def begin(self) -> None:
        self.rate: tuple[float, float] | None = None
        self.columns = 2
        self.wall_s: float | None = None
        self.reset = False
        self.in_file = self.finished = False

    def feed(self, line: str) -> None:
        if line.startswith("Log file opened on"):
            self.begin()
            self.in_file = True
        elif _BEGIN.match(line):
            self.at_once = self.at_once or self.begun > self.ended
            self.begun += 1
            if self.rate is not None:  # another run begins: the last counts
                self.begin()
        elif _RESET in line:
            self.reset = True
        elif found := _UNITS.match(line):
            self.columns = len(found[1].split())
        elif found := _TIME.match(line):
            self.wall_s = float(found[1])
        elif found := _RATE.match(line):
            values = [float(text) for text in found[1].split()]
            if len(values) == self.columns:
                self.rate = values[-2], values[-1]
                self.ended += 1
        elif line.startswith("Finished mdrun"):
            self.finished = True

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if self.rate is None:
            verdict.incomplete("no 'Performance:' in ns/day in the output")
            return verdict.reading()
        per_day, hours = self.rate
        if not all(map(math.isfinite, self.rate)):
            verdict.nan("the rate is not a number")
        elif per_day <= 0 or not agree(_HOURS / per_day, hours, 0.002 + 0.001 / per_day, 0.001):
            verdict.invalid(f"{per_day:g} ns/day are not {hours:g} hours/ns; the line is torn")
        if self.in_file and not self.finished:
            verdict.incomplete("the log ends before 'Finished mdrun'")
        if self.at_once:
            verdict.invalid("several simulations ran at once in place of one: gmx was built without MPI")
        if not self.reset:
            verdict.flag("the rate includes the start of the run, as no counters were reset (-resethway)")
        verdict.metrics |= {"simulated_ns_per_day": per_day, "wall_time_s": self.wall_s}
        return verdict.reading()


FORMAT = Format(
    Gromacs,
    needles=(
        b"GROMACS - ",
        b"Log file opened",
        _RESET.encode(),
        b"(ns/day)",
        b" Time: ",
        b"Performance: ",
        b"Finished mdrun",
    ),
    line_max=1 << 10,
)
