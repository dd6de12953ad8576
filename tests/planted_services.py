"""Campaigns of services whose truth is known: the time to the first token is the response time of an M/M/1 queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.run_numbers import run_number
from campaign.report.figure import FigureData
from campaign.tables.cells import CellPlan, cells_table
from campaign.tables.leases import leases_table
from campaign.tables.runs import runs_table
from tests.unit.report import report_data

Floats = npt.NDArray[np.float64]
SERVED_PER_S = 50.0
TOKENS = 17


def response_times(rate: float, served: npt.ArrayLike, requests: int, draw: np.random.Generator) -> Floats:
    """One row for each of `served` (per second): an M/M/1 queue in equilibrium (Lindley, 1952). Unstable ones start empty."""
    mu = np.asarray(served, dtype=np.float64)[:, None]
    between, service = draw.exponential(1 / rate, (mu.size, requests)), draw.exponential(1, (mu.size, requests)) / mu
    busy = np.minimum(rate / mu, 1.0)
    spare = np.where(mu > rate, mu - rate, 1.0)
    start = np.where((draw.random(mu.shape) < busy) & (mu > rate), draw.exponential(1, mu.shape) / spare, 0.0)
    steps = np.cumsum(service[:, :-1] - between[:, 1:], axis=1)
    path = np.concatenate([np.zeros_like(mu), steps], axis=1)
    return np.asarray(np.maximum(start + path, path - np.minimum.accumulate(path, axis=1)) + service)


def true_percentile(percent: float, rate: float, served: float) -> float:
    return -math.log(1 - percent / 100) / (served - rate)


@dataclass(frozen=True)
class Service:
    """speed: of each configuration, times `SERVED_PER_S`; lease_sd: of the logarithm of a composition's speed."""

    speeds: Mapping[str, float]
    rates: Sequence[float] = (20.0, 30.0, 40.0, 46.0)
    compositions: int = 3
    runs: int = 2
    requests: int = 1000
    lease_sd: float = 0.02
    token_ms: float = 10.0
    errors: float = 0.0


def planted(of: Service, seed: int = 1) -> tuple[list[CellPlan], list[Any], pd.DataFrame]:
    """The plan, its records, and the table of requests."""
    draw = np.random.default_rng(seed)
    plan, records, tables = [], [], []
    for place, (name, speed) in enumerate(of.speeds.items()):
        attach = "fabric" if "fabric" in name else "local"
        at = report_data.configuration(each=place + 1, attach=attach, name=name)
        served = SERVED_PER_S * speed * np.exp(draw.normal(0, of.lease_sd, of.compositions))
        for rate in of.rates:
            cell = report_data.cell(at, "gpt-service", 1, rate_per_s=rate)
            plan.append(CellPlan(cell, of.compositions * of.runs, f"lease-{name}"))
            first_s = response_times(rate, np.repeat(served, of.runs), of.requests, draw)
            for number, times in enumerate(first_s):
                composition, run = divmod(number, of.runs)
                repetition = run_number(composition + 1, run + 1)
                lease = f"{name}-{composition}"
                started = 1.7e9 + 1000 * composition + repetition % 1000
                records.append(
                    report_data.record(
                        cell,
                        repetition,
                        rate,
                        lease_id=lease,
                        started=started,
                        hosts=("host0",),
                        step_times_s=(),
                        metrics={},
                    )
                )
                tables.append(_requests(of, cell.id, repetition, rate, times, draw))
    return plan, records, pd.concat(tables, ignore_index=True)


def _requests(
    of: Service, cell_id: str, repetition: int, rate: float, first_s: Floats, draw: np.random.Generator
) -> pd.DataFrame:
    intended = np.cumsum(draw.exponential(1 / rate, first_s.size))
    token_s = of.token_ms / 1e3 * (1 + rate / SERVED_PER_S) * draw.normal(1, 0.05, first_s.size)
    failed = draw.random(first_s.size) < of.errors
    return pd.DataFrame(
        {
            "cell_id": cell_id,
            "repetition": repetition,
            "intended_s": intended,
            "sent_s": intended + 1e-4,
            "first_s": np.where(failed, np.nan, intended + first_s),
            "last_s": np.where(failed, np.nan, intended + first_s + (TOKENS - 1) * token_s),
            "prompt_tokens": 32,
            "output_tokens": TOKENS,
            "error": np.where(failed, "timed out", ""),
            "in_window": True,
        }
    )


def figure_data(of: Service, objective: Mapping[str, Mapping[str, float]] | None = None, seed: int = 1) -> FigureData:
    """What figures read of such a campaign; the first configuration is the baseline."""
    plan, records, requests = planted(of, seed)
    runs = runs_table(records)
    context = {"objectives": {"gpt-service": objective}} if objective else {}
    protocol = {"lease_order": "blocks", "order": "blocks", "compositions": of.compositions}
    cells = cells_table(plan, runs)
    return FigureData(
        runs, cells, leases_table([]), next(iter(of.speeds)), protocol, requests=requests, context=context
    )
