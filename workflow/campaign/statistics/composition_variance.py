"""How much the location of a cell would change with another composition of its configuration: variances with their freedom.

Model: the relative cost of a run is that of its cell, plus one deviation for the composition (lease) that it was measured on, one
for the cell on this composition, and one for the run. The location of a cell is the mean over its compositions of the mean over
their runs, so its variance is that of the compositions' means over their number, whatever the number of runs (Kalibera & Jones,
2013, "Rigorous benchmarking in reasonable time", ISMM, section 6). Three variances of such a mean are estimated:

- `alone`: about the cell's own location, k - 1 differences each;
- `blocked`: without what all configurations have in common in a block of the campaign (the drift of weeks), where each
  configuration was composed once in every block;
- `beside`: without what all cells of a workload have in common on a lease, for cells that share their leases.

Each is pooled over the cells of a workload (`campaign.statistics.pooled_variance`). A cell with one composition borrows the pool of
its workload, or else that of the campaign, or else what earlier campaigns on the system found; its own runs say how much more or
less of their spread is in its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from campaign.documents.earlier_spread import EarlierSpread
from campaign.statistics.intervals import Floats, Integers
from campaign.statistics.pooled_variance import Pooled, effective_freedom, pooled

# Fewer differences than these are not given up for what blocks have in common.
_BLOCKED_FREEDOM = 4
# Of a variance that is to be borrowed: with less, that of earlier campaigns is asked, and with less there nothing is borrowed.
_ENOUGH = 4


@dataclass(frozen=True, slots=True)
class Means:
    """Means of the runs of each cell on each lease, relative to the cell's location, sorted by cell.

    cell, lease, block, host: of each mean; host: number of a set of hosts, -1 where it is not known; runs: how many are in it.
    stratum, kind, campaign: of each cell; cells of one kind differ in their configuration only.
    """

    cell: Integers
    lease: Integers
    block: Integers
    runs: Integers
    value: Floats
    stratum: Integers
    strata: int
    kind: Integers
    campaign: Integers
    host: Integers

    @property
    def cells(self) -> int:
        return int(self.stratum.size)

    def compositions(self) -> Integers:
        return np.bincount(self.cell, minlength=self.cells)


@dataclass(frozen=True, slots=True)
class Variances:
    """Of the location of each cell; nan, with freedom 0, where nothing tells it.

    in_blocks: whether a cell was composed once in every block; borrowed: whether its variance is that of other cells, earlier:
    of other campaigns.
    """

    alone: Pooled
    blocked: Pooled
    beside: Pooled
    in_blocks: npt.NDArray[np.bool_]
    borrowed: npt.NDArray[np.bool_]
    earlier: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lent:
    """What earlier campaigns lend to each workload: variance of the mean of a composition, its freedom (0 for nothing), mean of one
    over the number of runs in such a mean, and the campaigns."""

    variance: Floats
    freedom: Floats
    per_run: Floats
    campaigns: npt.NDArray[np.object_]


def lent(found: Sequence[EarlierSpread], workloads: Sequence[str]) -> Lent:
    """Of each workload: by its own cells where they are enough, else by those of all."""
    rows = []
    for name in workloads:
        own = [each for each in found if each.workload == name]
        use = own if sum(each.freedom for each in own) >= _ENOUGH else found
        freedom = np.array([each.freedom for each in use])
        if freedom.sum() < _ENOUGH:
            rows.append((np.nan, 0.0, np.nan, ""))
            continue
        # One that has nothing of its own gets from campaigns that differ less than from those that are alike.
        variance = np.array([*(each.variance for each in use), np.nan])
        one = pooled(
            variance, np.append(freedom, 0.0), np.zeros(freedom.size + 1, dtype=np.int64), freedom.sum(keepdims=True)
        )
        names = ", ".join(dict.fromkeys(each.campaign for each in use))
        per_run = float(np.average([each.per_run for each in use], weights=freedom))
        rows.append((float(one.pool[0]), float(one.freedom[-1]), per_run, names))
    variance_, freedom_, per_run_, names_ = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Lent(np.array(variance_), np.array(freedom_), np.array(per_run_), np.array(names_, dtype=object))


def of_locations(means: Means, run: Pooled, in_blocks: bool = True, lent: Lent | None = None) -> Variances:
    """Estimate all three. run: relative variance of a run of each cell, nan where nothing tells it."""
    k = means.compositions()
    again = np.asarray(k - 1.0, dtype=np.float64)
    residual = means.value - _mean(means.value, means.cell, means.cells)[means.cell]
    share = _mean(1.0 / means.runs, means.cell, means.cells)
    alone, earlier = _pooled(means, residual, again, share, run, lent=lent)
    drift, factor, complete = _block_effects(means, residual) if in_blocks else (residual * 0, np.zeros(k.size), k < 0)
    blocked, _ = _pooled(means, residual - drift, np.where(complete, (k - 1.0) * factor, 0.0), share, run)
    common, others = _common(means, residual)
    freedom = np.where(others > 1, (k - 1.0) * (others - 1) / np.maximum(others, 1), 0.0)
    beside, _ = _pooled(means, residual - common, freedom, share, run, shared=False)
    borrowed = (k == 1) & np.isfinite(alone.variance)
    return Variances(alone, blocked, beside, complete, borrowed, borrowed & earlier)


def without_hosts(means: Means, alone: Pooled, residual: Floats, freedom: Floats) -> Pooled:
    """As `Variances.alone`, with what hosts do taken out of the residuals, which have this much freedom by cell.

    Hosts leave too little of each cell to tell cells apart: all of a workload have one variance, but for those that keep their own.
    """
    k, stratum = means.compositions(), means.stratum
    kept = (freedom > 0)[means.cell]
    total = np.bincount(stratum, freedom, means.strata)
    squares = np.bincount(stratum[means.cell[kept]], residual[kept] ** 2, means.strata)
    with np.errstate(divide="ignore", invalid="ignore"):
        pool = (squares / total)[stratum]
    limit = effective_freedom(residual[kept], means.lease[kept], means.cell[kept], freedom, stratum, means.strata)[
        stratum
    ]
    own = alone.outlying & (alone.variance > pool / k)
    variance = np.where(own, alone.variance, np.where(total[stratum] > 0, pool / k, np.nan))
    return Pooled(variance, np.where(own, alone.freedom, limit), pool, limit, own)


def _mean(values: Floats, of: Integers, count: int) -> Floats:
    size = np.bincount(of, minlength=count)
    return np.asarray(np.bincount(of, values, count) / np.where(size > 0, size, np.nan), dtype=np.float64)


def _pooled(
    means: Means,
    residual: Floats,
    freedom: Floats,
    share: Floats,
    run: Pooled,
    shared: bool = True,
    lent: Lent | None = None,
) -> tuple[Pooled, npt.NDArray[np.bool_]]:
    """Variance of a location from residuals of its compositions' means, and where it is that of earlier campaigns."""
    cells, stratum, strata = means.cells, means.stratum, means.strata
    run_variance, run_freedom = run.variance, np.maximum(run.freedom, 1.0)
    k = means.compositions()
    known = freedom > 0
    squares = np.bincount(means.cell, residual**2, cells)
    variance = np.where(known, squares / np.where(known, freedom, 1.0), np.nan)
    kept = known[means.cell]
    if shared:
        effective = effective_freedom(
            residual[kept], means.lease[kept], means.cell[kept], np.where(known, freedom, 0.0), stratum, strata
        )
    else:
        effective = np.asarray(np.bincount(stratum, np.where(known, freedom, 0.0), strata), dtype=np.float64)
    found = pooled(variance, np.where(known, freedom, 0.0), stratum, effective)
    # A workload of which nothing was composed again borrows from all others.
    everything = np.zeros(cells, dtype=np.int64)
    whole = pooled(variance, np.where(known, freedom, 0.0), everything, np.array([effective.sum()]))
    nothing = ~np.isfinite(found.pool)
    pool_share = _weighted(share, np.where(known, freedom, 0.0), stratum, strata)
    all_share = _weighted(share, np.where(known, freedom, 0.0), everything, 1)
    level = np.where(nothing, whole.pool, found.variance)
    free = np.where(nothing, whole.pool_freedom, found.freedom)
    per_run = np.where(nothing, all_share[0], pool_share[stratum])
    earlier = np.zeros(cells, dtype=np.bool_)
    if lent is not None:
        earlier = (k == 1) & (free < _ENOUGH) & (lent.freedom[stratum] > free)
        level, free, per_run = (
            np.where(earlier, of[stratum], own)
            for of, own in ((lent.variance, level), (lent.freedom, free), (lent.per_run, per_run))
        )
    # How many runs are in a mean differs between cells. One with fewer runs varies more; that one with more varies less is not
    # counted on: what is borrowed from few is not known well enough to take something off.
    with np.errstate(divide="ignore", invalid="ignore"):
        # Where no cell was run twice, at most all of what is lent is from runs.
        most = level * np.maximum(share / per_run - 1.0, 0.0)
    measured = np.isfinite(run_variance)
    more = np.nan_to_num(np.where(measured, run_variance * np.maximum(share - per_run, 0.0), most))
    with np.errstate(divide="ignore", invalid="ignore"):
        own = (level + more) ** 2 / (level**2 / free + more**2 / run_freedom)
    free = np.where(measured & (more > 0), np.nan_to_num(own), free)
    level = level + more
    one = np.where(k > 0, level / k, np.nan)
    # Where runs scatter much more than those of other cells, compositions may agree by chance, and tell less than the runs.
    least = np.where(run.outlying & (k > 0), run_variance * share / np.maximum(k, 1), 0.0)
    free = np.where(least > one, run_freedom, free)
    one = np.fmax(one, least) * np.where(np.isfinite(one), 1.0, np.nan)
    free = np.where(np.isfinite(one), free, 0.0)
    return Pooled(one, free, found.pool, found.pool_freedom, found.outlying), earlier


