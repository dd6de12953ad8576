"""Parser of MLPerf Inference's LoadGen: mlperf_log_summary.txt, or the lines `:::MLLOG` of mlperf_log_detail.txt.

In the Server scenario, a latency counts from the scheduled time of the query, so it includes all waiting time. The
first rate of the summary may be the scheduled rate, but the rate that is read is that of completed samples. An
INVALID result exceeded a latency limit or was too short. Latencies of the Offline scenario are left out, because
they count from the start of all samples and are not those of a user. An accuracy run does not measure performance.
TPOT is printed as "time to output token".
"""

from __future__ import annotations

import json
import re
from typing import Any

from campaign.workloads.parsers.reading import F, LogFormat, LogReader, ReadingBuilder, RunContext, parse_number

_MARK = ":::MLLOG {"
_LINE = re.compile(r"\s*([\w][\w .()/-]{2,60}?)\s*:\s+(\S{1,60})\s*$")
_LATENCY = re.compile(
    r"(?:(min|max|mean)|(\d+\.\d+) percentile) (first token latency|time (?:to|per) output token|latency) \(ns\)"
)
_LATENCY_KEY = re.compile(
    r"result_(?:(first_token|time_(?:per|to)_output_token)_)?(?:(min|max|mean)|(\d+\.\d+)_percentile)(?:_latency)?(?:_ns)?"
)
_LATENCY_NAMES = {"first token latency": "ttft", "first_token": "ttft", "latency": "e2e", None: "e2e"}
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
_TEXT_VALUES = {
    "scenario": "scenario",
    "effective_scenario": "scenario",
    "mode": "mode",
    "target_qps": "target",
    "effective_target_qps": "target",
    "effective_test_mode": "mode",
    "result is": "validity",
    "result_validity": "validity",
}
_PERFORMANCE_MODES = ("PerformanceOnly", "Performance")
"""Names of the mode that measures performance, in newer releases and in releases up to 0.7."""
_NUMBER = re.compile(F)


class MlperfInferenceReader(LogReader):
    """Reader of one result log of LoadGen."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[str, str] = {}
        self.numbers: dict[str, float] = {}
        self.is_complete = False
        self.has_errors = False

    def read_line(self, line: str) -> None:
        """Store a value from the summary or an event from the detail log. A second summary begins the next test."""
        if (position := line.find(_MARK)) >= 0:
            try:
                event = json.loads(line[position + len(_MARK) - 1 :])
            except (ValueError, RecursionError):
                return
            if isinstance(event, dict):
                if self.words and (event.get("key") == "loadgen_version" or not self.from_file):
                    return self.start_next_test(line)
                self.from_file = True
                self.store_event(event)
        elif "MLPerf Results Summary" in line:
            if self.words or self.from_file:
                return self.start_next_test(line)
        elif "Test Parameters Used" in line:
            self.is_complete = True
        elif "ERROR" in line and "encountered" in line and "No error" not in line:
            self.has_errors = True
        elif match := _LINE.match(line):
            self.store_value(match[1].lower(), match[2])

    def store_event(self, event: dict[str, Any]) -> None:
        """Store the setting or result in an event of the detail log."""
        key, value = str(event.get("key")), event.get("value")
        if key in _TEXT_VALUES or key.startswith("result_"):
            self.is_complete = self.is_complete or key == "result_validity"
            self.store_value(key, str(value))

    def store_value(self, label: str, text: str) -> None:
        """Store a rate, latency or text from the summary according to its label. Other labels are ignored."""
        if label in _TEXT_VALUES:
            self.words[_TEXT_VALUES[label]] = text
        elif not _NUMBER.fullmatch(text):
            if label in _RATES or _LATENCY.fullmatch(label) or _LATENCY_KEY.fullmatch(label):
                self.note_unreadable(label, text)
        elif label in _RATES:
            self.numbers[_RATES[label]] = float(text)
        elif match := _LATENCY.fullmatch(label):
            self.store_latency(match[3], match[1], match[2], text)
        elif match := _LATENCY_KEY.fullmatch(label):
            self.store_latency(match[1], match[2], match[3], text)

    def store_latency(self, latency: str | None, statistic: str | None, percent: str | None, text: str) -> None:
        """Store one statistic of a latency, converted to milliseconds.

        Args:
            latency: kind of latency as LoadGen names it; None for the whole request.
            statistic: `min`, `max` or `mean`; None for a percentile.
            percent: percentage of the percentile; None for other statistics.
            text: latency in nanoseconds, as printed.
        """
        name = statistic or "p" + f"{float(percent or 0):g}".replace(".", "_")
        self.numbers[f"{_LATENCY_NAMES.get(latency, 'tpot')}_ms_{name}"] = float(text) / 1e6

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the latencies and rates, and return the rate of completed samples (1/s)."""
        scenario, mode, validity = (self.words.get(name, "") for name in ("scenario", "mode", "validity"))
        rate = self.numbers.pop("completed", None)
        samples = self.numbers.pop("samples", None)
        rate = samples if rate is None else rate
        if not validity:
            builder.mark_incomplete("the output has no result of MLPerf's LoadGen")
        elif not self.is_complete:
            builder.mark_incomplete("the summary was cut off")
        elif mode and mode not in _PERFORMANCE_MODES:
            builder.mark_incomplete(f"a run in mode {mode} does not measure performance; use PerformanceOnly")
        elif rate is None and scenario in ("Server", "Offline"):
            builder.mark_incomplete(f"the summary has no rate for the scenario {scenario}")
        if validity and validity != "VALID":
            builder.mark_invalid(f"LoadGen reports the result as {validity}")
        if self.has_errors:
            builder.add_flag("LoadGen reported errors")
        builder.require_finite(self.numbers)
        target = parse_number(self.words.get("target")) if scenario == "Server" else None
        builder.settings |= {"scenario": scenario, "request_rate_per_s": target}
        latencies = scenario != "Offline"
        builder.metrics = {name: value for name, value in self.numbers.items() if latencies or "_ms_" not in name}
        builder.metrics["requests_per_s"] = parse_number(rate)
        return rate


_NEEDLES = (b":::MLLOG {", b"MLPerf Results", b"Test Parameters", b"Scenario", b"Mode", b"Result is", b"ERROR")

FORMAT = LogFormat(
    MlperfInferenceReader,
    needles=(*_NEEDLES, b" per second", b"(ns)", b"QPS w/", b"target_qps"),
    max_line_chars=256 << 10,
)
