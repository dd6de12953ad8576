"""95 % intervals and test levels: Student's t, Holm's adjustment, and the names of all interval methods.

Source: Student (1908), "The probable error of a mean", Biometrika 6(1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy

CONFIDENCE_LEVEL = 0.95
SIGNIFICANCE_LEVEL = 0.05
"""Level below which a p-value counts as a significant difference."""

# Methods for a mean or a median. The part after the comma is left out where a caption already mentions 95 %.
STUDENT_T_FOR_MEDIAN = "Student t for the median of normal runs, 95 %"
BCA_BOOTSTRAP = "BCa bootstrap, 95 %"

# Methods for a ratio, or for a mean over compositions.
T_OVER_COMPOSITIONS = "t over compositions, 95 %"
T_OVER_BLOCKED_COMPOSITIONS = "t over compositions in blocks of the campaign, 95 %"
T_ON_SAME_HOSTS = "t over compositions on the same hosts, 95 %"
T_PAIRED_BY_LEASE = "t over compositions, paired by lease, 95 %"
T_BORROWED_SPREAD = "t, one composition, the spread of compositions borrowed, 95 %"
T_BORROWED_EARLIER_SPREAD = "t, one composition, the spread of compositions borrowed from earlier campaigns, 95 %"
T_BORROWED_CHANGE_SPREAD = "t, one composition each, the spread of the changes of other configurations, 95 %"
T_PAIRED_BY_BLOCK = "within one composition, t paired by block, 95 %"
T_OVER_RUNS_OF_COMPOSITION = "within one composition, t over runs, 95 %"
RUN_VARIATION_ONLY = "one composition each, run-to-run variation only, no test, 95 %"
CONFOUNDED_WITH_HOSTS = "each on hosts of its own, no test, 95 %"
BETWEEN_CAMPAIGNS = "t over earlier campaigns, 95 %"
CAMPAIGNS_UNKNOWN = "spread within campaigns only, no test, 95 %"

NO_INTERVAL_ONE_RUN = "none: one run"
NO_INTERVAL_NO_RUN = "none: no run"
NO_INTERVAL_NOT_POSITIVE = "none: a mean is not positive"
NO_INTERVAL_REFERENCE = "none: the reference itself"
NO_INTERVAL_WITHOUT_REFERENCE = "none: no reference was measured"

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
Words = npt.NDArray[np.object_]


def student_quantile(degrees_of_freedom: npt.ArrayLike, confidence: float = CONFIDENCE_LEVEL) -> Floats:
    """Return the half-width of a confidence interval in standard errors, element-wise.

    The result is nan if the degrees of freedom are nan.
    """
    return np.asarray(scipy.special.stdtrit(degrees_of_freedom, 0.5 + confidence / 2.0), dtype=np.float64)


def simultaneous_width_factor(degrees_of_freedom: npt.ArrayLike, count: float) -> Floats:
    """Return the factor by which intervals widen so that `count` of them hold simultaneously (Bonferroni), element-wise."""
    return student_quantile(degrees_of_freedom, 1 - SIGNIFICANCE_LEVEL / count) / student_quantile(degrees_of_freedom)


def student_interval(
    mean: npt.ArrayLike, sd: npt.ArrayLike, n: npt.ArrayLike, confidence: float = CONFIDENCE_LEVEL
) -> tuple[Floats, Floats]:
    """Return the lower and upper bounds of means by Student's t, element-wise. Bounds are nan where n < 2.

    Args:
        mean: mean of each sample.
        sd: sample standard deviation of each sample.
        n: size of each sample.
        confidence: confidence level.
    """
    size = np.asarray(n, dtype=np.float64)
    valid_size = np.where(size >= 2, size, np.nan)
    half_width = student_quantile(valid_size - 1.0, confidence) * np.asarray(sd, dtype=np.float64) / np.sqrt(valid_size)
    centre = np.asarray(mean, dtype=np.float64)
    return centre - half_width, centre + half_width


# Largest F ratio for which SciPy inverts the noncentral F distribution.
_MAX_INVERTIBLE_F = 500.0


def compute_spread_bounds(
    cv: float, count: int, variance: float, degrees_of_freedom: float, confidence: float = CONFIDENCE_LEVEL
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
    if not (variance > 0 and degrees_of_freedom > 0):
        return (cv, cv) if variance == 0 else (float("nan"), float("nan"))
    tail_probability, f_ratio = (1 - confidence) / 2, cv**2 / variance
    if f_ratio > _MAX_INVERTIBLE_F:
        half_width = float(student_quantile(degrees_of_freedom, confidence)) * float(np.sqrt(variance / (count - 1)))
        return cv - half_width, cv + half_width
    # If such a ratio is usual even without any spread, the bound is 0.
    noncentralities = [
        float(scipy.special.ncfdtrinc(count - 1, degrees_of_freedom, p, f_ratio))
        if scipy.special.fdtr(count - 1, degrees_of_freedom, f_ratio) > p
        else 0.0
        for p in (1 - tail_probability, tail_probability)
    ]
    low, high = (float(np.sqrt(nc * variance / (count - 1))) for nc in noncentralities)
    return low, high


def adjust_p_values(p_values: npt.ArrayLike) -> Floats:
    """Adjust the p-values of one family of tests by Holm's method. The order and shape are kept.

    A nan stands for no test and stays nan. Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian
    Journal of Statistics 6(2). The method assumes nothing about the dependence of the tests, which share a reference here.
    """
    result = np.array(p_values, dtype=np.float64)
    is_tested = np.isfinite(result)
    tested_p = result[is_tested]
    order = np.argsort(tested_p, kind="stable")
    tested_p[order] = np.minimum(np.maximum.accumulate(tested_p[order] * np.arange(tested_p.size, 0, -1)), 1.0)
    result[is_tested] = tested_p
    return result


def compute_proportion_bounds(count: npt.ArrayLike, total: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the 95 % bounds of a proportion, element-wise. Bounds are nan for a total of 0.

    Clopper & Pearson (1934), "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika 26(4).

    Args:
        count: number of events.
        total: number of trials.
    """
    events, trials = np.asarray(count, dtype=np.float64), np.asarray(total, dtype=np.float64)
    tail_probability = (1 - CONFIDENCE_LEVEL) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(
            events > 0, scipy.special.betaincinv(np.maximum(events, 1), trials - events + 1, tail_probability), 0.0
        )
        is_all = events >= trials
        others = np.where(is_all, 1.0, trials - events)
        high = np.where(is_all, 1.0, scipy.special.betaincinv(events + 1, others, 1 - tail_probability))
    return np.where(trials > 0, low, np.nan), np.where(trials > 0, high, np.nan)
