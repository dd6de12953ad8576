"""Parser of YOLOv5 training, and of the similar rows of YOLOv8 and YOLO11: the printed log, or results.csv.

The `time` of newer results.csv counts seconds from the start of training to the end of an epoch, including its
validation.

`--batch-size` is that of all devices together. Only the last state of an epoch's progress bar is its mean rate,
in it/s or s/it. Images per second are recomputed from batches and elapsed time, which must agree with the bar.
The first epoch warms up, and counts only if there is no other. GPU_mem is the memory reserved at that moment in
1e9 bytes, not the peak.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, number

_ROW = re.compile(
    rf"\s*(\d{{1,6}})/(\d{{1,6}})\s+({F})([GM])B?((?:\s+{F})+):\s+100%\|[^|]*\|\s*(\d{{1,9}})/(\d{{1,9}}) "
    r"\[([\d:]{4,12})<[\d:?]+,\s*([\d.]+)(it/s|s/it)"
)
_DONE = re.compile(rf"\s*(\d{{1,6}}) epochs completed in ({F}) hours")
_MODEL = re.compile(rf".*\bsummary: [\d,]+ layers, ([\d,]{{1,20}}) parameters, [\d,]+ gradients(?:, ({F}) GFLOPs)?")
_TOTAL_BATCH = re.compile(r"\btotal_batch_size=(\d{1,9})\b")
_BATCH = re.compile(r"\bbatch_size=(\d{1,9})\b")
_IMAGE_SIZE = re.compile(r"\bimgsz=(\d{1,6})\b")
_MOST_EPOCHS = 100_000


@dataclass(frozen=True)
class _Epoch:
    """Values of the last progress bar of one epoch."""

    batches: int
    elapsed_s: float  # floored to whole seconds
    rate: float  # batches per second, as printed
    rate_error: float  # relative error from rounding
    losses: tuple[float, ...]
    reserved_mib: float

    @property
    def rate_holds(self) -> bool:
        """True if the printed rate matches the batches and the elapsed time, within their rounding."""
        slowest, fastest = self.batches / (self.elapsed_s + 1), self.batches / max(self.elapsed_s, 1e-9)
        slack = self.rate_error + 1e-3
        return slowest * (1 - slack) <= self.rate <= fastest * (1 + slack)

    @property
    def seconds(self) -> float:
        """Duration of the epoch from its rate, or from its elapsed time if they do not agree."""
        return self.batches / self.rate if self.rate_holds else self.elapsed_s + 0.5


class Yolov5(LogReader):
    """Reader of one training run."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, _Epoch] = {}
        self.done: tuple[int, float] | None = None
        self.model: tuple[float, float | None] | None = None
        self.batch_global: float | None = None
        self.image_size: float | None = None
        self.columns: list[str] = []
        self.rows = 0
        self.values: dict[str, float] = {}
        self.times: list[float] = []

    def line(self, line: str) -> None:
        """Store an epoch, a row of results.csv or a setting. A line that cannot follow begins the next test."""
        if "100%" in line:
            if row := _ROW.match(line):
                if self.epochs and int(row[1]) < max(self.epochs):
                    return self.another(line)
                # A finished bar is printed once or twice, with the same losses.
                known = self.epochs.get(int(row[1]))
                if known and known.losses != tuple(float(text) for text in row[5].split()):
                    return self.another(line)
                self.row(row)
        elif found := _DONE.match(line):
            self.done = int(found[1]), float(found[2])
        elif " summary: " in line:
            if found := _MODEL.match(line):
                self.model = float(found[1].replace(",", "") or "nan"), number(found[2])
        elif "batch_size=" in line:
            if found := _TOTAL_BATCH.search(line) or _BATCH.search(line):
                if self.done:
                    return self.another(line)
                self.batch_global = float(found[1])
            if found := _IMAGE_SIZE.search(line):
                self.image_size = float(found[1])
        elif line.count(",") >= 3:
            parts = [part.strip() for part in line.split(",")]
            if parts[0] == "epoch":
                if self.rows:
                    return self.another(line)
                self.columns, self.rows, self.values, self.times = parts, 0, {}, []
            elif self.columns and parts[0].isdigit():
                self.csv_row(parts)

    def csv_row(self, parts: list[str]) -> None:
        """Store a row of results.csv. An incomplete row is left out and recorded."""
        values = {
            name: value for name, text in zip(self.columns, parts, strict=False) if (value := number(text)) is not None
        }
        if len(parts) != len(self.columns) or len(values) != len(set(self.columns)):
            self.leave_out("a row of results.csv", ",".join(parts))
            return
        self.rows += 1
        self.values = values
        if "time" in values and len(self.times) < _MOST_EPOCHS:
            self.times.append(values["time"])

    def row(self, row: re.Match[str]) -> None:
        """Store the last progress bar of an epoch. Bars that are not at their end are ignored."""
        epoch, batches, of = int(row[1]), int(row[6]), int(row[7])
        elapsed_s, rate = _seconds(row[8]), number(row[9])
        losses = tuple(float(text) for text in row[5].split())
        if batches != of or elapsed_s is None or not rate or not batches:
            return
        decimals = len(row[9].partition(".")[2])
        error = 0.5 * 10.0**-decimals / rate
        rate = rate if row[10] == "it/s" else 1 / rate
        reserved_mib = float(row[3]) * (1e9 if row[4] == "G" else 1e6) / 2**20
        self.epochs[epoch] = _Epoch(batches, elapsed_s, rate, error, losses, reserved_mib)

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add times, precisions and sizes, and return the rate (images/s), which results.csv alone does not have."""
        if self.columns and not self.epochs:
            self.table(verdict)
            return None
        rate = self.rate(scope, verdict)
        if self.done is None:
            verdict.incomplete("no 'epochs completed in' in the output")
        elif not self.epochs:
            verdict.incomplete("no epoch's progress bar reached its end in the output")
        else:
            self.check(verdict, *self.done)
        # The most frequent mistake with this program is a per-device batch in place of that of all devices.
        verdict.expect("the batch of all devices is", self.batch_global, scope.batch_global)
        verdict.settings["image_size"] = self.image_size
        if self.rows == len(self.epochs):
            verdict.metrics |= self.precisions
        elif self.rows:
            verdict.flag(f"results.csv has {self.rows} epochs, the log {len(self.epochs)}: it is not read")
        if self.model:
            verdict.metrics |= {"parameters": self.model[0], "forward_gflop": self.model[1]}
        return rate

    def rate(self, scope: Scope, verdict: Verdict) -> float | None:
        """Return the rate (images/s) of the epochs after the first, and add their times.

        Returns None if there is no epoch or the batch is unknown.
        """
        if not self.epochs:
            return None
        numbers = sorted(self.epochs)
        counted = [self.epochs[number] for number in numbers[1:] or numbers]
        if len(numbers) == 1:
            verdict.flag("one epoch only: its warm-up is in the rate")
        if not all(epoch.rate_holds for epoch in counted):
            verdict.flag("a bar's rate is not that of its epoch: computed from its elapsed time, to the second")
        last = self.epochs[numbers[-1]]
        if not all(map(math.isfinite, last.losses)):
            verdict.nan("a loss of the last epoch is not a number")
        seconds = sum(epoch.seconds for epoch in counted)
        batches = sum(epoch.batches for epoch in counted)
        verdict.metrics |= {
            "epochs": float(len(numbers)),
            "epoch_time_s": seconds / len(counted),
            "iterations_per_s": batches / seconds,
            "device_memory_reserved_mib": last.reserved_mib,
        }
        batch = self.batch_global or scope.batch_global
        if batch is None:
            verdict.flag("the batch of all devices is not known: no rate of images")
            return None
        return batch * batches / seconds

    def check(self, verdict: Verdict, epochs: int, hours: float) -> None:
        """Check the number and the time of the epochs against the last line of the training.

        Args:
            builder: builder of the reading.
            epochs: number of completed epochs.
            hours: duration of the training.
        """
        if epochs != len(self.epochs):
            verdict.flag(f"{epochs} epochs were completed, and {len(self.epochs)} bars seen to their end")
        trained_s = sum(epoch.elapsed_s for epoch in self.epochs.values())
        if not trained_s <= hours * 3600 + 1.8 + 1e-3 * trained_s:
            verdict.invalid(f"the epochs' bars took {trained_s:g} s together, the whole training {hours * 3600:g} s")

    def table(self, verdict: Verdict) -> None:
        """Add the results of results.csv without a printed log, which has no rate of images."""
        if not self.rows:
            verdict.incomplete("results.csv has no whole row")
        losses = [value for name, value in self.values.items() if name.startswith("train/")]
        if not all(map(math.isfinite, losses)):
            verdict.nan("a loss of the last epoch is not a number")
        without = "no number of images" if self.times else "no times"
        verdict.flag(f"results.csv has {without}: no rate of images")
        verdict.no_end()
        verdict.metrics = {"epochs": float(self.rows), **self.precisions, **self.epoch_times(verdict)}

    def epoch_times(self, verdict: Verdict) -> dict[str, float]:
        """Return the mean time per epoch as a metric, by the column `time` and without the first epoch, which warms up.

        Returns an empty dict if there are fewer than two times or they do not grow.
        """
        if len(self.times) < 2:
            return {}
        taken = [after - before for before, after in pairwise(self.times)]
        if not all(math.isfinite(each) and each > 0 for each in taken):
            verdict.flag("the times of results.csv do not grow, as where a training was resumed: no time of an epoch")
            return {}
        verdict.flag("the time of an epoch is by results.csv, and includes its validation")
        return {"epoch_and_validation_time_s": math.fsum(taken) / len(taken)}

    @property
    def precisions(self) -> dict[str, float | None]:
        """Mean average precisions (%) in the last row of results.csv."""
        return {
            "map50_pct": _pct(self.values, "metrics/mAP_0.5", "metrics/mAP50(B)"),
            "map50_95_pct": _pct(self.values, "metrics/mAP_0.5:0.95", "metrics/mAP50-95(B)"),
        }


def _pct(values: dict[str, float], *names: str) -> float | None:
    """Return the first of several named values that exists, in percent, or None."""
    found = next((values[name] for name in names if name in values), None)
    return None if found is None else 100 * found


def _seconds(clock: str) -> float | None:
    """Convert a clock text such as `1:02:03` to seconds. Return None if it is invalid."""
    try:
        parts = [int(part) for part in clock.split(":")]
    except ValueError:
        return None
    return float(sum(part * 60**place for place, part in enumerate(reversed(parts))))


FORMAT = Format(
    Yolov5,
    needles=(b"100%|", b" epochs completed in ", b" summary: ", b"batch_size="),
    document=b"train/box_loss",
    line_max=4 << 10,
)
