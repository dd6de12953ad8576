"""Parser of STREAM (stream.c 5.9 and 5.10), which measures the bandwidth of memory.

Rates are the best of all repetitions except the first, in MB (1e6 bytes) per second. They count the bytes that the
program requests, without cache lines that are read before a store. Rates count only if the arrays are validated.
They are those of the memory only if the arrays are several times as large as all caches together, so the array size
is a metric. A host must run a single process; if several ran at once, the run is invalid.
"""

from __future__ import annotations

import math

from campaign.workloads.parsers.reading import (
    F,
    LineReader,
    LogFormat,
    ReadingBuilder,
    RunContext,
    compile_patterns,
    is_close,
)

_ARRAYS_PER_KERNEL = {"Copy": 2, "Scale": 2, "Add": 3, "Triad": 3}
_MIN_KERNEL_TIME_S = 20e-6


class StreamReader(LineReader):
    """Reader of one run of STREAM."""

    PATTERNS = compile_patterns(
        begin="STREAM version",
        bytes=r"This system uses (\d{1,3}) bytes per",
        elements=r"Array size = (\d{1,15}) \(elements\)",
        threads=r"Number of Threads counted = (\d{1,9})",
        row=rf"(Copy|Scale|Add|Triad): +({F}) +({F}) +({F}) +({F})\s*$",
        end="(Solution|Failed) Valid",
        unread=r"(Copy|Scale|Add|Triad): +(.*)",
    )

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the bandwidth of each kernel, the array size and the number of threads."""
        rows, ends = {name: tuple(map(float, texts)) for name, *texts in self.matches["row"]}, self.matches["end"]
        if len(rows) < len(_ARRAYS_PER_KERNEL):
            builder.mark_incomplete("the output has no complete table of Copy, Scale, Add and Triad")
        elif not ends:
            builder.mark_incomplete("the output ends before 'Solution Validates'")
        elif ("Failed",) in ends:
            builder.mark_invalid("the arrays failed the validation")
        if len(ends) > 1 or len(self.matches["row"]) > len(rows):
            builder.mark_invalid("several processes of STREAM ran at once")
        array_bytes = (self.last_number("elements") or 0.0) * (self.last_number("bytes") or 8.0)
        for name, values in rows.items():
            self.add_bandwidth(builder, name, values, array_bytes)
        builder.metrics["array_mib"] = array_bytes / 2**20 if self.matches["elements"] else None
        builder.settings |= {"elements": self.last_number("elements"), "threads": self.last_number("threads")}
        builder.metrics["threads"] = self.last_number("threads")

    def add_bandwidth(self, builder: ReadingBuilder, name: str, values: tuple[float, ...], array_bytes: float) -> None:
        """Add the bandwidth of one kernel in GB/s, and check that its times match the number of bytes moved.

        Args:
            builder: builder of the reading.
            name: name of the kernel, such as `Triad`.
            values: best rate (MB/s), mean, smallest and largest time (s).
            array_bytes: size of one array in bytes.
        """
        best, average_s, min_s, max_s = values
        if not all(map(math.isfinite, values)):
            builder.mark_nan(f"a value of {name} is not a number")
            return
        moved_bytes = _ARRAYS_PER_KERNEL[name] * array_bytes
        # Times are printed to the microsecond.
        if not min_s <= average_s <= max_s or best <= 0:
            builder.mark_invalid(f"the times of {name} are out of order, so the line is damaged")
        elif moved_bytes and min_s > 0 and not is_close(moved_bytes / min_s / 1e6, best, 1e-3 + 1e-6 / min_s):
            builder.mark_invalid(
                f"{best:g} MB/s does not match {moved_bytes:g} bytes in {min_s:g} s, so the line is damaged"
            )
        if min_s < _MIN_KERNEL_TIME_S:
            builder.add_flag(f"{name} took only {min_s:g} s, so the arrays are too small for the clock")
        builder.metrics[f"{name.lower()}_gb_per_s"] = best / 1e3


_NEEDLES = (
    b"STREAM version",
    b"bytes per",
    b"Array size",
    b"Threads counted",
    b"Solution Validates",
    b"Failed Validation",
)

FORMAT = LogFormat(StreamReader, needles=(*_NEEDLES, b"Copy:", b"Scale:", b"Add:", b"Triad:"), max_line_chars=1 << 10)
