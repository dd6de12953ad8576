"""95 % intervals and test levels: Student's t, Holm's adjustment, and the names of all interval methods.

Source: Student (1908), "The probable error of a mean", Biometrika 6(1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
"""Level below which a p-value counts as a significant difference."""

# Methods for a mean or a median. The part after the comma is left out where a caption already mentions 95 %.
MEDIAN_STUDENT = "Student t for the median of normal runs, 95 %"
BCA = "BCa bootstrap, 95 %"

# Methods for a ratio, or for a mean over compositions.
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
BETWEEN_CAMPAIGNS = "t over earlier campaigns, 95 %"
CAMPAIGNS_UNKNOWN = "spread within campaigns only, no test, 95 %"

ONE_RUN = "none: one run"
NO_RUN = "none: no run"
NOT_POSITIVE = "none: a mean is not positive"
ITSELF = "none: the reference itself"
NO_REFERENCE = "none: no reference was measured"

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
Words = npt.NDArray[np.object_]


def student_quantile(freedom: npt.ArrayLike, confidence: float = CONFIDENCE) -> Floats:
    """Return the half-width of a confidence interval in standard errors, element-wise.

    The result is nan where the degrees of freedom are nan.
    """
    return np.asarray(scipy.special.stdtrit(freedom, 0.5 + confidence / 2.0), dtype=np.float64)


def simultaneous_width(freedom: npt.ArrayLike, count: float) -> Floats:
    """Return the factor by which intervals widen so that `count` of them hold simultaneously (Bonferroni), element-wise."""
    return student_quantile(freedom, 1 - SIGNIFICANT / count) / student_quantile(freedom)


def student_interval(
    mean: npt.ArrayLike, sd: npt.ArrayLike, n: npt.ArrayLike, confidence: float = CONFIDENCE
) -> tuple[Floats, Floats]:
    """Return the lower and upper bounds of means by Student's t, element-wise. Bounds are nan where n < 2.

    Args:
        mean: mean of each sample.
        sd: sample standard deviation of each sample.
        n: size of each sample.
        confidence: confidence level.
    """
    size = np.asarray(n, dtype=np.float64)
    enough = np.where(size >= 2, size, np.nan)
    half = student_quantile(enough - 1.0, confidence) * np.asarray(sd, dtype=np.float64) / np.sqrt(enough)
    centre = np.asarray(mean, dtype=np.float64)
    return centre - half, centre + half


# Largest F ratio for which SciPy inverts the noncentral F distribution.
_LARGE_F = 500.0


def spread_bounds(
    cv: float, count: int, variance: float, freedom: float, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return confidence bounds of the coefficient of variation of `count` true means that were measured with errors.

    The measured means vary by their errors as well. The ratio of both variances has a noncentral F distribution (Steiger, 2004,
    "Beyond the F test", Psychological Methods 9(2)).

    Args:
        cv: coefficient of variation of the measured means, as a fraction.
        count: number of means.
        variance: variance of the error of one mean, as a fraction like `cv`.
        degrees_of_freedom: degrees of freedom of that variance.
        confidence: confidence level.
    """
    if not (variance > 0 and freedom > 0):
        return (cv, cv) if variance == 0 else (float("nan"), float("nan"))
    tail, f = (1 - confidence) / 2, cv**2 / variance
    if f > _LARGE_F:
        half = float(student_quantile(freedom, confidence)) * float(np.sqrt(variance / (count - 1)))
        return cv - half, cv + half
    # If such a ratio is usual even without any spread, the bound is 0.
    ends = [
        float(scipy.special.ncfdtrinc(count - 1, freedom, p, f))
        if scipy.special.fdtr(count - 1, freedom, f) > p
        else 0.0
        for p in (1 - tail, tail)
    ]
    low, high = (float(np.sqrt(nc * variance / (count - 1))) for nc in ends)
    return low, high


def holm(p: npt.ArrayLike) -> Floats:
    """Return the p-values of one family of tests after Holm's adjustment, in the same order and shape.

    A nan stands for no test and stays nan. Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian
    Journal of Statistics 6(2). The method assumes nothing about the dependence of the tests, which share a reference here.
    """
    adjusted = np.array(p, dtype=np.float64)
    tested = np.isfinite(adjusted)
    known = adjusted[tested]
    order = np.argsort(known, kind="stable")
    known[order] = np.minimum(np.maximum.accumulate(known[order] * np.arange(known.size, 0, -1)), 1.0)
    adjusted[tested] = known
    return adjusted
