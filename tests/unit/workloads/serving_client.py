"""A small benchmark client: `serving_client.py URL RATE REQUESTS [RESULT]`. Standard library only.

It sends requests at fixed gaps, whether earlier ones are answered or not, and writes what `vllm bench serve --save-result` writes.
"""

import json
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path

url, rate, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
BODY = json.dumps({"model": "m", "prompt": "word " * 8, "max_tokens": 4, "stream": True}).encode()
answers = []  # seconds of the first event, of the last one, and the number of tokens; None for a failure


def send(at):
    time.sleep(max(0.0, at - time.monotonic()))
    sent, times = time.monotonic(), []
    try:
        request = urllib.request.Request(f"{url}/v1/completions", BODY, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic() - sent)
    except OSError as error:
        print(f"request failed: {error}", flush=True)
        times = []
    answers.append((times[0], times[-1], len(times)) if times else None)


began = time.monotonic()
threads = [threading.Thread(target=send, args=(began + number / rate,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
duration_s = time.monotonic() - began
good = [answer for answer in answers if answer]
tokens = sum(number for _, _, number in good)
document = {
    "request_rate": rate,
    "max_concurrency": None,
    "duration": duration_s,
    "completed": len(good),
    "failed": count - len(good),
    "total_input_tokens": 8 * len(good),
    "total_output_tokens": tokens,
    "request_throughput": len(good) / duration_s,
    "output_throughput": tokens / duration_s,
}
latencies = {
    "ttft": [first for first, _, _ in good],
    "tpot": [(last - first) / max(1, number - 1) for first, last, number in good],
    "e2el": [last for _, last, _ in good],
}
for name, values in latencies.items():
    if len(values) > 1:
        document[f"median_{name}_ms"] = 1e3 * statistics.median(values)
        document[f"p99_{name}_ms"] = 1e3 * statistics.quantiles(values, n=100, method="inclusive")[98]
text = json.dumps(document)
if len(sys.argv) > 4:
    Path(sys.argv[4]).write_text(text)
else:
    print(text, flush=True)
