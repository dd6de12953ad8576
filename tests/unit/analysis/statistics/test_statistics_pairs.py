"""Paired ratios, many tests at once, and the words: simulated campaigns whose effects are known, 1,000 each.

Three standard deviations of chance are allowed for everywhere: a rate of 5 in 100 of 1,000 draws is 0.05 +- 0.021.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.statistics import verdict
from campaign.analysis.statistics.ratios import (
    LogRatios,
    compute_paired_ratios,
    compute_unpaired_ratios,
    has_enough_pairs,
)
from campaign.common.intervals import Floats, adjust_p_values

DRAWS = 1_000
CHANCE = 3 * np.sqrt(0.05 * 0.95 / DRAWS)
positive = st.floats(min_value=1e-2, max_value=1e4)
some_pairs = st.lists(st.tuples(positive, positive), min_size=2, max_size=8)


def of_rows(a: Floats, b: Floats) -> LogRatios:
    """The ratios of rows of pairs, shape (draws, n)."""
    return compute_paired_ratios(a.ravel(), b.ravel(), np.repeat(np.arange(len(a)), a.shape[1]), len(a))


def of_means(a: Floats, b: Floats) -> LogRatios:
    moments = [(x.mean(axis=1), x.std(axis=1, ddof=1), x.shape[1]) for x in (a, b)]
    return compute_unpaired_ratios(*moments[0], *moments[1])


def test_a_known_sample() -> None:
    a, b = np.array([10.0, 12.0, 14.0]), np.array([5.0, 5.5, 7.5])
    found = compute_paired_ratios(a, b, [0, 0, 0], 1)
    assert found.ratio[0] == pytest.approx(2.0)
    # Lajeunesse (2011), eq. 5: the variances of both relative means less twice their covariance.
    variance = a.var(ddof=1) / (3 * 12**2) + b.var(ddof=1) / (3 * 6**2) - 2 * np.cov(a, b)[0, 1] / (3 * 12 * 6)
    assert found.variance[0] == pytest.approx(variance)
    _, low, high = found.compute_bounds()
    # t(2; 0.975) = 4.302653 from any table.
    assert (np.log(high[0] / 2), np.log(2 / low[0])) == pytest.approx([4.302653 * np.sqrt(variance)] * 2)


@given(some_pairs)
@settings(max_examples=50)
def test_the_inverse_has_the_inverse_interval_and_the_same_p(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    one, other = compute_paired_ratios(a, b, [0] * len(a), 1), compute_paired_ratios(b, a, [0] * len(a), 1)
    assert one.ratio * other.ratio == pytest.approx(1)
    assert np.log(one.compute_bounds()[1]) == pytest.approx(-np.log(other.compute_bounds()[2]), rel=1e-6, abs=1e-9)
    assert one.compute_p_values() == pytest.approx(other.compute_p_values(), rel=1e-6, abs=1e-9)


@given(some_pairs, st.floats(min_value=0.1, max_value=10))
@settings(max_examples=50)
def test_what_a_block_does_to_both_runs_is_of_no_matter(pairs: list[tuple[float, float]], ratio: float) -> None:
    a = np.array(pairs).ravel()
    found = compute_paired_ratios(ratio * a, a, np.zeros(a.size, dtype=int), 1)
    assert found.compute_bounds() == pytest.approx((ratio, ratio, ratio))
    assert (found.compute_p_values(null_ratio=ratio), found.compute_p_values(null_ratio=2 * ratio)) == (1.0, 0.0)


def test_comparisons_do_not_touch_each_other_and_one_pair_has_no_interval() -> None:
    a, b = [1.0, 9.0, 2.0, 3.0, 0.0], [1.0, 3.0, 1.1, 1.4, 1.0]
    found = compute_paired_ratios(a, b, [0, 1, 0, 0, 3], 4)
    alone = compute_paired_ratios([1.0, 2.0, 3.0], [1.0, 1.1, 1.4], [0, 0, 0], 1)
    assert (found.ratio[0], found.variance[0]) == pytest.approx((alone.ratio[0], alone.variance[0]))
    assert found.ratio[1] == 3.0
    assert np.isnan(found.compute_bounds()[1][1:]).all()
    assert np.isnan(found.compute_p_values()[1:]).all()
    assert np.isnan(found.ratio[2:]).all()


@pytest.mark.parametrize("n", [3, 5, 10])
def test_paired_intervals_cover_in_95_of_100_whatever_the_blocks_are_like(n: int) -> None:
    random = np.random.default_rng(n)
    blocks = random.normal(1, 0.1, (DRAWS, n))
    a = 90 * blocks * random.normal(1, 0.01, (DRAWS, n))
    b = 100 * blocks * random.normal(1, 0.01, (DRAWS, n))
    _, low, high = of_rows(a, b).compute_bounds()
    assert abs(((low <= 0.9) & (high >= 0.9)).mean() - 0.95) < CHANCE
    _, unpaired_low, unpaired_high = of_means(a, b).compute_bounds()
    assert np.median(np.log(unpaired_high / unpaired_low)) > 3 * np.median(np.log(high / low))


def drifting(blocks: bool, n: int = 5) -> tuple[Floats, Floats]:
    """Two cells that are alike, on a system that gets slower by 5 % in all; measured in blocks or one after the other."""
    random = np.random.default_rng(21)
    time = np.linspace(0, 1, 2 * n)
    if blocks:
        swapped = random.random((DRAWS, n)) < 0.5
        a, b = time[0::2] + swapped * (time[1] - time[0]), time[1::2] - swapped * (time[1] - time[0])
    else:
        a, b = np.tile(time[:n], (DRAWS, 1)), np.tile(time[n:], (DRAWS, 1))
    noise = random.normal(1, 0.005, (2, DRAWS, n))
    return 100 * (1 - 0.05 * a) * noise[0], 100 * (1 - 0.05 * b) * noise[1]


def test_drift_is_no_effect_under_block_order_and_is_one_under_sequential_order() -> None:
    in_blocks, one_after_the_other = drifting(blocks=True), drifting(blocks=False)
    assert (of_rows(*in_blocks).compute_p_values() < 0.05).mean() < 0.05 + CHANCE
    assert (of_means(*in_blocks).compute_p_values() < 0.05).mean() < 0.05 + CHANCE
    assert (of_means(*one_after_the_other).compute_p_values() < 0.05).mean() > 0.5
    # What pairing gives: an effect of 2 % is seen through the drift.
    a, b = in_blocks
    assert (
        (of_rows(0.98 * a, b).compute_p_values() < 0.05).mean()
        > 0.8
        > (of_means(0.98 * a, b).compute_p_values() < 0.05).mean()
    )


@pytest.mark.parametrize(("make", "n"), [(of_rows, 4), (of_means, 4), (of_means, 10)])
@pytest.mark.parametrize("tests", [1, 11])
def test_an_effect_as_large_as_the_least_detectable_one_is_found_in_80_of_100(make, n: int, tests: int) -> None:
    """Stated from one draw's guess of the spread, and looked for in another draw."""
    random = np.random.default_rng(22)
    stated = make(*random.normal(100, 2, (2, DRAWS, n)))
    least = 1 + np.asarray(stated.compute_detectable_pct(tests))[:, None] / 100
    a, b = random.normal(100, 2, (2, DRAWS, n))
    found = (make(least * a, b).compute_p_values() < 0.05 / tests).mean()
    assert abs(found - 0.8) < 3 * np.sqrt(0.8 * 0.2 / DRAWS) + 0.02


