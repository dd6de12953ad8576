"""Changes of many cells between two campaigns: their mean, and their spread where every configuration was composed once.

Cells of one configuration share leases, so their changes deviate together: configurations (`group`), not cells, are what a mean is
over and what its freedom counts (the cluster-robust variance of Liang & Zeger, 1986, "Longitudinal data analysis using generalized
linear models", Biometrika 73(1), with Student's t).

Where each side of a comparison was composed once, the other configurations tell how much a change deviates by composing again:
their changes differ among each other by just that. A cell is then tested against the spread of the changes of the other
configurations; one that is named no longer takes part in judging others. That needs `LEAST_OTHERS` of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from campaign.statistics.comparisons import Ratios
from campaign.statistics.intervals import AMONG_CHANGES, CONFOUNDED, SIGNIFICANT, Floats, Integers
from campaign.statistics.multiple_testing import holm
from campaign.statistics.ratios import LogRatios

LEAST_OTHERS = 4


def mean_change(ratio: npt.ArrayLike, group: npt.ArrayLike) -> LogRatios:
    """Geometric mean of ratios (positive, at least one), as one element; without variance for one group."""
    logs = np.log(np.asarray(ratio, dtype=np.float64))
    of = np.unique(np.asarray(group), return_inverse=True)[1]
    groups = int(of.max()) + 1
    sums = np.bincount(of, logs - logs.mean())
    variance = float((sums**2).sum()) / logs.size**2 * groups / (groups - 1) if groups > 1 else np.nan
    freedom = groups - 1.0 if groups > 1 else np.nan
    return LogRatios(np.array([np.exp(logs.mean())]), np.array([variance]), np.array([freedom]))


def among_each_other(found: Ratios, group: npt.ArrayLike) -> Ratios:
    """Ratios with a test where they had none: against the spread of the ratios of other groups."""
    of = np.unique(np.asarray(group), return_inverse=True)[1].astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(found.of.ratio)
    open_ = ~found.tested & np.isfinite(logs) & (found.method != CONFOUNDED)
    named = np.zeros(logs.size, dtype=np.bool_)
    result = found
    while True:
        variance, freedom = _of_others(logs, of, open_ & ~named)
        known = open_ & (freedom >= LEAST_OTHERS - 1)
        if not known.any():
            return result
        variance = np.where(known, np.fmax(variance, found.of.variance), found.of.variance)
        ratios = LogRatios(found.of.ratio, variance, np.where(known, freedom, found.of.freedom))
        method = np.where(known, AMONG_CHANGES, found.method).astype(object)
        result = replace(found, of=ratios, tested=found.tested | known, method=method)
        slow = known & (np.nan_to_num(holm(result.p()), nan=1.0) < SIGNIFICANT) & ~named
        if not slow.any():
            return result
        named |= slow


def _of_others(logs: Floats, of: Integers, take: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Of each cell, the mean square of the changes of other groups about their mean, and its freedom."""
    groups = int(of.max(initial=-1)) + 1
    size = np.bincount(of[take], minlength=groups)
    there = size > 0
    mean = np.bincount(of[take], logs[take], groups) / np.maximum(size, 1)
    square = np.bincount(of[take], logs[take] ** 2, groups) / np.maximum(size, 1)
    others = there.sum() - there
    some = np.maximum(others, 1)
    centre = (mean[there].sum() - np.where(there, mean, 0.0)) / some
    about = (square[there].sum() - np.where(there, square, 0.0)) / some - centre**2
    variance = np.maximum(about, 0.0) * others / np.maximum(others - 1, 1)
    return np.asarray(variance[of]), np.asarray(others[of] - 1.0)
