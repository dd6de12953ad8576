"""Integrals, rates and coverage of sampled values."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.observe.telemetry.samples import SampleSeries, TimeWindow, sum_counters

_GRID = st.lists(st.integers(0, 2000), min_size=2, max_size=12, unique=True).map(sorted)
_VALUE = st.integers(-500, 500)


def line(times: list[float], slope: float, offset: float) -> SampleSeries:
    return SampleSeries(tuple(times), tuple(offset + slope * time for time in times))


@settings(max_examples=60, deadline=None)
@given(_GRID, _VALUE, _VALUE, st.data())
def test_what_changes_evenly_is_integrated_exactly(
    grid: list[int], slope: int, offset: int, data: st.DataObject
) -> None:
    inside = st.integers(grid[0], grid[-1])
    start, end = sorted((data.draw(inside), data.draw(inside)))
    exact = offset * (end - start) + slope * (end**2 - start**2) / 2
    assert line([*map(float, grid)], slope, offset).integrate(TimeWindow(start, end)) == pytest.approx(exact, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(_GRID, st.data())
def test_windows_that_follow_each_other_add_up(grid: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(_VALUE, min_size=len(grid), max_size=len(grid)))
    series = SampleSeries(tuple(map(float, grid)), tuple(map(float, values)))
    edges = sorted(data.draw(st.lists(st.integers(-100, 2100), min_size=3, max_size=6)))
    parts = sum(series.integrate(TimeWindow(start, end)) for start, end in pairwise(edges))
    assert parts == pytest.approx(series.integrate(TimeWindow(edges[0], edges[-1])), abs=1e-6)


def test_a_mean_counts_time_and_not_samples() -> None:
    # Ten samples in the first second, one in the second: the burst is not worth more.
    series = SampleSeries((*(i / 10 for i in range(11)), 2.0), (*([100.0] * 11), 0.0))
    assert series.compute_mean(TimeWindow(0.0, 2.0)) == pytest.approx((100 + 50) / 2)
    assert series.find_peak(TimeWindow(0.5, 2.0)) == 100.0


def test_a_rate_is_of_the_time_between_samples() -> None:
    counter = SampleSeries((1.0, 2.0, 3.0, 4.0), (10.0, 20.0, 60.0, 70.0))
    assert counter.compute_growth_rate(TimeWindow(1.5, 3.5)) == pytest.approx((65 - 15) / 2)
    assert counter.compute_growth_rate(TimeWindow(0.0, 9.0)) == pytest.approx(20.0)
    assert counter.find_max_growth_rate(TimeWindow(1.0, 4.0)) == pytest.approx(40.0)


@pytest.mark.parametrize("window", [TimeWindow(4.0, 4.0), TimeWindow(5.0, 6.0), TimeWindow(-2.0, -1.0)])
def test_there_is_no_rate_where_there_are_no_samples(window: TimeWindow) -> None:
    assert SampleSeries((1.0, 2.0, 4.0), (1.0, 2.0, 3.0)).compute_growth_rate(window) is None


def test_a_counter_that_went_back_says_nothing() -> None:
    turned = SampleSeries((1.0, 2.0, 3.0), (10.0, 20.0, 5.0))
    assert turned.compute_growth_rate(TimeWindow(1.0, 3.0)) is None
    assert turned.find_max_growth_rate(TimeWindow(1.0, 3.0)) is None


@pytest.mark.parametrize(
    ("times", "enough"),
    [
        ((0.1, 1.1, 2.1, 3.1, 4.1, 5.1), True),
        ((), False),
        ((0.1, 1.1), False),  # gone in the middle
        ((4.1, 5.1, 6.1), False),  # came in the middle
        ((0.1, 1.1, 5.1, 5.9), False),  # was away
        ((0.1, 2.1, 4.1), True),  # took turns with others
    ],
)
def test_a_part_must_be_seen_from_start_to_end(times: tuple[float, ...], enough: bool) -> None:
    assert SampleSeries(times, times).covers(TimeWindow(0.0, 6.0), 1.0) is enough


def test_one_sample_has_no_length() -> None:
    assert not SampleSeries((1.0,), (5.0,)).covers(TimeWindow(0.0, 2.0), 1.0)
    assert SampleSeries((0.9, 1.9), (5.0, 5.0)).covers(TimeWindow(0.0, 2.0), 1.0)


def test_an_empty_window_is_not_covered() -> None:
    assert not SampleSeries((1.0, 1.0001), (1.0, 1.0)).covers(TimeWindow(1.0, 1.0), 1.0)


def test_counters_are_added_where_all_were_read() -> None:
    one, other = SampleSeries((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)), SampleSeries((2.0, 3.0), (10.0, 20.0))
    assert sum_counters([one, other]) == SampleSeries((2.0, 3.0), (12.0, 23.0))
    assert sum_counters([one, SampleSeries((9.0,), (1.0,))]) is None
    assert sum_counters([]) is None
