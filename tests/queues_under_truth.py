"""Runs of the load generator against the reference server, on a simulated clock, beside what queueing theory says."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from campaign.emulators.queueing_server import Law, QueueingServer
from campaign.workloads.load import PERCENTILES, Load, SentRequest
from campaign.workloads.load.generator import apply
from tests.queueing_theory import Distribution, md1, mmc, quantile
from tests.simulated_clock import run_simulated


@dataclass(frozen=True)
class Queue:
    """A queue with a known distribution of response times. Service takes 50 ms."""

    law: Law
    servers: int
    rate_per_s: float
    theory: Distribution

    @property
    def quantiles(self) -> Mapping[int, float]:
        """Percent -> seconds."""
        return {percent: quantile(self.theory, percent / 100, 2.0) for percent in PERCENTILES}


QUEUES = {
    "M/M/1, load 0.5": Queue("exponential", 1, 10.0, mmc(10.0, 0.05, 1)),
    "M/M/1, load 0.8": Queue("exponential", 1, 16.0, mmc(16.0, 0.05, 1)),
    "M/M/3, load 0.5": Queue("exponential", 3, 30.0, mmc(30.0, 0.05, 3)),
    "M/D/1, load 0.5": Queue("constant", 1, 10.0, md1(10.0, 0.05)),
    "M/D/1 token by token, load 0.5": Queue("per_token", 1, 10.0, md1(10.0, 0.05)),
}


def measured(queue: Queue, requests: int, seed: int, tokens: int = 5) -> tuple[list[SentRequest], QueueingServer]:
    """Requests of one run after its first tenth, and the server that answered."""
    load = Load(prompt_tokens=4, output_tokens=tokens, timeout_s=1000, seed=seed)
    chosen = load.for_run({"rate_per_s": queue.rate_per_s, "requests": requests + requests // 10})
    service_s = 0.05 / tokens if queue.law == "per_token" else 0.05
    # The server draws its times by itself: the seed of the arrivals says nothing of them.
    server = QueueingServer(queue.law, service_s, servers=queue.servers, seed=random.Random(-seed).getrandbits(32))
    done = run_simulated(lambda: apply(chosen, "http://queue:80"), server.handle)
    return done[-requests:], server


def shares(queue: Queue, runs: int, requests: int) -> dict[int, list[float]]:
    """Percent -> of each run the share of its requests that meet theory's percentile."""
    truth = queue.quantiles
    found: dict[int, list[float]] = {percent: [] for percent in truth}
    for seed in range(1, runs + 1):
        done, _ = measured(queue, requests, seed, tokens=2)
        for percent, truth_s in truth.items():
            found[percent].append(fmean(row.e2e_ms <= truth_s * 1e3 + 1e-6 for row in done))
    return found


def covering(found: list[float], percent: int) -> int:
    """Runs whose 95 % interval has the percent, by the standard deviation of runs."""
    half = student.ppf(0.975, len(found) - 1) * stdev(found)
    return sum(abs(share - percent / 100) <= half for share in found)


def errors_of_mean(found: list[float], percent: int) -> float:
    """How many standard errors all runs together are off."""
    return (fmean(found) - percent / 100) / (stdev(found) / math.sqrt(len(found)))
