"""STREAM (stream.c 5.9 and 5.10): bandwidth of memory.

Rates are the best of all repetitions but the first, of MB of 1e6 bytes, and count what the program asks for: the lines that a
store reads first are left out. They count only if the arrays validate, and say something of memory only where the arrays are
several times as large as all caches: the size is a metric. One process is one host: of several at once none is read.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, agree

_ROW = re.compile(rf"(Copy|Scale|Add|Triad): +({F}) +({F}) +({F}) +({F})\s*$")
_SIZE = re.compile(r"Array size = (\d{1,15}) \(elements\)")
_BYTES = re.compile(r"This system uses (\d{1,3}) bytes per")
_THREADS = re.compile(r"Number of Threads counted = (\d{1,9})")
_ARRAYS = {"Copy": 2, "Scale": 2, "Add": 3, "Triad": 3}
_TOO_SHORT_S = 20e-6


class Stream(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.begun = False
        self.ended = 0
        self.rows: dict[str, tuple[float, ...]] = {}
        self.validated: bool | None = None
        self.elements: float | None = None
        self.bytes = 8.0
        self.threads: float | None = None

    def line(self, line: str) -> None:
        if line.startswith("STREAM version"):
            if self.begun:
                return self.another(line)
            self.begun = True
        elif found := _BYTES.match(line):
            self.bytes = float(found[1])
        elif found := _SIZE.match(line):
            self.elements = float(found[1])
        elif found := _THREADS.match(line):
            self.threads = float(found[1])
        elif found := _ROW.match(line):
            self.rows[found[1]] = tuple(float(text) for text in found.groups()[1:])
        elif line.startswith(("Solution Validates", "Failed Validation")):
            self.validated = self.validated is not False and line.startswith("Solution")
            self.ended += 1

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        if len(self.rows) < len(_ARRAYS):
            verdict.incomplete("no table of Copy, Scale, Add and Triad in the output of STREAM")
        elif self.validated is None:
            verdict.incomplete("the output ends before 'Solution Validates'")
        elif not self.validated:
            verdict.invalid("the arrays failed their validation")
        if self.ended > 1:
            verdict.invalid("several processes of STREAM ran at once")
        for name, values in self.rows.items():
            self.row(verdict, name, values)
        if self.elements is not None:
            verdict.metrics["array_mib"] = self.elements * self.bytes / 2**20
        verdict.metrics["threads"] = self.threads

    def row(self, verdict: Verdict, name: str, values: tuple[float, ...]) -> None:
        best, average_s, least_s, most_s = values
        if not all(map(math.isfinite, values)):
            verdict.nan(f"{name} is not a number")
            return
        moved = None if self.elements is None else _ARRAYS[name] * self.elements * self.bytes
        # Times are printed to the microsecond.
        if not least_s <= average_s <= most_s or best <= 0:
            verdict.invalid(f"the times of {name} are out of order; a line is torn")
        elif moved and least_s > 0 and not agree(moved / least_s / 1e6, best, 1e-3 + 1e-6 / least_s):
            verdict.invalid(f"{moved:g} bytes in {least_s:g} s are not {best:g} MB/s; a line is torn")
        if least_s < _TOO_SHORT_S:
            verdict.flag(f"{name} took {least_s:g} s only: the arrays are too small for the clock")
        verdict.metrics[f"{name.lower()}_gb_per_s"] = best / 1e3


FORMAT = Format(
    Stream,
    needles=(
        *(
            b"STREAM version",
            b"bytes per",
            b"Array size",
            b"Threads counted",
            b"Solution Validates",
            b"Failed Validation",
        ),
        *(b"Copy:", b"Scale:", b"Add:", b"Triad:"),
    ),
    line_max=1 << 10,
)
