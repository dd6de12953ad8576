"""A synthetic campaign whose step times follow the performance model exactly but for noise: what is planted can be looked for.

Truth: t = t0 + t1 batch + all-reduce, where a ring over local links has 20 µs and 30 GB/s, one behind the fabric 40 µs and 3 GB/s,
and one over the network 60 µs and 1.5 GB/s; devices that are composed but not used cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import yaml

from campaign.documents.cell import Configuration
from campaign.insight.recommend.observations import way_of
from campaign.tables.cells import CellPlan, cells_table
from campaign.tables.io import Tables
from campaign.tables.runs import runs_table
from tests.unit.report import report_data

ALPHA_US = {"local": 20.0, "fabric": 40.0, "network": 60.0, "fabric + network": 60.0}
GB_PER_S = {"local": 30.0, "fabric": 3.0, "network": 1.5, "fabric + network": 1.5}
BYTES = {"big": 400e6, "small": 40e6}
T0_S, T1_S = 0.004, 0.002

Truth = Callable[[Configuration, str, int, str], float]


def allreduce_s(at: Configuration, workload: str) -> float:
    way, n = way_of(at.hosts, at.attach, at.ranks), at.ranks
    if not way:
        return 0.0
    return 2 * (n - 1) * ALPHA_US[way] * 1e-6 + 2 * (n - 1) / n * BYTES[workload] / GB_PER_S[way] / 1e9


def step_s(at: Configuration, workload: str, batch: int, precision: str) -> float:
    scale = 0.5 if precision == "fp16" else 1.0
    return scale * (T0_S + T1_S * batch) + allreduce_s(at, workload)


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
    metrics: Callable[[Configuration, str, float], dict[str, float]] | None = None,
) -> Tables:
    """Tables of all combinations; metrics: of a run, by configuration, workload and rate; default: the bytes of a step."""
    random = np.random.default_rng(seed)
    told = metrics or (lambda at, workload, rate: {"allreduce_bytes_per_step": BYTES[workload]} if at.ranks > 1 else {})
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
            said = told(cell.configuration, cell.workload, rate)
            lease = f"lease-{cell.configuration.name}.c{repetition % 2}"
            bare = {"step_times_s": (), "window_s": (), "metrics": said, "lease_id": lease}
            records.append(report_data.record(cell, repetition, rate, **bare))
    runs = runs_table(records)
    context = report_data.context_document()
    if system is not None:
        context["campaign_yaml"] = yaml.safe_dump({"system": system})
    return Tables(runs, cells_table(plan, runs), [], [], context)
