"""Summary statistics of samples: medians with 95 % intervals, spread, outliers; all cells of a campaign in one call.

Median
------
Below 20 runs: no distribution-free interval reaches 95 % below 6 runs, so runs are treated as normal:
median +- factor x t x sd / sqrt(n), with factors simulated such that it covers in 95 of 100 cases (of skewed runs in 95 to 98).
From 20 runs on, the BCa bootstrap: Efron (1987), "Better bootstrap confidence intervals", Journal of the American Statistical
Association 82(397); with the expanded quantiles of Hesterberg (2015), "What teachers should know about the bootstrap", The
American
Statistician 69(4), section 5. Without them the intervals of 20 runs are too narrow by the difference between Student's t and the
normal distribution, and between n and n - 1.

Outliers: named, never left out of a mean
-----------------------------------------
From 10 runs on: a value whose modified z-score, 0.6745 x |value - median| / MAD, is beyond a limit, so that several outliers
cannot
hide each other: Iglewicz & Hoaglin (1993), "How to detect and handle outliers". Their one limit, 3.5, is for large samples. Of
10 clean normal values it marks an outlier in 13 of 100 samples, of 5 in 21, because the MAD of few values can be small by
chance.
The limits here depend on n and were simulated.
Below 10 runs: a value that is too far from the mean of the others for their spread, by t on n - 2 with Bonferroni's correction,
which is the test of Grubbs (1950), "Sample criteria for testing outlying observations", Annals of Mathematical Statistics 21(1).
Of 5 runs with one that is 20 standard deviations off, it marks this one in 97 of 100 cases, the modified z-score in 48.

With both rules, 1 clean normal sample in 100 has an outlier. Very small samples allow little: of three runs, one is marked only
if
it is some 230 standard deviations of the other two away; of two, none.
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
LEVEL = 0.01

# 99 % quantile of the largest modified z-score of normal samples of n values, a million samples each.
_LIMITS = {
    10: 6.9, 11: 7.1, 12: 6.3, 13: 6.4, 14: 5.9, 15: 6.0, 16: 5.6, 17: 5.6, 18: 5.4, 19: 5.4, 20: 5.2, 25: 5.0, 30: 4.8,
    50: 4.4, 100: 4.3, 200: 4.3,
}  # fmt: skip
_MANY = min(_LIMITS)

# Logs print throughputs with about four digits. Runs that agree within half of the fourth digit do not show their spread.
_FINEST = 0.0005

_NORMAL = 0.6744897501960817


def limit(n: int) -> float:
    """Return the distance beyond which a value of a sample of n is an outlier, in standard deviations; infinite for n < 3.

    The standard deviation is that of the other values.
    """
    if n < 3:
        return float("inf")
    if n < _MANY:
        return float(scipy.special.stdtrit(n - 2, 1 - LEVEL / (2 * n)) * np.sqrt(n / (n - 1)))
    sizes = np.array(sorted(_LIMITS))
    return float(np.interp(n, sizes, [_LIMITS[size] for size in sizes.tolist()]))


def outlying(samples: Floats) -> npt.NDArray[np.bool_]:
    """Return which values of each sample are outliers of it.

    Args:
        samples: values without nan, shape (samples, n); the result has the same shape.
    """
    n = samples.shape[1]
    if n < 3:
        return np.zeros(samples.shape, dtype=np.bool_)
    median = np.median(samples, axis=1, keepdims=True)
    if n < _MANY:
        away, spread = _from_others(samples)
    else:
        away = np.abs(samples - median)
        spread = np.median(away, axis=1, keepdims=True) / _NORMAL
    found = away > limit(n) * np.maximum(spread, _FINEST * np.abs(median))
    return np.asarray(found, dtype=np.bool_)


def _from_others(samples: Floats) -> tuple[Floats, Floats]:
    """Return the distance of every value from the mean of the others of its row, and their standard deviation."""
    n = samples.shape[1]
    kept = np.array([[i for i in range(n) if i != gone] for gone in range(n)])
    others = samples[:, kept]
    return np.abs(samples - others.mean(axis=2)), others.std(axis=2, ddof=1)


# Intervals are bootstrapped from this number of runs on.
ENOUGH_TO_BOOTSTRAP = 20

# By n, how much farther the median of normal runs lies than their mean, in units of t x sd / sqrt(n); a million samples each.
_MEDIAN_FACTORS = {
    2: 1.0, 3: 1.023, 4: 1.026, 5: 1.089, 6: 1.072, 7: 1.134, 8: 1.106, 9: 1.154, 10: 1.129, 11: 1.172, 12: 1.146, 13: 1.185,
    14: 1.159, 15: 1.193, 16: 1.169, 17: 1.201, 18: 1.177, 19: 1.209,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summaries:
    """Summary statistics of samples, with one element per sample, but for `outlier` with one per value.

    sd: sample standard deviation (n - 1). median_low, median_high: bounds of the median, 95 %. outlier: whether each value lies
    far
    from the others of its sample.
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


