"""Parser of Intel's Memory Latency Checker (mlc): latencies and bandwidths between NUMA nodes, and peak bandwidths.

MB are 1e6 bytes. Rows are nodes with cores, columns are nodes with memory: memory behind CXL is a column
without a row. Latencies are random reads only with -e or -r. By default prefetchers take part if mlc cannot
switch them off, and mlc prints that. A matrix has no end mark: only the exit code of the program shows that all
rows are there.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, MatrixRows, Scope, Verdict, pairs

_BEGIN = "Intel(R) Memory Latency Checker"
_SECTIONS = {
    "Measuring idle latencies": "idle_latency",
    "Measuring Memory Bandwidths between nodes": "node_bandwidth",
    "Measuring Peak Injection Memory Bandwidths": "peak_bandwidth",
    "Measuring Maximum Memory Bandwidths": "max_bandwidth",
    "Measuring Loaded Latencies": "loaded",
    "Measuring cache-to-cache": "",
}
_UNITS = {"idle_latency": ("ns", 1.0), "node_bandwidth": ("gb_per_s", 1e-3)}
_HEAD = re.compile(r"\s*(?:Numa node|Socket)((?:\s+\d{1,4})+)\s*$")
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+(?:{F}|-))+)\s*$")
_RATIO = re.compile(rf"\s*(ALL Reads|\d:\d Reads-Writes|Stream-triad like)\s*:\s*({F})\s*$")
_LOADED = re.compile(rf"\s*(\d{{5}})\s+({F})\s+({F})\s*$")
_IDLE = re.compile(rf"Each iteration took\s+{F} (?:core|base frequency) clocks \(\s*({F})\s+ns\)")


class Mlc(LogReader):
    """Reader of one run of Intel's Memory Latency Checker."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self.section = ""
        self.tables: dict[str, MatrixRows] = {}
        self.numbers: dict[str, float] = {}
        self.begun: set[str] = set()
        self.prefetchers = False

    def line(self, line: str) -> None:
        """Store a row or number of the current section. A section that was read already begins the next test."""
        if _BEGIN in line:
            self.seen, self.section = True, ""
        elif name := next((name for text, name in _SECTIONS.items() if line.startswith(text)), None):
            if name in self.begun:
                return self.another(line)
            self.section = name
            self.begun.add(name)
        elif line.startswith("Measuring"):
            self.section = ""
        elif found := _IDLE.match(line):
            if "idle_latency_ns" in self.numbers:
                return self.another(line)
            self.numbers["idle_latency_ns"] = float(found[1])
        elif "prefetchers" in line and "not" in line:
            self.prefetchers = True
        elif found := _HEAD.match(line):
            if self.section in _UNITS:
                self.tables[self.section] = MatrixRows(_UNITS[self.section][0], tuple(found[1].split()))
        elif found := _RATIO.match(line):
            ratio = re.sub(r"\W+", "_", found[1].lower()).replace("_reads_writes", "")
            if self.section:
                self.numbers[f"{self.section}_{ratio}_gb_per_s"] = float(found[2]) / 1e3
        elif found := _LOADED.match(line):
            if self.section == "loaded" and found[1] == "00000":
                self.numbers |= {
                    "loaded_latency_ns": float(found[2]),
                    "loaded_bandwidth_gb_per_s": float(found[3]) / 1e3,
                }
        elif (found := _ROW.match(line)) and self.section in self.tables:
            scale = _UNITS[self.section][1]
            cells = [None if cell == "-" else float(cell) * scale for cell in found[2].split()]
            self.tables[self.section].add(found[1], cells)
        elif self.section in self.tables and re.match(r"\s*\d{1,4}\s", line):
            self.tables[self.section].torn = True

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the matrices of latency (ns) and bandwidth (GB/s) and the single numbers."""
        if not self.seen and not self.begun and not self.numbers:
            verdict.incomplete("no output of Intel's Memory Latency Checker")
            return
        for name, table in self.tables.items():
            cells = pairs(table.rows)
            if table.torn or not cells:
                verdict.incomplete(f"the matrix {name} is torn or has no row")
            elif not all(map(math.isfinite, cells)):
                verdict.nan(f"{name} has cells that are not a number")
            else:
                verdict.matrix(name, table.matrix())
        if not all(map(math.isfinite, self.numbers.values())):
            verdict.nan("a latency or bandwidth is not a number")
        verdict.metrics |= self.numbers
        if not verdict.metrics and not self.tables:
            verdict.incomplete("no latency or bandwidth in the output")
        verdict.no_end()
        if self.prefetchers:
            verdict.flag("prefetchers could not be switched off")


FORMAT = Format(
    Mlc,
    needles=(
        _BEGIN.encode(),
        b"Measuring ",
        b"uma node",
        b"Socket",
        b"Reads",
        b"triad like",
        b"Each iteration",
        b"prefetchers",
    ),
    rows=re.compile(rb"\n" + LABEL + rb"\d{1,5}[ \t]+[-+\d.nai]"),
    line_max=4 << 10,
)
