"""Parser of MLPerf training logs, the lines `:::MLLOG {...}` of mlcommons/logging with or without a rank label.

The time to train is the time from run_start to run_stop, and exists only if the status of run_stop is success.
The rate is the median of the rates that the program tracks (`tracked_stats`), in samples of its own definition.
Several ranks may log the same events, within seconds of each other. A run that starts at another time is
another test. Evaluations after run_stop are no samples of the training.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

from campaign.workloads.parsers.reading import Format, LogReader, Scope, Verdict, number

_MARK = ":::MLLOG {"
_RATES_MAX = 200_000
_TOO_FAST = 1.1
_RANKS_APART_MS = 10_000.0
_OPENED_BEFORE_MS = 3_600_000.0
_OPENING = ("run_start", "submission_benchmark", "submission_org", "cache_clear", "init_start")


class Mlperf(LogReader):
    """Reader of one MLPerf training run."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_global: float | None = None
        self.init: list[float] = [math.nan, math.nan]
        self.timeless = 0
        self.start_ms = math.inf
        self.stop_ms = -math.inf
        self.endings: set[str] = set()
        self.rates: dict[float, float] = {}  # by time, as several ranks may log the same rate
        self.samples: dict[float, float] = {}
        self.accuracies: dict[float, float] = {}

    def line(self, line: str) -> None:
        """Store the events of a line. Lines of several ranks may be joined. An event may begin the next run."""
        latest = self
        at = line.find(_MARK)
        while at >= 0:  # lines of several ranks may be joined
            try:
                event, _ = json.JSONDecoder().raw_decode(line[at + len(_MARK) - 1 :])
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict):
                if latest.is_over(event):
                    latest = self.fresh(True)
                latest.event(event)
            at = line.find(_MARK, at + 1)

    def is_over(self, event: dict[str, Any]) -> bool:
        """Return True if an event begins another run."""
        key, time_ms = event.get("key"), number(event.get("time_ms"))
        if time_ms is None or not math.isfinite(time_ms):
            return False
        if key == "run_start" and math.isfinite(self.start_ms):
            return abs(time_ms - self.start_ms) > _RANKS_APART_MS
        # These events may be in the order of the runs or of the files.
        outside = time_ms >= self.stop_ms or time_ms < self.start_ms - _OPENED_BEFORE_MS
        if not self.endings:
            return key in _OPENING and bool(self.rates) and not math.isfinite(self.start_ms)
        during = self.start_ms - _RANKS_APART_MS <= time_ms <= self.stop_ms + _RANKS_APART_MS
        return (key in _OPENING and outside) or (key == "tracked_stats" and not during)

    def event(self, event: dict[str, Any]) -> None:
        """Store the time, rate, accuracy or number of samples of an event."""
        key, value, time_ms = event.get("key"), event.get("value"), number(event.get("time_ms"))
        metadata = found if isinstance(found := event.get("metadata"), dict) else {}
        if key in ("run_start", "run_stop", "init_start", "init_stop"):
            if time_ms is None or not math.isfinite(time_ms):
                self.timeless += 1
                return
            if key == "run_start":
                self.start_ms = min(self.start_ms, time_ms)
            elif key == "run_stop":
                self.stop_ms = max(self.stop_ms, time_ms)
                self.endings.add(str(metadata.get("status")))
            else:
                self.init[key == "init_stop"] = time_ms
        elif key == "tracked_stats" and isinstance(value, dict):
            rate = self.number_of("throughput", value.get("throughput"))
            if rate is not None and len(self.rates) < _RATES_MAX:
                self.rates.setdefault(-1.0 - len(self.rates) if time_ms is None else time_ms, rate)
        elif key == "global_batch_size":
            self.batch_global = self.number_of("global_batch_size", value)
        elif key == "eval_accuracy" and len(self.accuracies) < _RATES_MAX:
            accuracy = self.number_of("eval_accuracy", value)
            # Accuracies without a time keep the order of the log, before all others.
            at_ms = len(self.accuracies) - float(_RATES_MAX) if time_ms is None else time_ms
            self.accuracies |= {} if accuracy is None else {at_ms: accuracy}
        if key in ("eval_accuracy", "block_stop", "eval_stop", "run_stop"):
            samples = number(metadata.get("samples_count"))
            if samples is not None and len(self.samples) < _RATES_MAX:
                at_ms = time_ms or 0.0
                self.samples[at_ms] = max(samples, self.samples.get(at_ms, 0.0))

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add the time to train, the accuracy and the samples, and return the median tracked rate (samples/s)."""
        taken_s = (self.stop_ms - self.start_ms) / 1e3
        timed = math.isfinite(taken_s)
        if not timed:
            why = ", as its events have no time_ms" if self.timeless else ""
            verdict.incomplete(f"no run_start and run_stop with their times in the output{why}")
        elif taken_s <= 0:
            verdict.invalid(f"run_stop lies {-taken_s:g} s before run_start")
        success = self.endings == {"success"}
        if timed and not success:
            verdict.flag(f"run_stop says {', '.join(sorted(self.endings))}: there is no time to train")
        verdict.expect("the global batch is", self.batch_global, scope.batch_global)
        # Checkpoints may be evaluated after the run, and their events may not be in order of time.
        over_ms = self.stop_ms if timed else math.inf
        trained = max((samples for at_ms, samples in self.samples.items() if at_ms <= over_ms), default=None)
        evaluated = [(at_ms, accuracy) for at_ms, accuracy in self.accuracies.items() if at_ms <= over_ms]
        rate = self.rate(verdict, taken_s if timed else None, trained)
        if timed and not success and rate is None:
            verdict.incomplete(f"run_stop says {', '.join(sorted(self.endings))}, and no rate was tracked")
        verdict.metrics = {
            "time_to_train_s": taken_s if success and timed else None,
            "run_time_s": taken_s if timed else None,
            "init_time_s": (self.init[1] - self.init[0]) / 1e3,
            "eval_accuracy": max(evaluated)[1] if evaluated else None,
            "samples": trained,
        }
        return rate

    def rate(self, verdict: Verdict, taken_s: float | None, samples: float | None) -> float | None:
        """Return the median of the rates that the program tracked, or None if it tracked none.

        Args:
            builder: builder of the reading.
            run_time_s: time from run_start to run_stop.
            samples: samples trained in that time, for a check of the rates.
        """
        if not self.rates:
            return None
        if not all(map(math.isfinite, self.rates.values())):
            verdict.nan("a tracked rate is not a number")
            return None
        verdict.flag(f"the rate is the median of {len(self.rates)} that the program tracked")
        if taken_s and taken_s > 0 and samples and samples / taken_s > _TOO_FAST * max(self.rates.values()):
            verdict.invalid(
                f"{samples:g} samples in {taken_s:g} s are more than the {max(self.rates.values()):g}/s that it tracked at most"
            )
        return statistics.median(self.rates.values())


FORMAT = Format(Mlperf, needles=(b":::MLLOG {",), line_max=256 << 10)