def test_holm_keeps_the_chance_of_any_false_effect_at_5_of_100() -> None:
    random = np.random.default_rng(23)
    reference = random.normal(100, 1, (DRAWS, 1, 5))
    others = random.normal(100, 1, (DRAWS, 20, 5))
    p = (
        of_means(others.reshape(-1, 5), np.broadcast_to(reference, others.shape).reshape(-1, 5))
        .compute_p_values()
        .reshape(DRAWS, 20)
    )
    adjusted = np.array([adjust_p_values(family) for family in p])
    assert (adjusted < 0.05).any(axis=1).mean() < 0.05 + CHANCE
    assert (p < 0.05).any(axis=1).mean() > 0.3


def test_holm_on_the_numbers_of_a_textbook() -> None:
    assert adjust_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    with_gap = adjust_p_values([0.02, np.nan, 0.01])
    assert np.isnan(with_gap[1])
    assert with_gap[[0, 2]] == pytest.approx([0.02, 0.02])
    assert adjust_p_values([]).shape == (0,)
    assert adjust_p_values([[0.5, 0.9]]).tolist() == [[1.0, 1.0]]


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=30))
@settings(max_examples=50)
def test_holm_only_raises_and_keeps_the_order(p: list[float]) -> None:
    adjusted = adjust_p_values(p)
    assert (adjusted >= np.array(p)).all()
    assert (adjusted <= 1).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


@pytest.mark.parametrize("true_pct", [0.0, 0.5, 1.5])
def test_what_is_said_of_a_difference_is_right_in_95_of_100(true_pct: float) -> None:
    random = np.random.default_rng(24)
    b, a = random.normal(100, 1, (2, DRAWS, 4))
    of = of_means(a * (1 + true_pct / 100), b)
    _, low, high = of.compute_bounds()
    p = of.compute_p_values()
    none = p >= 0.05
    largest = np.array(
        [verdict.bound_difference_pct(*each) for each in zip(100 * (low - 1), 100 * (high - 1), strict=True)]
    )
    assert (none & (largest < true_pct)).mean() < 0.05 + CHANCE
    if not true_pct:
        assert none.mean() > 0.95 - CHANCE
        # The words are of use: with 4 runs of 1 % noise each they exclude a few percent.
        assert np.median(largest[none]) < 3


def test_pairing_follows_from_the_design_alone() -> None:
    assert has_enough_pairs([2, 3, 3, 4, 5], [2, 3, 8, 8, 10], [3, 3, 7, 9, 20]).tolist() == [
        False,
        True,
        False,
        True,
        True,
    ]


def test_a_change_of_a_ratio_adds_both_variances() -> None:
    random = np.random.default_rng(25)
    a, b, c, d = (random.normal(100, 1, (DRAWS, 4)) for _ in range(4))
    change = of_rows(1.5 * a, b).divide_by(of_rows(1.2 * c, d))
    _, low, high = change.compute_bounds()
    assert 0.95 - CHANCE < ((low <= 1.25) & (high >= 1.25)).mean() < 0.99
    assert np.mean(change.ratio) == pytest.approx(1.25, abs=0.01)
