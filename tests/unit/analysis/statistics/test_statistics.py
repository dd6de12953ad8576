"""Summaries and ratios: known values, invariances, and whether 95 % intervals cover in 95 of 100 cases."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, stdtrit

from campaign.analysis.statistics import ratios
from campaign.analysis.statistics.summary import bootstrap_median_bounds, compute_jackknife_medians, summarize_samples
from campaign.common import intervals
from campaign.common.intervals import compute_spread_bounds
from tests.unit.analysis.statistics.sample_data import ratio, summarize

positive = st.floats(min_value=1e-3, max_value=1e6)
samples = st.lists(positive, min_size=2, max_size=12)


def test_known_sample() -> None:
    summary = summarize([10.0, 12.0, 14.0, 16.0])
    assert (summary.median, summary.minimum, summary.maximum) == (13.0, 10.0, 16.0)
    assert summary.sd == pytest.approx(2.581989)
    assert summary.cv_pct == pytest.approx(19.861453)
    # t(3; 0.975) = 3.182446 from any table; of 4 normal runs, the median lies 1.026 times as far from the truth as their mean.
    assert summary.median_high - 13.0 == pytest.approx(1.026 * 3.182446 * 2.581989 / 2, rel=1e-6)
    assert summary.median_low + summary.median_high == pytest.approx(26.0)
    assert summary.median_method == intervals.STUDENT_T_FOR_MEDIAN


@given(samples, st.floats(min_value=1e-3, max_value=1e3))
def test_unit_of_measurement_does_not_matter(values: list[float], factor: float) -> None:
    one, other = summarize(values), summarize([value * factor for value in values])
    assert other.cv_pct == pytest.approx(one.cv_pct, rel=1e-6, abs=1e-6)
    for name in ("median", "sd", "median_low", "median_high"):
        assert getattr(other, name) == pytest.approx(
            getattr(one, name) * factor, rel=1e-6, abs=1e-6 * one.maximum * factor
        )


@given(samples, st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], random) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = summarize(values), summarize(shuffled)
    assert other.median == one.median
    assert other.sd == pytest.approx(one.sd, rel=1e-6, abs=1e-6 * one.maximum)


@given(samples)
def test_interval_and_range_hold_the_median(values: list[float]) -> None:
    summary = summarize(values)
    assert summary.median_low <= summary.median <= summary.median_high
    assert summary.minimum <= summary.median <= summary.maximum


def test_no_run_and_one_run_have_no_interval_and_say_so() -> None:
    none, one = summarize([]), summarize([5.0])
    assert none.median_method == intervals.NO_INTERVAL_NO_RUN
    assert (one.median, one.median_method) == (5.0, intervals.NO_INTERVAL_ONE_RUN)
    assert np.isnan([one.sd, one.cv_pct, one.median_low, one.median_high, none.median]).all()


def test_a_missing_number_is_not_averaged() -> None:
    with pytest.raises(ValueError, match="nan"):
        summarize([1.0, float("nan")])


@given(st.lists(st.lists(positive, max_size=6), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_many_samples_at_once_are_summarised_like_each_alone(cells: list[list[float]], random) -> None:
    runs = [(value, place) for place, values in enumerate(cells) for value in values]
    random.shuffle(runs)
    found = summarize_samples([value for value, _ in runs], [place for _, place in runs], len(cells))
    for place in range(len(cells)):
        alone = summarize([value for value, of in runs if of == place])
        for name in ("median", "sd", "minimum", "maximum", "median_low", "median_high"):
            assert getattr(found, name)[place] == pytest.approx(getattr(alone, name), rel=1e-12, nan_ok=True)
        assert found.median_method[place] == alone.median_method
        flagged = [flag for flag, (_, of) in zip(found.outlier, runs, strict=True) if of == place]
        assert tuple(np.flatnonzero(flagged)) == alone.outliers


def test_from_20_runs_on_intervals_are_bootstrapped_and_always_the_same() -> None:
    runs = np.random.default_rng(3).normal(100, 2, 20)
    few, many = summarize(runs[:19]), summarize(runs)
    assert (few.median_method, many.median_method) == (intervals.STUDENT_T_FOR_MEDIAN, intervals.BCA_BOOTSTRAP)
    again = summarize(runs[::-1])
    assert (many.median_low, many.median_high) == pytest.approx((again.median_low, again.median_high), rel=1e-14)
    assert many == summarize(runs)
    assert many.median_low < many.median < many.median_high
    assert summarize([7.0] * 25).median_low == summarize([7.0] * 25).median_high == 7.0


def test_the_bootstrap_is_that_of_scipy_at_the_expanded_level() -> None:
    sample = np.random.default_rng(4).gamma(2.0, 3.0, 25)
    level = 1 - 2 * ndtr(-np.sqrt(25 / 24) * stdtrit(24, 0.975))
    theirs = scipy.stats.bootstrap(
        (sample,), np.median, confidence_level=level, n_resamples=20_000, rng=5, vectorized=True
    ).confidence_interval
    (low,), (high,) = bootstrap_median_bounds(sample[None, :])
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.06 * (theirs.high - theirs.low))


@pytest.mark.parametrize("n", [2, 3, 4, 9, 10])
def test_medians_without_one_are_those_of_what_is_left(n: int) -> None:
    rows = np.sort(np.random.default_rng(n).random((5, n)), axis=1)
    left = [np.median(np.delete(rows, gone, axis=1), axis=1) for gone in range(n)]
    np.testing.assert_allclose(compute_jackknife_medians(rows), np.transpose(left))


# Three standard deviations of how often 1,000 intervals that cover in 95 of 100 cases do.
BY_CHANCE = 3 * np.sqrt(0.95 * 0.05 / 1000)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10, 19, 20, 30])
def test_intervals_of_the_median_cover_in_95_of_100(n: int) -> None:
    draws = np.random.default_rng(n).normal(100, 3, size=(1_000, n))
    found = summarize_samples(draws.ravel(), np.repeat(np.arange(1_000), n), 1_000)
    covered = ((found.median_low <= 100) & (found.median_high >= 100)).mean()
    assert abs(covered - 0.95) < BY_CHANCE


def test_intervals_are_element_wise() -> None:
    low, high = intervals.student_interval([10.0, 10.0, 10.0], [1.0, 1.0, np.nan], [4, 100, 1])
    assert high[0] - low[0] > high[1] - low[1] > 0
    assert np.isnan([low[2], high[2]]).all()


@given(samples, samples)
def test_ratio_and_its_inverse_agree(a: list[float], b: list[float]) -> None:
    (value, low, high), inverse = ratio(a, b).compute_bounds(), ratio(b, a).compute_bounds()
    assert value * inverse[0] == pytest.approx(1)
    assert low <= value <= high
    if low > 0 and np.isfinite(high):
        assert inverse[2] == pytest.approx(1 / low, rel=1e-6)


@given(samples, samples, st.floats(min_value=1e-2, max_value=1e2))
def test_ratio_is_of_no_unit(a: list[float], b: list[float], factor: float) -> None:
    one, other = ratio(a, b).compute_bounds(), ratio([v * factor for v in a], [v * factor for v in b]).compute_bounds()
    assert other[0] == pytest.approx(one[0])
    assert np.log(other[2]) == pytest.approx(np.log(one[2]), rel=1e-3, abs=1e-3)


def test_a_sample_without_spread_gives_an_interval_without_width() -> None:
    assert ratio([2.0, 2.0], [1.0, 1.0]).compute_bounds() == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("a", "value"), [([1.0], 2 / 3), ([], np.nan), ([0.0, 0.0], np.nan)])
def test_a_ratio_without_two_runs_or_a_positive_mean_has_no_interval(a: list[float], value: float) -> None:
    found, low, high = ratio(a, [1.0, 2.0]).compute_bounds()
    assert found == pytest.approx(value, nan_ok=True)
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("n", [3, 5, 10])
def test_interval_of_the_mean_covers_in_95_of_100(n: int) -> None:
    draws = np.random.default_rng(11).normal(100, 3, size=(20_000, n))
    low, high = intervals.student_interval(draws.mean(axis=1), draws.std(axis=1, ddof=1), n)
    covered = ((low <= 100) & (high >= 100)).mean()
    assert 0.945 < covered < 0.955


@pytest.mark.parametrize(("n_a", "n_b", "sd_b"), [(5, 5, 1.0), (3, 10, 4.0), (4, 4, 6.0)])
def test_interval_of_a_ratio_covers_in_about_95_of_100(n_a: int, n_b: int, sd_b: float) -> None:
    random = np.random.default_rng(12)
    a, b = random.normal(200, 4, size=(20_000, n_a)), random.normal(100, sd_b, size=(20_000, n_b))
    moments = [(x.mean(axis=1), x.std(axis=1, ddof=1), x.shape[1]) for x in (a, b)]
    _, low, high = ratios.compute_unpaired_ratios(*moments[0], *moments[1]).compute_bounds()
    covered = ((low <= 2) & (high >= 2)).mean()
    assert 0.935 < covered < 0.975


@pytest.mark.parametrize("true_cv", [0.0, 0.01, 0.05, 0.5])
@pytest.mark.parametrize("count", [2, 4])
def test_the_spread_of_true_means_lies_in_its_interval(true_cv: float, count: int) -> None:
    """Of means that were each measured with an error of 1 %, which nine differences tell."""
    random, held, draws = np.random.default_rng(4), 0, 400
    of = np.array([-1.0, 1.0, -0.5, 0.5][:count])
    true = 1 + true_cv * (of - of.mean()) / of.std(ddof=1)
    for _ in range(draws):
        measured = true + random.normal(0, 0.01, count)
        variance = 1e-4 * random.chisquare(9) / 9
        low, high = compute_spread_bounds(float(measured.std(ddof=1) / measured.mean()), count, variance, 9.0)
        held += low <= true_cv <= high
    assert held / draws >= 0.92
    if true_cv == 0.5:
        assert high - low < 0.06
