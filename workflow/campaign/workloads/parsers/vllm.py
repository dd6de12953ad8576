"""Parser of vLLM's `vllm bench serve` (formerly benchmark_serving.py): the file of --save-result, or the output.

Latencies count from when the client sent a request. With --max-concurrency and a finite --request-rate, a
request waits in the client before that, and the wait is left out. The default rate is `inf`: all requests are
sent at once. Latencies include successful requests only. The duration includes the last answers, with fewer and
fewer requests, so that short runs have a low throughput. The only percentile is p99 unless --metric-percentiles
names others, and end-to-end latency needs --percentile-metrics. --append-result adds a line to the file.
SGLang's benchmark and TensorRT-LLM's benchmark_serving.py began as copies of this one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import Format, LogReader, Scope, Verdict, agree, number

_HEADER = "Serving Benchmark Result"
_END = re.compile(r"={50}\s*$")
_LINE = re.compile(r"\s*([A-Z][\w ()/.-]{2,60}?(?: \((?:ms|s|req/s|tok/s|RPS|retokenized)\))?):\s+(\S{1,40})\s*$")
_LATENCY_LINE = re.compile(r"(mean|median|max|p\d{1,2}(?:\.\d{1,4})?) (ttft|tpot|itl|e2el|e2e latency) \(ms\)")
_LATENCY_KEY = re.compile(r"(mean|median|max|p\d{1,2}(?:\.\d{1,4})?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_OURS = {"e2el": "e2e", "e2e latency": "e2e", "e2e_latency": "e2e", "median": "p50"}
_PRINTED = {
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
_ANNOUNCED = ("traffic request rate", "maximum request concurrency")
_NUMBERS = frozenset(_PRINTED.values())


class ServingResult(LogReader):
    """Reader of one result of a serving benchmark, printed or in a file.

    Both programs append to an existing file.
    """

    document_bytes = 256 << 20

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, Any] | None = None
        self.announced: dict[str, Any] = {}  # settings printed before the next result
        self.settings: dict[str, Any] = {}
        self.result: dict[str, Any] | None = None

    def line(self, line: str) -> None:
        """Store a value of the printed result, or a setting announced before it. A second header begins the next test."""
        if _HEADER in line:
            if self.result is not None or self.open is not None:
                self.fresh(True).announced, self.announced = self.announced, {}
                self.others[-1].feed(line)
                return
            self.open, self.settings = {}, self.announced
        elif self.open is not None and _END.match(line):
            self.result, self.open = self.open, None
        elif found := _LINE.match(line):
            label = found[1].lower()
            if self.open is None:
                if label in _ANNOUNCED:
                    self.announced[_PRINTED[label]] = found[2]
            elif latency := _LATENCY_LINE.fullmatch(label):
                self.open[f"{latency[1]}_{latency[2]}_ms".replace(" ", "_")] = found[2]
            elif label in _PRINTED:
                self.open[_PRINTED[label]] = found[2]

    def document(self, document: Any) -> None:
        """Store a JSON document if it is a result of a serving benchmark."""
        if not isinstance(document, dict) or "request_throughput" not in document:
            return
        after = self.fresh(self.result is not None or self.open is not None)
        after.result, after.from_file = document, True

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add latencies, rates, counts and settings, and return the rate of completed requests."""
        result = self.result
        if self.open is not None or self.documents.torn:
            verdict.incomplete("the last result was cut off")
        elif result is None:
            verdict.incomplete("no result of a serving benchmark in the output")
        if result is None:
            return None
        for name, value in result.items():
            if name in _NUMBERS or _LATENCY_KEY.fullmatch(name):
                self.number_of(name, value)
        rate = _counts(result, verdict)
        _settings({**self.settings, **result}, verdict)
        _latencies(result, verdict)
        limit = number(result.get("max_concurrency"))
        offered = number(result.get("request_rate"))
        if limit and offered and math.isfinite(offered):
            verdict.flag(
                f"the client sent at most {limit:g} requests at a time, and its latencies leave out the wait for that; "
                "measure a rate without a limit"
            )
        return rate


def _counts(result: Mapping[str, Any], verdict: Verdict) -> float | None:
    """Add rates and counts of requests and tokens to the metrics, and return the rate of completed requests."""
    names = ("completed", "duration", "request_throughput", "total_output_tokens", "output_throughput")
    completed, duration_s, rate, tokens, token_rate = (number(result.get(name)) for name in names)
    failed = number(result.get("failed"))
    if failed is None and isinstance(errors := result.get("errors"), list):
        failed = float(sum(map(bool, errors)))  # with --save-detailed, one entry per request
    prompt_tokens = number(result.get("total_input_tokens"))
    if completed is None or duration_s is None or rate is None:
        verdict.incomplete("the result has no completed requests, duration and request throughput")
        return None
    if completed == 0:
        verdict.invalid("no request succeeded")
    elif not (duration_s > 0 and agree(completed / duration_s, rate, 0.02, 0.006)):
        verdict.invalid(f"{completed:g} requests in {duration_s:g} s are not {rate:g} per second")
    elif tokens and token_rate and not agree(tokens / duration_s, token_rate, 0.02, 0.006):
        verdict.invalid(f"{tokens:g} tokens in {duration_s:g} s are not {token_rate:g} per second")
    else:
        # Rates are printed with two decimals: 0.03 requests per second may be 0.0254.
        rate = completed / duration_s
        token_rate = tokens / duration_s if tokens else token_rate
    sent = completed + (failed or 0)
    goodput = result.get(
        "request_goodput", result.get("request_goodput:")
    )  # in files of vLLM, the key contains the colon
    verdict.metrics |= {
        "requests": sent,
        "errors": failed,
        "errors_pct": 100 * failed / sent if failed is not None and sent else None,
        "requests_per_s": rate,
        "output_tokens_per_s": token_rate,
        "prompt_tokens_per_s": prompt_tokens / duration_s if prompt_tokens is not None and duration_s > 0 else None,
        "goodput_per_s": number(goodput),
        "offered_per_s": number(result.get("request_rate")),
    }
    if failed is None:
        verdict.flag("the client does not report failed requests: only its log and --output-details have them")
    elif failed:
        verdict.flag(f"{failed:g} of {sent:g} requests failed, and the client's latencies leave them out")
    return rate if completed else None


def _settings(result: Mapping[str, Any], verdict: Verdict) -> None:
    """Add the settings of the load, such as request rate, concurrency and lengths, that a result contains."""
    random = result.get("dataset_name") in ("random", "random-ids")
    verdict.settings |= {
        "request_rate_per_s": number(result.get("request_rate")),
        "max_concurrency": number(result.get("max_concurrency")),
        "requests": number(result.get("num_prompts")),
        "burstiness": number(result.get("burstiness")),
        "model": str(result.get("model_id") or ""),
        "input_tokens": number(result.get("random_input_len")) if random else None,
        "output_tokens": number(result.get("random_output_len")) if random else None,
    }


def _latencies(result: Mapping[str, Any], verdict: Verdict) -> None:
    """Add the latency statistics of a result to the metrics, in milliseconds."""
    for key, value in result.items():
        if found := _LATENCY_KEY.fullmatch(key):
            what, of = (_OURS.get(part, part) for part in found.groups())
            latency_ms = number(value)
            if latency_ms is not None and not math.isfinite(latency_ms):
                verdict.nan(f"{key} is {latency_ms:g}")
            verdict.metrics[f"{of}_ms_{what.replace('.', '_')}"] = latency_ms


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

FORMAT = Format(ServingResult, needles=NEEDLES, document=b'"request_throughput"', line_max=256 << 20)
