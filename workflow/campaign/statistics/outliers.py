"""Which runs of a cell lie far from the others: named, never left out of a mean.

From 10 runs on: a value whose modified z-score, 0.6745 x |value - median| / MAD, is beyond a limit, so that several outliers cannot
hide each other: Iglewicz & Hoaglin (1993), "How to detect and handle outliers". Their one limit, 3.5, is for large samples (of
10 clean normal values it calls something an outlier in 13 of 100 samples, of 5 in 21, because the MAD of few values can be small by
chance); the limits here depend on n and were simulated.
Of fewer runs: a value that is too far from the mean of the others for their spread, by t on n - 2 with Bonferroni's correction,
which is the test of Grubbs (1950), "Sample criteria for testing outlying observations", Annals of Mathematical Statistics 21(1).
Of 5 runs with one that is 20 standard deviations off, it names this one in 97 of 100 cases, the modified z-score in 48.

Both are such that 1 clean normal sample in 100 has an outlier. So few runs allow little: of three, one is named only where it is
some 230 standard deviations of the other two away; of two, none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy

from campaign.statistics.intervals import Floats

# How many clean samples have an outlier.
LEVEL = 0.01

# 99 % quantile of the largest modified z-score of normal samples of n values, a million samples each.
_LIMITS = {
    10: 6.9, 11: 7.1, 12: 6.3, 13: 6.4, 14: 5.9, 15: 6.0, 16: 5.6, 17: 5.6, 18: 5.4, 19: 5.4, 20: 5.2, 25: 5.0, 30: 4.8,
    50: 4.4, 100: 4.3, 200: 4.3,
}  # fmt: skip
_MANY = min(_LIMITS)

# Logs print throughputs with four digits or so: runs that agree more closely than half of the fourth say nothing of their spread.
_FINEST = 0.0005

_NORMAL = 0.6744897501960817


def limit(n: int) -> float:
    """How many standard deviations of the others away a value of a sample of n is an outlier; infinite for fewer than three."""
    if n < 3:
        return float("inf")
    if n < _MANY:
        return float(scipy.special.stdtrit(n - 2, 1 - LEVEL / (2 * n)) * np.sqrt(n / (n - 1)))
    sizes = np.array(sorted(_LIMITS))
    return float(np.interp(n, sizes, [_LIMITS[size] for size in sizes.tolist()]))


def outlying(samples: Floats) -> npt.NDArray[np.bool_]:
    """Which values of each row are outliers of it. samples: shape (samples, n), without nan; the answer has the same shape."""
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
    """Of every value, how far it is from the mean of the others of its row, and their standard deviation."""
    n = samples.shape[1]
    kept = np.array([[i for i in range(n) if i != gone] for gone in range(n)])
    others = samples[:, kept]
    return np.abs(samples - others.mean(axis=2)), others.std(axis=2, ddof=1)
