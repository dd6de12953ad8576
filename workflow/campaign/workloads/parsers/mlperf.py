"""Parser of MLPerf training logs, the lines `:::MLLOG {...}` of mlcommons/logging with or without a rank label.

The time to train is the time from run_start to run_stop, and exists only if the status of run_stop is success.
The rate is the median of the rates that the program tracks (`tracked_stats`), in samples as the program defines
them. Several ranks may log the same events, within seconds of each other. A run that starts at another time is
another test. Samples of evaluations after run_stop do not belong to the training.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

from campaign.workloads.parsers.reading import LogFormat, LogReader, ReadingBuilder, RunContext, parse_number

_MARK = ":::MLLOG {"
_MAX_VALUES = 200_000
_MAX_RATE_RATIO = 1.1
_MAX_RANK_OFFSET_MS = 10_000.0
_MAX_PREPARATION_MS = 3_600_000.0
_OPENING_KEYS = ("run_start", "submission_benchmark", "submission_org", "cache_clear", "init_start")


class MlperfReader(LogReader):
    """Reader of one MLPerf training run."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_global: float | None = None
        self.init_times_ms: list[float] = [math.nan, math.nan]
        self.untimed_event_count = 0
        self.start_ms = math.inf
        self.stop_ms = -math.inf
        self.end_statuses: set[str] = set()
        self.rates: dict[float, float] = {}  # by time, as several ranks may log the same rate
        self.samples: dict[float, float] = {}
        self.accuracies: dict[float, float] = {}

    def read_line(self, line: str) -> None:
        """Store the events in a line, which may consist of joined lines of several ranks. An event may begin the next run."""
        latest_reader = self
        position = line.find(_MARK)
        while position >= 0:  # lines of several ranks may be joined
            try:
                event, _ = json.JSONDecoder().raw_decode(line[position + len(_MARK) - 1 :])
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict):
                if latest_reader.begins_next_run(event):
                    latest_reader = self.select_reader(True)
                latest_reader.store_event(event)
            position = line.find(_MARK, position + 1)

    def begins_next_run(self, event: dict[str, Any]) -> bool:
        """Return True if an event does not belong to this run but begins another."""
        key, time_ms = event.get("key"), parse_number(event.get("time_ms"))
        if time_ms is None or not math.isfinite(time_ms):
            return False
        if key == "run_start" and math.isfinite(self.start_ms):
            return abs(time_ms - self.start_ms) > _MAX_RANK_OFFSET_MS
        # These events may be in the order of the runs or of the files.
        is_outside_run = time_ms >= self.stop_ms or time_ms < self.start_ms - _MAX_PREPARATION_MS
        if not self.end_statuses:
            return key in _OPENING_KEYS and bool(self.rates) and not math.isfinite(self.start_ms)
        is_during_run = self.start_ms - _MAX_RANK_OFFSET_MS <= time_ms <= self.stop_ms + _MAX_RANK_OFFSET_MS
        return (key in _OPENING_KEYS and is_outside_run) or (key == "tracked_stats" and not is_during_run)

    def store_event(self, event: dict[str, Any]) -> None:
        """Store the time, rate, accuracy or number of samples that an event reports."""
        key, value, time_ms = event.get("key"), event.get("value"), parse_number(event.get("time_ms"))
        metadata = raw_metadata if isinstance(raw_metadata := event.get("metadata"), dict) else {}
        if key in ("run_start", "run_stop", "init_start", "init_stop"):
            if time_ms is None or not math.isfinite(time_ms):
                self.untimed_event_count += 1
                return
            if key == "run_start":
                self.start_ms = min(self.start_ms, time_ms)
            elif key == "run_stop":
                self.stop_ms = max(self.stop_ms, time_ms)
                self.end_statuses.add(str(metadata.get("status")))
            else:
                self.init_times_ms[key == "init_stop"] = time_ms
        elif key == "tracked_stats" and isinstance(value, dict):
            rate = self.read_number("throughput", value.get("throughput"))
            if rate is not None and len(self.rates) < _MAX_VALUES:
                self.rates.setdefault(-1.0 - len(self.rates) if time_ms is None else time_ms, rate)
        elif key == "global_batch_size":
            self.batch_global = self.read_number("global_batch_size", value)
        elif key == "eval_accuracy" and len(self.accuracies) < _MAX_VALUES:
            accuracy = self.read_number("eval_accuracy", value)
            # Accuracies without a time keep the order of the log, before all others.
            sample_time_ms = len(self.accuracies) - float(_MAX_VALUES) if time_ms is None else time_ms
            self.accuracies |= {} if accuracy is None else {sample_time_ms: accuracy}
        if key in ("eval_accuracy", "block_stop", "eval_stop", "run_stop"):
            samples = parse_number(metadata.get("samples_count"))
            if samples is not None and len(self.samples) < _MAX_VALUES:
                sample_time_ms = time_ms or 0.0
                self.samples[sample_time_ms] = max(samples, self.samples.get(sample_time_ms, 0.0))

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the time to train, the accuracy and the number of samples, and return the median tracked rate (samples/s)."""
        run_time_s = (self.stop_ms - self.start_ms) / 1e3
        has_run_time = math.isfinite(run_time_s)
        if not has_run_time:
            explanation = " (events without time_ms)" if self.untimed_event_count else ""
            builder.mark_incomplete(f"the output does not have both run_start and run_stop with a time{explanation}")
        elif run_time_s <= 0:
            builder.mark_invalid(f"run_stop is {-run_time_s:g} s before run_start")
        is_successful, end_status = self.end_statuses == {"success"}, ", ".join(sorted(self.end_statuses))
        if has_run_time and not is_successful:
            builder.add_flag(f"the run has no time to train, because it stopped with status {end_status}")
        builder.require_equal("global batch", self.batch_global, context.batch_global)
        # Checkpoints may be evaluated after the run, and their events may not be in order of time.
        end_ms = self.stop_ms if has_run_time else math.inf
        trained_samples = max((samples for at_ms, samples in self.samples.items() if at_ms <= end_ms), default=None)
        accuracies = [(at_ms, accuracy) for at_ms, accuracy in self.accuracies.items() if at_ms <= end_ms]
        rate = self.compute_rate(builder, run_time_s if has_run_time else None, trained_samples)
        if has_run_time and not is_successful and rate is None:
            builder.mark_incomplete(f"the run stopped with status {end_status} and has no tracked rate")
        builder.metrics = {
            "time_to_train_s": run_time_s if is_successful and has_run_time else None,
            "run_time_s": run_time_s if has_run_time else None,
            "init_time_s": (self.init_times_ms[1] - self.init_times_ms[0]) / 1e3,
            "eval_accuracy": max(accuracies)[1] if accuracies else None,
            "samples": trained_samples,
        }
        return rate

    def compute_rate(self, builder: ReadingBuilder, run_time_s: float | None, samples: float | None) -> float | None:
        """Return the median of the rates that the program tracked, or None if it tracked none.

        Args:
            builder: builder of the reading.
            run_time_s: time from run_start to run_stop in seconds.
            samples: number of samples trained on in that time, to check the rates.
        """
        if not self.rates:
            return None
        if not all(map(math.isfinite, self.rates.values())):
            builder.mark_nan("a tracked rate is not a number")
            return None
        builder.add_flag(f"the rate is the median of the {len(self.rates)} rates that the program tracked")
        if (
            run_time_s
            and run_time_s > 0
            and samples
            and samples / run_time_s > _MAX_RATE_RATIO * max(self.rates.values())
        ):
            builder.mark_invalid(
                f"{samples:g} samples in {run_time_s:g} s exceed the maximum tracked rate of {max(self.rates.values()):g}/s"
            )
        return statistics.median(self.rates.values())


FORMAT = LogFormat(MlperfReader, needles=(b":::MLLOG {",), max_line_chars=256 << 10)
