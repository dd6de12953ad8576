"""Forecasts of planted costs: they are found, and intervals hold as often as they say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from campaign.documents.cell import Cell, Configuration
from campaign.plan.cost.assumption import parse_assumption
from campaign.plan.cost.costs import Costs, LeaseCost, Span, cell_cost
from campaign.plan.cost.estimates import NOTHING, Work
from campaign.plan.cost.forecast import Forecaster
from campaign.plan.cost.log_linear import student

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


def true_log_s(cell: Cell) -> float:
    """A doubled batch takes 1.3 times as long, a doubled number of devices 1.1 times, the fabric 1.2 times, fp16 0.7 times."""
    return (
        BASE[cell.workload]
        + math.log(1.3) * math.log2(cell.batch)
        + math.log(1.1) * math.log2(cell.configuration.ranks)
        + math.log(1.2) * (cell.configuration.attach == "fabric")
        + math.log(0.7) * (cell.precision == "fp16")
    )


class Planted:
    """Costs with noise: what a cell has of its own (own) and what its runs differ by (run), both in ln(seconds)."""

    def __init__(self, seed: int, own: float = 0.15, run: float = 0.05) -> None:
        self.random = np.random.default_rng(seed)
        self.own = {cell.id: self.random.normal(0, own) for cell in CELLS}
        self.run = run

    def seconds(self, cell: Cell) -> float:
        return math.exp(true_log_s(cell) + self.own[cell.id] + self.random.normal(0, self.run))

    def composed_s(self, shape: Configuration) -> float:
        return math.exp(1 + 0.3 * math.log2(shape.devices) + self.random.normal(0, 0.2))

    def known(self, share: float) -> tuple[Forecaster, list[Cell]]:
        """A forecaster that knows a share of the cells, and the cells that it does not know."""
        chosen = self.random.random(len(CELLS)) < share
        costs = [
            cell_cost(
                c.id, c.configuration.shape(), (c.workload, c.batch, c.precision, {}), 25,
                [Span(c.id, 0.0, self.seconds(c), True) for _ in range(3)],
            )
            for c, there in zip(CELLS, chosen, strict=True) if there
        ]  # fmt: skip
        leases = [
            LeaseCost(f"{s.name}.{n}", s.shape(), 10, self.composed_s(s), 1.0, 0.1, 1.0) for s in SHAPES for n in (1, 2)
        ]
        forecaster = Forecaster([Costs("earlier", "site", tuple(costs), tuple(leases))], "site")
        return forecaster, [c for c, there in zip(CELLS, chosen, strict=True) if not there]


def works(cells: list[Cell], count: int = 2) -> list[Work]:
    return [Work(s.name, s, [(c, count) for c in cells if c.configuration is s], s.attach == "fabric") for s in SHAPES]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_intervals_hold_about_as_often_as_they_say(share: float) -> None:
    """Wide where little is known; never less often than stated."""
    inside, total_inside, errors = [], [], []
    for seed in range(25):
        planted = Planted(seed)
        forecaster, unknown = planted.known(share)
        forecast = forecaster.forecast(works(unknown))
        total = 0.0
        for work, expected in zip(works(unknown), forecast.leases, strict=True):
            actual = sum(planted.seconds(cell) for cell, count in work.runs for _ in range(count))
            actual += planted.composed_s(work.configuration) + 2.0 + 0.1 * (work.count - 1)
            total += actual
            assert expected.low_s is not None
            assert expected.high_s is not None
            inside.append(expected.low_s <= actual <= expected.high_s)
        assert forecast.total.low_s is not None
        assert forecast.total.high_s is not None
        total_inside.append(forecast.total.low_s <= total <= forecast.total.high_s)
        errors.append(forecast.total.expected_s / total - 1)
    # 300 leases at 95 % fall short of 92 % in one of a hundred trials; where data are few intervals may be wider than need be.
    assert np.mean(inside) >= 0.92
    assert np.mean(total_inside) >= 0.84
    assert abs(np.median(errors)) < 0.05
    if share > 0.3:
        assert np.mean(inside) < 0.995


def test_planted_effects_are_found() -> None:
    forecaster, unknown = Planted(1, own=0.02, run=0.01).known(0.6)
    forecaster = replace(forecaster, known=[replace(forecaster.known[0], leases=())])
    for cell in unknown:
        (expected,) = forecaster.forecast([Work("l", cell.configuration, [(cell, 1)], False)]).leases
        assert expected.expected_s == pytest.approx(math.exp(true_log_s(cell)), rel=0.1)
        assert expected.basis == "earlier runs of the workload in other cells"


def test_a_cell_that_ran_is_expected_to_take_what_it_took() -> None:
    planted = Planted(2, own=0.8)
    forecaster, unknown = planted.known(0.5)
    strangest = max((c for c in CELLS if c not in unknown), key=lambda cell: abs(planted.own[cell.id]))
    (expected,) = forecaster.forecast([Work("l", strangest.configuration, [(strangest, 1)], False)]).leases
    truth = math.exp(true_log_s(strangest) + planted.own[strangest.id])
    assert expected.runs_s == pytest.approx(truth, rel=0.25)
    assert expected.basis == "earlier runs of these cells"


def test_what_never_ran_is_expected_less_surely() -> None:
    forecaster, unknown = Planted(3).known(0.5)
    far = replace(unknown[0], id="e" * 20, batch=4096)
    known, extrapolated = forecaster.forecast(
        [Work("l", cell.configuration, [(cell, 1)], False) for cell in (unknown[0], far)]
    ).leases

    def width(expected: object) -> float:
        return expected.high_s / expected.low_s  # type: ignore[attr-defined, no-any-return]

    assert width(known) < width(extrapolated)


def test_runs_that_failed_early_say_nothing_of_their_neighbours() -> None:
    planted = Planted(4)
    forecaster, unknown = planted.known(0.5)
    failed = [
        replace(cost, cell_id=f"failed-{cost.cell_id}"[:20], believed=False, mean_log_s=-5.0)
        for cost in forecaster.known[0].cells
    ]
    costs = forecaster.known[0]
    more = Forecaster([replace(costs, cells=(*costs.cells, *failed))], "site")
    for a, b in zip(forecaster.forecast(works(unknown)).leases, more.forecast(works(unknown)).leases, strict=True):
        assert a.expected_s == b.expected_s


def test_no_run_is_expected_to_take_longer_than_its_limit() -> None:
    forecaster, unknown = Planted(5).known(0.5)
    limited = [replace(c, settings=replace(c.settings, time_limit_s=0.5)) for c in unknown]
    for expected, work in zip(forecaster.forecast(works(limited)).leases, works(limited), strict=True):
        assert expected.runs_s <= work.count * (0.5 + 0.2)


def test_prices_add_up_to_the_forecast() -> None:
    for forecaster, unknown in (
        Planted(6).known(0.3),
        (Forecaster(assumed=parse_assumption("10 s a run, 5 s to compose")), CELLS),
    ):
        todo = works(unknown, 3)
        prices, forecast = forecaster.prices(todo), forecaster.forecast(todo)
        for once, each, work, expected in zip(prices.once_s, prices.run_s, todo, forecast.leases, strict=True):
            total = once + sum(seconds * count for seconds, (_, count) in zip(each, work.runs, strict=True))
            assert total == pytest.approx(expected.expected_s)


def test_nothing_to_do_takes_no_time() -> None:
    forecaster, _ = Planted(7).known(0.3)
    assert forecaster.forecast(works([])).leases == (NOTHING,) * len(SHAPES)
    assert forecaster.forecast([]).total.expected_s == 0


def test_only_failures_are_nothing_to_learn_from() -> None:
    cost = cell_cost("c", SHAPES[0].shape(), ("bert", 1, "fp32", {}), 4, [Span("c", 0.0, 3.0, False)])
    (expected,) = (
        Forecaster([Costs("x", "site", (cost,))], "site")
        .forecast([Work("l", SHAPES[0], [(CELLS[0], 1)], False)])
        .leases
    )
    assert (expected.expected_s, expected.basis) == (None, "no run of bert yet")


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.7764), (10, 2.2281), (30, 2.0423), (1e6, 1.96)])
def test_students_quantile(freedom: float, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, rel=0.005)
