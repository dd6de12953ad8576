"""Parser of Intel's Memory Latency Checker (mlc): latencies and bandwidths between NUMA nodes, and peak bandwidths.

MB are 1e6 bytes. Rows are nodes with cores, columns are nodes with memory, so CXL memory is a column without a
row. Latencies are those of random reads only with -e or -r. By default, prefetchers stay active if mlc cannot
disable them, and mlc prints that. A matrix has no end mark; only the exit code of the program shows that it has all
rows.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import (
    LINE_PREFIX,
    F,
    LogFormat,
    LogReader,
    MatrixBuilder,
    ReadingBuilder,
    RunContext,
    list_measured_values,
)

_HEADER = "Intel(R) Memory Latency Checker"
_SECTIONS = {
    "Measuring idle latencies": "idle_latency",
    "Measuring Memory Bandwidths between nodes": "node_bandwidth",
    "Measuring Peak Injection Memory Bandwidths": "peak_bandwidth",
    "Measuring Maximum Memory Bandwidths": "max_bandwidth",
    "Measuring Loaded Latencies": "loaded",
    "Measuring cache-to-cache": "",
}
_UNITS = {"idle_latency": ("ns", 1.0), "node_bandwidth": ("gb_per_s", 1e-3)}
_COLUMN_HEADER = re.compile(r"\s*(?:Numa node|Socket)((?:\s+\d{1,4})+)\s*$")
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+(?:{F}|-))+)\s*$")
_RATIO = re.compile(rf"\s*(ALL Reads|\d:\d Reads-Writes|Stream-triad like)\s*:\s*({F})\s*$")
_LOADED_ROW = re.compile(rf"\s*(\d{{5}})\s+({F})\s+({F})\s*$")
_IDLE_LATENCY = re.compile(rf"Each iteration took\s+{F} (?:core|base frequency) clocks \(\s*({F})\s+ns\)")


class MlcReader(LogReader):
    """Reader of one run of Intel's Memory Latency Checker."""

    def __init__(self) -> None:
        super().__init__()
        self.has_header = False
        self.section = ""
        self.tables: dict[str, MatrixBuilder] = {}
        self.numbers: dict[str, float] = {}
        self.sections_read: set[str] = set()
        self.has_active_prefetchers = False

    def read_line(self, line: str) -> None:
        """Store a row or number of the current section. A section that was already read begins the next test."""
        if _HEADER in line:
            self.has_header, self.section = True, ""
        elif name := next((name for text, name in _SECTIONS.items() if line.startswith(text)), None):
            if name in self.sections_read:
                return self.start_next_test(line)
            self.section = name
            self.sections_read.add(name)
        elif line.startswith("Measuring"):
            self.section = ""
        elif match := _IDLE_LATENCY.match(line):
            if "idle_latency_ns" in self.numbers:
                return self.start_next_test(line)
            self.numbers["idle_latency_ns"] = float(match[1])
        elif "prefetchers" in line and "not" in line:
            self.has_active_prefetchers = True
        elif match := _COLUMN_HEADER.match(line):
            if self.section in _UNITS:
                self.tables[self.section] = MatrixBuilder(_UNITS[self.section][0], tuple(match[1].split()))
        elif match := _RATIO.match(line):
            ratio = re.sub(r"\W+", "_", match[1].lower()).replace("_reads_writes", "")
            if self.section:
                self.numbers[f"{self.section}_{ratio}_gb_per_s"] = float(match[2]) / 1e3
        elif match := _LOADED_ROW.match(line):
            if self.section == "loaded" and match[1] == "00000":
                self.numbers |= {
                    "loaded_latency_ns": float(match[2]),
                    "loaded_bandwidth_gb_per_s": float(match[3]) / 1e3,
                }
        elif (match := _ROW.match(line)) and self.section in self.tables:
            scale = _UNITS[self.section][1]
            cells = [None if cell == "-" else float(cell) * scale for cell in match[2].split()]
            self.tables[self.section].add_row(match[1], cells)
        elif self.section in self.tables and re.match(r"\s*\d{1,4}\s", line):
            self.tables[self.section].is_damaged = True

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the matrices of latencies (ns) and bandwidths (GB/s), and all single numbers."""
        if not self.has_header and not self.sections_read and not self.numbers:
            builder.mark_incomplete("the output is not that of Intel's Memory Latency Checker")
            return
        for name, table in self.tables.items():
            cells = list_measured_values(table.rows)
            if table.is_damaged or not cells:
                builder.mark_incomplete(f"the matrix {name} is damaged or has no rows")
            elif not all(map(math.isfinite, cells)):
                builder.mark_nan(f"the matrix {name} has cells that are not numbers")
            else:
                builder.add_matrix(name, table.build())
        if not all(map(math.isfinite, self.numbers.values())):
            builder.mark_nan("a latency or bandwidth is not a number")
        builder.metrics |= self.numbers
        if not builder.metrics and not self.tables:
            builder.mark_incomplete("the output has no latency and no bandwidth")
        builder.flag_missing_end_mark()
        if self.has_active_prefetchers:
            builder.add_flag("the prefetchers could not be disabled")


FORMAT = LogFormat(
    MlcReader,
    needles=(
        _HEADER.encode(),
        b"Measuring ",
        b"uma node",
        b"Socket",
        b"Reads",
        b"triad like",
        b"Each iteration",
        b"prefetchers",
    ),
    row_pattern=re.compile(rb"\n" + LINE_PREFIX + rb"\d{1,5}[ \t]+[-+\d.nai]"),
    max_line_chars=4 << 10,
)
