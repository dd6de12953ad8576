"""Interval of an estimate that is quoted because it is the largest of many.

Such an estimate is larger than its true value on average, so the interval of one estimate contains the true value too rarely.
An interval that holds for all estimates together contains it too often, and is several times as wide as needed if one
estimate is far ahead.

Source: Andrews, Kitagawa & McCloskey (2024), "Inference on winners", Quarterly Journal of Economics 139(1), the hybrid
interval. Given that an estimate is the largest, it is distributed as before, but truncated below: by the contenders, and by
their correlation with it. The interval inverts this distribution inside of a band that holds for all estimates together. Two
choices are made here. Student's t takes the place of the normal distribution, with the variance that all configurations share
(`Design.with_pools`): the degrees of freedom of single configurations are too few for the far tails that count here. And the
error of 5 % is divided unevenly, because a selected estimate is rather too large than too small; so the interval always
contains the estimate itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from campaign.analysis.statistics.comparisons import compute_ratios
from campaign.analysis.statistics.experiment_design import Design
from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats

_ERROR_LEVEL_ABOVE = 0.01
_ERROR_LEVEL_BELOW = SIGNIFICANCE_LEVEL - _ERROR_LEVEL_ABOVE
_BAND_ERROR_LEVEL = 0.01
_BISECTION_STEPS = 60


def bound_best_cell(
    score: npt.ArrayLike, variance: npt.ArrayLike, freedom: float, cells: Sequence[object], design: Design
) -> tuple[float, float]:
    """Compute 95 % bounds for the score of the first cell, which was selected for having the largest score.

    Args:
        score: logarithm of the quantity of each cell, the selected one first.
        variance: variance of each score.
        freedom: degrees of freedom of the variance of the first score.
        cells: ids of the cells in the design.
        design: design that compares the cells, as `Design.with_pools` returns it.
    """
    values, variances = np.asarray(score, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    contenders = pd.Series(list(cells[1:]), dtype=object)
    difference = compute_ratios(
        pd.Series([cells[0]] * len(contenders), dtype=object), contenders, design
    ).estimate.variance
    covariance = (variances[0] + difference - variances[1:]) / 2
    # Contenders that are not compared with the best one are independent of it.
    covariance = np.where(np.isfinite(covariance), covariance, variances[0])
    return bound_largest_estimate(values[0], float(variances[0]), freedom, values[0] - values[1:], covariance)


def bound_largest_estimate(
    value: float, variance: float, freedom: float, leads: Floats, covariances: Floats
) -> tuple[float, float]:
    """Compute 95 % bounds for an estimate selected as the largest; nan if the variance is unknown.

    Args:
        value: the estimate.
        variance: variance of the estimate.
        freedom: degrees of freedom of the variance.
        leads: differences of the estimate from each smaller one.
        covariances: covariance of the estimate and each lead; the variance itself if the smaller one is independent.
    """
    if not (np.isfinite(variance) and freedom > 0):
        return float("nan"), float("nan")
    if variance == 0:
        return value, value
    error = np.sqrt(variance)
    # A contender with at least the same common deviation was not overtaken by chance.
    cuts = np.where(covariances > 0, -leads * error / np.where(covariances > 0, covariances, 1.0), -np.inf)
    cut = float(np.nan_to_num(cuts, nan=-np.inf).max(initial=-np.inf))
    band = -float(scipy.special.stdtrit(freedom, _BAND_ERROR_LEVEL / (1 + leads.size)))

    def find_below(part: float, low: float, high: float) -> float:
        """Return the true value for which this fraction of the distribution is below the estimate, in errors from the estimate."""
        for _ in range(_BISECTION_STEPS):
            middle = (low + high) / 2
            above_cut, error_above, above_band = scipy.special.stdtr(freedom, np.array([middle - cut, middle, -band]))
            low, high = (middle, high) if above_cut - error_above > part * (above_cut - above_band) else (low, middle)
        return high

    level_within_band = (_ERROR_LEVEL_BELOW - _BAND_ERROR_LEVEL) / (1 - _BAND_ERROR_LEVEL)
    error_below, error_above = find_below(1 - level_within_band, -band, 0.0), find_below(_ERROR_LEVEL_ABOVE, 0.0, band)
    return value + error * error_below, value + error * error_above
