"""Parser of the OSU micro-benchmarks: bandwidth, bidirectional bandwidth, latency, message rate and collectives.

MB are 1e6 bytes. `osu_bw` is one way, `osu_bibw` the sum of both directions, `osu_latency` half a round trip.
The latency of a collective is the mean over ranks; that of a non-blocking collective is its pure communication
time, since the overall time includes computing. There is no end mark: only the exit code of the program shows
that the table is complete.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict

_TITLE = re.compile(r"\s*#? ?OSU (.{3,80}?) Test(?: v\S+)?\s*(?:#.*)?$")
_COLUMNS = re.compile(
    r"\s*#? ?(Size\s+)?(Bandwidth \(MB/s\)|MB/s|(?:Avg )?Latency ?\(us\)|Avg Latency\(us\)|Overall\(us\))"
)
_ROW = re.compile(rf"\s*(\d{{1,15}})((?:\s+{F})+)(?:\s+\[?(Pass|Fail|PASS|FAIL)\]?)?\s*$")
_TORN = re.compile(r"\s*\d{1,15}\s+[-+.\dNni]")
_ALONE = re.compile(rf"\s*({F})((?:\s+{F})*)\s*$")
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
_MOST_SIZES = 10_000


@dataclass
class _Table:
    """Values of one table by message size, or its single value."""

    unit: str
    scale: float
    sized: bool
    column: int = 0
    points: dict[int, float] = field(default_factory=dict)
    alone: float | None = None
    failed: bool = False
    disordered: bool = False


class Osu(LogReader):
    """Reader of one table. Each program of the micro-benchmarks prints one below its title."""

    def __init__(self) -> None:
        super().__init__()
        self.table: _Table | None = None
        self.name = ""

    def line(self, line: str) -> None:
        """Store the title, the column heading or a row. A second title or heading begins the next test."""
        if found := _TITLE.match(line):
            if self.table is not None or self.name:
                return self.another(line)
            self.name = _name(found[1])
        elif found := _COLUMNS.match(line):
            # The same program may continue, for instance with another data type.
            after = self.fresh(self.table is not None)
            after.name = self.name
            bandwidth = "MB/s" in found[2]
            after.table = _Table("gb_per_s" if bandwidth else "us", 1e-3 if bandwidth else 1.0, bool(found[1]))
            after.table.column = _value_column(line)
        elif self.table is not None:
            column = self.table.column
            if self.table.sized:
                if (row := _ROW.match(line)) and len(cells := row[2].split()) > column:
                    self.row(self.table, int(row[1]), float(cells[column]), row[3] or "")
                elif _TORN.match(line):
                    self.leave_out("a row", line)
            elif _ALONE.match(line) and len(cells := line.split()) > column:
                # A second value is from another process.
                self.table.disordered = self.table.alone is not None
                self.table.alone = float(cells[column])

    def row(self, table: _Table, size: int, value: float, check: str) -> None:
        """Store a row of a table, and note a failed validation or sizes that do not grow.

        Args:
            table: table of the row.
            size: message size (bytes).
            value: printed value.
            check: result of the validation, or an empty text.
        """
        table.failed = table.failed or check.lower() == "fail"
        # Sizes always grow, unless several programs print at once.
        table.disordered = table.disordered or (bool(table.points) and size <= max(table.points))
        if len(table.points) < _MOST_SIZES:
            table.points[size] = value * table.scale

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the curve and the metric of the table, or the reason why it does not count."""
        name, table = self.name, self.table
        values = [] if table is None else [*table.points.values(), *([] if table.alone is None else [table.alone])]
        if table is None:
            verdict.incomplete("no table of the OSU micro-benchmarks in the output")
        elif not name:
            verdict.incomplete(
                "a table of the OSU micro-benchmarks without its title: of which program it is nothing says"
            )
        elif not values:
            verdict.incomplete(f"{name}: no row")
        elif not all(map(math.isfinite, values)):
            verdict.nan(f"{name} is not a number")
        else:
            self.take(verdict, table, values)
        self.program = _PROGRAMS.get(name, "")

    def take(self, verdict: Verdict, table: _Table, values: Sequence[float]) -> None:
        """Add the curve of a table, and its latency at the smallest size or its peak bandwidth.

        Args:
            builder: builder of the reading.
            table: table to add.
            values: all values of the table, in its unit.
        """
        name = self.name
        if table.failed:
            verdict.invalid(f"{name}: the validation failed")
        if table.disordered:
            verdict.invalid(f"{name}: sizes are out of order or repeat, so that several programs printed at once")
        verdict.curve(name, table.unit, table.points)
        verdict.settings["message_size"] = min(table.points) if len(table.points) == 1 else None
        if table.unit == "us":
            verdict.metrics[f"{name}_us"] = table.points[min(table.points)] if table.points else table.alone
        else:
            verdict.metrics[f"{name}_peak_gb_per_s"] = max(values)
        if name == "bidirectional_bandwidth":
            verdict.flag("bidirectional bandwidth is the sum of both directions")
        verdict.no_end()


def _value_column(heading: str) -> int:
    """Return the index of the column with the latency or rate, which follows others if the benchmark overlaps computing."""
    before, found, _ = heading.partition("Pure Comm")
    return len(re.findall(r"\((?:us|%)\)", before)) if found else 0


def _name(title: str) -> str:
    """Convert the title of a program to the name of its metric.

    For instance, `MPI-CUDA Bi-Directional Bandwidth` becomes `bidirectional_bandwidth`.
    """
    words = [word for word in re.split(r"[^A-Za-z]+", title) if word.upper() not in ("MPI", "CUDA", "ROCM", "OPENACC")]
    name = "_".join(words).lower().replace("bi_directional", "bidirectional")
    return name or "unnamed"


FORMAT = Format(
    Osu,
    needles=(b"OSU ", b"MB/s", b"(us)"),
    rows=re.compile(rb"\n" + LABEL + rb"(?:\d{1,15}[ \t]+[-+.\dniN][-+.,/\deainfAN]*|\d+\.\d+)(?=[ \t\n])"),
    line_max=1 << 10,
    programs=re.compile(r"osu_\w+"),
    decimals=2,
)
