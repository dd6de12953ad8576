"""Changes of cells between two campaigns: their mean, and tests against the spread of the changes of other configurations.

Cells of one configuration share leases, so their changes deviate together. A mean is therefore over configurations (`group`),
not
over cells, and so are its degrees of freedom (the cluster-robust variance of Liang & Zeger, 1986, "Longitudinal data analysis
using
generalized linear models", Biometrika 73(1), with Student's t).

If each side of a comparison was composed once, the changes of other configurations show the spread between compositions, because
that is the only difference among them. A cell is then tested against their spread. A configuration whose change is significant
no
longer takes part in tests of others. At least `MIN_GROUPS` configurations are needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from campaign.analysis.statistics.comparisons import Ratios
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import (
    CONFOUNDED_WITH_HOSTS,
    SIGNIFICANCE_LEVEL,
    T_BORROWED_CHANGE_SPREAD,
    Floats,
    Integers,
    Marks,
    adjust_p_values,
)

MIN_GROUPS = 4
"""Minimum number of groups to test a change against."""


def average_changes(ratio: npt.ArrayLike, group: npt.ArrayLike) -> LogRatios:
    """Return the geometric mean of positive ratios as one element. It has no variance if all ratios are of one group."""
    logs = np.log(np.asarray(ratio, dtype=np.float64))
    number = np.unique(np.asarray(group), return_inverse=True)[1]
    groups = int(number.max()) + 1
    sums = np.bincount(number, logs - logs.mean())
    variance = float((sums**2).sum()) / logs.size**2 * groups / (groups - 1) if groups > 1 else np.nan
    freedom = groups - 1.0 if groups > 1 else np.nan
    return LogRatios(np.array([np.exp(logs.mean())]), np.array([variance]), np.array([freedom]))


def judge_by_other_groups(changes: Ratios, group: npt.ArrayLike) -> Ratios:
    """Test the changes without a test of their own against the spread of the changes of other groups."""
    number = np.unique(np.asarray(group), return_inverse=True)[1].astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(changes.of.ratio)
    untested = ~changes.tested & np.isfinite(logs) & (changes.method != CONFOUNDED_WITH_HOSTS)
    is_significant = np.zeros(logs.size, dtype=np.bool_)
    judged = changes
    while True:
        variance, freedom = _estimate_other_spread(logs, number, untested & ~is_significant)
        judgeable = untested & (freedom >= MIN_GROUPS - 1)
        if not judgeable.any():
            return judged
        judged = _replace_variance(changes, judgeable, variance, freedom)
        newly_significant = (
            judgeable & (np.nan_to_num(adjust_p_values(judged.p()), nan=1.0) < SIGNIFICANCE_LEVEL) & ~is_significant
        )
        if not newly_significant.any():
            return judged
        is_significant |= newly_significant


def _replace_variance(changes: Ratios, judgeable: Marks, variance: Floats, freedom: Floats) -> Ratios:
    """Return the changes with new variances and a test where they are testable. No variance becomes smaller."""
    variance = np.where(judgeable, np.fmax(variance, changes.of.variance), changes.of.variance)
    freedom = np.where(judgeable, freedom, changes.of.freedom)
    method = np.where(judgeable, T_BORROWED_CHANGE_SPREAD, changes.method).astype(object)
    estimate = LogRatios(changes.of.ratio, variance, freedom)
    return replace(changes, of=estimate, tested=changes.tested | judgeable, method=method)


def _estimate_other_spread(logs: Floats, group: Integers, use: Marks) -> tuple[Floats, Floats]:
    """Return for each cell the mean square of the changes of other groups about their mean, and its degrees of freedom."""
    groups = int(group.max(initial=-1)) + 1
    size = np.bincount(group[use], minlength=groups)
    is_used = size > 0
    mean = np.bincount(group[use], logs[use], groups) / np.maximum(size, 1)
    square = np.bincount(group[use], logs[use] ** 2, groups) / np.maximum(size, 1)
    others = is_used.sum() - is_used
    divisor = np.maximum(others, 1)
    centre = (mean[is_used].sum() - np.where(is_used, mean, 0.0)) / divisor
    spread = (square[is_used].sum() - np.where(is_used, square, 0.0)) / divisor - centre**2
    variance = np.maximum(spread, 0.0) * others / np.maximum(others - 1, 1)
    return np.asarray(variance[group]), np.asarray(others[group] - 1.0)
