"""What a campaign's own records say of its spread, and what a choice of compositions, runs and steps costs and finds: it is what
simulated campaigns find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.sample_size import (
    SampleSize,
    SampleSizes,
    Spread,
    compute_sample_size,
    compute_sample_sizes,
    estimate_spread,
    list_cheapest_sizes,
    parse_spread,
)
from campaign.analysis.simulated_power import PlannedComparisons
from campaign.cli.detect import order_choices
from campaign.common.errors import ConfigError
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from tests import statements_under_truth as said
from tests.campaign_files import write_files
from tests.planted_campaigns import Truth

FOUR = said.plan_precision(Truth(configurations=4))


@pytest.mark.parametrize(("configurations", "cells"), [(2, 1), (4, 1), (8, 1), (12, 1), (4, 4), (12, 4)])
def test_the_detectable_difference_is_found_in_80_of_100_campaigns(configurations: int, cells: int) -> None:
    """By the report's own comparisons among all of a figure."""
    truth = Truth(configurations, cells=cells, compositions=3, runs=6)
    assert said.detected(truth, campaigns=400).found == pytest.approx(80, abs=6)


def test_numbers_of_compositions_that_are_not_simulated_lie_between_those_that_are() -> None:
    truth = Truth(4, cells=2, compositions=10, runs=20)
    assert said.detected(truth, campaigns=400).found == pytest.approx(80, abs=6)


def test_all_cells_of_a_plan_are_tested_together(tmp_path: Path) -> None:
    asked = PlanRequest(write_files(tmp_path, {}), tmp_path)
    plan = read_plan(asked)
    cells = {cell.id for _, cell in plan.cells}
    first = plan.leases[0].configuration.name
    against = {cell.id for lease, cell in plan.cells if lease.configuration.name == first}
    assert PlannedComparisons.from_plan(plan).tests == len(cells - against) > 1


def test_one_composition_finds_nothing() -> None:
    assert compute_sample_size(Spread(1.0, 1.0, 1.0, ""), FOUR, 1, 50, 1000, 1.0).detectable_pct == np.inf


def hours(compose_s: float, run_s: float, step_s: float):  # type: ignore[no-untyped-def]
    return lambda k, r, s: k * (compose_s + r * (run_s + s * step_s)) / 3600


def cheapest(spread: Spread, pct: float, of_hours) -> SampleSize | None:  # type: ignore[no-untyped-def]
    found = list(list_cheapest_sizes(spread, pct, FOUR, 20, of_hours))
    assert [each.compositions for each in found] == sorted({each.compositions for each in found})
    assert all(each.detectable_pct <= pct for each in found)
    return min(found, key=lambda each: each.device_hours, default=None)


def test_where_composing_is_dear_runs_are_repeated_and_where_it_is_cheap_compositions() -> None:
    spread = Spread(0.5, 2.0, 5.0, "planted")
    dear, cheap = (cheapest(spread, 3.0, hours(compose_s, 10, 0.1)) for compose_s in (600, 1))
    assert dear.compositions < cheap.compositions
    assert dear.runs > cheap.runs


def test_nothing_finds_a_difference_that_is_small_beside_the_spread() -> None:
    assert cheapest(Spread(30.0, 1.0, 1.0, ""), 0.1, hours(1, 1, 1)) is None


def planted(composition_pct: float, run_pct: float, compositions: int, runs: int, cells: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(1)
    cell, lease, _ = np.indices((cells, compositions, runs)).reshape(3, -1)
    deviation = draw.normal(0, composition_pct / 100, (cells, compositions))[cell, lease]
    rate = 100 * np.exp(deviation + draw.normal(0, run_pct / 100, cell.size))
    labels = pd.Series(cell).astype(str)
    return pd.DataFrame({
        "cell_id": labels, "lease_id": labels + "." + pd.Series(lease).astype(str), "status": "ok", "host_names": "a",
        "throughput_per_s": rate, "value": rate, "step_error_pct": 0.0, "measured_steps": 20,
    })  # fmt: skip


def test_the_spread_is_that_of_the_runs() -> None:
    found = estimate_spread([("earlier", planted(2.0, 1.0, 4, 3))])
    assert found.composition_pct == pytest.approx(2.0, rel=0.25)
    assert found.run_pct == pytest.approx(1.0, rel=0.2)
    assert "earlier" in found.source


def test_where_everything_was_composed_once_the_spread_of_compositions_is_assumed_and_that_is_said() -> None:
    found = estimate_spread([("single", planted(2.0, 1.0, 1, 4))])
    assert found.composition_pct == 1.0
    assert "assumed" in found.source
    assert estimate_spread([("one run", planted(2.0, 1.0, 1, 1))]) is None


def test_a_spread_is_read_from_words_and_an_error_says_how_to_write_it() -> None:
    found = parse_spread("composition 2 %, run 0.5")
    assert (found.composition_pct, found.run_pct, found.step_pct) == (2.0, 0.5, 5.0)
    with pytest.raises(
        ConfigError, match="'host 3' is not the standard deviation of a composition, run or step; write"
    ):
        parse_spread("composition 2 %, host 3")


def test_more_is_found_for_more_and_the_campaign_as_it_is_stands_beside(tmp_path: Path) -> None:
    changes = {"campaign.protocol.compositions": 1, "campaign.axes.batch": [1], "campaign.axes.precision": ["fp32"]}
    asked = PlanRequest(write_files(tmp_path, changes), tmp_path / "results")
    plan = read_plan(asked)
    coarse, fine = (compute_sample_sizes(plan, asked, pct, "composition 1 %, run 1 %") for pct in (5.0, 2.0))
    assert coarse.now.detectable_pct == np.inf
    assert coarse.cheapest.device_hours < fine.cheapest.device_hours
    assert coarse.cheapest.detectable_pct <= 5.0
    assert coarse.cheapest.device_hours == min(each.device_hours for each in coarse.alternatives)
    assert compute_sample_sizes(plan, asked, 0.01, "composition 9 %").cheapest is None
    assert [each.compositions for each in coarse.usual] == [1, 2, 3, 5]
    found = [each.detectable_pct for each in coarse.usual]
    assert found == sorted(found, reverse=True)


def test_runs_in_each_composition_are_those_of_the_campaign(tmp_path: Path) -> None:
    asked = PlanRequest(
        write_files(tmp_path, {"campaign.protocol.compositions": 3, "campaign.protocol.repetitions": 6}), tmp_path
    )
    now = compute_sample_sizes(read_plan(asked), asked, 5.0).now
    assert (now.compositions, now.runs) == (3, 2)


def test_a_table_of_choices_has_each_choice_once_in_ascending_order() -> None:
    def choice(compositions: int, runs: int) -> SampleSize:
        return SampleSize(compositions, runs, 20, 1.0, 2.0, float(compositions))

    now, cheapest = choice(4, 2), choice(3, 1)
    usual = tuple(choice(count, 2) for count in (2, 3, 4, 6))
    found = SampleSizes(
        Spread(1, 1, 1, ""), 4, now, usual, cheapest, (cheapest, choice(4, 2), choice(6, 2), choice(9, 1))
    )
    shown = [(name, each.compositions, each.runs) for name, each in order_choices(found)]
    assert shown == [("", 2, 2), ("cheapest", 3, 1), ("", 3, 2), ("current", 4, 2), ("", 6, 2)]
    same = SampleSizes(Spread(1, 1, 1, ""), 4, now, usual, now, (now,))
    assert [name for name, each in order_choices(same) if each == now] == ["current, cheapest"]
