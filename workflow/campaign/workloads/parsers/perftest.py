"""perftest of linux-rdma: ib_write_bw, ib_read_bw, ib_send_bw and their latency tests.

`MB/sec` are 2^20 bytes, `Gb/sec` (--report_gbits) 1e9 bits; the message rate that is printed beside says which, and a row whose
rate and bandwidth do not belong together is torn. Client and server both print: of two values for a size the smaller bandwidth and
the larger latency count. Bidirectional tests give the sum.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import LABEL, F, Format, Reading, Scope, Verdict, agree

_BANDWIDTH = re.compile(r"\s*#bytes\s+#iterations\s+BW peak\[(MB|MiB|Gb)/sec\]\s+BW average\[(?:MB|MiB|Gb)/sec\]")
_LATENCY = re.compile(r"\s*#bytes\s+#iterations\s+t_min\[usec\]\s+t_max\[usec\]\s+t_typical\[usec\]")
_ROW = re.compile(rf"\s*(\d{{1,15}})\s+(\d{{1,12}})((?:\s+{F}){{2,12}})\s*$")
_TEST = re.compile(r"\s*([\w ]{2,40}) (BW|Latency) Test\s*$")
_VERBS = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send"}
_SCALE = {"MB": 2**20 / 1e9, "MiB": 2**20 / 1e9, "Gb": 1 / 8}
_MOST_SIZES = 10_000


class Perftest:
    def __init__(self) -> None:
        self.kind = ""
        self.program = ""
        self.scale = 1.0
        self.average: dict[int, float] = {}
        self.peak: dict[int, float] = {}
        self.typical: dict[int, float] = {}
        self.bidirectional = False
        self.twice = False
        self.throttled = False
        self.torn = ""

    def feed(self, line: str) -> None:
        if found := _BANDWIDTH.match(line):
            self.kind, self.scale = "bandwidth", _SCALE[found[1]]
        elif _LATENCY.match(line):
            self.kind = "latency"
        elif row := _ROW.match(line):
            self.row(int(row[1]), [float(text) for text in row[3].split()])
        elif found := _TEST.match(line):
            verb = _VERBS.get(found[1].split()[0], "")
            self.program = f"ib_{verb}_{'bw' if found[2] == 'BW' else 'lat'}" if verb else ""
            self.bidirectional = self.bidirectional or "Bidirectional" in line
        elif "Conflicting CPU frequency" in line or "CPU Frequency is not max" in line:
            self.throttled = True

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

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if not self.average and not self.typical:
            verdict.incomplete("no row of perftest in the output")
        if self.torn:
            verdict.invalid(f"a row contradicts itself: {self.torn}")
        verdict.curve("bandwidth", "gb_per_s", self.average)
        verdict.curve("bandwidth_peak", "gb_per_s", self.peak)
        verdict.curve("latency", "us", self.typical)
        if "bandwidth" in verdict.curves:
            verdict.metrics["bandwidth_gb_per_s"] = verdict.curves["bandwidth"].peak
        if "latency" in verdict.curves:
            verdict.metrics["latency_us"] = self.typical[min(self.typical)]
        if self.bidirectional:
            verdict.flag("bidirectional bandwidth is the sum of both directions")
        if self.twice:
            verdict.flag("client and server both printed: the slower counts")
        if self.throttled:
            verdict.flag("perftest says that the CPU's frequency is not at its maximum")
        return verdict.reading(program=self.program)


FORMAT = Format(
    Perftest,
    needles=(b"#bytes", b" Test", b"CPU Frequency", b"CPU frequency"),
    rows=re.compile(rb"\n" + LABEL + rb"\d{1,15}[ \t]+\d{1,12}[ \t]+[-+\d.naif]+(?=[ \t\n])"),
    line_max=1 << 10,
    programs=re.compile(r"ib_\w+_(?:bw|lat)"),
)
