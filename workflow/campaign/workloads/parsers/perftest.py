"""Parser of perftest of linux-rdma: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests.

`MB/sec` are 2^20 bytes, `Gb/sec` (--report_gbits) 1e9 bits. The message rate printed beside the bandwidth must
match it, otherwise the row is torn. Client and server both print, each below its own heading: of two values for
a size, the smaller bandwidth and the larger latency count. The server's banner distinguishes the two sides of a
test from two tests. More rows of a size than headings are the reports of --run_infinitely, whose mean counts. A
latency test with -D prints a mean latency and no typical one. The rule below the rows is the end mark.
Bidirectional tests give the sum of both directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict, agree

_BANDWIDTH = re.compile(r"\s*#bytes\s+#iterations\s+BW peak\[(MB|MiB|Gb)/sec\]\s+BW average\[(?:MB|MiB|Gb)/sec\]")
_LATENCY = re.compile(r"\s*#bytes\s+#iterations\s+t_min\[usec\]\s+t_max\[usec\]\s+t_typical\[usec\]")
_DURATION = re.compile(r"\s*#bytes\s+#iterations\s+t_avg\[usec\](\s+tps average)?")
_ROW = re.compile(rf"\s*(\d{{1,15}})\s+(\d{{1,12}})((?:\s+{F}){{1,12}})\s*$")
_TEST = re.compile(r"\s*([\w ]{2,40}) (BW|Latency) Test\s*$")
_QUEUE_PAIRS = re.compile(r"\s*Number of qps\s*: (\d{1,9})\b")
_VERBS = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send"}
_SCALE = {"MB": 2**20 / 1e9, "MiB": 2**20 / 1e9, "Gb": 1 / 8}
_WAITS = "* Waiting for client to connect"
_MOST_ROWS = 10_000


class Perftest(LogReader):
    """Reader of one test of perftest, with the output of client, server or both."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = ""
        self.scale = 1.0
        self.average: dict[int, list[float]] = {}
        self.peak: dict[int, list[float]] = {}
        self.typical: dict[int, list[float]] = {}
        self.latency: dict[int, list[float]] = {}
        self.bidirectional = False
        self.throttled = False
        self.torn = ""
        self.queue_pairs: float | None = None
        self.servers = self.tables = 0
        self.ended = False

    def line(self, line: str) -> None:
        """Store a heading, a row or a remark. A heading that cannot belong to this test begins the next one."""
        test = _TEST.match(line)
        program = _program(test) if test else self.program
        heads = _BANDWIDTH.match(line), _LATENCY.match(line), _DURATION.match(line)
        waits = line.lstrip().startswith(_WAITS)
        if (test or waits or any(heads)) and not self.other_side(waits, program):
            return self.another(line)
        if any(heads):
            self.tables += 1
        self.servers += waits
        if found := heads[0]:
            self.kind, self.scale = "bandwidth", _SCALE[found[1]]
        elif heads[1]:
            self.kind = "latency"
        elif heads[2]:
            self.kind = "mean latency with its rate" if heads[2][1] else "mean latency"
        elif row := _ROW.match(line):
            self.ended = False
            self.row(int(row[1]), [float(text) for text in row[3].split()])
        elif test:
            self.program = program
            self.bidirectional = self.bidirectional or "Bidirectional" in line
        elif line.lstrip().startswith("-----"):
            self.ended = True
        elif pairs := _QUEUE_PAIRS.match(line):
            self.queue_pairs = float(pairs[1])
        elif "Conflicting CPU frequency" in line or "CPU Frequency is not max" in line:
            self.throttled = True

    def other_side(self, waits: bool, program: str) -> bool:
        """Return True if a header belongs to this test.

        That is so if the test has no row yet, or if client and server print one after the other.

        Args:
            is_server: True for the banner of a server.
            program: name of the program in the header.
        """
        if not self.average and not self.typical and not self.latency:
            return True
        return program == self.program and self.tables == 1 and self.servers == (0 if waits else 1)

    def row(self, size: int, values: list[float]) -> None:
        """Store a row by the kind of its table, and check that the bandwidth or latency matches the printed rate.

        Args:
            size: message size (bytes).
            values: values of the row, in the units of its table.
        """
        if sum(map(len, (*self.average.values(), *self.typical.values(), *self.latency.values()))) >= _MOST_ROWS:
            return
        if self.kind == "bandwidth" and len(values) >= 3:
            peak, average, rate = values[0] * self.scale, values[1] * self.scale, values[2]
            # For large messages on slow links, the last digit of the message rate is up to a tenth of it.
            if math.isfinite(average) and not agree(rate * 1e6 * size / 1e9, average, 0.01, size * 1e-9 + 1e-5):
                self.torn = f"{size} bytes at {rate:g} Mpps are not {values[1]:g}"
            self.average.setdefault(size, []).append(average)
            if peak > 0:  # not measured if the test runs for a given time
                self.peak.setdefault(size, []).append(peak)
        elif self.kind == "latency" and len(values) >= 4:
            self.typical.setdefault(size, []).append(values[2])
        elif self.kind.startswith("mean latency"):
            mean_us = values[0]
            # A transaction is one way or a round trip.
            per_s = [ways * values[-1] for ways in (1, 2)] if self.kind.endswith("rate") and len(values) == 2 else []
            slack = 0.01 + 0.006 / max(mean_us, 1e-3)
            if per_s and math.isfinite(mean_us) and not any(agree(each * mean_us, 1e6, slack) for each in per_s):
                self.torn = f"{mean_us:g} us are not {values[-1]:g} per second"
            self.latency.setdefault(size, []).append(mean_us)

    def combine(self, reports: Mapping[int, list[float]], slower: Callable[[list[float]], float]) -> dict[int, float]:
        """Return one value per size: the slower of two sides, or the mean of several reports of one side.

        Args:
            reports: values by message size (bytes).
            choose_slower: function that selects the slower value.
        """
        return {
            size: math.nan
            if not all(map(math.isfinite, values))
            else slower(values)
            if len(values) <= self.tables
            else math.fsum(values) / len(values)
            for size, values in reports.items()
        }

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the curves of bandwidth and latency, the peak bandwidth and the latency of the smallest size."""
        rows = {**self.average, **self.typical, **self.latency}
        if not rows:
            verdict.incomplete("no row of perftest in the output")
        elif not self.ended:
            verdict.no_end()
        if self.torn:
            verdict.invalid(f"a row contradicts itself: {self.torn}")
        typical = self.combine(self.typical, max)
        means = self.combine(self.latency, max)
        verdict.curve("bandwidth", "gb_per_s", self.combine(self.average, min))
        verdict.curve("bandwidth_peak", "gb_per_s", self.combine(self.peak, min))
        verdict.curve("latency", "us", typical)
        verdict.curve("latency_mean", "us", means)
        if "bandwidth" in verdict.curves:
            verdict.metrics["bandwidth_gb_per_s"] = verdict.curves["bandwidth"].peak
        if "latency" in verdict.curves:
            verdict.metrics["latency_us"] = typical[min(typical)]
        if "latency_mean" in verdict.curves:
            verdict.metrics["latency_mean_us"] = means[min(means)]
        verdict.settings |= {"message_size": min(rows) if len(rows) == 1 else None, "queue_pairs": self.queue_pairs}
        self.remarks(verdict, max(map(len, rows.values()), default=0))

    def remarks(self, verdict: Verdict, most_rows: int) -> None:
        """Add flags for summed directions, repeated reports, two sides and a low CPU frequency.

        `max_reports` is the largest number of rows of one message size.
        """
        if self.bidirectional:
            verdict.flag("bidirectional bandwidth is the sum of both directions")
        if most_rows > max(self.tables, 1):
            sides = " of both sides" if self.tables > 1 else ""
            verdict.flag(f"{most_rows} reports of one size{sides}, as with --run_infinitely: their mean counts")
        elif most_rows > 1:
            verdict.flag("client and server both printed: the slower counts")
        if self.throttled:
            verdict.flag("perftest says that the CPU's frequency is not at its maximum")


def _program(test: re.Match[str]) -> str:
    """Return the name of the program for a test heading, such as `ib_write_bw`; empty for another heading."""
    verb = _VERBS.get(test[1].split()[0], "")
    return f"ib_{verb}_{'bw' if test[2] == 'BW' else 'lat'}" if verb else ""


FORMAT = Format(
    Perftest,
    needles=(
        b"#bytes",
        b" Test",
        b"Number of qps",
        b"Waiting for client",
        b"-----",
        b"CPU Frequency",
        b"CPU frequency",
    ),
    rows=re.compile(rb"\n" + LABEL + rb"\d{1,15}[ \t]+\d{1,12}[ \t]+[-+\d.naif]+(?=[ \t\n])"),
    line_max=1 << 10,
    programs=re.compile(r"ib_\w+_(?:bw|lat)"),
)
