"""MLPerf training logs: lines `:::MLLOG {...}` of mlcommons/logging, with or without a label of the rank before them.

The time to train is that from run_start to run_stop, and there is one only if run_stop says success. Rates are what the program
tracks itself (`tracked_stats`), in samples of its own definition: their median. Several ranks may log the same events.
"""

from __future__ import annotations

import json
import math
import statistics
from array import array
from typing import Any

from campaign.workloads.parsers.reading import Format, Reading, Scope, Verdict, number

_MARK = ":::MLLOG {"
_RATES_MAX = 1_000_000
_TOO_FAST = 1.1


class Mlperf:
    def __init__(self) -> None:
        self.batch_global: float | None = None
        self.init: list[float] = [math.nan, math.nan]
        self.timeless = 0
        self.begin()

    def begin(self) -> None:
        self.start_ms = math.inf
        self.stop_ms = -math.inf
        self.endings: set[str] = set()
        self.rates = array("d")
        self.samples: float | None = None
        self.accuracy: float | None = None

    def feed(self, line: str) -> None:
        at = line.find(_MARK)
        while at >= 0:  # ranks' lines may be glued together
            try:
                event, _ = json.JSONDecoder().raw_decode(line[at + len(_MARK) - 1 :])
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict):
                self.event(event)
            at = line.find(_MARK, at + 1)

    def event(self, event: dict[str, Any]) -> None:
        key, value, time_ms = event.get("key"), event.get("value"), number(event.get("time_ms"))
        metadata = found if isinstance(found := event.get("metadata"), dict) else {}
        if key in ("run_start", "run_stop", "init_start", "init_stop"):
            if time_ms is None or not math.isfinite(time_ms):
                self.timeless += 1
                return
            if key == "run_start":
                if time_ms >= self.stop_ms > -math.inf:  # another run begins: the last counts
                    self.begin()
                self.start_ms = min(self.start_ms, time_ms)
            elif key == "run_stop":
                self.stop_ms = max(self.stop_ms, time_ms)
                self.endings.add(str(metadata.get("status")))
            else:
                self.init[key == "init_stop"] = time_ms
        elif key == "tracked_stats" and isinstance(value, dict):
            rate = number(value.get("throughput"))
            if rate is not None and len(self.rates) < _RATES_MAX:
                self.rates.append(rate)
        elif key == "global_batch_size":
            self.batch_global = number(value)
        elif key == "eval_accuracy":
            self.accuracy = number(value)
        if key in ("eval_accuracy", "block_stop", "eval_stop", "run_stop"):
            samples = number(metadata.get("samples_count"))
            if samples is not None:
                self.samples = max(self.samples or 0.0, samples)

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
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
        rate = self.rate(verdict, taken_s if timed else None)
        if timed and not success and rate is None:
            verdict.incomplete(f"run_stop says {', '.join(sorted(self.endings))}, and no rate was tracked")
        verdict.metrics = {
            "time_to_train_s": taken_s if success and timed else None,
            "run_time_s": taken_s if timed else None,
            "init_time_s": (self.init[1] - self.init[0]) / 1e3,
            "eval_accuracy": self.accuracy,
            "samples": self.samples,
        }
        return verdict.reading(rate)

    def rate(self, verdict: Verdict, taken_s: float | None) -> float | None:
        if not self.rates:
            return None
        if not all(map(math.isfinite, self.rates)):
            verdict.nan("a tracked rate is not a number")
            return None
        verdict.flag(f"the rate is the median of {len(self.rates)} that the program tracked")
        if taken_s and taken_s > 0 and self.samples and self.samples / taken_s > _TOO_FAST * max(self.rates):
            verdict.invalid(
                f"{self.samples:g} samples in {taken_s:g} s are more than the {max(self.rates):g}/s that it tracked at most"
            )
        return statistics.median(self.rates)


FORMAT = Format(Mlperf, needles=(b":::MLLOG {",), line_max=256 << 10)