def summaries(values: npt.ArrayLike, groups: npt.ArrayLike, count: int) -> Summaries:
    """Summarize the samples 0 .. count - 1. Raises ValueError for nan (a run without a number belongs to no sample).

    Args:
        values: values of all samples.
        groups: sample of each value.
        count: number of samples.
    """
    given, of = np.asarray(values, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    if np.isnan(given).any():
        raise ValueError("a sample holds nan; leave runs without a number out of it")
    order = np.argsort(of, kind="stable")
    sizes = np.bincount(of, minlength=count)
    starts = np.cumsum(sizes) - sizes
    names = ("median", "sd", "cv_pct", "minimum", "maximum", "median_low", "median_high")
    found = {name: np.full(count, np.nan) for name in names}
    outlier = np.zeros(given.size, dtype=np.bool_)
    # Samples of equally many values are computed together.
    for n in np.unique(sizes[sizes > 0]).tolist():
        which = np.flatnonzero(sizes == n)
        places = order[starts[which][:, None] + np.arange(n)]
        outlier[places] = outlying(given[places])
        for name, numbers in _of_equal_size(given[places]).items():
            found[name][which] = numbers
    some = np.where(
        sizes >= ENOUGH_TO_BOOTSTRAP,
        BCA_BOOTSTRAP,
        np.where(sizes >= 2, STUDENT_T_FOR_MEDIAN, NO_INTERVAL_ONE_RUN).astype(object),
    )
    return Summaries(
        **found, median_method=np.where(sizes > 0, some, NO_INTERVAL_NO_RUN).astype(object), outlier=outlier
    )


def _of_equal_size(samples: Floats) -> dict[str, Floats]:
    """Summarize samples of one size, shape (samples, n), n >= 1."""
    n = samples.shape[1]
    median = np.median(samples, axis=1)
    found = {"median": median, "minimum": samples.min(axis=1), "maximum": samples.max(axis=1)}
    if n < 2:
        return found
    mean, sd = samples.mean(axis=1), samples.std(axis=1, ddof=1)
    found |= {"sd": sd, "cv_pct": 100.0 * sd / np.where(mean != 0, np.abs(mean), np.nan)}
    bounds = bca(samples) if n >= ENOUGH_TO_BOOTSTRAP else student_interval(median, _MEDIAN_FACTORS[n] * sd, n)
    found["median_low"], found["median_high"] = bounds
    return found


RESAMPLES = 2000
# One seed for every sample of every campaign: the same runs give the same interval everywhere.
_SEED = 20_150_401
# Samples are processed in batches, so that thousands of cells do not need gigabytes.
_AT_ONCE = 1000


def bca(samples: Floats) -> tuple[Floats, Floats]:
    """Return the bounds of the median of each row by the BCa bootstrap.

    A row without any spread has an interval of zero width.

    Args:
        samples: values without nan, shape (samples, n), n >= 2.
    """
    ordered = np.sort(samples, axis=1)
    count, n = ordered.shape
    drawn = np.sort(np.random.default_rng(_SEED).integers(0, n, (RESAMPLES, n)), axis=1)
    low, high = np.empty(count), np.empty(count)
    for start in range(0, count, _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        low[rows], high[rows] = _bounds(ordered[rows], drawn)
    return low, high


def _bounds(ordered: Floats, drawn: Integers) -> tuple[Floats, Floats]:
    """Return the BCa bounds of the median of each row of sorted samples."""
    n = ordered.shape[1]
    # Rows and resamples are sorted, so the median of a resample is the value at its middle.
    found, left_out = np.median(ordered, axis=1), medians_without_one(ordered)
    replicas = (ordered[:, drawn[:, (n - 1) // 2]] + ordered[:, drawn[:, n // 2]]) / 2
    below = (replicas < found[:, None]).mean(axis=1) + (replicas <= found[:, None]).mean(axis=1)
    bias = scipy.special.ndtri(np.clip(below / 2, 0.5 / RESAMPLES, 1 - 0.5 / RESAMPLES))
    influence = left_out.mean(axis=1, keepdims=True) - left_out
    squares = (influence**2).sum(axis=1)
    cubes = (influence**3).sum(axis=1)
    skew = np.where(squares > 0, cubes / (6 * np.where(squares > 0, squares, 1.0) ** 1.5), 0.0)
    expanded = np.sqrt(n / (n - 1)) * student_quantile(n - 1)
    replicas.sort(axis=1)
    low, high = (
        _quantiles(replicas, scipy.special.ndtr(bias + (bias + end) / (1 - skew * (bias + end))))
        for end in (-expanded, expanded)
    )
    return low, high


def _quantiles(ordered: Floats, at: Floats) -> Floats:
    """Return one quantile of each sorted row, interpolated linearly."""
    place = at * (ordered.shape[1] - 1)
    floor = np.floor(place).astype(np.int64)
    rows, part = np.arange(len(ordered)), place - floor
    above = np.minimum(floor + 1, ordered.shape[1] - 1)
    return np.asarray(ordered[rows, floor] * (1 - part) + ordered[rows, above] * part, dtype=np.float64)


def medians_without_one(ordered: Floats) -> Floats:
    """Return the medians of each sorted row without one of its values, for every value."""
    n = ordered.shape[1]
    kept = np.array([[i + (i >= gone) for i in ((n - 2) // 2, (n - 1) // 2)] for gone in range(n)])
    return np.asarray(ordered[:, kept].mean(axis=2), dtype=np.float64)
