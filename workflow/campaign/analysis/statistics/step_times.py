"""Percentiles of step times with intervals, and steadiness of the measured window.

Steps of one run resemble each other, and so do runs of one composition. The unit of replication is therefore the composition,
or the run if a cell has one composition. Sources: Woodruff (1952), "Confidence intervals for medians and other position
measures", Journal of the American Statistical Association 47: the interval of a share of steps is converted to one of the
percentile by the sample's own quantiles, so no distribution is assumed; the variance of a share over clusters is that of a
ratio (Cochran, "Sampling Techniques", 1977, chapter 6). It is never less than that of independent steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from campaign.common.intervals import CONFIDENCE_LEVEL, Floats, student_quantile

PERCENTILES = (50.0, 90.0, 99.0)
MIN_STEPS_FOR_TREND = 8
"""Minimum number of steps of a window to compare its first and last quarter, which then have more than one step each."""
MIN_TREND_PCT = 2.0
"""Trends below this are too small to change the conclusions of a campaign."""
MAX_WINDOW_ERROR_PCT = 2.0
"""A window with a larger standard error of its mean is too short for its noise."""
MAX_TIES_PCT = 50.0
"""With a larger share of equal step times, the resolution of the clock dominates."""
NOT_STEADY, TOO_SHORT, COARSE_CLOCK = "not steady", "short for its noise", "timed by a coarse clock"
WINDOW_PROBLEMS = (NOT_STEADY, TOO_SHORT, COARSE_CLOCK)
"""Problems of the measured windows of a cell."""


def estimate_percentiles(steps: pd.DataFrame, percents: Sequence[float] = PERCENTILES) -> pd.DataFrame:
    """Estimate percentiles of step times: one row per cell and percentile.

    Columns: cell_id, percent, time_s, low_s, high_s (95 %), n_steps, n_clusters.

    low_s and high_s are nan with fewer than two clusters, or with too few steps to separate the percentile from the longest step
    (99 % of 60 steps). high_s is nan if nothing bounds it.

    Args:
        steps: cell_id, cluster (composition or run) and time_s of each step.
        percents: percentiles in percent.
    """
    cell, ids = pd.factorize(steps["cell_id"], sort=True)
    cluster, names = pd.factorize(steps["cluster"])
    time_s = steps["time_s"].to_numpy(dtype=np.float64)
    order = np.lexsort((time_s, cell))
    pairs, _ = pd.factorize((cell * len(names) + cluster)[order])
    cell, time_s = cell[order], time_s[order]
    sizes = np.bincount(cell, minlength=len(ids))
    starts = np.cumsum(sizes) - sizes
    cell_of_cluster = np.zeros(pairs.max(initial=-1) + 1, dtype=np.int64)
    cell_of_cluster[pairs] = cell
    in_cluster = np.bincount(pairs, minlength=cell_of_cluster.size)
    clusters = np.bincount(cell_of_cluster, minlength=len(ids))

    def quantile_at(share: Floats) -> Floats:
        """Return a quantile per cell: the smallest step time that at least this share of steps does not exceed."""
        place = np.clip(np.ceil(share * sizes - 1e-9).astype(np.int64) - 1, 0, np.maximum(sizes - 1, 0))
        return np.asarray(time_s[starts + place], dtype=np.float64)

    tables = []
    for percent in percents:
        share = np.full(len(ids), percent / 100.0)
        value = quantile_at(share)
        steps_below = np.bincount(pairs, time_s <= value[cell], cell_of_cluster.size)
        share_below = np.bincount(cell, time_s <= value[cell], len(ids)) / sizes
        residual = (steps_below - share_below[cell_of_cluster] * in_cluster) ** 2
        cluster_count = np.where(clusters >= 2, clusters, np.nan)
        cluster_variance = (
            cluster_count / (cluster_count - 1) * np.bincount(cell_of_cluster, residual, len(ids)) / sizes**2
        )
        min_half_width = scipy.special.ndtri(0.5 + CONFIDENCE_LEVEL / 2.0) * np.sqrt(share * (1 - share) / sizes)
        half_width = np.fmax(
            student_quantile(cluster_count - 1) * np.sqrt(cluster_variance),
            np.where(clusters >= 2, min_half_width, np.nan),
        )
        low, high = np.clip(share - half_width, 0.0, 1.0), share + half_width
        has_interval = ~np.isnan(half_width) & (sizes * (1 - share) >= 1)
        low_s = np.where(has_interval, quantile_at(np.where(has_interval, low, 0.0)), np.nan)
        high_s = np.where(
            has_interval & (high < 1.0), quantile_at(np.where(has_interval, np.minimum(high, 1.0), 1.0)), np.nan
        )
        columns = {"cell_id": ids, "percent": percent, "time_s": value, "low_s": low_s, "high_s": high_s}
        tables.append(pd.DataFrame(columns | {"n_steps": sizes, "n_clusters": clusters}))
    return pd.concat(tables, ignore_index=True)


def compute_trend_pct(steps: Floats) -> Floats:
    """Compute the increase of the median step time from the first to the last quarter of each row, in percent.

    The result is nan for windows of fewer than `MIN_STEPS_FOR_TREND` steps.

    Args:
        steps: step times in seconds, shape (runs, steps).
    """
    length = steps.shape[1]
    if length < MIN_STEPS_FOR_TREND:
        return np.full(steps.shape[0], np.nan)
    first, last = (np.median(part, axis=1) for part in (steps[:, : length // 4], steps[:, -(length // 4) :]))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(100.0 * (last / first - 1.0))


def compute_ties_pct(steps: Floats) -> Floats:
    """Compute the percentage of steps in each row whose time equals that of an earlier step.

    Args:
        steps: step times in seconds, shape (runs, steps).
    """
    length = steps.shape[1]
    if length < MIN_STEPS_FOR_TREND:  # So few steps can be equal by chance.
        return np.full(steps.shape[0], np.nan)
    tie_count = (np.diff(np.sort(steps, axis=1), axis=1) == 0).sum(axis=1)
    return np.asarray(100.0 * tie_count / length)


def summarize_windows(runs: pd.DataFrame) -> pd.DataFrame:
    """Summarize the measured windows of each cell over its valid runs that recorded single steps, by cell_id.

    trend_pct: mean trend. trend_low_pct, trend_high_pct: its 95 % interval if the cell is not steady, otherwise nan. error_pct:
    median standard error of a window's mean. window: the problems of `WINDOW_PROBLEMS` that apply, joined by ', '.
    """
    ok = runs[(runs["status"] == "ok") & runs["step_median_s"].notna()]
    groups = ok.groupby("cell_id", sort=False)
    unsteady_cells = select_unsteady_cells(ok).set_index("cell_id")
    table = pd.DataFrame(
        {"trend_pct": groups["step_trend_pct"].mean(), "error_pct": groups["step_error_pct"].median()}
    ).assign(trend_low_pct=unsteady_cells["low_pct"], trend_high_pct=unsteady_cells["high_pct"])
    has_problem = {
        NOT_STEADY: table["trend_low_pct"].notna(),
        TOO_SHORT: table["error_pct"] > MAX_WINDOW_ERROR_PCT,
        COARSE_CLOCK: groups["step_ties_pct"].median() > MAX_TIES_PCT,
    }
    problems = [
        ", ".join(problem for problem in WINDOW_PROBLEMS if row[problem])
        for row in pd.DataFrame(has_problem).to_dict("records")
    ]
    return table.assign(window=pd.Series(problems, index=table.index, dtype="str"))


def select_unsteady_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the cells whose measured windows have a trend, the largest trend first.

    Columns: cell_id, trend_pct, low_pct, high_pct (95 %), n_runs.

    The test is over the runs of a cell, by Student's t: the trend is at least `MIN_TREND_PCT`, and its interval
    excludes zero. With one run, a trend cannot be separated from chance.
    """
    groups = runs[runs["step_trend_pct"].notna()].groupby("cell_id", sort=False)["step_trend_pct"]
    n = groups.size()
    mean, sd = groups.mean(), groups.std()
    half_width = student_quantile(np.where(n >= 2, n - 1, np.nan)) * sd / np.sqrt(n)
    table = pd.DataFrame({"trend_pct": mean, "low_pct": mean - half_width, "high_pct": mean + half_width, "n_runs": n})
    is_unsteady = (table["trend_pct"].abs() >= MIN_TREND_PCT) & (table["low_pct"] * table["high_pct"] > 0)
    return table[is_unsteady].sort_values("trend_pct", key=abs, ascending=False, kind="stable").reset_index()
