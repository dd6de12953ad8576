"""Parser of DLIO, and of MLPerf Storage, which starts DLIO.

It reads summary.json in the output directory of a run.

`train_io_mean_MB_per_second` is in MiB/s, despite its name. Rates are those of all accelerators together. The
accelerators are emulated: they compute nothing and wait as long as a real accelerator would take. Means are over
epochs, including the first. The run gets a flag if the utilization is below the benchmark's threshold.
`checkpoint_io_mean_GB_per_second` is assumed to be 2^30 bytes per second (unverified).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import LogFormat, LogReader, ReadingBuilder, RunContext, is_close, parse_number

_MEAN_RATE_KEY = "train_throughput_mean_samples_per_second"
_EPOCH_RATES_KEY = "train_throughput_samples_per_second"
_METRICS = {
    "train_io_mean_MB_per_second": ("train_io_gb_per_s", 2**20 / 1e9),
    "train_au_mean_percentage": ("accelerator_utilization_pct", 1.0),
    "checkpoint_io_mean_GB_per_second": ("checkpoint_gb_per_s", 2**30 / 1e9),
    "checkpoint_duration_mean_seconds": ("checkpoint_duration_s", 1.0),
    "save_checkpoint_io_mean_GB_per_second": ("checkpoint_save_gb_per_s", 2**30 / 1e9),
    "save_checkpoint_duration_mean_seconds": ("checkpoint_save_duration_s", 1.0),
    "load_checkpoint_io_mean_GB_per_second": ("checkpoint_load_gb_per_s", 2**30 / 1e9),
    "load_checkpoint_duration_mean_seconds": ("checkpoint_load_duration_s", 1.0),
}


class DlioReader(LogReader):
    """Reader of one summary file of DLIO."""

    def __init__(self) -> None:
        super().__init__()
        self.summary: Mapping[str, Any] = {}
        self.metric: Mapping[str, Any] = {}

    def read_document(self, document: Any) -> None:
        """Store a JSON document if it is a summary written by DLIO."""
        if not (
            isinstance(document, dict) and "num_accelerators" in document and isinstance(document.get("metric"), dict)
        ):
            return
        reader = self.select_reader(bool(self.metric))
        reader.summary, reader.metric = document, document["metric"]

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the rates, utilization and checkpoint times of the summary, and return the training rate (samples/s)."""
        if not self.metric:
            builder.mark_incomplete(
                "the output has no complete summary.json of DLIO; set the workload's key 'result' to that file"
            )
            return None
        accelerators, hosts = (parse_number(self.summary.get(name)) for name in ("num_accelerators", "num_hosts"))
        builder.require_equal("number of accelerators", accelerators, context.ranks)
        builder.require_equal("number of hosts", hosts, context.hosts)
        for key, (name, factor) in _METRICS.items():
            if (value := self.read_number(key, self.metric.get(key))) is not None:
                builder.metrics[name] = value * factor
                if not math.isfinite(value):
                    builder.mark_nan(f"{key} is not a number")
        rate = parse_number(self.metric.get(_MEAN_RATE_KEY))
        self.check_epochs(builder, rate)
        if rate is None and not builder.metrics:
            builder.mark_incomplete("the summary of DLIO has no rate")
        return rate

    def check_epochs(self, builder: ReadingBuilder, rate: float | None) -> None:
        """Check the mean training rate against the rates of the single epochs, and add the number of epochs and flags.

        `rate` is the mean training rate (samples/s) of the summary, or None.
        """
        epochs = self.metric.get(_EPOCH_RATES_KEY)
        values = [parse_number(value) for value in epochs] if isinstance(epochs, list) else []
        epoch_rates = [value for value in values if value is not None]
        if len(epoch_rates) < len(values):
            self.note_unreadable(
                "the rate of an epoch", ", ".join(str(epoch) for epoch in epochs or () if parse_number(epoch) is None)
            )
        if rate is not None and epoch_rates and not is_close(statistics.fmean(epoch_rates), rate, 1e-6):
            builder.mark_invalid(
                f"the mean rate in the summary is {rate:g}/s, but the mean of the epochs is {statistics.fmean(epoch_rates):g}/s"
            )
        if epoch_rates:
            builder.metrics["epochs"] = float(len(epoch_rates))
        if self.metric.get("train_au_meet_expectation", "success") != "success":
            builder.add_flag("the accelerator utilization is below the benchmark's threshold")
        if rate is not None:
            builder.add_flag("the accelerators were emulated, so the rate is that of storage and data loading")


FORMAT = LogFormat(DlioReader, document_marker=b'"num_accelerators"', max_line_chars=64 << 10)
