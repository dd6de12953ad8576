"""Percentiles of requests that resemble their neighbours: intervals cover what was planted, and say where they cannot."""

from __future__ import annotations

import numpy as np
import pytest

from campaign.statistics.latency_percentiles import Sample, percentile, share_within
from tests.planted_services import SERVED_PER_S, Service, response_times, true_percentile
from tests.services_under_truth import percentiles_cover

CAMPAIGNS = 150


@pytest.mark.parametrize("rate", [25.0, 40.0])
@pytest.mark.parametrize(("compositions", "runs", "requests"), [(1, 1, 2000), (1, 3, 2000), (3, 2, 1000), (5, 2, 1000)])
def test_intervals_cover_percentiles_of_a_queue(rate: float, compositions: int, runs: int, requests: int) -> None:
    of = Service(
        {}, compositions=compositions, runs=runs, requests=requests, lease_sd=0.02 if compositions > 1 else 0.0
    )
    for percent in (50.0, 90.0, 99.0):
        assert percentiles_cover(of, rate, percent, CAMPAIGNS).cover >= 93, percent


def test_intervals_that_take_requests_for_independent_do_not_cover() -> None:
    rows = response_times(40.0, np.full(CAMPAIGNS, SERVED_PER_S), 2000, np.random.default_rng(1))
    truth, covered, ours = true_percentile(50.0, 40.0, SERVED_PER_S), 0, 0
    for times in rows:
        half = 1.96 * np.sqrt(0.25 / times.size)
        low, high = np.quantile(times, [0.5 - half, 0.5 + half])
        covered += low <= truth <= high
        found = percentile(Sample((times,), np.zeros(1, dtype=np.int64)), 50.0)
        ours += not (found.low > truth or found.high < truth)
    assert covered < 0.5 * CAMPAIGNS < 0.9 * CAMPAIGNS < ours


def test_few_requests_bound_no_percentile_from_above() -> None:
    draw = np.random.default_rng(1)
    few = Sample((draw.exponential(1, 71),), np.zeros(1, dtype=np.int64))
    found = percentile(few, 99.0)
    assert np.isnan(found.value)
    assert np.isnan(found.high)
    assert 0 < found.low < few.runs[0].max()
    assert np.isfinite(percentile(few, 50.0).high)


def test_requests_that_failed_are_late_without_end() -> None:
    times = np.random.default_rng(1).exponential(1, 2000)
    times[::20] = np.inf
    sample = Sample((times,), np.zeros(1, dtype=np.int64))
    assert percentile(sample, 99.0).low == np.inf
    assert np.isfinite(percentile(sample, 90.0).high)
    assert share_within(sample, 1e9).value == pytest.approx(0.95)


def test_compositions_that_differ_widen_the_interval_and_one_says_nothing_of_the_others() -> None:
    draw = np.random.default_rng(1)
    runs = tuple(draw.exponential(speed, 1000) for speed in (1.0, 1.3, 0.8))
    alone = percentile(Sample(runs, np.zeros(3, dtype=np.int64)), 50.0)
    apart = percentile(Sample(runs, np.arange(3)), 50.0)
    assert apart.value == alone.value
    assert apart.high - apart.low > 2 * (alone.high - alone.low)


def test_a_share_of_all_or_none_is_not_certain() -> None:
    sample = Sample((np.full(200, 1.0),), np.zeros(1, dtype=np.int64))
    every, none = share_within(sample, 2.0), share_within(sample, 0.5)
    assert (every.value, every.high) == (1.0, 1.0)
    assert 0.9 < every.low < 1.0
    assert (none.value, none.low) == (0.0, 0.0)
    assert 0.0 < none.high < 0.1
