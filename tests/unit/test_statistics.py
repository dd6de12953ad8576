"""Summaries and ratios: known values, invariances, and whether 95 % intervals cover in 95 of 100 cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign import statistics
from campaign.statistics import Summary, ratio_with_interval, summarize

positive = st.floats(min_value=1e-3, max_value=1e6)
samples = st.lists(positive, min_size=2, max_size=12)


def test_known_sample() -> None:
    summary = summarize([10.0, 12.0, 14.0, 16.0])
    assert summary.n == 4
    assert (summary.mean, summary.median, summary.minimum, summary.maximum) == (13.0, 13.0, 10.0, 16.0)
    assert summary.sd == pytest.approx(2.581989)
    assert summary.cv_pct == pytest.approx(19.861453)
    # t(3; 0.975) = 3.182446 from any table.
    assert summary.ci_high - summary.mean == pytest.approx(3.182446 * 2.581989 / 2, rel=1e-6)
    assert summary.interval_method == statistics.STUDENT


@given(samples, st.floats(min_value=1e-3, max_value=1e3))
def test_unit_of_measurement_does_not_matter(values: list[float], factor: float) -> None:
    one, other = summarize(values), summarize([value * factor for value in values])
    assert other.cv_pct == pytest.approx(one.cv_pct, rel=1e-6, abs=1e-6)
    for name in ("mean", "median", "sd", "ci_low", "ci_high"):
        assert getattr(other, name) == pytest.approx(
            getattr(one, name) * factor, rel=1e-6, abs=1e-6 * one.mean * factor
        )


@given(samples, st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = summarize(values), summarize(shuffled)
    assert other.median == one.median
    assert other.mean == pytest.approx(one.mean)
    assert other.sd == pytest.approx(one.sd, rel=1e-6, abs=1e-6 * one.mean)


@given(samples)
def test_interval_holds_the_mean_and_the_range_holds_the_median(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.ci_low <= summary.mean <= summary.ci_high
    assert summary.minimum <= summary.median <= summary.maximum


def test_no_run_and_one_run_have_no_interval_and_say_so() -> None:
    none, one = summarize([]), summarize([5.0])
    assert none.n == 0
    assert none.interval_method == statistics.NO_RUN
    assert (one.mean, one.interval_method) == (5.0, statistics.ONE_RUN)
    assert np.isnan([one.sd, one.cv_pct, one.ci_low, one.ci_high, none.mean]).all()


def test_a_missing_number_is_not_averaged() -> None:
    with pytest.raises(ValueError, match="nan"):
        summarize([1.0, float("nan")])


def test_intervals_are_element_wise() -> None:
    low, high = statistics.student_interval([10.0, 10.0, 10.0], [1.0, 1.0, np.nan], [4, 100, 1])
    assert high[0] - low[0] > high[1] - low[1] > 0
    assert np.isnan([low[2], high[2]]).all()
    assert list(statistics.interval_methods([5, 1, 0])) == [statistics.STUDENT, statistics.ONE_RUN, statistics.NO_RUN]


@given(samples, samples)
def test_ratio_and_its_inverse_agree(a: list[float], b: list[float]) -> None:
    ratio = ratio_with_interval(summarize(a), summarize(b))
    inverse = ratio_with_interval(summarize(b), summarize(a))
    assert ratio.value * inverse.value == pytest.approx(1)
    assert ratio.low <= ratio.value <= ratio.high
    if ratio.low > 0 and np.isfinite(ratio.high):
        assert inverse.high == pytest.approx(1 / ratio.low, rel=1e-6)


@given(samples, samples, st.floats(min_value=1e-2, max_value=1e2))
def test_ratio_is_of_no_unit(a: list[float], b: list[float], factor: float) -> None:
    one = ratio_with_interval(summarize(a), summarize(b))
    other = ratio_with_interval(summarize([v * factor for v in a]), summarize([v * factor for v in b]))
    assert other.value == pytest.approx(one.value)
    assert np.log(other.high) == pytest.approx(np.log(one.high), rel=1e-3, abs=1e-3)


def test_a_sample_without_spread_gives_an_interval_without_width() -> None:
    ratio = ratio_with_interval(summarize([2.0, 2.0]), summarize([1.0, 1.0]))
    assert (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("a", "b", "method"),
    [
        ([1.0], [1.0, 2.0], statistics.ONE_RUN),
        ([], [1.0, 2.0], statistics.NO_RUN),
        ([0.0, 0.0], [1.0, 2.0], statistics.NOT_POSITIVE),
    ],
)
def test_a_ratio_without_interval_says_why(a: list[float], b: list[float], method: str) -> None:
    ratio = ratio_with_interval(summarize(a), summarize(b))
    assert ratio.method == method
    assert np.isnan([ratio.low, ratio.high]).all()


def test_drop_and_increase_turn_the_interval_around() -> None:
    drop = statistics.Ratio(0.919, 0.91, 0.93, statistics.LOG_RATIO).drop_pct()
    assert drop.value == pytest.approx(8.1)
    assert (drop.low, drop.high) == (pytest.approx(7.0), pytest.approx(9.0))
    increase = statistics.Ratio(1.07, 1.05, 1.09, statistics.LOG_RATIO).increase_pct()
    assert (increase.low, increase.value, increase.high) == (pytest.approx(5.0), pytest.approx(7.0), pytest.approx(9.0))
    assert statistics.Ratio(3.0, 2.0, 4.0, "").scaled(0.25) == statistics.Ratio(0.75, 0.5, 1.0, "")


@pytest.mark.parametrize("n", [3, 5, 10])
def test_interval_of_the_mean_covers_in_95_of_100(n: int) -> None:
    draws = np.random.default_rng(11).normal(100, 3, size=(20_000, n))
    low, high = statistics.student_interval(draws.mean(axis=1), draws.std(axis=1, ddof=1), n)
    covered = ((low <= 100) & (high >= 100)).mean()
    assert 0.945 < covered < 0.955


@pytest.mark.parametrize(("n_a", "n_b", "sd_b"), [(5, 5, 1.0), (3, 10, 4.0), (4, 4, 6.0)])
def test_interval_of_a_ratio_covers_in_about_95_of_100(n_a: int, n_b: int, sd_b: float) -> None:
    random = np.random.default_rng(12)
    a, b = random.normal(200, 4, size=(20_000, n_a)), random.normal(100, sd_b, size=(20_000, n_b))
    moments = [(x.mean(axis=1), x.std(axis=1, ddof=1), x.shape[1]) for x in (a, b)]
    _, low, high = statistics.ratio_bounds(*moments[0], *moments[1])
    covered = ((low <= 2) & (high >= 2)).mean()
    assert 0.935 < covered < 0.975


def test_the_array_form_agrees_with_the_scalar_form() -> None:
    a, b = summarize([10.0, 11.0, 12.5]), summarize([5.0, 5.5, 5.2])
    value, low, high = statistics.ratio_bounds([a.mean], [a.sd], [a.n], [b.mean], [b.sd], [b.n])
    ratio = ratio_with_interval(a, b)
    assert (value[0], low[0], high[0]) == (ratio.value, ratio.low, ratio.high)
    assert isinstance(a, Summary)
