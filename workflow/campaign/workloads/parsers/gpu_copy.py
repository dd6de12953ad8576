"""Parser of gpu_copy of SuperBench, which copies between host and devices and between devices.

Copies are made by kernels (sm) or copy engines (dma). A line is a name and GB/s (1e9 bytes, unverified). Names
contain the NUMA node that starts the copy. Of several nodes the best counts, as the others cross the host's own
links. Older releases name the device that drives a copy, newer ones the direction (read or write), which is the
same information. It is unverified if `bi` is the sum of both directions. There is no end mark.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, PairMatrix, Scope, Verdict

_PLACE = r"(cpu|gpu\d{1,4})"
_LINE = re.compile(
    rf"{_PLACE}_to_{_PLACE}(?:_(read|write))?_by_(?:gpu(\d{{1,4}})_using_)?(sm|dma)_under_numa(\d{{1,4}})(?:_(uni|bi))? +({F})\s*$"
)
_UNREAD = re.compile(r"((?:cpu|gpu)\S*_under_numa\S*)\s+(.*)")


class GpuCopy(LogReader):
    """Reader of one table of copy rates."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[str, dict[tuple[str, str], float]] = {}
        self.seen: set[tuple[str, str, str, str]] = set()
        self.wrong = False

    def line(self, line: str) -> None:
        """Store the rate of a copy as the best of all NUMA nodes. A copy that was read already begins the next test."""
        if found := _LINE.match(line):
            source, target, verb, driver, way, node, both, text = found.groups()
            rate = float(text)
            kind = "_to_".join("host" if place == "cpu" else "device" for place in (source, target))
            if kind == "device_to_device":
                verb = verb or ("write" if source == f"gpu{driver}" else "read")
                kind = "in_device" if source == target else f"{kind}_{verb}"
            name = f"{kind}_{way}{'_bidirectional' if both == 'bi' else ''}"
            if (name, source, target, node) in self.seen:
                return self.another(line)
            self.seen.add((name, source, target, node))
            self.wrong = self.wrong or not math.isfinite(rate) or rate <= 0
            rates = self.rates.setdefault(name, {})
            rates[source, target] = max(rate, rates.get((source, target), 0.0))
        elif found := _UNREAD.match(line):
            self.leave_out(found[1], found[2])

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add a matrix of rates (GB/s) per kind of copy, from source to target."""
        if not self.rates:
            verdict.incomplete("no line of gpu_copy in the output")
        if self.wrong:
            verdict.nan("a rate is not a number above 0")
            return
        for name, rates in self.rates.items():
            rows = sorted({source for source, _ in rates}, key=_order)
            columns = sorted({target for _, target in rates}, key=_order)
            values = tuple(tuple(rates.get((row, column)) for column in columns) for row in rows)
            verdict.matrix(name, PairMatrix("gb_per_s", tuple(rows), tuple(columns), values))
        verdict.no_end()


def _order(place: str) -> tuple[int, str]:
    """Return the key that sorts the host before the devices, and the devices by number."""
    return len(place), place


FORMAT = Format(GpuCopy, needles=(b"_under_numa",), line_max=1 << 10)
