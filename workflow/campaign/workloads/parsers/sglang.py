"""Parser of SGLang's `python -m sglang.bench_serving`: the file of --output-file (each run adds a line), or the output.

Latencies count from the time when the client sends a request, so with --max-concurrency and a finite
--request-rate they do not include the wait in the client. The default rate is `inf`. Failed requests are not
counted; there are only fewer successful ones. `Concurrency` is the mean of the run, not the limit. The retokenized
count is that of the received text.
"""

from campaign.workloads.parsers.reading import LogFormat
from campaign.workloads.parsers.vllm import NEEDLES, ServingResultReader

FORMAT = LogFormat(
    ServingResultReader, needles=NEEDLES, document_marker=b'"request_throughput"', max_line_chars=256 << 20
)
