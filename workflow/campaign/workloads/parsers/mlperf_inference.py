"""Parser of MLPerf Inference's LoadGen: mlperf_log_summary.txt, or the lines `:::MLLOG` of mlperf_log_detail.txt.

In the Server scenario a latency counts from when a query was scheduled, so that no waiting time is omitted. The
headline of the summary may be the scheduled rate: the rate here is that of completed samples. An INVALID result
broke a latency limit or was too short. Latencies of the Offline scenario count from the start of all samples
and are not those of a user; they are left out. A run for accuracy measures no performance. TPOT is printed as
"time to output token".
"""

from __future__ import annotations

import json
import re
from typing import Any

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, number

_MARK = ":::MLLOG {"
_LINE = re.compile(r"\s*([\w][\w .()/-]{2,60}?)\s*:\s+(\S{1,60})\s*$")
_LATENCY = re.compile(
    r"(?:(min|max|mean)|(\d+\.\d+) percentile) (first token latency|time (?:to|per) output token|latency) \(ns\)"
)
_KEY = re.compile(
    r"result_(?:(first_token|time_(?:per|to)_output_token)_)?(?:(min|max|mean)|(\d+\.\d+)_percentile)(?:_latency)?(?:_ns)?"
)
_OF = {"first token latency": "ttft", "first_token": "ttft", "latency": "e2e", None: "e2e"}
_RATES = {
    "completed samples per second": "completed",
    "result_completed_samples_per_sec": "completed",
    "scheduled samples per second": "offered_per_s",
    "result_scheduled_samples_per_sec": "offered_per_s",
    "samples per second": "samples",
    "result_samples_per_second": "samples",
    "completed tokens per second": "output_tokens_per_s",
    "result_completed_tokens_per_second": "output_tokens_per_s",
    "tokens per second": "output_tokens_per_s",
    "result_tokens_per_second": "output_tokens_per_s",
    "qps w/ loadgen overhead": "samples",
    "result_qps_with_loadgen_overhead": "samples",
}
_WORDS = {
    "scenario": "scenario",
    "effective_scenario": "scenario",
    "mode": "mode",
    "target_qps": "target",
    "effective_target_qps": "target",
    "effective_test_mode": "mode",
    "result is": "validity",
    "result_validity": "validity",
}
_MEASURING = ("PerformanceOnly", "Performance")
"""Names of the mode that measures performance, in newer releases and in those up to 0.7."""
_NUMBER = re.compile(F)


class MlperfInference(LogReader):
    """Reader of one result of LoadGen."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[str, str] = {}
        self.found: dict[str, float] = {}
        self.whole = False
        self.errors = False

    def line(self, line: str) -> None:
        """Store a value of the summary or an event of the detail log. A second summary begins the next test."""
        if (at := line.find(_MARK)) >= 0:
            try:
                event = json.loads(line[at + len(_MARK) - 1 :])
            except (ValueError, RecursionError):
                return
            if isinstance(event, dict):
                if self.words and (event.get("key") == "loadgen_version" or not self.from_file):
                    return self.another(line)
                self.from_file = True
                self.event(event)
        elif "MLPerf Results Summary" in line:
            if self.words or self.from_file:
                return self.another(line)
        elif "Test Parameters Used" in line:
            self.whole = True
        elif "ERROR" in line and "encountered" in line and "No error" not in line:
            self.errors = True
        elif found := _LINE.match(line):
            self.take(found[1].lower(), found[2])

    def event(self, event: dict[str, Any]) -> None:
        """Store a setting or result of the detail log."""
        key, value = str(event.get("key")), event.get("value")
        if key in _WORDS or key.startswith("result_"):
            self.whole = self.whole or key == "result_validity"
            self.take(key, str(value))

    def take(self, label: str, text: str) -> None:
        """Store a rate, a latency or a text by its label. Other labels are ignored."""
        if label in _WORDS:
            self.words[_WORDS[label]] = text
        elif not _NUMBER.fullmatch(text):
            if label in _RATES or _LATENCY.fullmatch(label) or _KEY.fullmatch(label):
                self.leave_out(label, text)
        elif label in _RATES:
            self.found[_RATES[label]] = float(text)
        elif found := _LATENCY.fullmatch(label):
            self.latency(found[3], found[1], found[2], text)
        elif found := _KEY.fullmatch(label):
            self.latency(found[1], found[2], found[3], text)

    def latency(self, of: str | None, what: str | None, percent: str | None, text: str) -> None:
        """Store one statistic of a latency in milliseconds.

        Args:
            latency: kind of latency as LoadGen names it; None for the whole request.
            statistic: `min`, `max` or `mean`; None for a percentile.
            percent: percentile.
            text: latency in nanoseconds.
        """
        name = what or "p" + f"{float(percent or 0):g}".replace(".", "_")
        self.found[f"{_OF.get(of, 'tpot')}_ms_{name}"] = float(text) / 1e6

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add the latencies and rates, and return the rate of completed samples (1/s)."""
        scenario, mode, validity = (self.words.get(name, "") for name in ("scenario", "mode", "validity"))
        rate = self.found.pop("completed", None)
        samples = self.found.pop("samples", None)
        rate = samples if rate is None else rate
        if not validity:
            verdict.incomplete("no result of MLPerf's LoadGen in the output")
        elif not self.whole:
            verdict.incomplete("the summary was cut off")
        elif mode and mode not in _MEASURING:
            verdict.incomplete(f"a run of mode {mode} measures no performance")
        elif rate is None and scenario in ("Server", "Offline"):
            verdict.incomplete(f"no rate of the scenario {scenario}")
        if validity and validity != "VALID":
            verdict.invalid(f"LoadGen says that the result is {validity}")
        if self.errors:
            verdict.flag("LoadGen encountered errors")
        verdict.finite(self.found)
        target = number(self.words.get("target")) if scenario == "Server" else None
        verdict.settings |= {"scenario": scenario, "request_rate_per_s": target}
        latencies = scenario != "Offline"
        verdict.metrics = {name: value for name, value in self.found.items() if latencies or "_ms_" not in name}
        verdict.metrics["requests_per_s"] = number(rate)
        return rate


_NEEDLES = (b":::MLLOG {", b"MLPerf Results", b"Test Parameters", b"Scenario", b"Mode", b"Result is", b"ERROR")

FORMAT = Format(
    MlperfInference, needles=(*_NEEDLES, b" per second", b"(ns)", b"QPS w/", b"target_qps"), line_max=256 << 10
)
