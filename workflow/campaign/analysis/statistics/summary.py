"""Summary statistics of samples: medians with 95 % intervals, spread, outliers; all cells of a campaign in one call.

Median
------
Below 20 runs: no distribution-free interval reaches 95 % below 6 runs, so runs are treated as normal: median +- factor
x t x sd / sqrt(n), with factors simulated such that it covers in 95 of 100 cases (of skewed runs in 95 to 98). From 20
runs on, the BCa bootstrap: Efron (1987), "Better bootstrap confidence intervals", Journal of the American Statistical
Association 82(397); with the expanded quantiles of Hesterberg (2015), "What teachers should know about the bootstrap",
The American Statistician 69(4), section 5. Without them the intervals of 20 runs are too narrow by the difference
between Student's t and the normal distribution, and between n and n - 1.

Outliers: named, never excluded from a mean
-------------------------------------------
From 10 runs on: a value whose modified z-score, 0.6745 x |value - median| / MAD, is beyond a limit, so that several
outliers cannot hide each other: Iglewicz & Hoaglin (1993), "How to detect and handle outliers". Their one limit, 3.5,
is for large samples. Of 10 clean normal values it marks an outlier in 13 of 100 samples, of 5 in 21, because the MAD of
few values can be small by chance. The limits here depend on n and were simulated. Below 10 runs: a value that is too
far from the mean of the others for their spread, by t on n - 2 with Bonferroni's correction, which is the test of
Grubbs (1950), "Sample criteria for testing outlying observations", Annals of Mathematical Statistics 21(1). Of 5 runs
with one that is 20 standard deviations off, it marks this one in 97 of 100 cases, the modified z-score in 48.

With both rules, 1 clean normal sample in 100 has an outlier. Very small samples allow little: of three runs, one is marked
only if it is some 230 standard deviations of the other two away; of two, none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from campaign.common.intervals import (
    BCA_BOOTSTRAP,
    NO_INTERVAL_NO_RUN,
    NO_INTERVAL_ONE_RUN,
    STUDENT_T_FOR_MEDIAN,
    Floats,
    Integers,
    Words,
    student_interval,
    student_quantile,
)

# Share of clean samples in which an outlier is marked.
OUTLIER_LEVEL = 0.01

# 99 % quantile of the largest modified z-score of normal samples of n values, a million samples each.
_OUTLIER_LIMITS = {
    10: 6.9, 11: 7.1, 12: 6.3, 13: 6.4, 14: 5.9, 15: 6.0, 16: 5.6, 17: 5.6, 18: 5.4, 19: 5.4, 20: 5.2, 25: 5.0, 30: 4.8,
    50: 4.4, 100: 4.3, 200: 4.3,
}  # fmt: skip
_MIN_RUNS_FOR_MAD = min(_OUTLIER_LIMITS)

# Logs print throughputs with about four digits. Runs that agree within half of the fourth digit do not show their spread.
_LOG_RESOLUTION = 0.0005

_MAD_OF_NORMAL = 0.6744897501960817


def compute_outlier_limit_sd(n: int) -> float:
    """Compute the outlier limit for a sample of n values, in standard deviations; infinite for n < 3.

    A value beyond this distance is an outlier. The standard deviation is that of the other values.
    """
    if n < 3:
        return float("inf")
    if n < _MIN_RUNS_FOR_MAD:
        return float(scipy.special.stdtrit(n - 2, 1 - OUTLIER_LEVEL / (2 * n)) * np.sqrt(n / (n - 1)))
    sizes = np.array(sorted(_OUTLIER_LIMITS))
    return float(np.interp(n, sizes, [_OUTLIER_LIMITS[size] for size in sizes.tolist()]))


def find_outliers(samples: Floats) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is an outlier of its sample.

    Args:
        samples: values without nan, shape (samples, n); the result has the same shape.
    """
    n = samples.shape[1]
    if n < 3:
        return np.zeros(samples.shape, dtype=np.bool_)
    median = np.median(samples, axis=1, keepdims=True)
    if n < _MIN_RUNS_FOR_MAD:
        distance, spread = _compare_with_remaining_values(samples)
    else:
        distance = np.abs(samples - median)
        spread = np.median(distance, axis=1, keepdims=True) / _MAD_OF_NORMAL
    is_outlier = distance > compute_outlier_limit_sd(n) * np.maximum(spread, _LOG_RESOLUTION * np.abs(median))
    return np.asarray(is_outlier, dtype=np.bool_)


