"""Fits of scaling curves and dips against curves whose parameters are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.statistics import scaling_models
from campaign.analysis.statistics.scaling_models import AMDAHL, GUSTAFSON, LATENCY, ScalingCurves
from campaign.common.intervals import adjust_p_values

DEVICES = np.array([1.0, 2.0, 4.0, 8.0, 12.0, 16.0])
BATCH = 8.0
DRAWS = 1000


def curves(
    rate: npt.NDArray[np.float64], devices: npt.NDArray[np.float64] = DEVICES, noise: float = 0.01, draws: int = DRAWS,
    lease: float = 0.0, repetitions: int = 5, seed: int = 1,
) -> ScalingCurves:  # fmt: skip
    """`draws` curves of the true throughput with normal noise of runs, and of leases (one a point)."""
    random = np.random.default_rng(seed)
    shape = (draws, devices.size, repetitions)
    runs = rate[None, :, None] * np.exp(random.normal(0, lease, (*shape[:2], 1)) + random.normal(0, noise, shape))
    sd = runs.std(axis=2, ddof=1) if repetitions > 1 else np.full(shape[:2], np.nan)
    each = np.full(shape[:2], float(repetitions))
    return ScalingCurves(
        np.tile(devices, (draws, 1)), np.ones(shape[:2]), runs.mean(axis=2), sd, each, np.full(draws, BATCH)
    )


def dipping(found: scaling_models.Dips) -> int:
    """How many curves dip somewhere, each judged as if it were alone."""
    return sum(bool((adjust_p_values(row) < 0.05).any()) for row in found.p)


@pytest.mark.parametrize(
    ("model", "truth"),
    [(AMDAHL, (50.0, 0.05)), (GUSTAFSON, (50.0, 0.1)), (LATENCY, (0.1, 0.002, 0.02)), (LATENCY, (0.1, 0.0, 0.02))],
)
def test_intervals_cover_the_planted_parameters_and_the_model_is_recognised(
    model: str, truth: tuple[float, ...]
) -> None:
    fits = scaling_models.fit_models(curves(scaling_models.predict_throughput(model, truth, DEVICES, BATCH)))
    found = fits[model]
    covered = ((found.low <= truth) & (truth <= found.high)).sum(axis=0)
    assert (covered >= scipy.stats.binom.ppf(0.001, DRAWS, 0.95)).all()
    assert found.parameters.mean(axis=0) == pytest.approx(truth, rel=0.02, abs=2e-4)
    assert (scaling_models.select_best_models(fits) == model).mean() > 0.9
    assert found.is_rejected.mean() < 0.1


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
def test_a_model_that_is_right_is_a_headline_and_one_that_is_wrong_is_none(noise: float) -> None:
    right = curves(scaling_models.predict_throughput(AMDAHL, (50.0, 0.05), DEVICES, BATCH), noise=noise)
    assert scaling_models.fit_models(right)[AMDAHL].is_valid.mean() > 0.9
    # Every second point is a quarter slower: nothing smooth lies on that, however noisy the points are.
    uneven = np.where(np.arange(DEVICES.size) % 2, 0.75, 1.0)
    wrong = curves(scaling_models.predict_throughput(AMDAHL, (50.0, 0.05), DEVICES, BATCH) * uneven, noise=noise)
    assert not any(fit.is_valid.any() for fit in scaling_models.fit_models(wrong).values())


def test_points_that_nobody_knows_well_make_no_model_a_headline() -> None:
    """Runs that vary by 30 % let every model pass the test of residuals."""
    noisy = curves(scaling_models.predict_throughput(AMDAHL, (50.0, 0.05), DEVICES, BATCH), noise=0.3, repetitions=3)
    found = scaling_models.fit_models(noisy)[AMDAHL]
    assert found.is_rejected.mean() < 0.2
    assert found.is_valid.mean() < 0.1


def test_a_model_that_is_wrong_is_said_to_miss() -> None:
    fits = scaling_models.fit_models(
        curves(scaling_models.predict_throughput(LATENCY, (0.1, 0.002, 0.05), DEVICES, BATCH), draws=50)
    )
    assert fits[GUSTAFSON].is_rejected.all()
    assert not fits[LATENCY].is_rejected.all()


def test_perfect_scaling_has_no_serial_part() -> None:
    fits = scaling_models.fit_models(curves(50 * DEVICES, noise=0.0, draws=1))
    assert fits[AMDAHL].parameters[0] == pytest.approx((50, 0), abs=1e-6)
    assert fits[LATENCY].parameters[0, 1:] == pytest.approx((0, 0), abs=1e-9)


def test_too_few_points_have_no_fit() -> None:
    two = curves(50 * DEVICES[:2], DEVICES[:2], draws=1)
    fits = scaling_models.fit_models(two)
    assert scaling_models.select_best_models(fits)[0] == ""
    assert all(np.isnan(each.parameters).all() for each in fits.values())
    three = scaling_models.fit_models(curves(50 * DEVICES[:3], DEVICES[:3], draws=1))
    assert np.isnan(three[LATENCY].parameters).all()
    assert np.isfinite(three[AMDAHL].parameters).all()


def test_points_that_are_not_there_change_nothing() -> None:
    rate = scaling_models.predict_throughput(AMDAHL, (50, 0.05), DEVICES, BATCH)
    whole = curves(rate, draws=3)
    gap = replace(whole, n_runs=np.where(DEVICES == 4, 0.0, whole.n_runs))
    keep = DEVICES != 4
    less = ScalingCurves(
        *(getattr(whole, name)[:, keep] for name in ("devices", "hosts", "throughput", "sd", "n_runs")), whole.batch
    )
    for model in scaling_models.MODELS:
        assert scaling_models.fit_models(gap)[model].parameters == pytest.approx(
            scaling_models.fit_models(less)[model].parameters
        )
    assert scaling_models.find_dips(gap).p[:, keep] == pytest.approx(scaling_models.find_dips(less).p, nan_ok=True)


@pytest.mark.parametrize(
    ("model", "truth"),
    [(AMDAHL, (50.0, 0.05)), (GUSTAFSON, (50.0, 0.1)), (LATENCY, (0.05, 0.0, 0.2)), (LATENCY, (0.1, 0.01, 0.0))],
)
def test_noise_on_a_smooth_curve_dips_in_no_more_than_5_of_100_curves(model: str, truth: tuple[float, ...]) -> None:
    rate = scaling_models.predict_throughput(model, truth, DEVICES, BATCH)
    found = scaling_models.find_dips(curves(rate))
    assert dipping(found) <= scipy.stats.binom.ppf(0.999, DRAWS, 0.05)
    # In one figure, all curves together are no more than 5 of 100 times wrong.
    assert found.is_dip.sum() <= 1


def test_the_published_dip_is_found_and_measured() -> None:
    devices = np.arange(2.0, 18.0, 2.0)
    rate = scaling_models.predict_throughput(LATENCY, (0.1, 0.001, 0.02), devices, BATCH) * np.where(
        devices == 14, 0.9, 1.0
    )
    found = scaling_models.find_dips(curves(rate, devices, noise=0.005, draws=200))
    assert (found.is_dip.mean(axis=0) == (devices == 14)).all()
    at = devices == 14
    assert ((found.low_pct[:, at] <= 10) & (found.high_pct[:, at] >= 9.5)).mean() > 0.9


def test_leases_that_differ_are_no_dips_once_their_spread_is_known() -> None:
    found = curves(50 * DEVICES**0.9, lease=0.02)
    assert dipping(scaling_models.find_dips(found, 0.02**2)) <= scipy.stats.binom.ppf(0.999, DRAWS, 0.05)
    assert dipping(scaling_models.find_dips(found)) > 0.2 * DRAWS


def test_where_communication_begins_is_no_dip() -> None:
    """From one device to two, and from one host to several, throughput of a device falls once and for all."""
    steps = np.where(DEVICES == 1, 0.1, 0.15)
    first = curves(DEVICES * BATCH / steps, noise=0.002, draws=20)
    assert not scaling_models.find_dips(first).is_dip.any()
    hosts = np.where(DEVICES > 4, 2.0, 1.0)
    slower = DEVICES * BATCH / np.where(DEVICES > 4, 0.2, 0.1)
    over = replace(curves(slower, noise=0.002, draws=20), hosts=np.tile(hosts, (20, 1)))
    assert not scaling_models.find_dips(over).is_dip.any()


def test_one_run_a_point_is_never_a_dip() -> None:
    found = scaling_models.find_dips(curves(50 * DEVICES * np.where(DEVICES == 8, 0.5, 1), repetitions=1, draws=2))
    assert np.isnan(found.p).all()
    assert not found.is_dip.any()


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 1e4), st.integers(0, 1000))
def test_the_unit_of_throughput_changes_neither_shape_nor_dips(factor: float, seed: int) -> None:
    one = curves(50 * DEVICES**0.9, draws=1, seed=seed)
    other = replace(one, throughput=one.throughput * factor, sd=one.sd * factor)
    assert scaling_models.fit_models(one)[AMDAHL].parameters[0, 1] == pytest.approx(
        scaling_models.fit_models(other)[AMDAHL].parameters[0, 1], rel=1e-6, abs=1e-9
    )
    assert scaling_models.find_dips(one).p == pytest.approx(scaling_models.find_dips(other).p, rel=1e-6, nan_ok=True)
