"""A campaign in which hosts, leases and runs differ by known amounts, for tests of what tells them apart.

Truth: every cell is measured on several leases, each of them on hosts of its own; throughput varies by normal deviations of runs,
leases and hosts (of the logarithm), and one host may be slower by a known part.
"""

from __future__ import annotations

import numpy as np

from campaign.analysis.tables.cells import CellPlan
from campaign.spec.record import Record
from tests.unit.report import report_data as synthetic

RUN, LEASE, HOST = 0.004, 0.008, 0.015


def plan(batches: tuple[int, ...] = (8, 16), repetitions: int = 12) -> list[CellPlan]:
    """Two workloads, each on one host with one device and with four."""
    shapes = [synthetic.configuration(each=each) for each in (1, 4)]
    return [
        CellPlan(synthetic.cell(at, workload, batch), repetitions, f"lease-{at.name}")
        for at in shapes
        for workload in synthetic.RATES
        for batch in batches
    ]


def records(
    planned: list[CellPlan], hosts: int = 4, slow: float = 0.0, seed: int = 5, leases_per_host: int = 2
) -> list[Record]:
    """Repetitions go round the leases; host2 gives less throughput by the part `slow`."""
    random = np.random.default_rng(seed)
    of_host = random.normal(0, HOST, hosts) * (slow == 0.0)
    count = hosts * leases_per_host
    found = []
    of_lease = {at: random.normal(0, LEASE, count) for at in sorted({e.cell.configuration.name for e in planned})}
    for entry in planned:
        name = entry.cell.configuration.name
        for repetition in range(1, entry.repetitions + 1):
            lease = (repetition - 1) % count
            host = lease % hosts
            deviation = of_host[host] + of_lease[name][lease] + random.normal(0, RUN)
            rate = synthetic.true_rate(entry.cell) * float(np.exp(deviation)) * (1 - slow * (host == 2))
            place = {"lease_id": f"{name}.{lease}", "hosts": (f"host{host}",)}
            found.append(synthetic.record(entry.cell, repetition, rate, **place))
    return found
