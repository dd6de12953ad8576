"""Planted costs of runs and leases, and how often forecasts of what was left out hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from campaign.documents.cell import Cell, Configuration
from campaign.plan.cost.costs import Costs, LeaseCost, Span, cell_cost
from campaign.plan.cost.estimates import Work
from campaign.plan.cost.forecast import Forecaster, SystemTimes

SHAPES = [
    Configuration(f"{h}x{e}-{a}", h, e, e if a == "local" else 0, e, "gpu", a, "local")  # type: ignore[arg-type]
    for h in (1, 2)
    for e in (1, 2, 4)
    for a in ("local", "fabric")
]
CELLS = [
    Cell(f"{number:020d}", shape, workload, batch, precision)
    for number, (shape, workload, batch, precision) in enumerate(
        (s, w, b, p) for s in SHAPES for w in ("bert", "resnet", "yolo") for b in (1, 2, 4, 8) for p in ("fp32", "fp16")
    )
]
BASE = {"bert": 4.0, "resnet": 3.0, "yolo": 2.0}


def true_log_s(cell: Cell, additive: bool = False) -> float:
    """A doubled batch takes 1.3 times as long, a doubled number of devices 1.1 times, the fabric 1.2 times, fp16 0.7 times.

    additive: a start of 8 s, and steps of which each takes as long as its batch, devices and precision make it.
    """
    if additive:
        steps = 4 * BASE[cell.workload] + 2 * cell.batch * (0.6 if cell.precision == "fp16" else 1.0)
        slower = 0.3 * math.log2(cell.configuration.ranks) + 0.5 * (cell.configuration.attach == "fabric")
        return math.log(8.0 + steps * (1 + slower))
    return (
        BASE[cell.workload]
        + math.log(1.3) * math.log2(cell.batch)
        + math.log(1.1) * math.log2(cell.configuration.ranks)
        + math.log(1.2) * (cell.configuration.attach == "fabric")
        + math.log(0.7) * (cell.precision == "fp16")
    )


def knowing(costs: Costs, flops: Callable[[Cell], float | None] = lambda _: None) -> Forecaster:
    return Forecaster({"": SystemTimes([costs], costs.system, flops=flops)})


class Planted:
    """Costs with noise: what a cell has of its own (own) and what its runs differ by (run), both in ln(seconds)."""

    def __init__(self, seed: int, own: float = 0.15, run: float = 0.05, additive: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.own = {cell.id: self.random.normal(0, own) for cell in CELLS}
        self.run, self.additive = run, additive

    def seconds(self, cell: Cell) -> float:
        return math.exp(true_log_s(cell, self.additive) + self.own[cell.id] + self.random.normal(0, self.run))

    def composed_s(self, shape: Configuration) -> float:
        return math.exp(1 + 0.3 * math.log2(shape.devices) + self.random.normal(0, 0.2))

    def known(self, share: float) -> tuple[Forecaster, list[Cell]]:
        """A forecaster that knows a share of the cells, and the cells that it does not know."""
        chosen = self.random.random(len(CELLS)) < share
        costs = [
            cell_cost(c.id, c.configuration, c, {"measured_steps": 25}).of_runs(
                [Span(c.id, 0.0, self.seconds(c), True) for _ in range(3)]
            )
            for c, there in zip(CELLS, chosen, strict=True) if there
        ]  # fmt: skip
        leases = [
            LeaseCost(f"{s.name}.{n}", s.shape(), 10, self.composed_s(s), 1.0, 0.1, 1.0) for s in SHAPES for n in (1, 2)
        ]
        forecaster = knowing(Costs("earlier", "site", tuple(costs), tuple(leases)))
        return forecaster, [c for c, there in zip(CELLS, chosen, strict=True) if not there]


def works(cells: list[Cell], count: int = 2) -> list[Work]:
    return [Work(s.name, s, [(c, count) for c in cells if c.configuration is s], s.attach == "fabric") for s in SHAPES]


class Held(NamedTuple):
    """Shares of leases and of sums over all leases inside their intervals, median relative errors of both, and widths."""

    leases: float
    sums: float
    error: float
    of_sums: float
    width: float


def held(share: float, campaigns: int, *, additive: bool = False) -> Held:
    """Of campaigns of which a share of the cells is known, and the rest is forecast."""
    inside, total_inside, errors, of_sums, widths = [], [], [], [], []
    for seed in range(campaigns):
        planted = Planted(seed, additive=additive)
        forecaster, unknown = planted.known(share)
        forecast = forecaster.forecast(works(unknown))
        total = 0.0
        for work, expected in zip(works(unknown), forecast.leases, strict=True):
            if not work.count:
                continue
            actual = sum(planted.seconds(cell) for cell, count in work.runs for _ in range(count))
            actual += planted.composed_s(work.configuration) + 2.0 + 0.1 * (work.count - 1)
            total += actual
            assert expected.expected_s
            assert expected.low_s
            assert expected.high_s
            inside.append(expected.low_s <= actual <= expected.high_s)
            errors.append(abs(expected.expected_s / actual - 1))
            widths.append(expected.high_s / expected.low_s)
        whole = forecast.total
        assert whole.expected_s
        assert whole.low_s
        assert whole.high_s
        total_inside.append(whole.low_s <= total <= whole.high_s)
        of_sums.append(whole.expected_s / total - 1)
    middle = (float(np.median(each)) for each in (errors, of_sums, widths))
    return Held(float(np.mean(inside)), float(np.mean(total_inside)), *middle)
