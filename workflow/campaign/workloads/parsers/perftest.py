"""perftest of linux-rdma: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests.

`MB/sec` are 2^20 bytes, `Gb/sec` (--report_gbits) 1e9 bits; the message rate that is printed beside says which, and a row whose
rate and bandwidth do not belong together is torn. Client and server both print: of two values for a size the smaller bandwidth
and the larger latency count; the server's banner tells the two sides of a test from two tests. The rule below the rows is the
end. Bidirectional tests give the sum.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict, agree

_BANDWIDTH = re.compile(r"\s*#bytes\s+#iterations\s+BW peak\[(MB|MiB|Gb)/sec\]\s+BW average\[(?:MB|MiB|Gb)/sec\]")
_LATENCY = re.compile(r"\s*#bytes\s+#iterations\s+t_min\[usec\]\s+t_max\[usec\]\s+t_typical\[usec\]")
_ROW = re.compile(rf"\s*(\d{{1,15}})\s+(\d{{1,12}})((?:\s+{F}){{2,12}})\s*$")
_TEST = re.compile(r"\s*([\w ]{2,40}) (BW|Latency) Test\s*$")
_QUEUE_PAIRS = re.compile(r"\s*Number of qps\s*: (\d{1,9})\b")
_VERBS = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send"}
_SCALE = {"MB": 2**20 / 1e9, "MiB": 2**20 / 1e9, "Gb": 1 / 8}
_WAITS = "* Waiting for client to connect"
_MOST_SIZES = 10_000


class Perftest(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.kind = ""
        self.scale = 1.0
        self.average: dict[int, float] = {}
        self.peak: dict[int, float] = {}
        self.typical: dict[int, float] = {}
        self.bidirectional = False
        self.twice = False
        self.throttled = False
        self.torn = ""
        self.queue_pairs: float | None = None
        self.servers = self.tables = 0
        self.ended = False

    def line(self, line: str) -> None:
        test = _TEST.match(line)
        program = _program(test) if test else self.program
        heads = _BANDWIDTH.match(line), _LATENCY.match(line)
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
        """Whether a header belongs to this test: it has no row yet, or client and server print one after the other."""
        if not self.average and not self.typical:
            return True
        return program == self.program and self.tables == 1 and self.servers == (0 if waits else 1)

    def row(self, size: int, values: list[float]) -> None:
        if len(self.average) + len(self.typical) >= _MOST_SIZES:
            return
        if self.kind == "bandwidth" and len(values) >= 3:
            peak, average, rate = values[0] * self.scale, values[1] * self.scale, values[2]
            # The last digit of the message rate is worth up to a tenth of it for large messages on slow links.
            if math.isfinite(average) and not agree(rate * 1e6 * size / 1e9, average, 0.01, size * 1e-9 + 1e-5):
                self.torn = f"{size} bytes at {rate:g} Mpps are not {values[1]:g}"
            self.twice = self.twice or size in self.average
            self.average[size] = min(average, self.average.get(size, math.inf)) if math.isfinite(average) else average
            if peak > 0:  # not measured where the test runs for a time
                self.peak[size] = peak
        elif self.kind == "latency" and len(values) >= 4:
            self.twice = self.twice or size in self.typical
            self.typical[size] = max(values[2], self.typical.get(size, 0.0))

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        if not self.average and not self.typical:
            verdict.incomplete("no row of perftest in the output")
        elif not self.ended:
            verdict.no_end()
        if self.torn:
            verdict.invalid(f"a row contradicts itself: {self.torn}")
        verdict.curve("bandwidth", "gb_per_s", self.average)
        verdict.curve("bandwidth_peak", "gb_per_s", self.peak)
        verdict.curve("latency", "us", self.typical)
        if "bandwidth" in verdict.curves:
            verdict.metrics["bandwidth_gb_per_s"] = verdict.curves["bandwidth"].peak
        if "latency" in verdict.curves:
            verdict.metrics["latency_us"] = self.typical[min(self.typical)]
        sizes = self.average.keys() | self.typical.keys()
        verdict.settings |= {"message_size": min(sizes) if len(sizes) == 1 else None, "queue_pairs": self.queue_pairs}
        if self.bidirectional:
            verdict.flag("bidirectional bandwidth is the sum of both directions")
        if self.twice:
            verdict.flag("client and server both printed: the slower counts")
        if self.throttled:
            verdict.flag("perftest says that the CPU's frequency is not at its maximum")


def _program(test: re.Match[str]) -> str:
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
