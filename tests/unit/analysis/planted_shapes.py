"""A synthetic campaign whose step times are planted but for noise: what is planted can be looked for.

A step has compute in proportion to the batch but for a start of 4 ms, and then reduces all gradients over the slowest link: nothing
is hidden. Devices that are composed but not used cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import yaml

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.spec.cell import Configuration
from tests.unit.report import report_data

BYTES = {"big": 400e6, "small": 40e6}
_BYTES_PER_S = {"local": 30e9, "fabric": 3e9, "network": 1.5e9}

Truth = Callable[[Configuration, str, int, str], float]


def step_s(at: Configuration, workload: str, batch: int, precision: str) -> float:
    """Return the planted seconds of a step."""
    link = "network" if at.hosts > 1 else at.attach
    compute = (0.004 + 0.002 * batch) * (0.5 if precision == "fp16" else 1.0)
    return 0.001 + compute + 2 * (at.ranks - 1) / at.ranks * BYTES[workload] / _BYTES_PER_S[link]


SHAPES = (
    *(report_data.configuration(each=n, attach="local") for n in (1, 2, 4)),
    *(report_data.configuration(each=n) for n in (1, 2, 4, 8)),
    report_data.configuration(hosts=2, each=2),
    report_data.configuration(hosts=4, each=1),
    report_data.configuration(hosts=2, each=4),
)

SYSTEM = {
    "name": "emulated",
    "fabric": {"kind": "simulated"},
    "hosts": [{"name": "host[1-4]", "devices": [{"model": "A100", "count": 8}]}],
    "pool": [{"model": "A100", "count": 32}],
}


def tables(
    shapes: Sequence[Configuration] = SHAPES,
    workloads: Iterable[str] = ("big",),
    batches: Sequence[int] = (8, 16, 32),
    precisions: Sequence[str] = ("fp32",),
    truth: Truth = step_s,
    noise: float = 0.003,
    seed: int = 1,
    repetitions: int = 4,
    system: dict[str, Any] | None = SYSTEM,
    ran_out: Callable[[Configuration, int], bool] = lambda at, batch: False,
    metrics: Callable[[Configuration, str, float], dict[str, float]] = lambda at, workload, rate: {},
) -> Tables:
    """Tables of all combinations; metrics: of a run, by configuration, workload and rate."""
    random, workloads = np.random.default_rng(seed), tuple(workloads)
    plan = [
        CellPlan(report_data.cell(at, workload, batch, precision), repetitions, at.name)
        for at in shapes
        for workload in workloads
        for batch in batches
        for precision in precisions
    ]
    records = []
    for entry in plan:
        cell = entry.cell
        for repetition in range(1, repetitions + 1):
            if ran_out(cell.configuration, cell.batch):
                records.append(report_data.record(cell, repetition, None, "oom_device", metrics={}))
                continue
            seconds = truth(cell.configuration, cell.workload, cell.batch, cell.precision)
            rate = cell.batch_global / (seconds * np.exp(noise * random.standard_normal()))
            lease = f"lease-{cell.configuration.name}.c{repetition % 2}"
            bare = {
                "step_times_s": (),
                "window_s": (),
                "metrics": metrics(cell.configuration, cell.workload, rate),
                "lease_id": lease,
            }
            records.append(report_data.record(cell, repetition, rate, **bare))
    runs = build_runs_table(records)
    context = report_data.context_document()
    if system is not None:
        context["campaign_yaml"] = yaml.safe_dump({"system": system})
    return Tables(runs, build_cells_table(plan, runs), [], [], context)
