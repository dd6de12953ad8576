"""Parser of perftest of linux-rdma: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests.

`MB/sec` are 2^20 bytes/s, `Gb/sec` (--report_gbits) 1e9 bits/s. The printed message rate must match the
bandwidth in the same row; otherwise the row is damaged. Client and server both print, each below its own heading.
Of two values for a size, the smaller bandwidth and the larger latency count. The server's banner distinguishes
the two sides of a test from two tests. If a size has more rows than headings, they are the reports of
--run_infinitely, whose mean counts. A latency test with -D prints a mean latency and no typical one. The rule
below the rows is the end mark. Bidirectional tests report the sum of both directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from campaign.workloads.parsers.reading import (
    LINE_PREFIX,
    F,
    LogFormat,
    LogReader,
    ReadingBuilder,
    RunContext,
    is_close,
)

_BANDWIDTH = re.compile(r"\s*#bytes\s+#iterations\s+BW peak\[(MB|MiB|Gb)/sec\]\s+BW average\[(?:MB|MiB|Gb)/sec\]")
_LATENCY = re.compile(r"\s*#bytes\s+#iterations\s+t_min\[usec\]\s+t_max\[usec\]\s+t_typical\[usec\]")
_DURATION = re.compile(r"\s*#bytes\s+#iterations\s+t_avg\[usec\](\s+tps average)?")
_ROW = re.compile(rf"\s*(\d{{1,15}})\s+(\d{{1,12}})((?:\s+{F}){{1,12}})\s*$")
_TEST = re.compile(r"\s*([\w ]{2,40}) (BW|Latency) Test\s*$")
_QUEUE_PAIRS = re.compile(r"\s*Number of qps\s*: (\d{1,9})\b")
_VERBS = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send"}
_GB_PER_UNIT = {"MB": 2**20 / 1e9, "MiB": 2**20 / 1e9, "Gb": 1 / 8}
_SERVER_BANNER = "* Waiting for client to connect"
_MAX_ROWS = 10_000


class PerftestReader(LogReader):
    """Reader of one test of perftest, with the output of client, server or both."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""
        self.scale = 1.0
        self.average_gb_per_s: dict[int, list[float]] = {}
        self.peak_gb_per_s: dict[int, list[float]] = {}
        self.typical_us: dict[int, list[float]] = {}
        self.mean_us: dict[int, list[float]] = {}
        self.is_bidirectional = False
        self.is_throttled = False
        self.inconsistency = ""
        self.queue_pairs: float | None = None
        self.server_count = self.table_count = 0
        self.has_end_mark = False

    def read_line(self, line: str) -> None:
        """Store a heading, a row or a remark. A heading that cannot belong to this test begins the next one."""
        test = _TEST.match(line)
        program = _make_program_name(test) if test else self.program
        header_matches = _BANDWIDTH.match(line), _LATENCY.match(line), _DURATION.match(line)
        is_server = line.lstrip().startswith(_SERVER_BANNER)
        if (test or is_server or any(header_matches)) and not self.belongs_to_test(is_server, program):
            return self.start_next_test(line)
        if any(header_matches):
            self.table_count += 1
        self.server_count += is_server
        if match := header_matches[0]:
            self.kind, self.scale = "bandwidth", _GB_PER_UNIT[match[1]]
        elif header_matches[1]:
            self.kind = "latency"
        elif header_matches[2]:
            self.kind = "mean latency with its rate" if header_matches[2][1] else "mean latency"
        elif row := _ROW.match(line):
            self.has_end_mark = False
            self.store_row(int(row[1]), [float(text) for text in row[3].split()])
        elif test:
            self.program = program
            self.is_bidirectional = self.is_bidirectional or "Bidirectional" in line
        elif line.lstrip().startswith("-----"):
            self.has_end_mark = True
        elif pairs := _QUEUE_PAIRS.match(line):
            self.queue_pairs = float(pairs[1])
        elif "Conflicting CPU frequency" in line or "CPU Frequency is not max" in line:
            self.is_throttled = True

    def belongs_to_test(self, is_server: bool, program: str) -> bool:
        """Return True if a header belongs to this test.

        That is so if the test has no row yet, or if client and server print one after the other.
        """
        if not self.average_gb_per_s and not self.typical_us and not self.mean_us:
            return True
        return program == self.program and self.table_count == 1 and self.server_count == (0 if is_server else 1)

    def store_row(self, size: int, values: list[float]) -> None:
        """Store a row by the kind of its table, and check that the bandwidth or latency matches the printed rate.

        Args:
            size: message size (bytes).
            values: values of the row, in the units of its table.
        """
        if (
            sum(map(len, (*self.average_gb_per_s.values(), *self.typical_us.values(), *self.mean_us.values())))
            >= _MAX_ROWS
        ):
            return
        if self.kind == "bandwidth" and len(values) >= 3:
            peak, average, rate = values[0] * self.scale, values[1] * self.scale, values[2]
            # For large messages on slow links, the last digit of the message rate is up to a tenth of it.
            if math.isfinite(average) and not is_close(rate * 1e6 * size / 1e9, average, 0.01, size * 1e-9 + 1e-5):
                self.inconsistency = f"a bandwidth of {values[1]:g} does not match {size} bytes at {rate:g} Mpps"
            self.average_gb_per_s.setdefault(size, []).append(average)
            if peak > 0:  # not measured if the test runs for a given time
                self.peak_gb_per_s.setdefault(size, []).append(peak)
        elif self.kind == "latency" and len(values) >= 4:
            self.typical_us.setdefault(size, []).append(values[2])
        elif self.kind.startswith("mean latency"):
            mean_us = values[0]
            # A transaction is one way or a round trip.
            per_s = [ways * values[-1] for ways in (1, 2)] if self.kind.endswith("rate") and len(values) == 2 else []
            tolerance = 0.01 + 0.006 / max(mean_us, 1e-3)
            if (
                per_s
                and math.isfinite(mean_us)
                and not any(is_close(transactions_per_s * mean_us, 1e6, tolerance) for transactions_per_s in per_s)
            ):
                self.inconsistency = f"{values[-1]:g} per second does not match {mean_us:g} us"
            self.mean_us.setdefault(size, []).append(mean_us)

    def combine_reports(
        self, reports: Mapping[int, list[float]], choose_slower: Callable[[list[float]], float]
    ) -> dict[int, float]:
        """Return one value per size: the slower of two sides, or the mean of several reports of one side.

        Args:
            reports: values by message size (bytes).
            choose_slower: function that selects the slower value.
        """
        return {
            size: math.nan
            if not all(map(math.isfinite, values))
            else choose_slower(values)
            if len(values) <= self.table_count
            else math.fsum(values) / len(values)
            for size, values in reports.items()
        }

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the curves of bandwidth and latency, the peak bandwidth and the latency of the smallest size."""
        rows = {**self.average_gb_per_s, **self.typical_us, **self.mean_us}
        if not rows:
            builder.mark_incomplete("the output has no result row of perftest")
        elif not self.has_end_mark:
            builder.flag_missing_end_mark()
        if self.inconsistency:
            builder.mark_invalid(f"a row is inconsistent: {self.inconsistency}")
        typical = self.combine_reports(self.typical_us, max)
        means = self.combine_reports(self.mean_us, max)
        builder.add_curve("bandwidth", "gb_per_s", self.combine_reports(self.average_gb_per_s, min))
        builder.add_curve("bandwidth_peak", "gb_per_s", self.combine_reports(self.peak_gb_per_s, min))
        builder.add_curve("latency", "us", typical)
        builder.add_curve("latency_mean", "us", means)
        if "bandwidth" in builder.curves:
            builder.metrics["bandwidth_gb_per_s"] = builder.curves["bandwidth"].peak
        if "latency" in builder.curves:
            builder.metrics["latency_us"] = typical[min(typical)]
        if "latency_mean" in builder.curves:
            builder.metrics["latency_mean_us"] = means[min(means)]
        builder.settings |= {"message_size": min(rows) if len(rows) == 1 else None, "queue_pairs": self.queue_pairs}
        self.add_flags(builder, max(map(len, rows.values()), default=0))

    def add_flags(self, builder: ReadingBuilder, max_reports: int) -> None:
        """Add flags for summed directions, repeated reports, two sides and a low CPU frequency.

        `max_reports` is the largest number of rows of one message size.
        """
        if self.is_bidirectional:
            builder.add_flag("bidirectional bandwidth is the sum of both directions")
        if max_reports > max(self.table_count, 1):
            sides = " of both sides" if self.table_count > 1 else ""
            builder.add_flag(f"the mean of {max_reports} reports{sides} per size counts, as with --run_infinitely")
        elif max_reports > 1:
            builder.add_flag("client and server both printed results; the slower result counts")
        if self.is_throttled:
            builder.add_flag("perftest reports that the CPU frequency is not at its maximum")


def _make_program_name(test: re.Match[str]) -> str:
    """Return the name of the program for a test heading, such as `ib_write_bw`; empty for another heading."""
    verb = _VERBS.get(test[1].split()[0], "")
    return f"ib_{verb}_{'bw' if test[2] == 'BW' else 'lat'}" if verb else ""


FORMAT = LogFormat(
    PerftestReader,
    needles=(
        b"#bytes",
        b" Test",
        b"Number of qps",
        b"Waiting for client",
        b"-----",
        b"CPU Frequency",
        b"CPU frequency",
    ),
    row_pattern=re.compile(rb"\n" + LINE_PREFIX + rb"\d{1,15}[ \t]+\d{1,12}[ \t]+[-+\d.naif]+(?=[ \t\n])"),
    max_line_chars=1 << 10,
    program_pattern=re.compile(r"ib_\w+_(?:bw|lat)"),
)
