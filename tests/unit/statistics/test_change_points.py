"""Change points by simulation: false alarms of a site, changes that are found, and what must not alter the answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.statistics.change_points import LEAST, change_points
from tests.benchmarks.histories import SLOWER
from tests.planted_histories import Site, false_alarms, found_within


@pytest.mark.parametrize("site", [Site(), Site(heavy=True), Site(campaign=0.01)], ids=["normal", "heavy", "restless"])
def test_sites_without_a_change_raise_no_alarm_at_any_look(site: Site) -> None:
    """`python -m tests.benchmarks histories` asks more sites, of more kinds."""
    assert false_alarms(site, 12, np.random.default_rng(5)) <= 1


@pytest.mark.parametrize("before", [10, 17])
def test_a_change_of_5_pct_is_found_within_three_campaigns(before: int) -> None:
    site = Site(campaigns=before + 3)
    assert found_within(site, SLOWER, before, 3, 20, np.random.default_rng(4)) >= 17


@pytest.mark.parametrize(("cells", "found"), [(2, 44), (5, 45)])
def test_a_change_is_not_taken_for_the_spread_of_few_cells(cells: int, found: int) -> None:
    site = Site(cells=cells, campaigns=13)
    assert found_within(site, SLOWER, 10, 3, 60, np.random.default_rng(6)) >= found


def test_a_restless_system_hides_what_a_calm_one_shows() -> None:
    """What campaigns differ in beside compositions is part of the spread."""
    calm, restless = (
        found_within(replace(Site(campaigns=13), campaign=campaign), SLOWER, 10, 3, 15, np.random.default_rng(5))
        for campaign in (0.0, 0.03)
    )
    assert calm > 10 > 3 >= restless


def planted(*levels: float, seed: int = 0) -> list[list[np.ndarray]]:
    """A cell with so many campaigns on each level as LEAST, and three that never change."""
    draw = np.random.default_rng(seed)
    means = np.repeat(levels, LEAST)
    return [
        [mean + 0.01 * draw.standard_normal(3) for mean in (means if cell == 0 else 0 * means)] for cell in range(4)
    ]


def test_several_changes_are_told_apart_with_size_and_interval() -> None:
    first, *others = change_points(planted(0.0, -0.1, 0.05), [0, 1, 2, 3])
    assert [change.at for change in first] == [LEAST, 2 * LEAST]
    assert [round(float(np.log(change.ratio)), 2) for change in first] == pytest.approx([-0.1, 0.15], abs=0.011)
    assert all(change.low < change.ratio < change.high for change in first)
    assert others == [(), (), ()]


def test_fewer_campaigns_than_ten_are_not_looked_at() -> None:
    history = planted(0.0, -0.3)[0][LEAST - 4 : 2 * LEAST - 5]
    assert len(history) == LEAST - 1
    assert change_points([history], [0]) == [()]
    assert change_points([], []) == []


def test_equal_values_and_single_compositions_are_no_error() -> None:
    flat = [[1.0]] * LEAST
    assert change_points([flat, flat], [0, 1]) == [(), ()]
    step = [[1.0]] * LEAST + [[1.2]] * 3
    (found,) = change_points([step], [0])
    assert [change.at for change in found] == [LEAST]


@settings(max_examples=10)
@given(st.floats(-5, 5), st.permutations(range(4)))
def test_units_and_the_order_of_cells_do_not_matter(shift: float, order: list[int]) -> None:
    cells = planted(0.0, -0.06)
    found = change_points(cells, [0, 1, 2, 3])
    moved = change_points([[each + shift for each in cells[place]] for place in order], order)
    for place, changes in zip(order, moved, strict=True):
        assert [change.at for change in changes] == [change.at for change in found[place]]
        assert [change.p for change in changes] == pytest.approx([change.p for change in found[place]], rel=1e-3)


def test_cells_on_the_same_compositions_are_no_further_evidence_of_the_spread() -> None:
    cells = planted(0.0, -0.03, seed=1)
    alone, shared = (change_points(cells, groups)[0] for groups in ([0, 1, 2, 3], [0, 0, 0, 0]))
    assert alone[0].p < shared[0].p
