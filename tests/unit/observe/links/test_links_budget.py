"""Which sizes are tried, and what is foreseen of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from campaign.observe.links.rank_measurement import PassForecast, build_size_ladder


@given(st.sets(st.integers(2, 2**28), min_size=1, max_size=8))
def test_no_step_is_large_and_all_that_count_are_there(words: set[int]) -> None:
    sizes = {4 * word for word in words}
    rungs = list(build_size_ladder(sorted(sizes)))
    assert [size for size, counts in rungs if counts] == sorted(sizes)
    steps = [size for size, _ in rungs]
    assert all(low < high <= 16 * low for low, high in pairwise(steps))
    assert all(size % 4 == 0 for size in steps)


@given(st.floats(1e-6, 1.0), st.floats(1e-12, 1e-6), st.integers(3, 28))
def test_passes_of_latency_and_bandwidth_are_foreseen(latency_s: float, per_byte_s: float, power: int) -> None:
    forecast = PassForecast()
    for size in (8, 4096):
        forecast.add_pass(size, latency_s + per_byte_s * size)
    size = 4096 + 2**power
    expected = latency_s + per_byte_s * size
    assert abs(forecast.predict_pass_s(size) - expected) < 1e-3 * expected + 1e-9


def test_noise_does_not_promise_that_larger_is_faster() -> None:
    forecast = PassForecast()
    assert forecast.predict_pass_s(8) == 0.0
    forecast.add_pass(8, 0.2)
    assert forecast.predict_pass_s(2**20) == 0.2
    forecast.add_pass(4096, 0.1)
    assert forecast.predict_pass_s(2**20) == 0.1
