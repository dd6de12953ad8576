"""Outliers: clean samples have next to none, planted ones are found as far as so few runs allow, and all of them count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.analysis.statistics.summary import compute_outlier_limit_sd, find_outliers
from tests.unit.analysis.statistics.sample_data import summarize

values = st.lists(st.floats(min_value=1.0, max_value=1e6), min_size=3, max_size=12)


@pytest.mark.parametrize("n", [3, 4, 5, 9, 10, 22, 40])
def test_one_clean_sample_in_a_hundred_has_an_outlier(n: int) -> None:
    # A wide spread, so that the least distance in relation to the median hardly matters.
    draws = np.random.default_rng(n).normal(1000, 100, size=(20_000, n))
    assert 0.005 < find_outliers(draws).any(axis=1).mean() < 0.013


@pytest.mark.parametrize(("n", "slower_pct", "found"), [(5, 10, 0.93), (8, 5, 0.97), (20, 5, 0.99)])
def test_a_slow_run_is_found(n: int, slower_pct: float, found: float) -> None:
    draws = np.random.default_rng(1).normal(100, 0.5, size=(2_000, n))
    draws[:, 1] -= slower_pct
    flagged = find_outliers(draws)
    assert flagged[:, 1].mean() > found
    assert flagged[:, [0, *range(2, n)]].mean() < 0.01


def test_an_outlier_is_named_and_counts() -> None:
    summary = summarize([100.0, 100.4, 99.7, 80.0, 100.1, 99.9])
    assert summary.outliers == (3,)
    assert summary.minimum == 80.0
    assert summary.sd == pytest.approx(np.std([100.0, 100.4, 99.7, 80.0, 100.1, 99.9], ddof=1))


def test_two_slow_runs_of_many_do_not_hide_each_other() -> None:
    draws = np.random.default_rng(2).normal(100, 0.5, size=(2_000, 12))
    draws[:, :2] -= 10
    assert find_outliers(draws)[:, :2].all(axis=1).mean() > 0.97


def test_two_runs_say_nothing_of_each_other() -> None:
    assert not find_outliers(np.array([[1.0, 1e9]])).any()
    assert find_outliers(np.empty((3, 0))).shape == (3, 0)


def test_runs_that_agree_to_the_last_printed_digit_have_no_outlier_in_the_next() -> None:
    assert not find_outliers(np.array([[123.4, 123.4, 123.4, 123.4, 123.5]])).any()
    assert find_outliers(np.array([[123.4, 123.4, 123.4, 123.4, 130.0]])).tolist() == [[False] * 4 + [True]]


@given(values, st.floats(min_value=0.01, max_value=100))
def test_units_do_not_matter(sample: list[float], factor: float) -> None:
    given_, scaled = find_outliers(np.array([sample])), find_outliers(np.array([sample]) * factor)
    # Rounding may move a value that lies on the limit.
    assert (given_ != scaled).sum() <= 1


def test_the_limit_falls_to_that_of_large_samples() -> None:
    assert compute_outlier_limit_sd(2) == float("inf")
    assert (
        compute_outlier_limit_sd(3)
        > compute_outlier_limit_sd(5)
        > compute_outlier_limit_sd(9)
        < compute_outlier_limit_sd(10)
        > compute_outlier_limit_sd(20)
        > compute_outlier_limit_sd(50)
        > compute_outlier_limit_sd(10_000)
        > 3.5
    )
    assert compute_outlier_limit_sd(22) == pytest.approx(
        (3 * compute_outlier_limit_sd(20) + 2 * compute_outlier_limit_sd(25)) / 5
    )
