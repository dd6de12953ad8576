"""Changes of cells between two campaigns: their mean, and tests against the spread of the changes of other configurations.

Cells of one configuration share leases, so their changes deviate together. A mean is therefore over configurations (`group`),
not over cells, and so are its degrees of freedom (the cluster-robust variance of Liang & Zeger, 1986, "Longitudinal data
analysis using generalized linear models", Biometrika 73(1), with Student's t).

If each side of a comparison was composed once, the changes of other configurations show the spread between compositions,
because that is the only difference among them. A cell is then tested against their spread. A configuration whose change is
significant no longer takes part in tests of others. At least `MIN_GROUPS` configurations are needed.
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
    """Compute the geometric mean of positive ratios. Its variance is unknown if there is only one group."""
    logs = np.log(np.asarray(ratio, dtype=np.float64))
    number = np.unique(np.asarray(group), return_inverse=True)[1]
    groups = int(number.max()) + 1
    sums = np.bincount(number, logs - logs.mean())
    variance = float((sums**2).sum()) / logs.size**2 * groups / (groups - 1) if groups > 1 else np.nan
    freedom = groups - 1.0 if groups > 1 else np.nan
    return LogRatios(np.array([np.exp(logs.mean())]), np.array([variance]), np.array([freedom]))


def test_against_other_groups(changes: Ratios, group: npt.ArrayLike) -> Ratios:
    """Test changes that lack a test against the spread of the changes in other groups."""
    number = np.unique(np.asarray(group), return_inverse=True)[1].astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(changes.estimate.ratio)
    is_untested = ~changes.is_tested & np.isfinite(logs) & (changes.method != CONFOUNDED_WITH_HOSTS)
    is_significant = np.zeros(logs.size, dtype=np.bool_)
    tested_changes = changes
    while True:
        variance, freedom = _estimate_other_spread(logs, number, is_untested & ~is_significant)
        is_testable = is_untested & (freedom >= MIN_GROUPS - 1)
        if not is_testable.any():
            return tested_changes
        tested_changes = _replace_variance(changes, is_testable, variance, freedom)
        newly_significant = (
            is_testable
            & (np.nan_to_num(adjust_p_values(tested_changes.compute_p_values()), nan=1.0) < SIGNIFICANCE_LEVEL)
            & ~is_significant
        )
        if not newly_significant.any():
            return tested_changes
        is_significant |= newly_significant


def _replace_variance(changes: Ratios, is_testable: Marks, variance: Floats, freedom: Floats) -> Ratios:
    """Replace the variances of testable changes and mark them as tested. No variance becomes smaller."""
    variance = np.where(is_testable, np.fmax(variance, changes.estimate.variance), changes.estimate.variance)
    freedom = np.where(is_testable, freedom, changes.estimate.freedom)
    method = np.where(is_testable, T_BORROWED_CHANGE_SPREAD, changes.method).astype(object)
    estimate = LogRatios(changes.estimate.ratio, variance, freedom)
    return replace(changes, estimate=estimate, is_tested=changes.is_tested | is_testable, method=method)


def _estimate_other_spread(logs: Floats, group: Integers, is_used_cell: Marks) -> tuple[Floats, Floats]:
    """Estimate for each cell the mean square of other groups' changes about their mean, and its freedom."""
    groups = int(group.max(initial=-1)) + 1
    size = np.bincount(group[is_used_cell], minlength=groups)
    is_used = size > 0
    mean = np.bincount(group[is_used_cell], logs[is_used_cell], groups) / np.maximum(size, 1)
    square = np.bincount(group[is_used_cell], logs[is_used_cell] ** 2, groups) / np.maximum(size, 1)
    other_groups = is_used.sum() - is_used
    divisor = np.maximum(other_groups, 1)
    centre = (mean[is_used].sum() - np.where(is_used, mean, 0.0)) / divisor
    spread = (square[is_used].sum() - np.where(is_used, square, 0.0)) / divisor - centre**2
    variance = np.maximum(spread, 0.0) * other_groups / np.maximum(other_groups - 1, 1)
    return np.asarray(variance[group]), np.asarray(other_groups[group] - 1.0)
