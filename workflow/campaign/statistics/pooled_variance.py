"""Variances of few measurements each, pooled over cells: how much they may borrow from each other, and with which freedom.

Cells with three compositions each know little of their own variance. Where cells of a workload are alike, their variances are
pooled. Where they are shown to differ (one-sided test on the logarithms of variances), each keeps its own and borrows as much as
the spread of variances allows: Smyth (2004), "Linear models and empirical Bayes methods for assessing differential expression",
Statistical Applications in Genetics and Molecular Biology 3(1), equations for the prior freedom. A cell whose variance is larger
than that of the others (F, 10 %) counts with its own. Where it stands out among all of them (Bonferroni, 15 %), it has its own
freedom as well and is no part of the pool (after Cochran, 1941, "The distribution of the largest of a set of estimated variances as
a fraction of their total", Annals of Eugenics 11). Otherwise one noisy cell is called different, and widens the intervals of all
others. Cells measured on the same leases
share those leases' deviations; the freedom of what is pooled over them is reduced by how much they do (Satterthwaite, 1946, with
one intra-class correlation a workload).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from campaign.statistics.intervals import Floats, Integers

_HETEROGENEOUS = 0.3
_OUTLYING, _AMONG_ALL = 0.1, 0.15


@dataclass(frozen=True, slots=True)
class Pooled:
    """variance, freedom: of each item after borrowing; pool, pool_freedom: of its stratum alone, nan where nothing is known.

    outlying: items that keep their own variance, because it is larger than that of the others.
    """

    variance: Floats
    freedom: Floats
    pool: Floats
    pool_freedom: Floats
    outlying: npt.NDArray[np.bool_]


def pooled(variance: Floats, freedom: Floats, stratum: Integers, effective: Floats) -> Pooled:
    """Pool items over their strata. freedom: of each item, 0 without a variance; effective: of a stratum's pool, [stratum]."""
    known = freedom > 0
    own, weight = np.where(known, variance, 0.0), np.where(known, freedom, 0.0)
    outlying, apart = _outlying(own, weight, stratum, effective)
    # What has no variance may be like those that stand out: it gets what all are like.
    whole = rest = _shared(own, weight, stratum, effective)
    if apart.any():
        total, left = (np.bincount(stratum, each, effective.size) for each in (weight, np.where(apart, 0.0, weight)))
        part = np.where(total > 0, left / np.where(total > 0, total, 1.0), 0.0)
        rest = _shared(own, np.where(apart, 0.0, weight), stratum, effective * part)
    return Pooled(
        np.select([outlying, known], [own, rest[0]], whole[0]),
        np.select([apart, known], [weight, rest[1]], whole[1]),
        whole[2],
        effective[stratum],
        outlying,
    )


def _shared(variance: Floats, weight: Floats, stratum: Integers, effective: Floats) -> tuple[Floats, Floats, Floats]:
    """Variance and freedom of each item after borrowing, and the pool of its stratum. weight: freedom of what takes part."""
    total = np.bincount(stratum, weight, effective.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        pool = np.where(total > 0, np.bincount(stratum, weight * variance, effective.size) / total, np.nan)
        share = np.where(total > 0, effective / total, np.nan)
    prior = _prior_freedom(variance, weight, stratum, pool, share)[stratum]
    # Items that share leases hold less than their number says, and so does what they lend.
    alone, limit = ~np.isfinite(prior), effective[stratum]
    borrowed = np.where(alone, 1.0, prior)
    mixed = (borrowed * pool[stratum] + weight * variance) / (borrowed + weight)
    return (
        np.where(alone, pool[stratum], mixed),
        np.where(alone, limit, np.minimum(borrowed + weight, np.maximum(limit, weight))),
        pool[stratum],
    )


def _outlying(
    variance: Floats, freedom: Floats, stratum: Integers, effective: Floats
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Items whose variance is larger than that of the others of their stratum (F, one-sided): each by itself, and among all."""
    count = effective.size
    p, apart = np.ones(stratum.size), np.zeros(stratum.size, dtype=np.bool_)
    total = np.bincount(stratum, freedom, count)
    items = np.bincount(stratum, freedom > 0, count)[stratum]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, effective / total, 0.0)
        for _ in range(2):  # what was found takes no part in what others are held against
            kept = np.where(apart, 0.0, freedom)
            left = np.bincount(stratum, kept, count)[stratum] - kept
            others = (np.bincount(stratum, kept * variance, count)[stratum] - kept * variance) / left
            held = (freedom > 0) & (left > 0) & (others > 0)
            p = np.where(held, scipy.special.fdtrc(freedom, left * share[stratum], variance / others), 1.0)
            apart = p * items < _AMONG_ALL
    return p < _OUTLYING, apart


def _prior_freedom(variance: Floats, freedom: Floats, stratum: Integers, pool: Floats, share: Floats) -> Floats:
    """Prior freedom of each stratum; infinite where its variances are not shown to differ."""
    count = pool.size
    known = freedom > 0
    floor = 1e-8 * np.where(pool[stratum] > 0, pool[stratum], 1.0)
    half = np.where(known, freedom, 2.0) / 2
    log = np.log(np.maximum(variance, floor)) - scipy.special.psi(half) + np.log(half)
    noise = scipy.special.polygamma(1, half)
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
        p = scipy.special.chdtrc(np.maximum(n - 1, 1), np.maximum(bartlett / correction, 0.0))
        excess = squares / np.maximum(n - 1, 1) - expected
    differ = (n >= 3) & (p < _HETEROGENEOUS) & (excess > 0) & (pool > 0)
    prior = np.full(count, np.inf)
    if differ.any():
        prior[differ] = 2 * _trigamma_inverse(excess[differ])
    return prior


def _trigamma_inverse(value: Floats) -> Floats:
    """Newton's method of Smyth (2004), appendix."""
    y = 0.5 + 1 / value
    for _ in range(20):
        tri = scipy.special.polygamma(1, y)
        y = y + tri * (1 - tri / value) / scipy.special.polygamma(2, y)
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
