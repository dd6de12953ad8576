"""The load generator under queueing theory: `python -m tests.benchmarks.queues [RUNS [REQUESTS]]` prints a table.

Requests of a run on a simulated clock meet a server whose response times are known. A run is right where the share of its requests
that meet theory's percentile is the percentile, within 1.98 standard deviations of such runs: wanted in 95 of 100. In brackets: how
many standard errors all runs together are off.
"""

from __future__ import annotations

import sys

from campaign.workloads.load import PERCENTILES
from tests.queues_under_truth import QUEUES, covering, errors_of_mean, shares


def main(runs: int = 100, requests: int = 2000) -> None:
    """A line a queue."""
    print(f"{f'right of {runs} runs':34}" + "".join(f"{f'p{percent}':>14}" for percent in PERCENTILES))
    for name, queue in QUEUES.items():
        cells = [
            f"{covering(of, percent)} ({errors_of_mean(of, percent):+.1f})"
            for percent, of in shares(queue, runs, requests).items()
        ]
        print(f"{name:34}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
