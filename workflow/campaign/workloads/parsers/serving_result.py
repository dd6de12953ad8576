"""The results that vLLM's benchmark of servers writes and prints, and SGLang's, which began as a copy of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from campaign.workloads.load.request_latencies import Request
from campaign.workloads.parsers.reading import Reading, Scope, Verdict, agree, number

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
_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")
_NEW_COLUMNS = ("latencies", "queue_times", "errors")
_MESSAGE_MAX = 300


class ServingResult:
    """Reads lines of either form. The last result counts: both programs append to a file that is there."""

    def __init__(self) -> None:
        self.open: dict[str, Any] | None = None
        self.torn = False
        self.results: list[dict[str, Any]] = []

    def feed(self, line: str) -> None:
        if line.startswith("{"):
            self.document(line)
        elif _HEADER in line:
            self.open = {}
        elif self.open is not None and _END.match(line):
            self.take(self.open)
            self.open = None
        elif self.open is not None and (found := _LINE.match(line)):
            label = found[1].lower()
            if latency := _LATENCY_LINE.fullmatch(label):
                self.open[f"{latency[1]}_{latency[2]}_ms".replace(" ", "_")] = found[2]
            elif label in _PRINTED:
                self.open[_PRINTED[label]] = found[2]

    def document(self, line: str) -> None:
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            self.torn = True
            return
        if isinstance(result, dict) and "request_throughput" in result:
            self.take(result)

    def take(self, result: dict[str, Any]) -> None:
        if self.results and self.results[-1] == result:
            return
        self.results = [*self.results[-1:], result]

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if self.torn or self.open is not None:
            verdict.incomplete("the last result was cut off")
        elif not self.results:
            verdict.incomplete("no result of a serving benchmark in the output")
        if not self.results:
            return verdict.reading()
        if len(self.results) > 1:
            verdict.flag("there are several results: the last one counts")
        result = self.results[-1]
        rate = _counts(result, verdict)
        _latencies(result, verdict)
        _details(result, verdict)
        limit = number(result.get("max_concurrency"))
        offered = number(result.get("request_rate"))
        if limit and offered and math.isfinite(offered):
            verdict.flag(
                f"the client sent at most {limit:g} requests at a time, and its latencies leave out the wait for that; "
                "measure a rate without a limit"
            )
        return verdict.reading(rate)


def _counts(result: Mapping[str, Any], verdict: Verdict) -> float | None:
    """Rates and counts as metrics; the rate of completed requests."""
    names = ("completed", "duration", "request_throughput", "total_output_tokens", "output_throughput")
    completed, duration_s, rate, tokens, token_rate = (number(result.get(name)) for name in names)
    failed = number(result.get("failed"))
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
    sent = completed + (failed or 0)
    verdict.metrics |= {
        "requests": sent,
        "errors": failed,
        "errors_pct": 100 * failed / sent if failed is not None and sent else None,
        "requests_per_s": rate,
        "output_tokens_per_s": token_rate,
        "prompt_tokens_per_s": prompt_tokens / duration_s if prompt_tokens is not None and duration_s > 0 else None,
        "goodput_per_s": number(result.get("request_goodput")),
        "offered_per_s": number(result.get("request_rate")),
    }
    if failed is None:
        verdict.flag("the client does not report failed requests: only its log and --output-details have them")
    return rate if completed else None


def _latencies(result: Mapping[str, Any], verdict: Verdict) -> None:
    for key, value in result.items():
        if found := _LATENCY_KEY.fullmatch(key):
            what, of = (_OURS.get(part, part) for part in found.groups())
            latency_ms = number(value)
            if latency_ms is not None and not math.isfinite(latency_ms):
                verdict.nan(f"{key} is {latency_ms:g}")
            verdict.metrics[f"{of}_ms_{what.replace('.', '_')}"] = latency_ms


def _details(result: Mapping[str, Any], verdict: Verdict) -> None:
    """Requests one by one, where the file has when each started."""
    if "ttfts" not in result:
        return
    if "start_times" not in result:
        verdict.flag("the client does not say when requests started: its requests are not taken one by one")
        return
    try:
        missing = [None] * len(result["ttfts"])
        columns = [result[name] for name in _COLUMNS] + [result.get(name) or missing for name in _NEW_COLUMNS]
        rows = [_Row(*row) for row in zip(*columns, strict=True)]
        base_s = min(row.start_s - (row.queued_s or 0) for row in rows if row.start_s)
        requests = [_request(row, base_s) for row in rows]
    except (LookupError, TypeError, ValueError, OverflowError):
        verdict.flag("the lists of requests do not belong together: requests are not taken one by one")
        return
    verdict.requests = tuple(sorted(requests, key=lambda request: request.intended_s))
    failed = sum(request.error is not None for request in requests)
    verdict.metrics |= {"requests": len(requests), "errors": failed, "errors_pct": 100 * failed / len(requests)}


class _Row(NamedTuple):
    """One request of the file, in the order of the columns."""

    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    gaps_s: list[float]
    start_s: float
    latency_s: float | None
    queued_s: float | None
    error: str | None


def _request(row: _Row, base_s: float) -> Request:
    failed = bool(row.error) or not (row.output_tokens or row.ttft_s)
    sent_s = row.start_s - base_s if row.start_s else 0.0
    last_s = sent_s + (math.fsum([row.ttft_s, *row.gaps_s]) if row.latency_s is None else row.latency_s)
    if not math.isfinite(last_s + sent_s) or min(row.prompt_tokens, row.output_tokens) < 0:
        raise ValueError("no request has such numbers")
    said = str(row.error).strip().rpartition("\n")[2][:_MESSAGE_MAX] if row.error else "no token came"
    return Request(
        intended_s=max(0.0, sent_s - (row.queued_s or 0.0)),
        sent_s=sent_s,
        first_s=None if failed else sent_s + row.ttft_s,
        last_s=None if failed else last_s,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        error=said if failed else None,
        requested_prompt_tokens=row.prompt_tokens,
        requested_output_tokens=row.output_tokens,
        reported=False,
    )
