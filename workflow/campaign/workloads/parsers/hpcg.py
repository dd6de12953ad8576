"""HPCG: the summary that it writes to a file `HPCG-Benchmark_<version>_<date>.txt`, and not to its output.

Only a result that HPCG calls VALID counts; it says so of short runs, too, whose rating may be too high or too low: official
ones take 1800 s or more. The rating includes the overheads of convergence and optimization; the raw one (`HPCG 2.4 rating`)
does not. The layout is that of HPCG 3.0 and 3.1; NVIDIA's prints the same lines.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, Reading, Scope, Verdict

_VALID = re.compile(rf"Final Summary::HPCG result is VALID with a GFLOP/s rating of=\s*({F})\s*$")
_VALUE = re.compile(rf"(.{{3,120}}?)=\s*({F})\s*$")
_FAILED = re.compile(r"(.{3,120})::Result=FAILED\s*$")
_BEGIN = "Machine Summary::Distributed Processes"
_TIME = "Final Summary::Results are valid but execution time (sec) is"
_LEAST = "Final Summary::Official results execution time (sec) must be at least"
_TOTAL = "GFLOP/s Summary::Total with convergence and optimization phase overhead"
_BYTES = "GB/s Summary::Raw Total B/W"
_KEYS = (_BEGIN, _TIME, _LEAST, _TOTAL, _BYTES, "Final Summary::HPCG 2.4 rating for historical reasons is")


class Hpcg:
    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.gflops: float | None = None
        self.invalid = False
        self.failed: list[str] = []
        self.values: dict[str, float] = {}

    def feed(self, line: str) -> None:
        if found := _VALID.match(line):
            self.gflops = float(found[1])
        elif line.startswith("Final Summary::HPCG result is INVALID"):
            self.invalid = True
        elif found := _FAILED.match(line):
            self.failed.append(found[1][:60])
        elif (found := _VALUE.match(line)) and found[1] in _KEYS:
            if found[1] == _BEGIN:  # another result begins: the last counts
                self.begin()
            self.values[found[1]] = float(found[2])

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if self.invalid or self.failed:
            verdict.invalid(f"HPCG calls its result invalid{': ' if self.failed else ''}{', '.join(self.failed)}")
        elif self.gflops is None:
            verdict.incomplete(
                "no 'HPCG result is VALID' in the output: HPCG writes it to a file of its own ('result')"
            )
        elif not math.isfinite(self.gflops):
            verdict.nan("the rating is not a number")
        elif self.gflops <= 0 or (total := self.values.get(_TOTAL, self.gflops)) != self.gflops:
            verdict.invalid(f"the rating {self.gflops:g} is not the total with overheads, {total:g}; lines are torn")
        elif _TIME not in self.values:
            verdict.incomplete("the summary ends before the execution time")
        time_s, least_s = self.values.get(_TIME), self.values.get(_LEAST, 1800.0)
        if time_s is not None and time_s < least_s:
            verdict.flag(f"the run took {time_s:g} s, official results take {least_s:g} s or more")
        processes = self.values.get(_BEGIN)
        if scope.ranks is not None and processes is not None and processes != scope.ranks:
            verdict.flag(f"HPCG used {processes:g} processes, the run {scope.ranks} devices")
        verdict.metrics |= {
            "hpcg_gflops": self.gflops,
            "hpcg_raw_gflops": self.values.get(_KEYS[-1]),
            "memory_bandwidth_gb_per_s": self.values.get(_BYTES),
            "execution_time_s": time_s,
        }
        return verdict.reading()


FORMAT = Format(Hpcg, needles=(b"Summary::", b"::Result=FAILED"), line_max=1 << 10)
