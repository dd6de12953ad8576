"""Parser of vLLM's `vllm bench serve` (formerly benchmark_serving.py): the file of --save-result, or the output.

Latencies count from the time when the client sends a request. With --max-concurrency and a finite --request-rate,
they do not include the wait in the client before that. The default rate is `inf`: all requests are sent at once.
Latencies are those of successful requests only. The duration includes the end of the run, when fewer and fewer
requests are active, so short runs have a low throughput. The only percentile is p99 unless --metric-percentiles is
set, and end-to-end latency needs --percentile-metrics. --append-result adds a line to the file. SGLang's benchmark
and TensorRT-LLM's benchmark_serving.py began as copies of this benchmark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import LogFormat, LogReader, ReadingBuilder, RunContext, is_close, parse_number

_HEADER = "Serving Benchmark Result"
_END = re.compile(r"={50}\s*$")
_LINE = re.compile(r"\s*([A-Z][\w ()/.-]{2,60}?(?: \((?:ms|s|req/s|tok/s|RPS|retokenized)\))?):\s+(\S{1,40})\s*$")
_LATENCY_LINE = re.compile(r"(mean|median|max|p\d{1,2}(?:\.\d{1,4})?) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
_LATENCY_KEY = re.compile(r"(mean|median|max|p\d{1,2}(?:\.\d{1,4})?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_METRIC_NAMES = {"e2el": "e2e", "e2e latency": "e2e", "e2e_latency": "e2e", "median": "p50"}
_RESULT_KEYS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "request goodput (req/s)": "request_goodput",
    "output token throughput (tok/s)": "output_throughput",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
}
_ANNOUNCED_LABELS = ("traffic request rate", "maximum request concurrency")
_NUMERIC_KEYS = frozenset(_RESULT_KEYS.values())


class ServingResultReader(LogReader):
    """Reader of one result of a serving benchmark, printed or in a file.

    Both programs append to an existing file.
    """

    max_document_bytes = 256 << 20

    def __init__(self) -> None:
        super().__init__()
        self.open_result: dict[str, Any] | None = None
        self.announced_settings: dict[str, Any] = {}  # settings printed before the next result
        self.settings: dict[str, Any] = {}
        self.result: dict[str, Any] | None = None

    def read_line(self, line: str) -> None:
        """Store a value of the printed result, or a setting announced before it. A second header begins the next test."""
        if _HEADER in line:
            if self.result is not None or self.open_result is not None:
                self.select_reader(True).announced_settings, self.announced_settings = self.announced_settings, {}
                self.next_readers[-1].feed(line)
                return
            self.open_result, self.settings = {}, self.announced_settings
        elif self.open_result is not None and _END.match(line):
            self.result, self.open_result = self.open_result, None
        elif match := _LINE.match(line):
            label = match[1].lower()
            if self.open_result is None:
                if label in _ANNOUNCED_LABELS:
                    self.announced_settings[_RESULT_KEYS[label]] = match[2]
            elif latency := _LATENCY_LINE.fullmatch(label):
                self.open_result[f"{latency[1]}_{latency[2]}_ms".replace(" ", "_")] = match[2]
            elif label in _RESULT_KEYS:
                self.open_result[_RESULT_KEYS[label]] = match[2]

    def read_document(self, document: Any) -> None:
        """Store a JSON document if it is a result of a serving benchmark."""
        if not isinstance(document, dict) or "request_throughput" not in document:
            return
        reader = self.select_reader(self.result is not None or self.open_result is not None)
        reader.result, reader.from_file = document, True

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add latencies, rates, counts and settings, and return the rate of completed requests."""
        result = self.result
        if self.open_result is not None or self.document_finder.has_incomplete_document:
            builder.mark_incomplete("the last result was cut off")
        elif result is None:
            builder.mark_incomplete("the output has no result of a serving benchmark")
        if result is None:
            return None
        for name, value in result.items():
            if name in _NUMERIC_KEYS or _LATENCY_KEY.fullmatch(name):
                self.read_number(name, value)
        rate = _add_counts(result, builder)
        _add_settings({**self.settings, **result}, builder)
        _add_latencies(result, builder)
        limit = parse_number(result.get("max_concurrency"))
        offered_per_s = parse_number(result.get("request_rate"))
        if limit and offered_per_s and math.isfinite(offered_per_s):
            builder.add_flag(
                f"the client sent at most {limit:g} requests at a time, and the wait in the client is not part of the latencies; "
                "measure request rates without --max-concurrency"
            )
        return rate


