"""Variances of few measurements each, pooled over cells: how much they may borrow from each other, and with which freedom.

Cells with three compositions each know little of their own variance. Where cells of a workload are alike, their variances are
pooled. Where they are shown to differ (one-sided test on the logarithms of variances), each keeps its own and borrows as much as
the spread of variances allows: Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression",
Statistical Applications in Genetics and Molecular Biology 3(1), equations for the prior freedom. Cells measured on the same leases
share those leases' deviations; the freedom of what is pooled over them is reduced by how much they do (Satterthwaite, 1946, with
one intra-class correlation a workload).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, polygamma, psi

from campaign.statistics.intervals import Floats, Integers

_HETEROGENEOUS = 0.3
_MANY = 1e6


@dataclass(frozen=True, slots=True)
class Pooled:
    """variance, freedom: of each item after borrowing; pool, pool_freedom: of its stratum alone, nan where nothing is known."""

    variance: Floats
    freedom: Floats
    pool: Floats
    pool_freedom: Floats


def pooled(variance: Floats, freedom: Floats, stratum: Integers, effective: Floats) -> Pooled:
    """Pool items over their strata. freedom: of each item, 0 without a variance; effective: of a stratum's pool, [stratum]."""
    count = effective.size
    known = freedom > 0
    weight = np.where(known, freedom, 0.0)
    total = np.bincount(stratum, weight, count)
    squares = np.bincount(stratum, weight * np.where(known, variance, 0.0), count)
    with np.errstate(divide="ignore", invalid="ignore"):
        pool = np.where(total > 0, squares / total, np.nan)
        share = np.where(total > 0, effective / total, np.nan)
    prior = _prior_freedom(np.where(known, variance, 0.0), weight, stratum, pool, share)[stratum]
    # Items that share leases hold less than their number says, and so does what they lend.
    own = weight
    borrowed = np.where(np.isfinite(prior), prior, 1.0)
    mixed = (borrowed * pool[stratum] + own * np.where(known, variance, 0.0)) / (borrowed + own)
    alone = ~np.isfinite(prior)
    limit = effective[stratum]
    return Pooled(
        np.where(alone, pool[stratum], mixed),
        np.where(alone, limit, np.minimum(borrowed + own, np.maximum(limit, own))),
        pool[stratum],
        limit,
    )


def _prior_freedom(variance: Floats, freedom: Floats, stratum: Integers, pool: Floats, share: Floats) -> Floats:
    """Prior freedom of each stratum; infinite where its variances are not shown to differ."""
    count = pool.size
    known = freedom > 0
    floor = 1e-8 * np.where(pool[stratum] > 0, pool[stratum], 1.0)
    half = np.where(known, freedom, 2.0) / 2
    log = np.log(np.maximum(variance, floor)) - psi(half) + np.log(half)
    noise = polygamma(1, half)
    n = np.bincount(stratum[known], minlength=count).astype(np.float64)
    some = np.maximum(n, 1)
    mean = np.bincount(stratum, np.where(known, log, 0.0), count) / some
    squares = np.bincount(stratum, np.where(known, (log - mean[stratum]) ** 2, 0.0), count)
    expected = np.bincount(stratum, np.where(known, noise, 0.0), count) / some
    # Cochran's way to a test, in Bartlett's form: the likelihood ratio of equal variances; shared leases make it smaller.
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.bincount(stratum, freedom, count)
        bartlett = total * np.log(np.where(pool > 0, pool, 1.0)) - np.bincount(
            stratum, np.where(known, freedom * np.log(np.maximum(variance, floor)), 0.0), count
        )
        inverse = np.bincount(stratum, np.where(known, 1 / np.where(known, freedom, 1.0), 0.0), count)
        correction = 1 + (inverse - 1 / total) / (3 * np.maximum(n - 1, 1))
        p = chdtrc(np.maximum(n - 1, 1), np.maximum(bartlett / correction, 0.0))
        excess = squares / np.maximum(n - 1, 1) - expected
    differ = (n >= 3) & (p < _HETEROGENEOUS) & (excess > 0) & (pool > 0)
    return np.where(differ, 2 * _trigamma_inverse(np.where(differ, excess, 1.0)), np.inf)


def _trigamma_inverse(value: Floats) -> Floats:
    """Newton's method of Smyth (2004), appendix."""
    y = 0.5 + 1 / value
    for _ in range(20):
        tri = polygamma(1, y)
        y = y + tri * (1 - tri / value) / polygamma(2, y)
    return np.asarray(y, dtype=np.float64)


def effective_freedom(
    residual: Floats, group: Integers, item: Integers, freedom: Floats, stratum: Integers, count: int
) -> Floats:
    """Freedom of the pooled variance of each stratum, whose items share the units (`group`) that their residuals are of.

    residual: one a unit and item, scaled to one variance over items; group: the unit (lease) of each; item: the cell of each;
    freedom: of each item; stratum: of each item.
    """
    units = int(group.max(initial=-1)) + 1
    of_item = np.bincount(item, residual**2, freedom.size)
    of_unit = np.bincount(group, residual, units) ** 2
    per_unit = np.bincount(group, minlength=units)
    unit_stratum = np.zeros(units, dtype=np.int64)
    unit_stratum[group] = stratum[item]
    squares = np.bincount(stratum, of_item, count)
    off = np.bincount(unit_stratum, of_unit, count) - squares
    possible = np.bincount(stratum[item], (per_unit[group] - 1) * residual**2, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = np.where(possible > 0, np.clip(off / possible, 0.0, 1.0), 0.0)
    # Of each item, with how many others it shares a lease on average.
    beside = np.bincount(item, per_unit[group] - 1.0, freedom.size) / np.maximum(
        np.bincount(item, minlength=freedom.size), 1
    )
    total = np.bincount(stratum, freedom, count)
    spread = np.bincount(stratum, freedom * (1 + beside * alike[stratum] ** 2), count)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, total**2 / spread, 0.0)
