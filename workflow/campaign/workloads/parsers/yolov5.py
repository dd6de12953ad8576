"""Parser of YOLOv5 training, and of the similar rows of YOLOv8 and YOLO11: the printed log, or results.csv.

The `time` of newer results.csv counts seconds from the start of training to the end of an epoch, including its
validation.

`--batch-size` is the total of all devices. Only the last state of an epoch's progress bar shows its mean rate, in
it/s or s/it. Images per second are recomputed from batches and elapsed time, which must agree with the bar. The
first epoch is the warm-up, and counts only if there is no other epoch. GPU_mem is the reserved memory at that
moment in units of 1e9 bytes, not the peak.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from campaign.workloads.parsers.reading import F, LogFormat, LogReader, ReadingBuilder, RunContext, parse_number

_ROW = re.compile(
    rf"\s*(\d{{1,6}})/(\d{{1,6}})\s+({F})([GM])B?((?:\s+{F})+):\s+100%\|[^|]*\|\s*(\d{{1,9}})/(\d{{1,9}}) "
    r"\[([\d:]{4,12})<[\d:?]+,\s*([\d.]+)(it/s|s/it)"
)
_COMPLETION = re.compile(rf"\s*(\d{{1,6}}) epochs completed in ({F}) hours")
_MODEL = re.compile(rf".*\bsummary: [\d,]+ layers, ([\d,]{{1,20}}) parameters, [\d,]+ gradients(?:, ({F}) GFLOPs)?")
_TOTAL_BATCH = re.compile(r"\btotal_batch_size=(\d{1,9})\b")
_BATCH = re.compile(r"\bbatch_size=(\d{1,9})\b")
_IMAGE_SIZE = re.compile(r"\bimgsz=(\d{1,6})\b")
_MAX_EPOCHS = 100_000


@dataclass(frozen=True)
class _Epoch:
    """Values of the last progress bar of one epoch."""

    batches: int
    elapsed_s: float  # floored to whole seconds
    rate: float  # batches per second, as printed
    relative_rate_error: float  # relative error from rounding
    losses: tuple[float, ...]
    reserved_mib: float

    @property
    def is_rate_consistent(self) -> bool:
        """True if the printed rate matches the batches and the elapsed time, within their rounding."""
        slowest, fastest = self.batches / (self.elapsed_s + 1), self.batches / max(self.elapsed_s, 1e-9)
        tolerance = self.relative_rate_error + 1e-3
        return slowest * (1 - tolerance) <= self.rate <= fastest * (1 + tolerance)

    @property
    def duration_s(self) -> float:
        """Duration of the epoch, computed from its rate, or its elapsed time if the two do not agree."""
        return self.batches / self.rate if self.is_rate_consistent else self.elapsed_s + 0.5


class Yolov5Reader(LogReader):
    """Reader of one YOLO training run."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, _Epoch] = {}
        self.completion: tuple[int, float] | None = None
        self.model: tuple[float, float | None] | None = None
        self.batch_global: float | None = None
        self.image_size: float | None = None
        self.columns: list[str] = []
        self.row_count = 0
        self.values: dict[str, float] = {}
        self.end_times_s: list[float] = []

    def read_line(self, line: str) -> None:
        """Store an epoch, a row of results.csv or a setting. A line that cannot follow the previous ones begins the next test."""
        if "100%" in line:
            if row := _ROW.match(line):
                if self.epochs and int(row[1]) < max(self.epochs):
                    return self.start_next_test(line)
                # A finished bar is printed once or twice, with the same losses.
                stored_epoch = self.epochs.get(int(row[1]))
                if stored_epoch and stored_epoch.losses != tuple(float(text) for text in row[5].split()):
                    return self.start_next_test(line)
                self.store_epoch(row)
        elif match := _COMPLETION.match(line):
            self.completion = int(match[1]), float(match[2])
        elif " summary: " in line:
            if match := _MODEL.match(line):
                self.model = float(match[1].replace(",", "") or "nan"), parse_number(match[2])
        elif "batch_size=" in line:
            if match := _TOTAL_BATCH.search(line) or _BATCH.search(line):
                if self.completion:
                    return self.start_next_test(line)
                self.batch_global = float(match[1])
            if match := _IMAGE_SIZE.search(line):
                self.image_size = float(match[1])
        elif line.count(",") >= 3:
            parts = [part.strip() for part in line.split(",")]
            if parts[0] == "epoch":
                if self.row_count:
                    return self.start_next_test(line)
                self.columns, self.row_count, self.values, self.end_times_s = parts, 0, {}, []
            elif self.columns and parts[0].isdigit():
                self.store_csv_row(parts)

    def store_csv_row(self, parts: list[str]) -> None:
        """Store a row of results.csv. An incomplete row is left out and recorded."""
        values = {
            name: value
            for name, text in zip(self.columns, parts, strict=False)
            if (value := parse_number(text)) is not None
        }
        if len(parts) != len(self.columns) or len(values) != len(set(self.columns)):
            self.note_unreadable("a row of results.csv", ",".join(parts))
            return
        self.row_count += 1
        self.values = values
        if "time" in values and len(self.end_times_s) < _MAX_EPOCHS:
            self.end_times_s.append(values["time"])

    def store_epoch(self, row: re.Match[str]) -> None:
        """Store the final state of an epoch's progress bar. Earlier states are ignored."""
        epoch, batches, total_batches = int(row[1]), int(row[6]), int(row[7])
        elapsed_s, rate = _parse_clock_s(row[8]), parse_number(row[9])
        losses = tuple(float(text) for text in row[5].split())
        if batches != total_batches or elapsed_s is None or not rate or not batches:
            return
        decimals = len(row[9].partition(".")[2])
        relative_error = 0.5 * 10.0**-decimals / rate
        rate = rate if row[10] == "it/s" else 1 / rate
        reserved_mib = float(row[3]) * (1e9 if row[4] == "G" else 1e6) / 2**20
        self.epochs[epoch] = _Epoch(batches, elapsed_s, rate, relative_error, losses, reserved_mib)

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add times, precisions and sizes, and return the rate (images/s), or None if only results.csv is available."""
        if self.columns and not self.epochs:
            self.add_csv_results(builder)
            return None
        rate = self.compute_rate(context, builder)
        if self.completion is None:
            builder.mark_incomplete("the output has no line 'epochs completed in'")
        elif not self.epochs:
            builder.mark_incomplete("the output has no complete progress bar of an epoch")
        else:
            self.check_epochs(builder, *self.completion)
        # The most frequent mistake with this program is to give the batch per device instead of the total batch.
        builder.require_equal("total batch of all devices", self.batch_global, context.batch_global)
        builder.settings["image_size"] = self.image_size
        if self.row_count == len(self.epochs):
            builder.metrics |= self.precisions
        elif self.row_count:
            builder.add_flag(
                f"results.csv is ignored: it has {self.row_count} epochs, but the log has {len(self.epochs)}"
            )
        if self.model:
            builder.metrics |= {"parameters": self.model[0], "forward_gflop": self.model[1]}
        return rate

    def compute_rate(self, context: RunContext, builder: ReadingBuilder) -> float | None:
        """Compute the rate (images/s) of all epochs after the first, and add their times to the reading.

        Returns None if there is no epoch or the batch is unknown.
        """
        if not self.epochs:
            return None
        numbers = sorted(self.epochs)
        counted_epochs = [self.epochs[number] for number in numbers[1:] or numbers]
        if len(numbers) == 1:
            builder.add_flag("the rate includes the warm-up, because there is only one epoch")
        if not all(epoch.is_rate_consistent for epoch in counted_epochs):
            builder.add_flag(
                "the rate is computed from elapsed times in whole seconds, because a progress bar's rate does not match its epoch"
            )
        last = self.epochs[numbers[-1]]
        if not all(map(math.isfinite, last.losses)):
            builder.mark_nan("a loss of the last epoch is not a number")
        seconds = sum(epoch.duration_s for epoch in counted_epochs)
        batches = sum(epoch.batches for epoch in counted_epochs)
        builder.metrics |= {
            "epochs": float(len(numbers)),
            "epoch_time_s": seconds / len(counted_epochs),
            "iterations_per_s": batches / seconds,
            "device_memory_reserved_mib": last.reserved_mib,
        }
        batch = self.batch_global or context.batch_global
        if batch is None:
            builder.add_flag("the image rate is unknown, because the total batch of all devices is unknown")
            return None
        return batch * batches / seconds

    def check_epochs(self, builder: ReadingBuilder, epochs: int, hours: float) -> None:
        """Check the number and duration of the epochs against the final line that the training prints."""
        if epochs != len(self.epochs):
            builder.add_flag(
                f"{epochs} epochs were completed, but the log has {len(self.epochs)} complete progress bars"
            )
        trained_s = sum(epoch.elapsed_s for epoch in self.epochs.values())
        if not trained_s <= hours * 3600 + 1.8 + 1e-3 * trained_s:
            builder.mark_invalid(
                f"the epochs took {trained_s:g} s in total, but the whole training took {hours * 3600:g} s"
            )

    def add_csv_results(self, builder: ReadingBuilder) -> None:
        """Add the results from results.csv if there is no printed log. They do not include a rate of images."""
        if not self.row_count:
            builder.mark_incomplete("results.csv has no complete row")
        losses = [value for name, value in self.values.items() if name.startswith("train/")]
        if not all(map(math.isfinite, losses)):
            builder.mark_nan("a loss of the last epoch is not a number")
        missing_data = "number of images" if self.end_times_s else "times"
        builder.add_flag(f"the image rate is unknown, because results.csv has no {missing_data}")
        builder.flag_missing_end_mark()
        builder.metrics = {"epochs": float(self.row_count), **self.precisions, **self.compute_mean_epoch_time(builder)}

    def compute_mean_epoch_time(self, builder: ReadingBuilder) -> dict[str, float]:
        """Compute the mean time per epoch, as a metric, from the column `time` without the first epoch (warm-up).

        Returns an empty dict if there are fewer than two times or they do not increase.
        """
        if len(self.end_times_s) < 2:
            return {}
        durations_s = [end_s - start_s for start_s, end_s in pairwise(self.end_times_s)]
        if not all(math.isfinite(duration_s) and duration_s > 0 for duration_s in durations_s):
            builder.add_flag(
                "the epoch time is unknown, because the times in results.csv do not increase (as after a resumed training)"
            )
            return {}
        builder.add_flag("the epoch time is from results.csv and includes the validation")
        return {"epoch_and_validation_time_s": math.fsum(durations_s) / len(durations_s)}

    @property
    def precisions(self) -> dict[str, float | None]:
        """Mean average precisions (%) in the last row of results.csv."""
        return {
            "map50_pct": _find_percentage(self.values, "metrics/mAP_0.5", "metrics/mAP50(B)"),
            "map50_95_pct": _find_percentage(self.values, "metrics/mAP_0.5:0.95", "metrics/mAP50-95(B)"),
        }


def _find_percentage(values: dict[str, float], *names: str) -> float | None:
    """Return the first of the named values that exists, in percent, or None if none of them exists."""
    value = next((values[name] for name in names if name in values), None)
    return None if value is None else 100 * value


def _parse_clock_s(clock: str) -> float | None:
    """Convert a time such as `1:02:03` to seconds. Returns None if it is invalid."""
    try:
        parts = [int(part) for part in clock.split(":")]
    except ValueError:
        return None
    return float(sum(part * 60**place for place, part in enumerate(reversed(parts))))


FORMAT = LogFormat(
    Yolov5Reader,
    needles=(b"100%|", b" epochs completed in ", b" summary: ", b"batch_size="),
    document_marker=b"train/box_loss",
    max_line_chars=4 << 10,
)
