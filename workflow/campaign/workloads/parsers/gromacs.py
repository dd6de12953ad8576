"""Parser of GROMACS: md.log, or the output of mdrun.

ns/day depend on the simulated system: compare runs of one input only. Without -resethway or -resetstep, the
rate includes the start, when GROMACS tunes PME and balances its domains. The end mark of md.log is the line
`Finished mdrun`; the output of mdrun has none. A gmx without MPI under mpirun simulates the same system once
per rank, and each rank prints a plausible rate.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LineReader, Scope, Verdict, agree, lines

_UNIT = re.compile(r"\([^()]+\)")
_HOURS = 24.0


class Gromacs(LineReader):
    """Reader of one simulation of GROMACS."""

    LINES = lines(
        file="Log file opened on",
        printed=r"\s*:-\) +GROMACS - .*mdrun",
        threads=r"Using (\d{1,6}) OpenMP threads?\b",
        reset=".*resetting all time and cycle counters",
        units=r"\s*((?:\([^()]+\)\s+)*\(ns/day\)\s+\(hour/ns\)(?:\s+\([^()]+\))*)\s*$",
        wall=rf"\s*Time: +{F} +({F}) +{F}\s*$",
        rate=rf"Performance: +((?:{F}\s+)*{F})\s*$",
        finished="Finished mdrun",
        unread=r"(Performance): +(.*)",
    )

    def opens(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line is a repeated header, or a header after a rate."""
        return name in ("file", "printed") and bool(self.found[name] or self.rates())

    def rates(self) -> list[tuple[float, float]]:
        """Return ns/day and hours/ns per rate line that has as many columns as the line of units."""
        units = _UNIT.findall((self.last("units") or ("(ns/day)(hour/ns)",))[0])
        at = units.index("(ns/day)")
        rows = [[float(text) for text in row.split()] for (row,) in self.found["rate"]]
        return [(row[at], row[at + 1]) for row in rows if len(row) == len(units)]

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the simulated time per day, the wall time and the threads. Check that ns/day and hours/ns agree."""
        rates = self.rates()
        if not rates:
            verdict.incomplete("no 'Performance:' in ns/day in the output")
            return
        per_day, hours = rates[-1]
        if not all(map(math.isfinite, rates[-1])):
            verdict.nan("the rate is not a number")
        elif per_day <= 0 or not agree(_HOURS / per_day, hours, 0.002 + 0.001 / per_day, 0.001):
            verdict.invalid(f"{per_day:g} ns/day are not {hours:g} hours/ns; the line is torn")
        if self.found["file"] and not self.found["finished"]:
            verdict.incomplete("the log ends before 'Finished mdrun'")
        if len(rates) > 1:
            verdict.invalid("several simulations ran at once in place of one: gmx was built without MPI")
        if not self.found["reset"]:
            verdict.flag("the rate includes the start of the run, as no counters were reset (-resethway)")
        verdict.metrics |= {"simulated_ns_per_day": per_day, "wall_time_s": self.number("wall")}
        verdict.settings["threads"] = self.number("threads")
        self.from_file = bool(self.found["file"])


_RATES = (b"(ns/day)", b" Time: ", b"Performance: ")

FORMAT = Format(
    Gromacs,
    needles=(b"GROMACS - ", b"Log file opened", b"resetting all time", b"OpenMP thread", *_RATES, b"Finished mdrun"),
    line_max=1 << 10,
)
