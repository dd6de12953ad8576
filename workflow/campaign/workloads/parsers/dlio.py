"""Parser of DLIO, and of MLPerf Storage, which starts DLIO.

It reads summary.json in the output directory of a run.

`train_io_mean_MB_per_second` is in MiB/s, in spite of its name. Rates are those of all accelerators together.
The accelerators are emulated: they compute nothing and wait for as long as a real one would take. Means are
over epochs, including the first. The utilization counts only if it meets what the benchmark expects.
`checkpoint_io_mean_GB_per_second` is taken for 2^30 bytes per second (unverified).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import Format, LogReader, Scope, Verdict, agree, number

_MEAN = "train_throughput_mean_samples_per_second"
_EPOCHS = "train_throughput_samples_per_second"
_NUMBERS = {
    "train_io_mean_MB_per_second": ("train_io_gb_per_s", 2**20 / 1e9),
    "train_au_mean_percentage": ("accelerator_utilization_pct", 1.0),
    "checkpoint_io_mean_GB_per_second": ("checkpoint_gb_per_s", 2**30 / 1e9),
    "checkpoint_duration_mean_seconds": ("checkpoint_duration_s", 1.0),
    "save_checkpoint_io_mean_GB_per_second": ("checkpoint_save_gb_per_s", 2**30 / 1e9),
    "save_checkpoint_duration_mean_seconds": ("checkpoint_save_duration_s", 1.0),
    "load_checkpoint_io_mean_GB_per_second": ("checkpoint_load_gb_per_s", 2**30 / 1e9),
    "load_checkpoint_duration_mean_seconds": ("checkpoint_load_duration_s", 1.0),
}


class Dlio(LogReader):
    """Reader of one summary of DLIO."""

    def __init__(self) -> None:
        super().__init__()
        self.summary: Mapping[str, Any] = {}
        self.metric: Mapping[str, Any] = {}

    def document(self, document: Any) -> None:
        """Store a JSON document if it is a summary of DLIO."""
        if not (
            isinstance(document, dict) and "num_accelerators" in document and isinstance(document.get("metric"), dict)
        ):
            return
        after = self.fresh(bool(self.metric))
        after.summary, after.metric = document, document["metric"]

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add the rates, utilization and checkpoint times of the summary, and return the training rate (samples/s)."""
        if not self.metric:
            verdict.incomplete("no whole summary.json of DLIO in the output; name it as the workload's 'result'")
            return None
        verdict.expect("the accelerators are", number(self.summary.get("num_accelerators")), scope.ranks)
        verdict.expect("the hosts are", number(self.summary.get("num_hosts")), scope.hosts)
        for key, (name, factor) in _NUMBERS.items():
            if (value := self.number_of(key, self.metric.get(key))) is not None:
                verdict.metrics[name] = value * factor
                if not math.isfinite(value):
                    verdict.nan(f"{key} is not a number")
        rate = number(self.metric.get(_MEAN))
        self.check(verdict, rate)
        if rate is None and not verdict.metrics:
            verdict.incomplete("the summary of DLIO has no rate")
        return rate

    def check(self, verdict: Verdict, rate: float | None) -> None:
        """Check the mean training rate against the rates of the epochs, and add the number of epochs and flags.

        `rate` is the mean training rate (samples/s) of the summary, or None.
        """
        epochs = self.metric.get(_EPOCHS)
        values = [number(value) for value in epochs] if isinstance(epochs, list) else []
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            self.leave_out(
                "the rate of an epoch", ", ".join(str(each) for each in epochs or () if number(each) is None)
            )
        if rate is not None and known and not agree(statistics.fmean(known), rate, 1e-6):
            verdict.invalid(
                f"the mean of the epochs' rates is {statistics.fmean(known):g}/s, the summary says {rate:g}/s"
            )
        if known:
            verdict.metrics["epochs"] = float(len(known))
        if self.metric.get("train_au_meet_expectation", "success") != "success":
            verdict.flag("the utilization of the accelerators is below what the benchmark expects")
        if rate is not None:
            verdict.flag("accelerators were emulated: the rate is that of storage and data loading")


FORMAT = Format(Dlio, document=b'"num_accelerators"', line_max=64 << 10)
