"""95 % intervals: Student's t, the BCa bootstrap, and the names of all methods that an interval can be made by.

Sources: Student (1908), "The probable error of a mean", Biometrika 6(1); Efron (1987), "Better bootstrap confidence intervals",
Journal of the American Statistical Association 82(397), for BCa; Hesterberg (2015), "What teachers should know about the
bootstrap", The American Statistician 69(4), section 5, for the expanded quantiles, without which the intervals of 20 runs are too
narrow by what separates Student's t from the normal and n from n - 1.

Student's t is used below 20 runs: simulated, plain BCa covers 83 of 100 means of 5 runs and 90 of 10. With the expanded
quantiles it covers 94 to 95 of 100 normal means of 20 runs and 93 to 94 of skewed ones, where t covers 92 to 93.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
"""What a p-value has to be under, for a difference to be said."""

# Of a mean or a median. What follows the comma is left out where a caption has said 95 % already.
STUDENT = "Student t, 95 %"
MEDIAN_STUDENT = "Student t for the median of normal runs, 95 %"
BCA = "BCa bootstrap, 95 %"

# Of a ratio, or of a mean over compositions.
BETWEEN = "t over compositions, 95 %"
BLOCKED = "t over compositions in blocks of the campaign, 95 %"
ON_HOSTS = "t over compositions on the same hosts, 95 %"
PAIRED_BY_LEASE = "t over compositions, paired by lease, 95 %"
BORROWED = "t, one composition, the spread of compositions borrowed, 95 %"
BORROWED_EARLIER = "t, one composition, the spread of compositions borrowed from earlier campaigns, 95 %"
AMONG_CHANGES = "t, one composition each, the spread of the changes of other configurations, 95 %"
PAIRED = "within one composition, t paired by block, 95 %"
RUNS_OF_ONE = "within one composition, t over runs, 95 %"
ONE_EACH = "one composition each, run-to-run variation only, no test, 95 %"
CONFOUNDED = "each on hosts of its own, no test, 95 %"

ONE_RUN = "none: one run"
NO_RUN = "none: no run"
NOT_POSITIVE = "none: a mean is not positive"
ITSELF = "none: the reference itself"
NO_REFERENCE = "none: no reference was measured"

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.object_]


def student_quantile(freedom: npt.ArrayLike, confidence: float = CONFIDENCE) -> Floats:
    """How many standard errors an interval reaches to each side, element-wise; nan where the degrees of freedom are."""
    return np.asarray(scipy.special.stdtrit(freedom, 0.5 + confidence / 2.0), dtype=np.float64)


# Of the noncentrality parameter, as far as SciPy inverts it.
_LARGE_F = 500.0


def spread_bounds(
    cv: float, count: int, variance: float, freedom: float, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Bounds of the coefficient of variation of `count` true means, of which each was measured with an error of this variance.

    cv: of the measured means, as a part of one, like the variance. What is measured varies by its errors as well: the ratio of both
    variances has a noncentral F distribution (Steiger, 2004, "Beyond the F test", Psychological Methods 9(2)).
    """
    if not (variance > 0 and freedom > 0):
        return (cv, cv) if variance == 0 else (float("nan"), float("nan"))
    tail, f = (1 - confidence) / 2, cv**2 / variance
    if f > _LARGE_F:
        half = float(student_quantile(freedom, confidence)) * float(np.sqrt(variance / (count - 1)))
        return cv - half, cv + half
    # At no spread at all, a ratio as large as this one may be usual: then the bound is 0.
    ends = [
        float(scipy.special.ncfdtrinc(count - 1, freedom, p, f))
        if scipy.special.fdtr(count - 1, freedom, f) > p
        else 0.0
        for p in (1 - tail, tail)
    ]
    low, high = (float(np.sqrt(nc * variance / (count - 1))) for nc in ends)
    return low, high


RESAMPLES = 2000
# One seed for every sample of every campaign: the same runs give the same interval everywhere.
_SEED = 20_150_401
# So many numbers at a time, that thousands of cells do not need gigabytes.
_AT_ONCE = 4_000_000


def bca(samples: Floats, of: Literal["mean", "median"]) -> tuple[Floats, Floats]:
    """Bounds of the mean or the median of each row. samples: shape (samples, n), n >= 2; without nan.

    A row without any spread has an interval without width.
    """
    ordered = np.sort(samples, axis=1)
    count, n = ordered.shape
    drawn = np.sort(np.random.default_rng(_SEED).integers(0, n, (RESAMPLES, n)), axis=1)
    low, high = np.empty(count), np.empty(count)
    step = max(1, _AT_ONCE // (RESAMPLES * (n if of == "mean" else 2)))
    for start in range(0, count, step):
        rows = slice(start, start + step)
        low[rows], high[rows] = _bounds(ordered[rows], drawn, of)
    return low, high


def _bounds(ordered: Floats, drawn: Integers, of: str) -> tuple[Floats, Floats]:
    n = ordered.shape[1]
    if of == "mean":
        found, left_out = ordered.mean(axis=1), _means_without_one(ordered)
        replicas = ordered[:, drawn].mean(axis=2)
    else:
        # Rows and draws are in order, so that the median of a draw is the value at its middle.
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
    low, high = (_quantiles(replicas, scipy.special.ndtr(_adjusted(bias, skew, end))) for end in (-expanded, expanded))
    return low, high


def _adjusted(bias: Floats, skew: Floats, end: float) -> Floats:
    return np.asarray(bias + (bias + end) / (1 - skew * (bias + end)), dtype=np.float64)


def _quantiles(ordered: Floats, at: Floats) -> Floats:
    """One quantile of each row, between two values in proportion."""
    place = at * (ordered.shape[1] - 1)
    floor = np.floor(place).astype(np.int64)
    rows = np.arange(len(ordered))
    part = place - floor
    above = np.minimum(floor + 1, ordered.shape[1] - 1)
    return np.asarray(ordered[rows, floor] * (1 - part) + ordered[rows, above] * part, dtype=np.float64)


def _means_without_one(rows: Floats) -> Floats:
    return np.asarray((rows.sum(axis=1, keepdims=True) - rows) / (rows.shape[1] - 1), dtype=np.float64)


def medians_without_one(ordered: Floats) -> Floats:
    """The medians of each row without one of its values, value by value; rows are in order."""
    n = ordered.shape[1]
    kept = np.array([[i + (i >= gone) for i in ((n - 2) // 2, (n - 1) // 2)] for gone in range(n)])
    return np.asarray(ordered[:, kept].mean(axis=2), dtype=np.float64)
