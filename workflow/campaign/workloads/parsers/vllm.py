"""vLLM's `vllm bench serve` (before: benchmark_serving.py): the file of --save-result, or what it prints.

Latencies count from when the client sent a request. With --max-concurrency beside a finite --request-rate, a request waits in the
client before that, and the wait is left out; the requests of --save-detailed have it where the file has `queue_times`. The
default rate is `inf`: all requests are sent at once. Only successful requests are in the latencies. The duration includes the last
answers, with fewer and fewer requests, so that short runs have a low throughput. Percentiles are p99 alone unless
--metric-percentiles names others, and end-to-end latency needs --percentile-metrics. --append-result adds a line to the file.
"""

from campaign.workloads.parsers.reading import Format
from campaign.workloads.parsers.serving_result import ServingResult

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
