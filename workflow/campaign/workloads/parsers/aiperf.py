"""Parser of NVIDIA's AIPerf and GenAI-Perf.

It reads profile_export_aiperf.json or profile_export_genai_perf.json of their artifact directory.

Latencies count from when the client sent a request. `inter_token_latency` has one value per request, its mean
time per output token after the first; this is the metric TPOT. `inter_chunk_latency` has the individual gaps.
TTFT and TPOT need --streaming. Latencies and counts include successful requests only. GenAI-Perf does not
report failed requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import Format, LogReader, Scope, Verdict, agree, number

_LATENCIES = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2e",
}
_STATISTICS = {"avg": "mean", "min": "min", "max": "max", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_COUNTS = (
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
"""Key of a configuration -> name of the setting."""


class AiperfExport(LogReader):
    """Reader of one exported profile of AIPerf or GenAI-Perf."""

    def __init__(self) -> None:
        super().__init__()
        self.profile: dict[str, Any] | None = None

    def document(self, document: Any) -> None:
        """Store a JSON document if it is a profile of AIPerf or GenAI-Perf."""
        if not isinstance(document, dict) or not {"request_throughput", "request_latency"} <= document.keys():
            return
        after = self.fresh(self.profile is not None)
        after.profile, after.from_file = document, True

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add the latencies, rates, counts and settings of the profile, and return the rate of completed requests."""
        profile = self.profile
        if self.documents.torn:
            verdict.incomplete("the last profile was cut off")
        elif profile is None:
            verdict.incomplete("no profile of AIPerf or GenAI-Perf in the output")
        if profile is None:
            return None
        if profile.get("was_cancelled"):
            verdict.incomplete("the profile was cancelled")
        for name, latency in _LATENCIES.items():
            _add_latency(profile.get(name), latency, verdict)
        _add_settings(profile.get("input_config"), verdict)
        for name, statistics in profile.items():
            for key in _STATISTICS if isinstance(statistics, dict) and name in (*_LATENCIES, *_COUNTS) else ():
                self.number_of(f"{name}.{key}", statistics.get(key))
        return _add_counts(profile, verdict)


def _add_latency(statistics: Any, latency: str, verdict: Verdict) -> None:
    """Add the statistics of one latency to the metrics, in milliseconds.

    Args:
        statistics: entry of the profile with its unit.
        latency: name of the latency in the metrics, such as `ttft`.
        builder: builder of the reading.
    """
    if not isinstance(statistics, dict):
        return
    unit = statistics.get("unit")
    if (factor := _MS_PER_UNIT.get(str(unit))) is None:
        verdict.invalid(f"{latency} has the unit {unit}, which is no known unit of time")
        return
    if latency == "tpot" and unit == "ns":
        latency = "itl"  # early releases of GenAI-Perf write nanoseconds, and individual gaps under this name
    values = {ours: number(statistics.get(theirs)) for theirs, ours in _STATISTICS.items()}
    found = {f"{latency}_ms_{name}": factor * value for name, value in values.items() if value is not None}
    verdict.finite(found)
    verdict.metrics |= found


def _add_settings(config: Any, verdict: Verdict) -> None:
    """Add the settings of the load from the configuration of AIPerf or GenAI-Perf, at any depth.

    A setting that has two different values is left out.
    """
    found: dict[str, set[float]] = {}
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict) and part.get("name") not in _WARMUP_PHASES:
            parts += part.values()
            for key, value in part.items():
                if key in _SETTINGS and (stated := number(value)) is not None:
                    found.setdefault(_SETTINGS[key], set()).add(stated)
    verdict.settings |= {name: values.pop() for name, values in found.items() if len(values) == 1}


def _add_counts(profile: Mapping[str, Any], verdict: Verdict) -> float | None:
    """Add rates and counts of requests and tokens to the metrics, and return the rate of completed requests."""
    names = ("request_throughput", "request_count", "benchmark_duration", "error_request_count")
    rate, completed, duration_s, failed = (_average(profile, name) for name in names)
    if failed is None and isinstance(errors := profile.get("error_summary"), list):
        failed = sum(number(each.get("count")) or 0.0 for each in errors if isinstance(each, dict))
    if rate is None:
        verdict.incomplete("the profile has no request throughput")
    elif completed is not None and duration_s and not agree(completed / duration_s, rate, 0.02):
        verdict.invalid(f"{completed:g} requests in {duration_s:g} s are not {rate:g} per second")
    sent = None if completed is None else completed + (failed or 0)
    verdict.metrics |= {
        "requests": sent,
        "errors": failed,
        "errors_pct": 100 * failed / sent if failed is not None and sent else None,
        "requests_per_s": rate,
        "output_tokens_per_s": _average(profile, "output_token_throughput"),
        "prompt_tokens_mean": _average(profile, "input_sequence_length"),
        "output_tokens_mean": _average(profile, "output_sequence_length"),
        "goodput_per_s": _average(profile, "goodput"),
    }
    if failed is None:
        verdict.flag("the client does not report failed requests")
    elif failed:
        verdict.flag(f"{failed:g} requests failed, and the client's latencies leave them out")
    return rate


def _average(profile: Mapping[str, Any], name: str) -> float | None:
    """Return the mean that a profile has for a quantity, or None."""
    statistics = profile.get(name)
    return number(statistics.get("avg")) if isinstance(statistics, dict) else None


FORMAT = Format(AiperfExport, document=b'"request_throughput"')
