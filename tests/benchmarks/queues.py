"""The load generator under queueing theory: `python -m tests.benchmarks.queues [RUNS [REQUESTS]]` prints a table.

Requests of a run on a simulated clock meet a server whose response times are known. A cell: runs in which the share of requests
that meet theory's percentile has the percentile in its 95 % interval, over ten batches of the run. 95 of 100 wanted.
"""

from __future__ import annotations

import sys

from tests.queues_under_truth import QUEUES, coverage


def main(runs: int = 100, requests: int = 4000) -> None:
    """A line a queue."""
    print(f"{'queue':34}" + "".join(f"{f'p{percent}':>6}" for percent in (50, 90, 95, 99)) + f"  of {runs}")
    for name, queue in QUEUES.items():
        found = coverage(queue, runs, requests)
        print(f"{name:34}" + "".join(f"{count:6}" for count in found.values()), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