def _compare_with_remaining_values(samples: Floats) -> tuple[Floats, Floats]:
    """Compare every value with the others in its row: distance from their mean, and their standard deviation."""
    n = samples.shape[1]
    kept_indices = np.array([[i for i in range(n) if i != omitted_index] for omitted_index in range(n)])
    remaining = samples[:, kept_indices]
    return np.abs(samples - remaining.mean(axis=2)), remaining.std(axis=2, ddof=1)


# Intervals are bootstrapped from this number of runs on.
MIN_RUNS_TO_BOOTSTRAP = 20

# By n, how much farther the median of normal runs lies than their mean, in units of t x sd / sqrt(n); a million samples each.
_MEDIAN_FACTORS = {
    2: 1.0, 3: 1.023, 4: 1.026, 5: 1.089, 6: 1.072, 7: 1.134, 8: 1.106, 9: 1.154, 10: 1.129, 11: 1.172, 12: 1.146, 13: 1.185,
    14: 1.159, 15: 1.193, 16: 1.169, 17: 1.201, 18: 1.177, 19: 1.209,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SampleSummaries:
    """Summary statistics of samples: arrays with one element per sample (`outlier`: one per value).

    sd: sample standard deviation (n - 1). median_low, median_high: bounds of the median, 95 %. outlier: whether each value
    lies far from the others of its sample.
    """

    median: Floats
    sd: Floats
    cv_pct: Floats
    minimum: Floats
    maximum: Floats
    median_low: Floats
    median_high: Floats
    median_method: Words
    outlier: npt.NDArray[np.bool_]


def summarize_samples(values: npt.ArrayLike, groups: npt.ArrayLike, count: int) -> SampleSummaries:
    """Summarize `values` per sample, numbered by `groups`. Raises ValueError if a value is nan.

    Args:
        values: values of all samples.
        groups: sample number of each value, from 0 to count - 1.
        count: number of samples.
    """
    sample_values, sample_index = np.asarray(values, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    if np.isnan(sample_values).any():
        raise ValueError("A sample contains nan; exclude runs without a number")
    order = np.argsort(sample_index, kind="stable")
    sizes = np.bincount(sample_index, minlength=count)
    starts = np.cumsum(sizes) - sizes
    names = ("median", "sd", "cv_pct", "minimum", "maximum", "median_low", "median_high")
    statistics = {name: np.full(count, np.nan) for name in names}
    is_outlier = np.zeros(sample_values.size, dtype=np.bool_)
    # Samples of equally many values are computed together.
    for n in np.unique(sizes[sizes > 0]).tolist():
        samples_of_size = np.flatnonzero(sizes == n)
        places = order[starts[samples_of_size][:, None] + np.arange(n)]
        is_outlier[places] = find_outliers(sample_values[places])
        for name, numbers in _summarize_equal_samples(sample_values[places]).items():
            statistics[name][samples_of_size] = numbers
    method = np.where(
        sizes >= MIN_RUNS_TO_BOOTSTRAP,
        BCA_BOOTSTRAP,
        np.where(sizes >= 2, STUDENT_T_FOR_MEDIAN, NO_INTERVAL_ONE_RUN).astype(object),
    )
    return SampleSummaries(
        **statistics, median_method=np.where(sizes > 0, method, NO_INTERVAL_NO_RUN).astype(object), outlier=is_outlier
    )


def _summarize_equal_samples(samples: Floats) -> dict[str, Floats]:
    """Summarize samples of one size, shape (samples, n), n >= 1."""
    n = samples.shape[1]
    median = np.median(samples, axis=1)
    statistics = {"median": median, "minimum": samples.min(axis=1), "maximum": samples.max(axis=1)}
    if n < 2:
        return statistics
    mean, sd = samples.mean(axis=1), samples.std(axis=1, ddof=1)
    statistics |= {"sd": sd, "cv_pct": 100.0 * sd / np.where(mean != 0, np.abs(mean), np.nan)}
    bounds = (
        bootstrap_median_bounds(samples)
        if n >= MIN_RUNS_TO_BOOTSTRAP
        else student_interval(median, _MEDIAN_FACTORS[n] * sd, n)
    )
    statistics["median_low"], statistics["median_high"] = bounds
    return statistics


RESAMPLES = 2000
# One seed for every sample of every campaign: the same runs give the same interval everywhere.
_SEED = 20_150_401
# Samples are processed in batches, so that thousands of cells do not need gigabytes.
_BATCH_SIZE = 1000


def bootstrap_median_bounds(samples: Floats) -> tuple[Floats, Floats]:
    """Compute bounds for the median of each row by the BCa bootstrap.

    A row without any spread has an interval of zero width.

    Args:
        samples: values without nan, shape (samples, n), n >= 2.
    """
    sorted_samples = np.sort(samples, axis=1)
    count, n = sorted_samples.shape
    resamples = np.sort(np.random.default_rng(_SEED).integers(0, n, (RESAMPLES, n)), axis=1)
    low, high = np.empty(count), np.empty(count)
    for start in range(0, count, _BATCH_SIZE):
        rows = slice(start, start + _BATCH_SIZE)
        low[rows], high[rows] = _compute_bca_bounds(sorted_samples[rows], resamples)
    return low, high


def _compute_bca_bounds(sorted_samples: Floats, resamples: Integers) -> tuple[Floats, Floats]:
    """Compute the BCa bounds of the median of each row of sorted samples."""
    n = sorted_samples.shape[1]
    # Rows and resamples are sorted, so the median of a resample is the value at its middle.
    median, jackknife_medians = np.median(sorted_samples, axis=1), compute_jackknife_medians(sorted_samples)
    replicas = (sorted_samples[:, resamples[:, (n - 1) // 2]] + sorted_samples[:, resamples[:, n // 2]]) / 2
    share_below = (replicas < median[:, None]).mean(axis=1) + (replicas <= median[:, None]).mean(axis=1)
    bias = scipy.special.ndtri(np.clip(share_below / 2, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES))
    influence = jackknife_medians.mean(axis=1, keepdims=True) - jackknife_medians
    squares = (influence**2).sum(axis=1)
    cubes = (influence**3).sum(axis=1)
    skew = np.where(squares > 0, cubes / (6 * np.where(squares > 0, squares, 1.0) ** 1.5), 0.0)
    expanded_quantile = np.sqrt(n / (n - 1)) * student_quantile(n - 1)
    replicas.sort(axis=1)
    low, high = (
        _interpolate_quantiles(replicas, scipy.special.ndtr(bias + (bias + end) / (1 - skew * (bias + end))))
        for end in (-expanded_quantile, expanded_quantile)
    )
    return low, high


def _interpolate_quantiles(sorted_values: Floats, probability: Floats) -> Floats:
    """Interpolate one quantile of each sorted row linearly."""
    place = probability * (sorted_values.shape[1] - 1)
    floor = np.floor(place).astype(np.int64)
    rows, part = np.arange(len(sorted_values)), place - floor
    ceiling = np.minimum(floor + 1, sorted_values.shape[1] - 1)
    return np.asarray(sorted_values[rows, floor] * (1 - part) + sorted_values[rows, ceiling] * part, dtype=np.float64)


def compute_jackknife_medians(sorted_samples: Floats) -> Floats:
    """Compute for every value of a sorted row the median of the other values."""
    n = sorted_samples.shape[1]
    middle_indices = np.array(
        [[i + (i >= omitted_index) for i in ((n - 2) // 2, (n - 1) // 2)] for omitted_index in range(n)]
    )
    return np.asarray(sorted_samples[:, middle_indices].mean(axis=2), dtype=np.float64)