def _add_counts(result: Mapping[str, Any], builder: ReadingBuilder) -> float | None:
    """Add rates and counts of requests and tokens to the metrics, and return the rate of completed requests (1/s)."""
    names = ("completed", "duration", "request_throughput", "total_output_tokens", "output_throughput")
    completed_requests, duration_s, rate, tokens, token_rate = (parse_number(result.get(name)) for name in names)
    failed_requests = parse_number(result.get("failed"))
    if failed_requests is None and isinstance(errors := result.get("errors"), list):
        failed_requests = float(sum(map(bool, errors)))  # with --save-detailed, one entry per request
    prompt_tokens = parse_number(result.get("total_input_tokens"))
    if completed_requests is None or duration_s is None or rate is None:
        builder.mark_incomplete("the result lacks completed requests, duration or request throughput")
        return None
    if completed_requests == 0:
        builder.mark_invalid("no request succeeded")
    elif not (duration_s > 0 and is_close(completed_requests / duration_s, rate, 0.02, 0.006)):
        builder.mark_invalid(
            f"the rate of {rate:g}/s does not match {completed_requests:g} requests in {duration_s:g} s"
        )
    elif tokens and token_rate and not is_close(tokens / duration_s, token_rate, 0.02, 0.006):
        builder.mark_invalid(f"the token rate of {token_rate:g}/s does not match {tokens:g} tokens in {duration_s:g} s")
    else:
        # Rates are printed with two decimals: 0.03 requests per second may be 0.0254.
        rate = completed_requests / duration_s
        token_rate = tokens / duration_s if tokens else token_rate
    sent_requests = completed_requests + (failed_requests or 0)
    goodput = result.get(
        "request_goodput", result.get("request_goodput:")
    )  # in files of vLLM, the key contains the colon
    builder.metrics |= {
        "requests": sent_requests,
        "errors": failed_requests,
        "errors_pct": 100 * failed_requests / sent_requests if failed_requests is not None and sent_requests else None,
        "requests_per_s": rate,
        "output_tokens_per_s": token_rate,
        "prompt_tokens_per_s": prompt_tokens / duration_s if prompt_tokens is not None and duration_s > 0 else None,
        "goodput_per_s": parse_number(goodput),
        "offered_per_s": parse_number(result.get("request_rate")),
    }
    if failed_requests is None:
        builder.add_flag("the client does not report failed requests; only its log and --output-details contain them")
    elif failed_requests:
        builder.add_flag(
            f"{failed_requests:g} of {sent_requests:g} requests failed and are not included in the client's latencies"
        )
    return rate if completed_requests else None


def _add_settings(result: Mapping[str, Any], builder: ReadingBuilder) -> None:
    """Add the settings of the load, such as request rate, concurrency and lengths, that a result contains."""
    has_random_lengths = result.get("dataset_name") in ("random", "random-ids")
    builder.settings |= {
        "request_rate_per_s": parse_number(result.get("request_rate")),
        "max_concurrency": parse_number(result.get("max_concurrency")),
        "requests": parse_number(result.get("num_prompts")),
        "burstiness": parse_number(result.get("burstiness")),
        "model": str(result.get("model_id") or ""),
        "input_tokens": parse_number(result.get("random_input_len")) if has_random_lengths else None,
        "output_tokens": parse_number(result.get("random_output_len")) if has_random_lengths else None,
    }


def _add_latencies(result: Mapping[str, Any], builder: ReadingBuilder) -> None:
    """Add the latency statistics in a result to the metrics, in milliseconds."""
    for key, value in result.items():
        if match := _LATENCY_KEY.fullmatch(key):
            statistic, latency = (_METRIC_NAMES.get(part, part) for part in match.groups())
            latency_ms = parse_number(value)
            if latency_ms is not None and not math.isfinite(latency_ms):
                builder.mark_nan(f"{key} is {latency_ms:g}")
            builder.metrics[f"{latency}_ms_{statistic.replace('.', '_')}"] = latency_ms


NEEDLES = (
    b"=" * 50,
    b"Serving Benchmark",
    b"equests:",
    b"(ms):",
    b"(s):",
    b"/s):",
    b"tokens:",
    b"oncurrency:",
    b"(RPS):",
    b"rate:",
)

FORMAT = LogFormat(
    ServingResultReader, needles=NEEDLES, document_marker=b'"request_throughput"', max_line_chars=256 << 20
)
