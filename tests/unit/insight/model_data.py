"""A synthetic campaign whose step times are simulated with planted parameters but for noise: what is planted can be looked for.

A step has compute in proportion to the batch but for a start of 4 ms, and then reduces all gradients: nothing is hidden. Devices
that are composed but not used cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import yaml

from campaign.config.system_file import SystemFile
from campaign.config.workload_inputs import stored_workload
from campaign.documents.cell import Configuration
from campaign.tables.cells import CellPlan, cells_table
from campaign.tables.io import Tables
from campaign.tables.runs import runs_table
from tests.simulated_campaigns import Machine
from tests.unit.report import report_data

BYTES = {"big": 400e6, "small": 40e6}
T0_S, T1_S = 0.004, 0.002
_BATCH = 16
PLANTED = {
    **{
        "rate[local]": 33e9,
        "rate[fabric]": 3.3e9,
        "rate[network]": 1.65e9,
        "bus": 0.9,
        "start": T0_S / (T0_S + _BATCH * T1_S),
    },
    **{"latency": 5e-6, "latency[network]": 1e-5, "launch": 2e-5, "slowdown": 0.1, "attach": 0.002, "crowd": 0.001},
    **{"jitter": 0.005, "fixed": 1e-3, "compute": 1.0},
}

Truth = Callable[[Configuration, str, int, str], float]


def program(workload: str) -> dict[str, Any]:
    """The workload's file: a replay of one layer. Its compute times are 20 % off."""
    rows = [
        {"device": "A100", "precision": name, "batch": _BATCH, "seconds": 1.2 * scale * (T0_S + _BATCH * T1_S)}
        for name, scale in (("fp32", 1.0), ("fp16", 0.5))
    ]
    layer = {"tensors": [int(BYTES[workload] / 4)], "forward": 1.0, "backward": 2.0}
    about = {"schema_version": "workload/1", "name": workload, "kind": "replay", "description": "planted"}
    return {**about, "precisions": ["fp32", "fp16"], "layers": [layer], "compute": rows}


@cache
def machine() -> Machine:
    """What the cells run on in truth; its compute times are right."""
    found = {name: stored_workload({"workloads": {name: program(name)}}, name) for name in BYTES}
    workloads = {name: each for name, each in found.items() if each is not None}
    return Machine(SystemFile.model_validate(SYSTEM), workloads, {**PLANTED, "compute": 1 / 1.2})


@cache
def step_s(at: Configuration, workload: str, batch: int, precision: str) -> float:
    return float(machine().step_s([report_data.cell(at, workload, batch, precision)])[0])


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
    "links": {"local": {"gb_per_s": 36}, "fabric": {"gb_per_s": 3}, "network": {"gb_per_s": 1.5}},
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
    known: bool = True,
) -> Tables:
    """Tables of all combinations; metrics: of a run, by configuration, workload and rate; default: the bytes of a step. known:
    whether the campaign as used has the programs."""
    random, workloads = np.random.default_rng(seed), tuple(workloads)
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
        programs = {name: program(name) for name in workloads} if known else {}
        context["campaign_yaml"] = yaml.safe_dump({"system": system, "workloads": programs})
    return Tables(runs, cells_table(plan, runs), [], [], context)
