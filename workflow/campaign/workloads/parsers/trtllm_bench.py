"""Parser of TensorRT-LLM's `trtllm-bench throughput` and `latency`: the file of --report_json, or the output.

The benchmark has no server: requests go to the engine in the same process, all at once or --concurrency at a
time. So latencies include no network, no HTTP and no arrivals, and their percentiles are those of a queue that
was full at the start. The printed issue rate is that of filling this queue. TTFT and TPOT exist with
--streaming only.
"""

from __future__ import annotations

import re
from typing import Any

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, agree, number

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
_OF = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_WHAT = {"MINIMUM": "min", "MAXIMUM": "max", "AVERAGE": "mean"}
_TITLE = re.compile(r"= (?:PERFORMANCE OVERVIEW|STATISTICS)\s*$")
_SETTING = re.compile(r"\s*(Model|Dtype|TP Size|PP Size):\s+(\S+)\s*$")
_RULE = "=" * 40
_RULES = 2


class TrtllmBench(LogReader):
    """Reader of one report of trtllm-bench."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, float] = {}
        self.settings: dict[str, str] = {}
        self.next_settings: dict[str, str] = {}
        self.began = False
        self.rules = 0

    def line(self, line: str) -> None:
        """Store a setting, rate or latency of the printed report. A second title begins the next test."""
        if _TITLE.match(line):
            if self.began:
                self.fresh(True).next_settings = self.next_settings
                self.others[-1].feed(line)
                return
            self.began, self.found = True, {}
            self.settings, self.next_settings = self.next_settings, {}
        elif found := _SETTING.match(line):
            self.next_settings[found[1]] = found[2]
        elif not self.began:
            pass
        elif line.startswith(_RULE):  # the first rule closes the title, the second closes the section
            self.rules += 1
        elif found := _PERCENTILE.match(line):
            self.found[f"{_OF[found[1]]}_ms_{_WHAT.get(found[2], found[2].lower())}"] = float(found[3])
        elif (found := _LINE.match(line)) and found[1] in _RATES:
            self.found[_RATES[found[1]]] = float(found[2])
        elif (name := line.partition(":")[0].strip()) in _RATES and (text := line.partition(":")[2].strip()):
            self.leave_out(name, text)

    def document(self, report: Any) -> None:
        """Store a JSON document if it is a report of --report_json."""
        try:
            performance, info = report["performance"], report["request_info"]
            streamed = report.get("streaming_metrics") or {}
            groups = {
                "e2e": performance.get("request_latency_percentiles_ms"),
                "ttft": streamed.get("ttft_percentiles"),
                "tpot": streamed.get("tpot_percentiles"),
            }
        except (LookupError, TypeError, AttributeError):
            return
        said = {
            "requests_per_s": performance.get("request_throughput_req_s"),
            "output_tokens_per_s": performance.get("system_output_throughput_tok_s"),
            "total_ms": performance.get("total_latency_ms"),
            "requests": info.get("num_requests"),
            "prompt_tokens_mean": info.get("avg_input_length"),
            "output_tokens_mean": info.get("avg_output_length"),
        }
        for of, group in groups.items():
            said |= {f"{of}_ms_{_what(key)}": value for key, value in (group or {}).items() if _what(key)}
        after = self.fresh(self.began)
        after.found = {name: value for name, text in said.items() if (value := after.number_of(name, text)) is not None}
        engine, world = (part if isinstance(part := report.get(key), dict) else {} for key in ("engine", "world_info"))
        stated = {"Model": engine.get("model"), "Dtype": engine.get("dtype"), "TP Size": world.get("tp_size")}
        stated |= {"PP Size": world.get("pp_size"), "ranks": world.get("world_size")}
        after.settings = {name: str(value) for name, value in stated.items() if value is not None}
        after.began = after.from_file = True

    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Add latencies, rates and settings, and return the request rate (requests/s)."""
        whole = self.from_file or self.rules >= _RULES
        if (total_s := self.found.pop("total_s", None)) is not None:
            self.found["total_ms"] = 1e3 * total_s
        rate, total_ms, requests = (self.found.get(name) for name in ("requests_per_s", "total_ms", "requests"))
        if not self.began:
            verdict.incomplete("no performance overview of trtllm-bench in the output")
        elif not whole or rate is None:
            verdict.incomplete("the report was cut off")
        verdict.finite(self.found)
        if rate is not None and total_ms and requests and not agree(requests / total_ms * 1e3, rate, 0.01):
            verdict.invalid(f"{requests:g} requests in {total_ms:g} ms are not {rate:g} per second")
        if whole:
            verdict.flag("requests went to the engine without a server, and not at times of their own")
        verdict.metrics = {name: value for name, value in self.found.items() if name != "total_ms"}
        stated = self.settings
        parallel = [number(stated.get(name)) for name in ("TP Size", "PP Size")]
        verdict.settings |= {
            "model": stated.get("Model", ""),
            "precision": stated.get("Dtype", "").removeprefix("torch."),
            "tensor_parallel": parallel[0],
            "pipeline_parallel": parallel[1],
            "ranks": number(stated.get("ranks"))
            or (parallel[0] * parallel[1] if parallel[0] and parallel[1] else None),
            "requests": requests,
        }
        return rate


def _what(key: Any) -> str:
    """Return the statistic's name in metrics, such as `p99`, `min` or `mean`; empty for an unknown statistic."""
    name = {"minimum": "min", "maximum": "max", "average": "mean"}.get(str(key), str(key))
    return name if re.fullmatch(r"p\d{1,2}|min|max|mean", name) else ""


FORMAT = Format(
    TrtllmBench,
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
    document=b'"request_info"',
)
