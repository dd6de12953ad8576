"""Parser of the OSU micro-benchmarks: bandwidth, bidirectional bandwidth, latency, message rate and collectives.

MB are 1e6 bytes. `osu_bw` measures one direction, `osu_bibw` the sum of both directions, `osu_latency` half a round
trip. The latency of a collective is the mean over ranks; that of a non-blocking collective is its pure communication
time, because the overall time includes computation. There is no end mark; only the exit code of the program shows
that the table is complete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from campaign.workloads.parsers.reading import LINE_PREFIX, F, LogFormat, LogReader, ReadingBuilder, RunContext

_TITLE = re.compile(r"\s*#? ?OSU (.{3,80}?) Test(?: v\S+)?\s*(?:#.*)?$")
_COLUMNS = re.compile(
    r"\s*#? ?(Size\s+)?(Bandwidth \(MB/s\)|MB/s|(?:Avg )?Latency ?\(us\)|Avg Latency\(us\)|Overall\(us\))"
)
_ROW = re.compile(rf"\s*(\d{{1,15}})((?:\s+{F})+)(?:\s+\[?(Pass|Fail|PASS|FAIL)\]?)?\s*$")
_UNREADABLE_ROW = re.compile(r"\s*\d{1,15}\s+[-+.\dNni]")
_SINGLE_ROW = re.compile(rf"\s*({F})((?:\s+{F})*)\s*$")
_PROGRAMS = {
    "latency": "osu_latency",
    "bandwidth": "osu_bw",
    "bidirectional_bandwidth": "osu_bibw",
    "multiple_bandwidth_message_rate": "osu_mbw_mr",
    "multi_latency": "osu_multi_lat",
    "broadcast_latency": "osu_bcast",
    "reduce_latency": "osu_reduce",
    "allreduce_latency": "osu_allreduce",
    "reduce_scatter_latency": "osu_reduce_scatter",
    "allgather_latency": "osu_allgather",
    "gather_latency": "osu_gather",
    "scatter_latency": "osu_scatter",
    "all_to_all_personalized_exchange_latency": "osu_alltoall",
    "barrier_latency": "osu_barrier",
}
_MAX_SIZES = 10_000


@dataclass
class _ResultTable:
    """Values of one table by message size, or its only value."""

    unit: str
    scale: float
    has_sizes: bool
    column: int = 0
    points: dict[int, float] = field(default_factory=dict)
    single_value: float | None = None
    has_failed: bool = False
    is_disordered: bool = False


class OsuReader(LogReader):
    """Reader of one result table. Each micro-benchmark prints one below its title."""

    def __init__(self) -> None:
        super().__init__()
        self.table: _ResultTable | None = None
        self.name = ""

    def read_line(self, line: str) -> None:
        """Store the title, the column heading or a row. A second title or heading begins the next test."""
        if match := _TITLE.match(line):
            if self.table is not None or self.name:
                return self.start_next_test(line)
            self.name = _make_metric_name(match[1])
        elif match := _COLUMNS.match(line):
            # The same program may continue, for instance with another data type.
            reader = self.select_reader(self.table is not None)
            reader.name = self.name
            bandwidth = "MB/s" in match[2]
            reader.table = _ResultTable("gb_per_s" if bandwidth else "us", 1e-3 if bandwidth else 1.0, bool(match[1]))
            reader.table.column = _find_value_column(line)
        elif self.table is not None:
            column = self.table.column
            if self.table.has_sizes:
                if (row := _ROW.match(line)) and len(cells := row[2].split()) > column:
                    self.store_row(self.table, int(row[1]), float(cells[column]), row[3] or "")
                elif _UNREADABLE_ROW.match(line):
                    self.note_unreadable("a row", line)
            elif _SINGLE_ROW.match(line) and len(cells := line.split()) > column:
                # A second value is from another process.
                self.table.is_disordered = self.table.single_value is not None
                self.table.single_value = float(cells[column])

    def store_row(self, table: _ResultTable, size: int, value: float, check: str) -> None:
        """Store a row of a table, and note if its validation failed or sizes do not increase.

        Args:
            table: table that the row belongs to.
            size: message size (bytes).
            value: printed value.
            check: result of the validation, or an empty string if there is none.
        """
        table.has_failed = table.has_failed or check.lower() == "fail"
        # Sizes always grow, unless several programs print at once.
        table.is_disordered = table.is_disordered or (bool(table.points) and size <= max(table.points))
        if len(table.points) < _MAX_SIZES:
            table.points[size] = value * table.scale

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the curve and the metric of the table, or the reason why it does not count."""
        name, table = self.name, self.table
        values = (
            []
            if table is None
            else [*table.points.values(), *([] if table.single_value is None else [table.single_value])]
        )
        if table is None:
            builder.mark_incomplete("the output has no table of the OSU micro-benchmarks")
        elif not name:
            builder.mark_incomplete(
                "the title of the table is missing, so the OSU micro-benchmark that printed it is unknown"
            )
        elif not values:
            builder.mark_incomplete(f"the table of {name} has no rows")
        elif not all(map(math.isfinite, values)):
            builder.mark_nan(f"a value of {name} is not a number")
        else:
            self.add_table(builder, table, values)
        self.program = _PROGRAMS.get(name, "")

    def add_table(self, builder: ReadingBuilder, table: _ResultTable, values: Sequence[float]) -> None:
        """Add the curve of a table and, as a metric, its latency at the smallest size or its peak bandwidth."""
        name = self.name
        if table.has_failed:
            builder.mark_invalid(f"{name}: the validation failed")
        if table.is_disordered:
            builder.mark_invalid(f"{name}: sizes are out of order or repeated, so several programs printed at once")
        builder.add_curve(name, table.unit, table.points)
        builder.settings["message_size"] = min(table.points) if len(table.points) == 1 else None
        if table.unit == "us":
            builder.metrics[f"{name}_us"] = table.points[min(table.points)] if table.points else table.single_value
        else:
            builder.metrics[f"{name}_peak_gb_per_s"] = max(values)
        if name == "bidirectional_bandwidth":
            builder.add_flag("bidirectional bandwidth is the sum of both directions")
        builder.flag_missing_end_mark()


def _find_value_column(heading: str) -> int:
    """Find the column with the latency or rate. It follows others if the benchmark overlaps it with computing."""
    before, separator, _ = heading.partition("Pure Comm")
    return len(re.findall(r"\((?:us|%)\)", before)) if separator else 0


def _make_metric_name(title: str) -> str:
    """Convert the title of a program to the name of its metric.

    For instance, `MPI-CUDA Bi-Directional Bandwidth` becomes `bidirectional_bandwidth`.
    """
    words = [word for word in re.split(r"[^A-Za-z]+", title) if word.upper() not in ("MPI", "CUDA", "ROCM", "OPENACC")]
    name = "_".join(words).lower().replace("bi_directional", "bidirectional")
    return name or "unnamed"


FORMAT = LogFormat(
    OsuReader,
    needles=(b"OSU ", b"MB/s", b"(us)"),
    row_pattern=re.compile(
        rb"\n" + LINE_PREFIX + rb"(?:\d{1,15}[ \t]+[-+.\dniN][-+.,/\deainfAN]*|\d+\.\d+)(?=[ \t\n])"
    ),
    max_line_chars=1 << 10,
    program_pattern=re.compile(r"osu_\w+"),
    decimals=2,
)
