"""A synthetic campaign of services whose latencies are known: those of queues with exponential service times (M/M/1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.leases import build_leases_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.report.figure import FigureData
from campaign.spec.run_numbers import compute_run_number
from tests.unit.report import report_data

SERVED_PER_S = 50.0


def latency_ms(percent: float, rate: float, speed: float) -> float:
    """The percentile of the time in an M/M/1 queue."""
    return -1e3 * math.log(1 - percent / 100) / (SERVED_PER_S * speed - rate)


def figure_data(
    speeds: Mapping[str, float],
    rates: Sequence[float] = (10.0, 20.0, 30.0),
    compositions: int = 3,
    runs: int = 2,
    percentiles: Sequence[int] = (50, 99),
    status: str = "ok",
) -> FigureData:
    """What figures read of the campaign. speeds: of each configuration, over that of the first one, which is the baseline."""
    draw = np.random.default_rng(1)
    plan, records = [], []
    for place, (name, speed) in enumerate(speeds.items()):
        attach = "fabric" if "fabric" in name else "local"
        at = report_data.configuration(each=place + 1, attach=attach, name=name)
        for rate in rates:
            cell = report_data.cell(at, "llm", 1, "bf16", rate_per_s=rate)
            plan.append(CellPlan(cell, compositions * runs, f"lease-{name}"))
            for composition in range(1, compositions + 1):
                for run in range(1, runs + 1):
                    noise = float(np.exp(draw.normal(0, 0.02)))
                    metrics = {
                        f"{latency}_ms_p{percent}": share * noise * latency_ms(percent, rate, speed)
                        for latency, share in (("ttft", 1.0), ("tpot", 0.1), ("e2e", 3.0))
                        for percent in percentiles
                    }
                    changes = {
                        "lease_id": f"{name}-{composition}",
                        "started": 1.7e9 + 1000 * composition + 10 * run,
                        "hosts": ("host0",),
                        "step_times_s": (),
                        "metrics": metrics,
                    }
                    records.append(
                        report_data.record(cell, compute_run_number(composition, run), rate, status, **changes)
                    )
    table = build_runs_table(records)
    protocol = {"lease_order": "blocks", "order": "blocks", "compositions": compositions}
    return FigureData(table, build_cells_table(plan, table), build_leases_table([]), next(iter(speeds)), protocol)
