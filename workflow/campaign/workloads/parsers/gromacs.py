"""GROMACS: md.log, or what mdrun prints.

ns/day depend on the system that is simulated: compare runs of one input only. Without -resethway or -resetstep the rate
includes the start, where GROMACS tunes PME and balances its domains. Of md.log the line `Finished mdrun` is the end; what mdrun
prints has none. A gmx without MPI under mpirun simulates the same system once for each rank, and each prints a plausible rate.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, agree

_BEGIN = re.compile(r"\s*:-\) +GROMACS - .*mdrun")
_TIME = re.compile(rf"\s*Time: +{F} +({F}) +{F}\s*$")
_UNITS = re.compile(r"\s*((?:\([^()]+\)\s+)*\(ns/day\)\s+\(hour/ns\)(?:\s+\([^()]+\))*)\s*$")
_UNIT = re.compile(r"\([^()]+\)")
_RATE = re.compile(rf"Performance: +((?:{F}\s+)*{F})\s*$")
_FILE = "Log file opened on"
_RESET = "resetting all time and cycle counters"
_HOURS = 24.0


class Gromacs(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.headers: set[str] = set()
        self.ended = 0
        self.rate: tuple[float, float] | None = None
        self.columns: list[str] = ["(ns/day)", "(hour/ns)"]
        self.wall_s: float | None = None
        self.reset = self.finished = False

    def line(self, line: str) -> None:
        header = _FILE if line.startswith(_FILE) else "GROMACS" if _BEGIN.match(line) else ""
        if header:
            if self.ended or header in self.headers:
                return self.another(line)
            self.headers.add(header)
        elif _RESET in line:
            self.reset = True
        elif found := _UNITS.match(line):
            self.columns = _UNIT.findall(found[1])
        elif found := _TIME.match(line):
            self.wall_s = float(found[1])
        elif found := _RATE.match(line):
            values = [float(text) for text in found[1].split()]
            if len(values) == len(self.columns):
                at = self.columns.index("(ns/day)")
                self.rate = values[at], values[at + 1]
                self.ended += 1
        elif line.startswith("Finished mdrun"):
            self.finished = True

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        if self.rate is None:
            verdict.incomplete("no 'Performance:' in ns/day in the output")
            return
        per_day, hours = self.rate
        if not all(map(math.isfinite, self.rate)):
            verdict.nan("the rate is not a number")
        elif per_day <= 0 or not agree(_HOURS / per_day, hours, 0.002 + 0.001 / per_day, 0.001):
            verdict.invalid(f"{per_day:g} ns/day are not {hours:g} hours/ns; the line is torn")
        if _FILE in self.headers and not self.finished:
            verdict.incomplete("the log ends before 'Finished mdrun'")
        if self.ended > 1:
            verdict.invalid("several simulations ran at once in place of one: gmx was built without MPI")
        if not self.reset:
            verdict.flag("the rate includes the start of the run, as no counters were reset (-resethway)")
        verdict.metrics |= {"simulated_ns_per_day": per_day, "wall_time_s": self.wall_s}
        self.from_file = _FILE in self.headers


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