def _weighted(values: Floats, weight: Floats, of: Integers, count: int) -> Floats:
    total = np.bincount(of, weight, count)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(of, weight * values, count) / np.where(total > 0, total, np.nan), dtype=np.float64
        )


def _block_effects(means: Means, residual: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """What each mean has in common with its block, the share of freedom that is left, and the cells that this is for.

    For cells that were composed once in each of the blocks 1 to k, with the cells of the same kind of other configurations.
    """
    k = means.compositions()
    once = np.ones(means.cells, dtype=np.bool_)
    order = np.lexsort((means.block, means.cell))
    place = np.arange(order.size) - (np.cumsum(k) - k)[means.cell[order]]
    np.logical_and.at(once, means.cell[order], means.block[order] == place)
    keys = np.stack([means.kind, means.campaign, np.where(once & (k > 1), k, -1)])
    _, group, size = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    alike = size[group]
    complete = once & ((alike - 1) * (k - 1) >= _BLOCKED_FREEDOM)
    blocks = int(means.block.max(initial=-1)) + 1
    _, at = np.unique(group[means.cell] * blocks + means.block, return_inverse=True)
    effect = (np.bincount(at, residual) / np.maximum(np.bincount(at), 1))[at]
    return np.where(complete[means.cell], effect, 0.0), np.where(complete, (alike - 1) / alike, 0.0), complete


def _common(means: Means, residual: Floats) -> tuple[Floats, Integers]:
    """What cells of one workload have in common on a lease, and how many of them share all leases of each cell."""
    key = means.lease * means.strata + means.stratum[means.cell]
    _, where, size = np.unique(key, return_inverse=True, return_counts=True)
    common = (np.bincount(where, residual) / size)[where]
    least = np.full(means.cells, np.iinfo(np.int64).max)
    np.minimum.at(least, means.cell, size[where])
    return common, np.where(means.compositions() > 1, least, 0)
