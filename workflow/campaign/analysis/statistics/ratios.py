"""Ratios of means, paired or not, with 95 % intervals, p-values and the least detectable difference; element-wise.

Sources
-------
Unpaired samples: delta method on the logarithm, Hedges, Gurevitch & Curtis (1999), "The meta-analysis of response
ratios in experimental ecology", Ecology 80(4), eq. 1, with the degrees of freedom of Welch (1947) and Satterthwaite
(1946) in place of the normal quantile, because samples here are 3 to 10 runs. Preferred to Fieller's (1954) interval:
it is never unbounded or negative, and the interval of a/b is exactly the inverse of that of b/a. If repetitions are
blocks shared by both samples this is conservative; `compute_paired_ratios` uses the blocks.

Least detectable difference: Cohen (1988), "Statistical power analysis for the behavioral sciences", with an estimated
variance.

Paired samples, in which each run of one sample is in the same block as a run of the other: the common effect of a block
(the hour, the temperature, other users of the machine) raises or lowers both runs of a pair, and cancels.
Lajeunesse (2011), "On the meta-analysis of response ratios for studies with correlated and multi-group designs",
Ecology 92(11), eq. 5: the delta method on the logarithm as above, less the covariance; written here as the variance of
the differences of relative deviations, which is the same number, with Student's t on the number of pairs less one.

The ratio is that of the two means over the pairs, so a reader can reproduce it from a table of means. As for unpaired
samples, its interval for a/b is the inverse of that for b/a.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from campaign.common.intervals import CONFIDENCE_LEVEL, SIGNIFICANCE_LEVEL, Floats, Integers, student_quantile

TEST_POWER = 0.8
_ROUNDING_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class LogRatios:
    """Ratios on the logarithmic scale, on which their errors add, as arrays of one shape.

    variance: of the logarithm of the ratio. freedom: degrees of freedom of that variance. nan if unknown. With zero variance an
    interval has zero width, and any difference is significant.
    """

    ratio: Floats
    variance: Floats
    freedom: Floats

    def compute_bounds(self, confidence: float = CONFIDENCE_LEVEL) -> tuple[Floats, Floats, Floats]:
        """Compute the bounds of the ratios, and return (value, low, high)."""
        half_width = np.where(
            self.variance > 0, student_quantile(self.freedom, confidence) * np.sqrt(self.variance), self.variance
        )
        with np.errstate(over="ignore"):
            return self.ratio, self.ratio * np.exp(-half_width), self.ratio * np.exp(half_width)

    def compute_p_values(self, null_ratio: npt.ArrayLike = 1.0) -> Floats:
        """Return two-sided p-values of the hypothesis that each ratio equals the null ratio; nan without an interval."""
        distance = np.abs(np.log(self.ratio / np.asarray(null_ratio, dtype=np.float64)))
        # A rounding error is no difference, even if the variance is as small as a rounding error.
        exact_p = np.where(
            np.isnan(distance + self.variance + self.freedom),
            np.nan,
            np.where(distance > _ROUNDING_TOLERANCE, 0.0, 1.0),
        )
        has_variance = (self.variance > 0) & ~(distance <= _ROUNDING_TOLERANCE)
        spread = np.where(has_variance, self.variance, np.nan)
        return np.where(has_variance, 2.0 * scipy.special.stdtr(self.freedom, -distance / np.sqrt(spread)), exact_p)

    def compute_detectable_pct(self, tests: int = 1) -> Floats:
        """Compute the difference, in percent of the reference, that 80 of 100 campaigns of this design detect.

        Args:
            tests: number of tests in the family; a single difference has to pass the first step of Holm's adjustment.
        """
        shift = compute_detectable_errors(self.freedom, tests)
        with np.errstate(over="ignore"):
            return np.asarray(100.0 * np.expm1(shift * np.sqrt(self.variance)), dtype=np.float64)

    def divide_by(self, divisor: LogRatios) -> LogRatios:
        """Divide these ratios by independent others, with Welch-Satterthwaite degrees of freedom."""
        return LogRatios(
            self.ratio / divisor.ratio,
            self.variance + divisor.variance,
            compute_welch_freedom((self.variance, self.freedom), (divisor.variance, divisor.freedom)),
        )


def compute_detectable_errors(freedom: npt.ArrayLike, tests: npt.ArrayLike = 1) -> Floats:
    """Compute the difference, in estimated standard errors, that 80 of 100 campaigns of the same design detect.

    Two estimates of the error take part: the one at hand, and that of the campaign that is to detect the difference. Both are
    treated as normal with the moments of the chi distribution, which gives 79.5 to 80 % for all degrees of freedom from 1 on.
    """
    # Rounding errors may reduce Welch's degrees of freedom to slightly below one.
    f = np.maximum(np.asarray(freedom, dtype=np.float64), 1.0)
    t = scipy.special.stdtrit(f, 1.0 - SIGNIFICANCE_LEVEL / np.asarray(tests, dtype=np.float64) / 2.0)
    small = np.minimum(f, 1000.0)
    # Squared mean of an estimated standard error relative to the true one. The difference from 1 is its variance.
    mean = np.exp(2 * (scipy.special.gammaln((small + 1) / 2) - scipy.special.gammaln(small / 2))) * 2 / small
    z = scipy.special.ndtri(TEST_POWER) ** 2
    a, b, c = mean - z * (1 - mean), t * mean, t**2 * mean - z * (1 + t**2 * (1 - mean))
    return np.asarray((b + np.sqrt(b**2 - a * c)) / a, dtype=np.float64)


def compute_welch_freedom(*parts: tuple[Floats, Floats]) -> Floats:
    """Compute the degrees of freedom of a sum of variances (Welch-Satterthwaite).

    The result is 1 if the sum is zero, where it is irrelevant, and infinite if all of the variance is known exactly, like
    that of random draws.

    Args:
        *parts: pairs of a variance and its degrees of freedom.
    """
    total = np.asarray(sum(variance for variance, _ in parts))
    divisor = np.asarray(sum(variance**2 / freedom for variance, freedom in parts))
    freedom_of_sum = np.asarray(total**2 / np.where(divisor > 0, divisor, 1.0))
    freedom_without_variance = np.where(np.isnan(divisor), np.nan, np.where(total > 0, np.inf, 1.0))
    return np.asarray(np.where(divisor > 0, freedom_of_sum, freedom_without_variance), dtype=np.float64)


def compute_unpaired_ratios(
    mean_a: npt.ArrayLike,
    sd_a: npt.ArrayLike,
    n_a: npt.ArrayLike,
    mean_b: npt.ArrayLike,
    sd_b: npt.ArrayLike,
    n_b: npt.ArrayLike,
) -> LogRatios:
    """Compute ratios a/b of the means of independent samples.

    The ratio is nan unless both means are positive. The variance is nan unless both samples have at least two runs.
    """
    a, b = np.asarray(mean_a, dtype=np.float64), np.asarray(mean_b, dtype=np.float64)
    size_a, size_b = np.asarray(n_a, dtype=np.float64), np.asarray(n_b, dtype=np.float64)
    positive = (a > 0) & (b > 0)
    a, b = np.where(positive, a, np.nan), np.where(positive, b, np.nan)
    has_enough_runs = (size_a >= 2) & (size_b >= 2)
    size_a, size_b = np.where(has_enough_runs, size_a, np.nan), np.where(has_enough_runs, size_b, np.nan)
    part_a = (np.asarray(sd_a, dtype=np.float64) / a) ** 2 / size_a
    part_b = (np.asarray(sd_b, dtype=np.float64) / b) ** 2 / size_b
    freedom = compute_welch_freedom((part_a, size_a - 1), (part_b, size_b - 1))
    return LogRatios(a / b, part_a + part_b, freedom)


# With two pairs t is 12.7, which makes an interval useless. The unpaired interval is valid too, but wide if blocks differ.
MIN_PAIRS = 3


def compute_paired_ratios(a: npt.ArrayLike, b: npt.ArrayLike, groups: npt.ArrayLike, count: int) -> LogRatios:
    """Compute ratios a/b of the means over the pairs of each of `count` comparisons.

    The ratio is nan for groups without a pair or with a mean that is not positive. The variance is nan for groups of one pair.

    Args:
        a: first value of each pair.
        b: second value of each pair.
        groups: comparison to which each pair belongs.
        count: number of comparisons.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    group = np.asarray(groups, dtype=np.int64)
    n = np.bincount(group, minlength=count).astype(np.float64)
    size = np.where(n > 0, n, np.nan)
    mean_a = np.bincount(group, first, count) / size
    mean_b = np.bincount(group, second, count) / size
    positive = (mean_a > 0) & (mean_b > 0)
    mean_a, mean_b = np.where(positive, mean_a, np.nan), np.where(positive, mean_b, np.nan)
    differences = first / mean_a[group] - second / mean_b[group]
    freedom = np.where(n > 1, n - 1, np.nan)
    squares = np.bincount(group, differences**2, count)
    # Rounding errors of equal differences are no spread.
    squares = np.where(squares > n * 1e-28, squares, 0.0)
    return LogRatios(mean_a / mean_b, squares / freedom / size, np.where(positive, freedom, np.nan))


def has_enough_pairs(pairs: npt.ArrayLike, n_a: npt.ArrayLike, n_b: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return whether a comparison is paired. This depends only on the design, never on measured values.

    It is paired if there are at least three pairs, which contain at least half of the runs of the smaller sample.

    Args:
        pairs: number of pairs of each comparison.
        n_a: runs of the first sample.
        n_b: runs of the second sample.
    """
    pair_count: Integers = np.asarray(pairs, dtype=np.int64)
    return np.asarray((pair_count >= MIN_PAIRS) & (2 * pair_count >= np.minimum(n_a, n_b)), dtype=np.bool_)
