"""Parser of STREAM (stream.c 5.9 and 5.10), which measures the bandwidth of memory.

Rates are the best of all repetitions but the first, in MB of 1e6 bytes. They count the bytes that the program
requests: cache lines that are read before a store are left out. Rates count only if the arrays validate. They
describe memory only if the arrays are several times as large as all caches together, so the array size is a
metric. One process is one host: if several ran at once, none is read.
"""

from __future__ import annotations

import math

from campaign.workloads.parsers.reading import F, Format, LineReader, Scope, Verdict, agree, lines

_ARRAYS = {"Copy": 2, "Scale": 2, "Add": 3, "Triad": 3}
_TOO_SHORT_S = 20e-6


class Stream(LineReader):
    """Reader of one run of STREAM."""

    LINES = lines(
        begin="STREAM version",
        bytes=r"This system uses (\d{1,3}) bytes per",
        elements=r"Array size = (\d{1,15}) \(elements\)",
        threads=r"Number of Threads counted = (\d{1,9})",
        row=rf"(Copy|Scale|Add|Triad): +({F}) +({F}) +({F}) +({F})\s*$",
        end="(Solution|Failed) Valid",
        unread=r"(Copy|Scale|Add|Triad): +(.*)",
    )

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the bandwidth of each kernel, the array size and the number of threads."""
        rows, ends = {name: tuple(map(float, texts)) for name, *texts in self.found["row"]}, self.found["end"]
        if len(rows) < len(_ARRAYS):
            verdict.incomplete("no table of Copy, Scale, Add and Triad in the output of STREAM")
        elif not ends:
            verdict.incomplete("the output ends before 'Solution Validates'")
        elif ("Failed",) in ends:
            verdict.invalid("the arrays failed their validation")
        if len(ends) > 1 or len(self.found["row"]) > len(rows):
            verdict.invalid("several processes of STREAM ran at once")
        array_bytes = (self.number("elements") or 0.0) * (self.number("bytes") or 8.0)
        for name, values in rows.items():
            self.row(verdict, name, values, array_bytes)
        verdict.metrics["array_mib"] = array_bytes / 2**20 if self.found["elements"] else None
        verdict.settings |= {"elements": self.number("elements"), "threads": self.number("threads")}
        verdict.metrics["threads"] = self.number("threads")

    def row(self, verdict: Verdict, name: str, values: tuple[float, ...], array_bytes: float) -> None:
        """Add the bandwidth of one kernel in GB/s, and check that its times agree with the moved bytes.

        Args:
            builder: builder of the reading.
            name: name of the kernel, such as `Triad`.
            values: best rate (MB/s), mean, smallest and largest time (s).
            array_bytes: size of one array.
        """
        best, average_s, least_s, most_s = values
        if not all(map(math.isfinite, values)):
            verdict.nan(f"{name} is not a number")
            return
        moved = _ARRAYS[name] * array_bytes
        # Times are printed to the microsecond.
        if not least_s <= average_s <= most_s or best <= 0:
            verdict.invalid(f"the times of {name} are out of order; a line is torn")
        elif moved and least_s > 0 and not agree(moved / least_s / 1e6, best, 1e-3 + 1e-6 / least_s):
            verdict.invalid(f"{moved:g} bytes in {least_s:g} s are not {best:g} MB/s; a line is torn")
        if least_s < _TOO_SHORT_S:
            verdict.flag(f"{name} took {least_s:g} s only: the arrays are too small for the clock")
        verdict.metrics[f"{name.lower()}_gb_per_s"] = best / 1e3


_NEEDLES = (
    b"STREAM version",
    b"bytes per",
    b"Array size",
    b"Threads counted",
    b"Solution Validates",
    b"Failed Validation",
)

FORMAT = Format(Stream, needles=(*_NEEDLES, b"Copy:", b"Scale:", b"Add:", b"Triad:"), line_max=1 << 10)
