"""Horovod's synthetic benchmarks, whichever the framework.

Rank 0 alone prints. Its `Total` is its own rate times the ranks, no measured sum; what follows `+-` is 1.96 standard deviations of
its iterations, no interval of the mean. One decimal is all there is, so that slow devices' rates are coarse.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import Format, LogReader, Scope, Verdict, agree, number

_N = r"(\d+\.\d|nan|inf)(?![\d.])"
_ITERATION = re.compile(rf"Iter #(\d{{1,6}}): {_N} img/sec per (?:GPU|CPU)")
_EACH = re.compile(rf"Img/sec per (?:GPU|CPU): {_N} \+-{_N}")
_TOTAL = re.compile(rf"Total img/sec on (\d{{1,6}}) (?:GPU|CPU)\(s\): {_N} \+-{_N}")
_BATCH = re.compile(r"Batch size: (\d{1,9})\s*$")
_RANKS = re.compile(r"Number of (?:GPU|CPU)s: (\d{1,6})\s*$")
_ROUNDING = 0.051
_COARSE_PER_S = 50.0
_DEVIATIONS = 1.96


class HorovodSynthetic(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.iterations: dict[int, float] = {}
        self.batch: float | None = None
        self.ranks: float | None = None
        self.each: tuple[float, float] | None = None
        self.total: tuple[int, float] | None = None

    def line(self, line: str) -> None:
        if found := _ITERATION.search(line):
            if self.total or int(found[1]) in self.iterations:
                return self.another(line)
            self.iterations[int(found[1])] = float(found[2])
        elif found := _EACH.search(line):
            self.each = float(found[1]), float(found[2])
        elif found := _TOTAL.search(line):
            self.total = int(found[1]), float(found[2])
        elif found := _BATCH.search(line):
            if self.total or self.iterations:
                return self.another(line)
            self.batch = number(found[1])
        elif found := _RANKS.search(line):
            self.ranks = number(found[1])

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        if self.total is None or self.each is None:
            verdict.incomplete("no 'Total img/sec' and 'Img/sec per' in the output")
        else:
            (ranks, total), (each, spread) = self.total, self.each
            if not math.isfinite(total) or not math.isfinite(each):
                verdict.nan("the rate is not a number")
            elif not agree(total, ranks * each, 0, _ROUNDING * (ranks + 1)):
                verdict.invalid(f"the total of {total:g}/s is not that of {ranks} times {each:g}/s")
            mean = sum(self.iterations.values()) / len(self.iterations) if self.iterations else math.nan
            if math.isfinite(mean) and math.isfinite(each) and not agree(mean, each, 0, 2 * _ROUNDING):
                verdict.invalid(f"the iterations' mean of {mean:g}/s is not the printed {each:g}/s")
            verdict.expect("the ranks are", ranks, scope.ranks)
            verdict.flag("the total is rank 0's rate times the ranks, not a measured sum")
            if each < _COARSE_PER_S:
                verdict.flag(f"printed with one decimal: known to {5 / max(each, 0.1):.1f} %")
            verdict.metrics = {"throughput_per_device_per_s": each, "iteration_rate_std_per_s": spread / _DEVIATIONS}
        verdict.expect("the ranks are", self.ranks, scope.ranks)
        verdict.expect("the batch per device is", self.batch, scope.batch)
        return self.total[1] if self.total else None


FORMAT = Format(HorovodSynthetic, needles=(b"mg/sec", b"Batch size: ", b"Number of "))
