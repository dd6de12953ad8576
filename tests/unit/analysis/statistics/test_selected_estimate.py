"""The interval of the largest of many estimates covers its truth in 95 of 100 campaigns, whatever the others are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from campaign.analysis.statistics.selected_estimate import bound_largest_estimate
from campaign.common.intervals import student_quantile
from tests.planted_campaigns import Truth
from tests.statements_under_truth import chosen

FREEDOM = 10


def missed(truths: Sequence[float], in_common: float = 0.0, campaigns: int = 500) -> tuple[float, float]:
    """Return the percentages of campaigns with the truth below and above the interval.

    The variance is estimated with two degrees of freedom per estimate, as from three compositions each.

    Args:
        truths: true values, in standard errors
        in_common: part of the variance that all estimates share
    """
    random, true = np.random.default_rng(5), np.array(truths)
    freedom = 2 * true.size
    below, above = [], []
    for _ in range(campaigns):
        error = np.sqrt(1 - in_common) * random.standard_normal(true.size)
        value = true + error + np.sqrt(in_common) * random.standard_normal()
        variance = random.chisquare(freedom) / freedom
        best = int(value.argmax())
        leads = np.delete(value[best] - value, best)
        covariances = np.full(leads.size, variance * (1 - in_common))
        low, high = bound_largest_estimate(value[best], variance, freedom, leads, covariances)
        assert low < value[best] <= high
        below.append(true[best] < low)
        above.append(true[best] > high)
    return 100 * float(np.mean(below)), 100 * float(np.mean(above))


@pytest.mark.parametrize("in_common", [0.0, 0.8])
@pytest.mark.parametrize(
    "truths",
    [(0.0,) * 2, (0.0,) * 6, (0.0,) * 60, (0.0, *(-8.0,) * 59), (*(0.0,) * 10, *(-2.0,) * 10), range(0, -20, -1)],
    ids=["2 equal", "6 equal", "60 equal", "one of 60 ahead", "two groups", "in steps"],
)
def test_the_truth_is_inside_95_times_of_100(truths: Sequence[float], in_common: float) -> None:
    below, above = missed(truths, in_common)
    assert 93 <= 100 - below - above <= 98
    assert above < 2.5


def test_a_contender_far_behind_takes_nothing() -> None:
    low, high = bound_largest_estimate(0.0, 1.0, FREEDOM, np.array([50.0]), np.array([1.0]))
    width = 2 * float(student_quantile(FREEDOM))
    assert width < high - low < 1.15 * width
    near, _ = bound_largest_estimate(0.0, 1.0, FREEDOM, np.array([0.1]), np.array([1.0]))
    assert near < 1.3 * low


def test_a_contender_that_deviates_with_the_best_does_not_pass_it_by_chance() -> None:
    apart = bound_largest_estimate(0.0, 1.0, FREEDOM, np.array([0.5]), np.array([1.0]))
    together = bound_largest_estimate(0.0, 1.0, FREEDOM, np.array([0.5]), np.array([0.01]))
    never = bound_largest_estimate(0.0, 1.0, FREEDOM, np.array([0.5]), np.array([-0.01]))
    assert together[0] > apart[0]
    assert together == pytest.approx(never)


def test_without_a_variance_there_is_no_interval_and_without_any_deviation_no_width() -> None:
    none = np.empty(0)
    assert np.isnan(bound_largest_estimate(1.0, float("nan"), 3.0, none, none)).all()
    assert np.isnan(bound_largest_estimate(1.0, 1.0, float("nan"), none, none)).all()
    assert bound_largest_estimate(1.0, 0.0, 3.0, none, none) == (1.0, 1.0)


@pytest.mark.parametrize(
    "truth",
    [
        Truth(configurations=2),
        Truth(configurations=24),
        Truth(configurations=24, effect=(1.0, *(1.1,) * 23)),
        Truth(configurations=24, effect=tuple(1 + 0.01 * n for n in range(24))),
        Truth(configurations=1, cells=20),
        Truth(configurations=6, cells=4, lease=0.03),
    ],
    ids=["2 equal", "24 equal", "one of 24 ahead", "24 in steps", "20 on shared leases", "6 x 4 on shared leases"],
)
def test_the_choice_of_a_planted_campaign_is_covered(truth: Truth) -> None:
    assert 90 <= chosen(truth, 100).cover <= 99.4


def test_the_interval_of_a_choice_is_about_as_wide_as_that_of_one_cell() -> None:
    # An interval that holds for all 24 cells together is three times as wide as here.
    assert chosen(Truth(configurations=24), 40).half < 3 * 100 * np.sqrt(0.01**2 / 3 + 0.01**2 / 6)
