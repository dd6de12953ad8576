"""Parser of CUDA's p2pBandwidthLatencyTest, and of bandwidthTest with --csv.

Bidirectional cells are the sum of both directions. The diagonal is masked, because it is a copy inside a device and
is counted twice. Data between devices that cannot access each other is copied through the host, despite the title
`P2P=Enabled`. Latencies are measured by the GPU's clock. There are few repetitions and no warm-up; the program
itself prints that it is not meant for performance measurements.
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
)

_TITLE = re.compile(
    r"\s*(?:(Unidirectional|Bidirectional) P2P=(Disabled|Enabled) Bandwidth.{0,30}Matrix \(GB/s\)"
    r"|P2P=(Disabled|Enabled) Latency.{0,30}Matrix \(us\))\s*$"
)
_COLUMN_HEADER = re.compile(r"\s*(D\\D|GPU|CPU)((?:\s+\d{1,4})+)\s*$")
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+{F})+)\s*$")
_NO_ACCESS = re.compile(r"Device=(\d{1,4}) CANNOT Access Peer Device=(\d{1,4})")
_COPY = re.compile(
    rf"bandwidthTest-(H2D|D2H|D2D)-(\w{{1,20}}), Bandwidth = ({F}) ([GM])B/s, Time = {F} s, Size = (\d{{1,15}}) bytes"
)
_BEGIN = re.compile(r"\[(?:P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|CUDA Bandwidth Test)\]")
_MIN_P2P_RATIO = 0.9


class P2pBandwidthLatencyReader(LogReader):
    """Reader of one run of p2pBandwidthLatencyTest or bandwidthTest."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, MatrixBuilder] = {}
        self.title = ""
        self.table: MatrixBuilder | None = None
        self.blocked_pairs: set[tuple[str, str]] = set()
        self.copies: dict[str, dict[int, float]] = {}
        self.has_end_mark = False

    def read_line(self, line: str) -> None:
        """Store a row of a matrix or a rate of bandwidthTest. A second title or heading begins the next test."""
        if (self.tables or self.copies) and _BEGIN.match(line):
            return self.start_next_test(line)
        if match := _TITLE.match(line):
            self.table, kind = None, match[1].lower() if match[1] else "latency"
            self.title = f"{kind}_p2p_{(match[2] or match[3]).lower()}"
            if self.title in self.tables:
                return self.start_next_test(line)
            # The matrix is incomplete until its rows are read.
            self.unit = "us" if kind == "latency" else "gb_per_s"
            self.tables[self.title] = MatrixBuilder(self.unit, ("0",), is_damaged=True)
        elif match := _COLUMN_HEADER.match(line):
            self.table, columns = None, tuple(match[2].split())
            if self.title and match[1] != "CPU":
                is_damaged = columns != tuple(map(str, range(len(columns))))
                self.table = self.tables[self.title] = MatrixBuilder(self.unit, columns, is_damaged=is_damaged)
        elif match := _ROW.match(line):
            self.add_row(int(match[1]), tuple(float(text) for text in match[2].split()))
        elif "CANNOT Access" in line:
            self.blocked_pairs.update(_NO_ACCESS.findall(line) if len(self.blocked_pairs) < 10_000 else ())
        elif match := _COPY.search(line):
            name, size = f"{match[1].lower()}_{match[2].lower()}", int(match[5])
            if size in self.copies.get(name, {}):
                return self.start_next_test(line)
            self.copies.setdefault(name, {})[size] = float(match[3]) / (1 if match[4] == "G" else 1000)
        elif "Matrix" in line:
            self.table, self.title = None, ""
        elif line.startswith("Result = "):
            self.has_end_mark = True

    def add_row(self, row_index: int, values: tuple[float, ...]) -> None:
        """Add a row to the current matrix, which is marked as damaged if a preceding row is missing."""
        if self.table is not None and not self.table.is_complete:
            # A line may be missing.
            self.table.is_damaged = self.table.is_damaged or row_index != len(self.table.rows)
            self.table.add_row(str(row_index), values)

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the complete matrices and the curves of bandwidthTest."""
        for name, table in self.tables.items():
            if table.is_complete:
                builder.add_matrix(name, table.build(lambda diagonal, _: diagonal))
        if self.copies:
            if not self.has_end_mark:
                builder.flag_missing_end_mark()
            builder.add_flag("NVIDIA withdrew bandwidthTest because its results are inaccurate; use nvbandwidth")
        for name, points in self.copies.items():
            builder.add_curve(name, "gb_per_s", points)
        if self.tables:
            self.check_matrices(builder)
        elif not builder.curves:
            builder.mark_incomplete("the output has no matrix of bandwidths or latencies")
        self.add_flags(builder)

    def check_matrices(self, builder: ReadingBuilder) -> None:
        """Record problems with the matrices, such as missing rows or cells that are not numbers."""
        if damaged_matrices := [name for name, table in self.tables.items() if not table.is_complete]:
            builder.mark_incomplete(f"matrices have missing or damaged rows: {', '.join(damaged_matrices)}")
        elif "latency_p2p_enabled" not in self.tables:
            builder.mark_incomplete("the output ends before the last matrix (P2P=Enabled Latency)")
        elif max(len(table.columns) for table in self.tables.values()) < 2:
            builder.mark_incomplete("a single device has no pair to measure")
        for name, table in self.tables.items():
            rows = enumerate(table.rows)
            if not all(
                math.isfinite(value or 0) for row, cells in rows for column, value in enumerate(cells) if row != column
            ):
                builder.mark_nan(f"the matrix {name} has cells that are not numbers")

    def add_flags(self, builder: ReadingBuilder) -> None:
        """Add flags for pairs without peer access, for sums of both directions, and for pairs that P2P makes slower."""
        if self.blocked_pairs:
            builder.add_flag(
                f"{len(self.blocked_pairs)} pairs cannot access each other, so their P2P=Enabled cells are copies through the host"
            )
        if any(name.startswith("bidirectional") for name in builder.matrices):
            builder.add_flag("bidirectional bandwidths are the sum of both directions")
        for kind in ("unidirectional", "bidirectional"):
            enabled_gb_per_s, disabled_gb_per_s = (
                builder.metrics.get(f"{kind}_p2p_{state}_min_gb_per_s") for state in ("enabled", "disabled")
            )
            if (
                enabled_gb_per_s is not None
                and disabled_gb_per_s is not None
                and enabled_gb_per_s < _MIN_P2P_RATIO * disabled_gb_per_s
            ):
                builder.add_flag(f"{kind}: some pairs are slower with P2P enabled than without")


FORMAT = LogFormat(
    P2pBandwidthLatencyReader,
    needles=(
        b" Matrix",
        b"D\\D",
        b"CANNOT Access",
        b"bandwidthTest-",
        b"Bandwidth Latency Test]",
        b"Bandwidth Test]",
        b"Result = ",
    ),
    row_pattern=re.compile(
        rb"\n" + LINE_PREFIX + rb"(?:[GC]PU[ \t]+0\b|\d{1,4}[ \t]+[-+]?(?:[\d.]+|nan|inf)(?=[ \t\n]))"
    ),
    max_line_chars=16 << 10,
)
