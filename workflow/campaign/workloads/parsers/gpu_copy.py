"""Parser of gpu_copy of SuperBench, which copies between host and devices and between devices.

Copies are made by kernels (sm) or copy engines (dma). A line consists of a name and GB/s (1e9 bytes, unverified).
Names contain the NUMA node that starts the copy. Of several nodes, the best counts, because copies from the others
cross the links inside the host. Older releases print the device that drives a copy, newer ones the direction (read
or write), which is the same information. It is unverified whether `bi` is the sum of both directions. There is no
end mark.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, LogFormat, LogReader, PairMatrix, ReadingBuilder, RunContext

_PLACE = r"(cpu|gpu\d{1,4})"
_LINE = re.compile(
    rf"{_PLACE}_to_{_PLACE}(?:_(read|write))?_by_(?:gpu(\d{{1,4}})_using_)?(sm|dma)_under_numa(\d{{1,4}})(?:_(uni|bi))? +({F})\s*$"
)
_UNREAD = re.compile(r"((?:cpu|gpu)\S*_under_numa\S*)\s+(.*)")


class GpuCopyReader(LogReader):
    """Reader of one table of copy rates printed by gpu_copy."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[str, dict[tuple[str, str], float]] = {}
        self.parsed_copies: set[tuple[str, str, str, str]] = set()
        self.has_invalid_rate = False

    def read_line(self, line: str) -> None:
        """Store the rate of a copy if it is the best of all NUMA nodes so far. A copy seen before begins the next test."""
        if match := _LINE.match(line):
            source, target, verb, driver, engine, node, direction_mode, text = match.groups()
            rate = float(text)
            kind = "_to_".join("host" if endpoint == "cpu" else "device" for endpoint in (source, target))
            if kind == "device_to_device":
                verb = verb or ("write" if source == f"gpu{driver}" else "read")
                kind = "in_device" if source == target else f"{kind}_{verb}"
            name = f"{kind}_{engine}{'_bidirectional' if direction_mode == 'bi' else ''}"
            if (name, source, target, node) in self.parsed_copies:
                return self.start_next_test(line)
            self.parsed_copies.add((name, source, target, node))
            self.has_invalid_rate = self.has_invalid_rate or not math.isfinite(rate) or rate <= 0
            rates = self.rates.setdefault(name, {})
            rates[source, target] = max(rate, rates.get((source, target), 0.0))
        elif match := _UNREAD.match(line):
            self.note_unreadable(match[1], match[2])

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add one matrix of rates (GB/s) from source to target for each kind of copy."""
        if not self.rates:
            builder.mark_incomplete("the output has no result of gpu_copy")
        if self.has_invalid_rate:
            builder.mark_nan("a rate is not a positive number")
            return
        for name, rates in self.rates.items():
            rows = sorted({source for source, _ in rates}, key=_make_endpoint_sort_key)
            columns = sorted({target for _, target in rates}, key=_make_endpoint_sort_key)
            values = tuple(tuple(rates.get((row, column)) for column in columns) for row in rows)
            builder.add_matrix(name, PairMatrix("gb_per_s", tuple(rows), tuple(columns), values))
        builder.flag_missing_end_mark()


def _make_endpoint_sort_key(endpoint: str) -> tuple[int, str]:
    """Build a sort key that puts the host before the devices, and sorts the devices by number."""
    return len(endpoint), endpoint


FORMAT = LogFormat(GpuCopyReader, needles=(b"_under_numa",), max_line_chars=1 << 10)
