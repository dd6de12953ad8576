"""Parser of TensorRT-LLM's `trtllm-bench throughput` and `latency`: the file of --report_json, or the output.

The benchmark has no server: requests go to the engine in the same process, all at once or --concurrency at a
time. Latencies therefore include no network, no HTTP and no arrival times, and their percentiles are those of a
queue that was full at the start. The printed issue rate is the rate at which this queue is filled. TTFT and TPOT
need --streaming.
"""

from __future__ import annotations

import re
from typing import Any

from campaign.workloads.parsers.reading import (
    F,
    LogFormat,
    LogReader,
    ReadingBuilder,
    RunContext,
    is_close,
    parse_number,
)

_RATES = {
    "Request Throughput (req/sec)": "requests_per_s",
    "Total Output Throughput (tokens/sec)": "output_tokens_per_s",
    "Token Throughput (tokens/sec)": "output_tokens_per_s",
    "Total Latency (ms)": "total_ms",
    "Total Latency (seconds)": "total_s",
    "Number of requests": "requests",
    "Average Input Length (tokens)": "prompt_tokens_mean",
    "Average Output Length (tokens)": "output_tokens_mean",
}
_LINE = re.compile(rf"\s*([A-Z][\w ()/.-]{{3,60}}):\s+({F})\s*$")
_PERCENTILE = re.compile(rf"\s*\[(TTFT|TPOT|Latency)\] (P\d+|MINIMUM|MAXIMUM|AVERAGE)\s*:\s*({F})\s*$")
_LATENCY_NAMES = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_STATISTIC_NAMES = {"MINIMUM": "min", "MAXIMUM": "max", "AVERAGE": "mean"}
_TITLE = re.compile(r"= (?:PERFORMANCE OVERVIEW|STATISTICS)\s*$")
_SETTING = re.compile(r"\s*(Model|Dtype|TP Size|PP Size):\s+(\S+)\s*$")
_RULE = "=" * 40
_RULES_PER_REPORT = 2


class TrtllmBenchReader(LogReader):
    """Reader of one report of trtllm-bench."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, float] = {}
        self.settings: dict[str, str] = {}
        self.next_settings: dict[str, str] = {}
        self.has_begun = False
        self.rule_count = 0

    def read_line(self, line: str) -> None:
        """Store a setting, rate or latency of the printed report. A second title begins the next test."""
        if _TITLE.match(line):
            if self.has_begun:
                self.select_reader(True).next_settings = self.next_settings
                self.next_readers[-1].feed(line)
                return
            self.has_begun, self.metrics = True, {}
            self.settings, self.next_settings = self.next_settings, {}
        elif match := _SETTING.match(line):
            self.next_settings[match[1]] = match[2]
        elif not self.has_begun:
            pass
        elif line.startswith(_RULE):  # the first rule closes the title, the second closes the section
            self.rule_count += 1
        elif match := _PERCENTILE.match(line):
            self.metrics[f"{_LATENCY_NAMES[match[1]]}_ms_{_STATISTIC_NAMES.get(match[2], match[2].lower())}"] = float(
                match[3]
            )
        elif (match := _LINE.match(line)) and match[1] in _RATES:
            self.metrics[_RATES[match[1]]] = float(match[2])
        elif (name := line.partition(":")[0].strip()) in _RATES and (text := line.partition(":")[2].strip()):
            self.note_unreadable(name, text)

    def read_document(self, document: Any) -> None:
        """Store a JSON document if it is a report written by --report_json."""
        try:
            performance, request_info = document["performance"], document["request_info"]
            streaming_metrics = document.get("streaming_metrics") or {}
            groups = {
                "e2e": performance.get("request_latency_percentiles_ms"),
                "ttft": streaming_metrics.get("ttft_percentiles"),
                "tpot": streaming_metrics.get("tpot_percentiles"),
            }
        except (LookupError, TypeError, AttributeError):
            return
        values = {
            "requests_per_s": performance.get("request_throughput_req_s"),
            "output_tokens_per_s": performance.get("system_output_throughput_tok_s"),
            "total_ms": performance.get("total_latency_ms"),
            "requests": request_info.get("num_requests"),
            "prompt_tokens_mean": request_info.get("avg_input_length"),
            "output_tokens_mean": request_info.get("avg_output_length"),
        }
        for latency, group in groups.items():
            values |= {
                f"{latency}_ms_{_convert_statistic_name(key)}": value
                for key, value in (group or {}).items()
                if _convert_statistic_name(key)
            }
        reader = self.select_reader(self.has_begun)
        reader.metrics = {
            name: value for name, text in values.items() if (value := reader.read_number(name, text)) is not None
        }
        engine, world = (
            part if isinstance(part := document.get(key), dict) else {} for key in ("engine", "world_info")
        )
        settings = {"Model": engine.get("model"), "Dtype": engine.get("dtype"), "TP Size": world.get("tp_size")}
        settings |= {"PP Size": world.get("pp_size"), "ranks": world.get("world_size")}
        reader.settings = {name: str(value) for name, value in settings.items() if value is not None}
        reader.has_begun = reader.from_file = True

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add latencies, rates and settings, and return the request rate (requests/s)."""
        is_complete = self.from_file or self.rule_count >= _RULES_PER_REPORT
        if (total_s := self.metrics.pop("total_s", None)) is not None:
            self.metrics["total_ms"] = 1e3 * total_s
        rate, total_ms, requests = (self.metrics.get(name) for name in ("requests_per_s", "total_ms", "requests"))
        if not self.has_begun:
            builder.mark_incomplete("the output has no performance overview of trtllm-bench")
        elif not is_complete or rate is None:
            builder.mark_incomplete("the report was cut off")
        builder.require_finite(self.metrics)
        if rate is not None and total_ms and requests and not is_close(requests / total_ms * 1e3, rate, 0.01):
            builder.mark_invalid(f"the rate of {rate:g}/s does not match {requests:g} requests in {total_ms:g} ms")
        if is_complete:
            builder.add_flag("requests went directly to the engine, without a server and without arrival times")
        builder.metrics = {name: value for name, value in self.metrics.items() if name != "total_ms"}
        settings = self.settings
        parallel_sizes = [parse_number(settings.get(name)) for name in ("TP Size", "PP Size")]
        builder.settings |= {
            "model": settings.get("Model", ""),
            "precision": settings.get("Dtype", "").removeprefix("torch."),
            "tensor_parallel": parallel_sizes[0],
            "pipeline_parallel": parallel_sizes[1],
            "ranks": parse_number(settings.get("ranks"))
            or (parallel_sizes[0] * parallel_sizes[1] if parallel_sizes[0] and parallel_sizes[1] else None),
            "requests": requests,
        }
        return rate


def _convert_statistic_name(key: Any) -> str:
    """Convert a statistic's name to the one used in metrics, such as `p99`, `min` or `mean`; empty if it is unknown."""
    name = {"minimum": "min", "maximum": "max", "average": "mean"}.get(str(key), str(key))
    return name if re.fullmatch(r"p\d{1,2}|min|max|mean", name) else ""


FORMAT = LogFormat(
    TrtllmBenchReader,
    needles=(
        b"= PERFORMANCE OVERVIEW",
        b"= STATISTICS",
        _RULE.encode(),
        b"Throughput (",
        b"(ms):",
        b"(seconds):",
        b"Length (tokens):",
        b"[",
        b"requests:",
        b"Model:",
        b"Dtype:",
        b"P Size:",
    ),
    document_marker=b'"request_info"',
)
