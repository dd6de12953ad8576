"""Parser of Horovod's synthetic benchmarks for all frameworks.

Only rank 0 prints. Its `Total` is its own rate times the number of ranks, not a measured sum. The number after
`+-` is 1.96 standard deviations of its iterations, not a confidence interval of the mean. Rates have one decimal
only, so the rates of slow devices are coarse.
"""

from __future__ import annotations

import math

from campaign.workloads.parsers.reading import (
    LineReader,
    LogFormat,
    ReadingBuilder,
    RunContext,
    compile_patterns,
    is_close,
)

_RATE = r"(\d+\.\d|nan|inf)(?![\d.])"
_MAX_ROUNDING_ERROR = 0.051
_COARSE_PER_S = 50.0
_PRINTED_DEVIATIONS = 1.96


class HorovodSyntheticReader(LineReader):
    """Reader of one run of a Horovod benchmark."""

    PATTERNS = compile_patterns(
        iteration=rf".*?Iter #(\d{{1,6}}): {_RATE} img/sec per (?:GPU|CPU)",
        each=rf".*?Img/sec per (?:GPU|CPU): {_RATE} \+-{_RATE}",
        total=rf".*?Total img/sec on (\d{{1,6}}) (?:GPU|CPU)\(s\): {_RATE} \+-{_RATE}",
        model=r".*?Model: (\S{1,60})\s*$",
        batch=r".*?Batch size: (\d{1,9})\s*$",
        ranks=r".*?Number of (?:GPU|CPU)s: (\d{1,6})\s*$",
        unread=r".*?(Iter #\d{1,6}|Img/sec per \w+|Total img/sec on \d{1,6} \w+\(s\)): *(.*)",
    )

    def begins_next_test(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line begins another run, because it cannot follow the lines read so far."""
        if name == "iteration":
            return bool(self.matches["total"]) or int(values[0]) <= int((self.last_match(name) or ("-1",))[0])
        if name == "each" and self.matches["total"]:
            return True
        return name == "batch" and bool(self.matches["total"] or self.matches["iteration"])

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the rate per device and its standard deviation, and return the rate of all devices together (images/s).

        The total must match the ranks times the rate per device, and that rate must match the mean of the iterations.
        """
        totals, device_rates = self.last_match("total"), self.last_match("each")
        if totals is None or device_rates is None:
            builder.mark_incomplete("the output has no lines 'Total img/sec' and 'Img/sec per'")
        else:
            ranks, total_rate, rate_per_device, spread = map(float, (*totals[:2], *device_rates))
            if not math.isfinite(total_rate) or not math.isfinite(rate_per_device):
                builder.mark_nan("the rate is not a number")
            elif not is_close(total_rate, ranks * rate_per_device, 0, _MAX_ROUNDING_ERROR * (ranks + 1)):
                builder.mark_invalid(
                    f"the total rate of {total_rate:g}/s is not {ranks:.0f} times {rate_per_device:g}/s"
                )
            rates = [float(rate) for _, rate in self.matches["iteration"]]
            iteration_mean = sum(rates) / len(rates) if rates else math.nan
            if (
                math.isfinite(iteration_mean)
                and math.isfinite(rate_per_device)
                and not is_close(iteration_mean, rate_per_device, 0, 2 * _MAX_ROUNDING_ERROR)
            ):
                builder.mark_invalid(
                    f"the mean of the iterations is {iteration_mean:g}/s, but the printed rate is {rate_per_device:g}/s"
                )
            builder.require_equal("number of ranks", ranks, context.ranks)
            builder.add_flag("the total is rank 0's rate times the number of ranks, not a measured sum")
            if rate_per_device < _COARSE_PER_S:
                builder.add_flag(
                    f"the rate has one decimal only, so its uncertainty is {5 / max(rate_per_device, 0.1):.1f} %"
                )
            builder.metrics = {
                "throughput_per_device_per_s": rate_per_device,
                "iteration_rate_std_per_s": spread / _PRINTED_DEVIATIONS,
            }
        builder.require_equal("number of ranks", self.last_number("ranks"), context.ranks)
        builder.settings["model"] = (self.last_match("model") or ("",))[0]
        builder.require_equal("batch per device", self.last_number("batch"), context.batch)
        return float(totals[1]) if totals else None


FORMAT = LogFormat(HorovodSyntheticReader, needles=(b"mg/sec", b"Batch size: ", b"Number of ", b"Model: "), decimals=1)
