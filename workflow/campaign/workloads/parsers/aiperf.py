"""Parser of NVIDIA's AIPerf and GenAI-Perf.

It reads profile_export_aiperf.json or profile_export_genai_perf.json of their artifact directory.

Latencies count from the time when the client sends a request. `inter_token_latency` has one value per request, the
mean time per output token after the first, which is the metric TPOT. `inter_chunk_latency` has the individual gaps.
TTFT and TPOT need --streaming. Latencies and counts are those of successful requests only. GenAI-Perf does not
report failed requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import LogFormat, LogReader, ReadingBuilder, RunContext, is_close, parse_number

_LATENCIES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2e",
}
_STATISTICS = {"avg": "mean", "min": "min", "max": "max", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_COUNT_KEYS = (
    *("request_throughput", "request_count", "benchmark_duration", "error_request_count", "output_token_throughput"),
    *("input_sequence_length", "output_sequence_length", "goodput"),
)
_MS_PER_UNIT = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_WARMUP_PHASES = ("warmup", "warm-up")
_SETTINGS = {
    "request_rate": "request_rate_per_s",
    "rate": "request_rate_per_s",
    "concurrency": "max_concurrency",
    "request_count": "requests",
    "requests": "requests",
}
"""Names of settings by the configuration keys that hold them."""


class AiperfReader(LogReader):
    """Reader of one exported profile of AIPerf or GenAI-Perf."""

    def __init__(self) -> None:
        super().__init__()
        self.profile: dict[str, Any] | None = None

    def read_document(self, document: Any) -> None:
        """Store a JSON document if it is an exported profile of AIPerf or GenAI-Perf."""
        if not isinstance(document, dict) or not {"request_throughput", "request_latency"} <= document.keys():
            return
        reader = self.select_reader(self.profile is not None)
        reader.profile, reader.from_file = document, True

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the profile's latencies, rates, counts and settings, and return the rate of completed requests (1/s)."""
        profile = self.profile
        if self.document_finder.has_incomplete_document:
            builder.mark_incomplete("the last profile was cut off")
        elif profile is None:
            builder.mark_incomplete("the output has no profile of AIPerf or GenAI-Perf")
        if profile is None:
            return None
        if profile.get("was_cancelled"):
            builder.mark_incomplete("the profile was cancelled")
        for name, latency in _LATENCIES.items():
            _add_latency(profile.get(name), latency, builder)
        _add_settings(profile.get("input_config"), builder)
        for name, statistics in profile.items():
            for key in _STATISTICS if isinstance(statistics, dict) and name in (*_LATENCIES, *_COUNT_KEYS) else ():
                self.read_number(f"{name}.{key}", statistics.get(key))
        return _add_counts(profile, builder)


def _add_latency(statistics: Any, latency: str, builder: ReadingBuilder) -> None:
    """Add the statistics of one kind of latency to the metrics, converted to milliseconds.

    Args:
        statistics: entry of the profile, which contains its unit.
        latency: name of the latency in the metrics, such as `ttft`.
        builder: builder of the reading.
    """
    if not isinstance(statistics, dict):
        return
    unit = statistics.get("unit")
    if (factor := _MS_PER_UNIT.get(str(unit))) is None:
        builder.mark_invalid(f"{latency} has the unknown unit {unit}; known units are {', '.join(_MS_PER_UNIT)}")
        return
    if latency == "tpot" and unit == "ns":
        latency = "itl"  # early releases of GenAI-Perf write nanoseconds, and individual gaps under this name
    values = {statistic: parse_number(statistics.get(key)) for key, statistic in _STATISTICS.items()}
    metrics = {f"{latency}_ms_{name}": factor * value for name, value in values.items() if value is not None}
    builder.require_finite(metrics)
    builder.metrics |= metrics


def _add_settings(config: Any, builder: ReadingBuilder) -> None:
    """Add the settings of the load, found at any depth in the configuration of AIPerf or GenAI-Perf.

    A setting is left out if it occurs with different values.
    """
    values_by_setting: dict[str, set[float]] = {}
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict) and part.get("name") not in _WARMUP_PHASES:
            parts += part.values()
            for key, value in part.items():
                if key in _SETTINGS and (numeric_value := parse_number(value)) is not None:
                    values_by_setting.setdefault(_SETTINGS[key], set()).add(numeric_value)
    builder.settings |= {name: values.pop() for name, values in values_by_setting.items() if len(values) == 1}


def _add_counts(profile: Mapping[str, Any], builder: ReadingBuilder) -> float | None:
    """Add rates and counts of requests and tokens to the metrics, and return the rate of completed requests (1/s)."""
    names = ("request_throughput", "request_count", "benchmark_duration", "error_request_count")
    rate, completed_requests, duration_s, failed_requests = (_read_average(profile, name) for name in names)
    if failed_requests is None and isinstance(errors := profile.get("error_summary"), list):
        failed_requests = sum(parse_number(entry.get("count")) or 0.0 for entry in errors if isinstance(entry, dict))
    if rate is None:
        builder.mark_incomplete("the profile has no request throughput")
    elif completed_requests is not None and duration_s and not is_close(completed_requests / duration_s, rate, 0.02):
        builder.mark_invalid(
            f"the rate of {rate:g}/s does not match {completed_requests:g} requests in {duration_s:g} s"
        )
    sent_requests = None if completed_requests is None else completed_requests + (failed_requests or 0)
    builder.metrics |= {
        "requests": sent_requests,
        "errors": failed_requests,
        "errors_pct": 100 * failed_requests / sent_requests if failed_requests is not None and sent_requests else None,
        "requests_per_s": rate,
        "output_tokens_per_s": _read_average(profile, "output_token_throughput"),
        "prompt_tokens_mean": _read_average(profile, "input_sequence_length"),
        "output_tokens_mean": _read_average(profile, "output_sequence_length"),
        "goodput_per_s": _read_average(profile, "goodput"),
    }
    if failed_requests is None:
        builder.add_flag("the client does not report failed requests")
    elif failed_requests:
        builder.add_flag(f"{failed_requests:g} requests failed and are not included in the client's latencies")
    return rate


def _read_average(profile: Mapping[str, Any], name: str) -> float | None:
    """Return the mean of a quantity in a profile, or None if the profile does not contain it."""
    statistics = profile.get(name)
    return parse_number(statistics.get("avg")) if isinstance(statistics, dict) else None


FORMAT = LogFormat(AiperfReader, document_marker=b'"request_throughput"')
