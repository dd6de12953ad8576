"""Parser of GROMACS: md.log, or the output of mdrun.

The rate in ns/day depends on the simulated system, so only runs with the same input can be compared. Without
-resethway or -resetstep, the rate includes the start, when GROMACS tunes PME and balances its domains. The end mark
of md.log is the line `Finished mdrun`; the output of mdrun has none. Under mpirun, a gmx without MPI simulates the
same system once per rank, and each rank prints a plausible rate.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import (
    F,
    LineReader,
    LogFormat,
    ReadingBuilder,
    RunContext,
    compile_patterns,
    is_close,
)

_UNIT_PATTERN = re.compile(r"\([^()]+\)")
_HOURS_PER_DAY = 24.0


class GromacsReader(LineReader):
    """Reader of one simulation of GROMACS."""

    PATTERNS = compile_patterns(
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

    def begins_next_test(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line begins another simulation: it is a repeated header, or a header after a rate."""
        return name in ("file", "printed") and bool(self.matches[name] or self.read_rates())

    def read_rates(self) -> list[tuple[float, float]]:
        """Return the pair (ns/day, hours/ns) of each line of rates that has as many columns as the line of units."""
        units = _UNIT_PATTERN.findall((self.last_match("units") or ("(ns/day)(hour/ns)",))[0])
        column = units.index("(ns/day)")
        rows = [[float(text) for text in row.split()] for (row,) in self.matches["rate"]]
        return [(row[column], row[column + 1]) for row in rows if len(row) == len(units)]

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the simulated time per day, the wall time and the threads. Check that ns/day and hours/ns agree."""
        rates = self.read_rates()
        if not rates:
            builder.mark_incomplete("the output has no line 'Performance:' in ns/day")
            return
        ns_per_day, hours_per_ns = rates[-1]
        if not all(map(math.isfinite, rates[-1])):
            builder.mark_nan("the rate is not a number")
        elif ns_per_day <= 0 or not is_close(
            _HOURS_PER_DAY / ns_per_day, hours_per_ns, 0.002 + 0.001 / ns_per_day, 0.001
        ):
            builder.mark_invalid(
                f"{ns_per_day:g} ns/day does not match {hours_per_ns:g} hours/ns, so the line is damaged"
            )
        if self.matches["file"] and not self.matches["finished"]:
            builder.mark_incomplete("the log ends before 'Finished mdrun'")
        if len(rates) > 1:
            builder.mark_invalid("several simulations ran at once instead of one, because gmx was built without MPI")
        if not self.matches["reset"]:
            builder.add_flag("the rate includes the start of the run, because the counters were not reset (-resethway)")
        builder.metrics |= {"simulated_ns_per_day": ns_per_day, "wall_time_s": self.last_number("wall")}
        builder.settings["threads"] = self.last_number("threads")
        self.from_file = bool(self.matches["file"])


_RATES = (b"(ns/day)", b" Time: ", b"Performance: ")

FORMAT = LogFormat(
    GromacsReader,
    needles=(b"GROMACS - ", b"Log file opened", b"resetting all time", b"OpenMP thread", *_RATES, b"Finished mdrun"),
    max_line_chars=1 << 10,
)
