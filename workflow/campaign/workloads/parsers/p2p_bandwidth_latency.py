"""Parser of CUDA's p2pBandwidthLatencyTest, and of bandwidthTest with --csv.

Bidirectional cells are the sum of both directions. The diagonal is a copy inside a device, counted twice, and
is masked. Pairs that cannot access each other are copied through the host, in spite of the title `P2P=Enabled`.
Latencies are measured by the GPU's clock. Repetitions are few and without warm-up: the program itself prints
that it is not for performance.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, MatrixRows, Scope, Verdict

_TITLE = re.compile(
    r"\s*(?:(Unidirectional|Bidirectional) P2P=(Disabled|Enabled) Bandwidth.{0,30}Matrix \(GB/s\)"
    r"|P2P=(Disabled|Enabled) Latency.{0,30}Matrix \(us\))\s*$"
)
_HEAD = re.compile(r"\s*(D\\D|GPU|CPU)((?:\s+\d{1,4})+)\s*$")
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+{F})+)\s*$")
_CANNOT = re.compile(r"Device=(\d{1,4}) CANNOT Access Peer Device=(\d{1,4})")
_COPY = re.compile(
    rf"bandwidthTest-(H2D|D2H|D2D)-(\w{{1,20}}), Bandwidth = ({F}) ([GM])B/s, Time = {F} s, Size = (\d{{1,15}}) bytes"
)
_BEGIN = re.compile(r"\[(?:P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|CUDA Bandwidth Test)\]")
_SLOWER = 0.9


class P2pBandwidthLatency(LogReader):
    """Reader of one run of p2pBandwidthLatencyTest or bandwidthTest."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, MatrixRows] = {}
        self.title = ""
        self.table: MatrixRows | None = None
        self.cannot: set[tuple[str, str]] = set()
        self.copies: dict[str, dict[int, float]] = {}
        self.ended = False

    def line(self, line: str) -> None:
        """Store a row of a matrix or a rate of bandwidthTest. A second title or heading begins the next test."""
        if (self.tables or self.copies) and _BEGIN.match(line):
            return self.another(line)
        if found := _TITLE.match(line):
            self.table, kind = None, found[1].lower() if found[1] else "latency"
            self.title = f"{kind}_p2p_{(found[2] or found[3]).lower()}"
            if self.title in self.tables:
                return self.another(line)
            # The matrix is incomplete until its rows are read.
            self.unit = "us" if kind == "latency" else "gb_per_s"
            self.tables[self.title] = MatrixRows(self.unit, ("0",), torn=True)
        elif found := _HEAD.match(line):
            self.table, columns = None, tuple(found[2].split())
            if self.title and found[1] != "CPU":
                torn = columns != tuple(map(str, range(len(columns))))
                self.table = self.tables[self.title] = MatrixRows(self.unit, columns, torn=torn)
        elif found := _ROW.match(line):
            self.row(int(found[1]), tuple(float(text) for text in found[2].split()))
        elif "CANNOT Access" in line:
            self.cannot.update(_CANNOT.findall(line) if len(self.cannot) < 10_000 else ())
        elif found := _COPY.search(line):
            name, size = f"{found[1].lower()}_{found[2].lower()}", int(found[5])
            if size in self.copies.get(name, {}):
                return self.another(line)
            self.copies.setdefault(name, {})[size] = float(found[3]) / (1 if found[4] == "G" else 1000)
        elif "Matrix" in line:
            self.table, self.title = None, ""
        elif line.startswith("Result = "):
            self.ended = True

    def row(self, number: int, values: tuple[float, ...]) -> None:
        """Add a row to the current matrix, which is torn if a row is missing before it."""
        if self.table is not None and not self.table.whole:
            # A line may be missing.
            self.table.torn = self.table.torn or number != len(self.table.rows)
            self.table.add(str(number), values)

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the complete matrices and the curves of bandwidthTest."""
        for name, table in self.tables.items():
            if table.whole:
                verdict.matrix(name, table.matrix(lambda diagonal, _: diagonal))
        if self.copies:
            if not self.ended:
                verdict.no_end()
            verdict.flag("bandwidthTest was withdrawn for inaccurate results; nvbandwidth takes its place")
        for name, points in self.copies.items():
            verdict.curve(name, "gb_per_s", points)
        if self.tables:
            self.check(verdict)
        elif not verdict.curves:
            verdict.incomplete("no matrix of bandwidths or latencies in the output")
        self.remarks(verdict)

    def check(self, verdict: Verdict) -> None:
        """Record the problems of the matrices, such as missing rows or cells that are not a number."""
        if torn := [name for name, table in self.tables.items() if not table.whole]:
            verdict.incomplete(f"matrices with rows missing or torn: {', '.join(torn)}")
        elif "latency_p2p_enabled" not in self.tables:
            verdict.incomplete("the output ends before the last matrix, P2P=Enabled Latency")
        elif max(len(table.columns) for table in self.tables.values()) < 2:
            verdict.incomplete("one device: there is no pair to measure")
        for name, table in self.tables.items():
            rows = enumerate(table.rows)
            if not all(math.isfinite(v or 0) for row, cells in rows for column, v in enumerate(cells) if row != column):
                verdict.nan(f"{name} has cells that are not a number")

    def remarks(self, verdict: Verdict) -> None:
        """Add flags for pairs without peer access, summed directions, and pairs that P2P makes slower."""
        if self.cannot:
            verdict.flag(
                f"{len(self.cannot)} pairs cannot access each other: their P2P=Enabled cells are copies through the host"
            )
        if any(name.startswith("bidirectional") for name in verdict.matrices):
            verdict.flag("bidirectional cells are the sum of both directions")
        for kind in ("unidirectional", "bidirectional"):
            enabled, disabled = (verdict.metrics.get(f"{kind}_p2p_{s}_min_gb_per_s") for s in ("enabled", "disabled"))
            if enabled is not None and disabled is not None and enabled < _SLOWER * disabled:
                verdict.flag(f"{kind}: some pairs are slower with P2P enabled than without")


FORMAT = Format(
    P2pBandwidthLatency,
    needles=(
        b" Matrix",
        b"D\\D",
        b"CANNOT Access",
        b"bandwidthTest-",
        b"Bandwidth Latency Test]",
        b"Bandwidth Test]",
        b"Result = ",
    ),
    rows=re.compile(rb"\n" + LABEL + rb"(?:[GC]PU[ \t]+0\b|\d{1,4}[ \t]+[-+]?(?:[\d.]+|nan|inf)(?=[ \t\n]))"),
    line_max=16 << 10,
)
