"""The latency-bandwidth models: what was planted is found, inside the interval about as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.observe.links.alpha_beta_model import fit_allreduce, fit_messages, predict_allreduce_s

SIZES = [8, 4096, 65536, 2**20, 2**24, 2**26, 2**28]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 64), st.floats(1.0, 1000.0), st.floats(0.01, 500.0))
def test_exact_times_give_back_what_made_them(ranks: int, alpha_us: float, gb_per_s: float) -> None:
    fit = fit_allreduce(SIZES, list(predict_allreduce_s(SIZES, ranks, alpha_us, gb_per_s)), ranks)
    assert fit is not None
    assert fit.alpha_us == pytest.approx(alpha_us, rel=1e-6)
    assert fit.gb_per_s == pytest.approx(gb_per_s, rel=1e-6)
    assert fit.residual_pct < 1e-6


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_intervals_hold_the_truth_about_as_often_as_they_say(noise: float) -> None:
    random = np.random.default_rng(11)
    truth = predict_allreduce_s(SIZES, 4, 30.0, 12.0)
    turns, alpha_in, rate_in = 300, 0, 0
    for _ in range(turns):
        fit = fit_allreduce(SIZES, list(truth * (1 + noise * random.standard_normal(len(SIZES)))), 4)
        assert fit is not None
        assert fit.high_gb_per_s is not None
        alpha_in += fit.alpha_low_us <= 30.0 <= fit.alpha_high_us
        rate_in += fit.low_gb_per_s <= 12.0 <= fit.high_gb_per_s
    # 95 % of 300, and five standard errors to either side.
    assert 0.88 <= alpha_in / turns <= 1.0
    assert 0.88 <= rate_in / turns <= 1.0
    assert (alpha_in, rate_in) != (turns, turns), "intervals that never miss are too wide"


def test_messages_have_two_latencies_and_one_bandwidth() -> None:
    fit = fit_messages(SIZES, [2 * 5e-6 + size / 10e9 for size in SIZES])
    assert fit is not None
    assert (fit.alpha_us, fit.gb_per_s) == (pytest.approx(5.0), pytest.approx(10.0))


def test_too_little_gives_no_model() -> None:
    assert fit_allreduce(SIZES[:2], [1e-5, 2e-5], 4) is None
    assert fit_allreduce(SIZES, [1e-5] * len(SIZES), 1) is None
    assert fit_allreduce([8, 16, 24], [3.0, 2.0, 1.0], 4) is None  # larger and faster: no bandwidth


def test_a_bandwidth_that_noise_hides_has_no_upper_bound() -> None:
    fit = fit_allreduce([8, 64, 512, 4096], [1.0e-4, 1.3e-4, 0.8e-4, 1.2e-4], 2)
    assert fit is None or fit.high_gb_per_s is None
