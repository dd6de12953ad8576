"""Parser of Horovod's synthetic benchmarks for all frameworks.

Only rank 0 prints. Its `Total` is its own rate times the ranks, not a measured sum. The number after `+-` is
1.96 standard deviations of its iterations, not an interval of the mean. Rates have one decimal only, so that
those of slow devices are coarse.
"""

from __future__ import annotations

import math

from campaign.workloads.parsers.reading import Format, LineReader, Scope, Verdict, agree, lines

_N = r"(\d+\.\d|nan|inf)(?![\d.])"
_ROUNDING = 0.051
_COARSE_PER_S = 50.0
_DEVIATIONS = 1.96


class HorovodSynthetic(LineReader):
    """Reader of one run of a Horovod benchmark."""

    LINES = lines(
        iteration=rf".*?Iter #(\d{{1,6}}): {_N} img/sec per (?:GPU|CPU)",
        each=rf".*?Img/sec per (?:GPU|CPU): {_N} \+-{_N}",
        total=rf".*?Total img/sec on (\d{{1,6}}) (?:GPU|CPU)\(s\): {_N} \+-{_N}",
        model=r".*?Model: (\S{1,60})\s*$",
        batch=r".*?Batch size: (\d{1,9})\s*$",
        ranks=r".*?Number of (?:GPU|CPU)s: (\d{1,6})\s*$",
        unread=r".*?(Iter #\d{1,6}|Img/sec per \w+|Total img/sec on \d{1,6} \w+\(s\)): *(.*)",
    )

    def opens(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line is an iteration, rate or batch that cannot follow the lines read so far."""
        if name == "iteration":
            return bool(self.found["total"]) or int(values[0]) <= int((self.last(name) or ("-1",))[0])
        if name == "each" and self.found["total"]:
            return True
        return name == "batch" and bool(self.found["total"] or self.found["iteration"])

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add the rate per device and its standard deviation, and return the total rate (images/s).

        The total must match the ranks times the rate per device, and that rate must match the mean of the iterations.
        """
        totals, of_each = self.last("total"), self.last("each")
        if totals is None or of_each is None:
            verdict.incomplete("no 'Total img/sec' and 'Img/sec per' in the output")
        else:
            ranks, total, each, spread = map(float, (*totals[:2], *of_each))
            if not math.isfinite(total) or not math.isfinite(each):
                verdict.nan("the rate is not a number")
            elif not agree(total, ranks * each, 0, _ROUNDING * (ranks + 1)):
                verdict.invalid(f"the total of {total:g}/s is not that of {ranks:.0f} times {each:g}/s")
            rates = [float(rate) for _, rate in self.found["iteration"]]
            mean = sum(rates) / len(rates) if rates else math.nan
            if math.isfinite(mean) and math.isfinite(each) and not agree(mean, each, 0, 2 * _ROUNDING):
                verdict.invalid(f"the iterations' mean of {mean:g}/s is not the printed {each:g}/s")
            verdict.expect("the ranks are", ranks, scope.ranks)
            verdict.flag("the total is rank 0's rate times the ranks, not a measured sum")
            if each < _COARSE_PER_S:
                verdict.flag(f"printed with one decimal: known to {5 / max(each, 0.1):.1f} %")
            verdict.metrics = {"throughput_per_device_per_s": each, "iteration_rate_std_per_s": spread / _DEVIATIONS}
        verdict.expect("the ranks are", self.number("ranks"), scope.ranks)
        verdict.settings["model"] = (self.last("model") or ("",))[0]
        verdict.expect("the batch per device is", self.number("batch"), scope.batch)
        return float(totals[1]) if totals else None


FORMAT = Format(HorovodSynthetic, needles=(b"mg/sec", b"Batch size: ", b"Number of ", b"Model: "), decimals=1)
