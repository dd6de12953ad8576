"""Ratios of means of samples that were measured side by side: each run of one in the same block as a run of the other.

What a block has in common (the hour, the temperature, other users of the machine) raises or lowers both runs of a pair, and
cancels. Source: Lajeunesse (2011), "On the meta-analysis of response ratios for studies with correlated and multi-group designs",
Ecology 92(11), eq. 5: the delta method on the logarithm as for samples that are not paired, less the covariance; written here as
the variance of the differences of relative deviations, which is the same number, with Student's t on the number of pairs less one.

The ratio is that of the two means over the pairs, so a reader finds it again in a table of means; like its unpaired relative, its
interval for a/b is the inverse of that for b/a.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from campaign.statistics.ratio import LogRatios
from campaign.statistics.words import Integers

# With two pairs t is 12.7: an interval that says nothing. The unpaired one is valid there too, if wide where blocks differ.
LEAST_PAIRS = 3


def paired(a: npt.ArrayLike, b: npt.ArrayLike, groups: npt.ArrayLike, count: int) -> LogRatios:
    """Ratios a/b of the means over the pairs of each of the groups 0 .. count - 1.

    a, b: the two values of each pair; groups: the comparison that it belongs to. nan for groups without a pair or with a mean
    that is not positive; without variance for groups of one pair.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    of = np.asarray(groups, dtype=np.int64)
    n = np.bincount(of, minlength=count).astype(np.float64)
    some = np.where(n > 0, n, np.nan)
    mean_a = np.bincount(of, first, count) / some
    mean_b = np.bincount(of, second, count) / some
    positive = (mean_a > 0) & (mean_b > 0)
    mean_a, mean_b = np.where(positive, mean_a, np.nan), np.where(positive, mean_b, np.nan)
    differences = first / mean_a[of] - second / mean_b[of]
    freedom = np.where(n > 1, n - 1, np.nan)
    squares = np.bincount(of, differences**2, count)
    # What rounding leaves of differences that are all the same is no spread.
    squares = np.where(squares > n * 1e-28, squares, 0.0)
    return LogRatios(mean_a / mean_b, squares / freedom / some, np.where(positive, freedom, np.nan))


def is_paired(pairs: npt.ArrayLike, n_a: npt.ArrayLike, n_b: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether a comparison is to be paired: known from the design alone, never from what was measured.

    There are three pairs or more, and they hold at least half of the runs of the smaller sample.
    """
    found: Integers = np.asarray(pairs, dtype=np.int64)
    return np.asarray((found >= LEAST_PAIRS) & (2 * found >= np.minimum(n_a, n_b)), dtype=np.bool_)


def either(take: npt.NDArray[np.bool_], first: LogRatios, second: LogRatios) -> LogRatios:
    """The first's elements where `take` holds, the second's elsewhere."""
    return LogRatios(
        np.where(take, first.ratio, second.ratio),
        np.where(take, first.variance, second.variance),
        np.where(take, first.freedom, second.freedom),
    )
