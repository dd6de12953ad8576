"""Parser of SGLang's `python -m sglang.bench_serving`: the file of --output-file (each run adds a line), or the output.

Latencies count from when the client sent a request: with --max-concurrency and a finite --request-rate, the
wait in the client is left out. The default rate is `inf`. Failed requests are not counted: there are only fewer
successful ones. `Concurrency` is the mean of the run, not the limit. The retokenized count is that of the
received text.
"""

from campaign.workloads.parsers.reading import Format
from campaign.workloads.parsers.vllm import NEEDLES, ServingResult

FORMAT = Format(ServingResult, needles=NEEDLES, document=b'"request_throughput"', line_max=256 << 20)
