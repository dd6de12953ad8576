"""Percentiles of steps that are not independent, and trends in measured windows: planted, and found as often as is said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics.step_times import (
    COARSE_CLOCK,
    MIN_STEPS_FOR_TREND,
    NOT_STEADY,
    TOO_SHORT,
    compute_ties_pct,
    compute_trend_pct,
    estimate_percentiles,
    select_unsteady_cells,
    summarize_windows,
)

CELLS = 400


def planted(compositions: int, runs: int, steps: int, between_pct: float, seed: int = 1) -> pd.DataFrame:
    """Log-normal steps of 10 ms, with a deviation for each composition."""
    draw = np.random.default_rng(seed)
    shape = (CELLS, compositions, runs * steps)
    deviation = draw.normal(0, between_pct / 100, (*shape[:2], 1))
    times = 0.01 * np.exp(draw.normal(0, 0.1, shape) + deviation)
    cell, cluster, _ = np.indices(shape)
    return pd.DataFrame({"cell_id": cell.ravel(), "cluster": cluster.ravel(), "time_s": times.ravel()})


def truth(percent: float, between_pct: float) -> float:
    draw = np.random.default_rng(2).normal(0, np.hypot(0.1, between_pct / 100), 400_000)
    return float(0.01 * np.exp(np.percentile(draw, percent)))


@pytest.mark.parametrize(("compositions", "runs", "steps"), [(3, 2, 100), (5, 2, 100)])
@pytest.mark.parametrize("between_pct", [0.0, 2.0, 5.0])
def test_intervals_cover_the_percentile_of_all_compositions(
    compositions: int, runs: int, steps: int, between_pct: float
) -> None:
    found = estimate_percentiles(planted(compositions, runs, steps, between_pct))
    for percent, rows in found.groupby("percent"):
        known = rows[rows["low_s"].notna()]
        covered = (known["low_s"] <= truth(percent, between_pct)) & ~(known["high_s"] < truth(percent, between_pct))
        assert len(known) == CELLS
        assert covered.mean() >= 0.91, (percent, covered.mean())


def test_a_percentile_beyond_the_longest_step_has_no_interval_and_one_cluster_has_none() -> None:
    few = estimate_percentiles(planted(3, 1, 20, 1.0)).set_index("percent")
    assert few.loc[99.0, "low_s"].isna().all()
    assert few.loc[50.0, "low_s"].notna().all()
    assert estimate_percentiles(planted(1, 1, 300, 0.0))["low_s"].isna().all()


def test_a_percentile_is_a_step_of_the_sample() -> None:
    steps = pd.DataFrame({"cell_id": "a", "cluster": [1, 1, 2, 2], "time_s": [4.0, 1.0, 3.0, 2.0]})
    assert estimate_percentiles(steps, [50.0, 75.0, 99.0])["time_s"].tolist() == [2.0, 3.0, 4.0]


def test_a_trend_is_that_of_the_last_quarter_to_the_first() -> None:
    assert compute_trend_pct(np.array([[2.0, 2, 1, 1, 1, 1, 1, 1], [1.0, 1, 1, 1, 1, 1, 3, 3]])).tolist() == [
        -50.0,
        200.0,
    ]
    assert np.isnan(compute_trend_pct(np.ones((1, MIN_STEPS_FOR_TREND - 1)))).all()


def test_of_steady_cells_few_are_named_and_of_trends_all() -> None:
    draw = np.random.default_rng(3)
    runs = pd.DataFrame({"cell_id": np.repeat(np.arange(CELLS), 5)})
    steady = select_unsteady_cells(runs.assign(step_trend_pct=draw.normal(0, 3.0, len(runs))))
    assert len(steady) <= 0.05 * CELLS
    warming = select_unsteady_cells(runs.assign(step_trend_pct=draw.normal(-8, 1.0, len(runs))))
    assert len(warming) == CELLS
    assert warming["trend_pct"].abs().is_monotonic_decreasing
    assert select_unsteady_cells(runs.head(1).assign(step_trend_pct=9.0)).empty


def test_ties_are_steps_that_repeat_a_time() -> None:
    steps = np.array([[1.0, 1, 1, 1, 2, 2, 2, 2], [1.0, 2, 3, 4, 5, 6, 7, 7], np.arange(8.0)])
    assert compute_ties_pct(steps).tolist() == [75.0, 12.5, 0.0]
    assert np.isnan(compute_ties_pct(np.ones((1, MIN_STEPS_FOR_TREND - 1)))).all()


def measured(cell: str, trend: float, error: float, ties: float, runs: int = 4, status: str = "ok") -> pd.DataFrame:
    wiggle = 0.1 * np.arange(runs)
    columns = {"cell_id": cell, "status": status, "step_median_s": 0.01, "step_trend_pct": trend + wiggle}
    return pd.DataFrame({**columns, "step_error_pct": error, "step_ties_pct": ties})


def test_one_function_marks_the_windows_of_cells() -> None:
    cells = [
        measured("good", 0.0, 0.5, 0.0),
        measured("warming", -9.0, 0.5, 0.0),
        measured("noisy", 0.0, 3.0, 0.0),
        measured("all", 12.0, 3.0, 80.0),
        measured("few steps", np.nan, 0.5, np.nan),
        measured("failed", 50.0, 9.0, 90.0, status="nan"),
    ]
    found = summarize_windows(pd.concat(cells, ignore_index=True))
    assert found["window"].to_dict() == {
        "good": "",
        "warming": NOT_STEADY,
        "noisy": TOO_SHORT,
        "all": f"{NOT_STEADY}, {TOO_SHORT}, {COARSE_CLOCK}",
        "few steps": "",
    }
    assert (
        found.loc["warming", "trend_low_pct"]
        < found.loc["warming", "trend_pct"]
        < found.loc["warming", "trend_high_pct"]
    )
    assert np.isnan(found.loc["good", "trend_low_pct"])
    assert summarize_windows(measured("none", 0.0, 0.0, 0.0, runs=0)).empty
