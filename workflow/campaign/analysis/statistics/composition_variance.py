"""Variance of the location of a cell over compositions of its configuration, with degrees of freedom.

Model: the relative cost of a run is that of its cell, plus one deviation for the composition (lease) that it was measured on,
one
for the cell on this composition, and one for the run. The location of a cell is the mean over its compositions of the mean over
their runs. Its variance is therefore that of the compositions' means divided by their number, whatever the number of runs
(Kalibera & Jones, 2013, "Rigorous benchmarking in reasonable time", ISMM, section 6). Three variances of such a mean are
estimated:

- `between_compositions`: about the cell's own location, k - 1 differences per cell;
- `within_blocks`: without the effects that all configurations share in a block of the campaign (the drift of weeks), if each
  configuration was composed once in every block;
- `within_leases`: without the effects that all cells of a workload share on a lease, for cells that share their leases.

Each is pooled over the cells of a workload, `between_compositions` once more for intervals of single cells (`single`). A cell
with
one composition borrows the pool of its workload, or else that of the campaign, or else that of earlier campaigns on the system.
Its own runs show how much more or less of their spread is in its mean.

Pooling
-------
Cells with three compositions each give a poor estimate of their own variance, and so few compositions do not show whether one
configuration is noisier than the others. So no test decides on pooling. A configuration that an F test finds noisier (5 %) is
marked, and keeps the degrees of freedom of its own variance. Each configuration's variance is drawn towards the pool of its
workload, which weighs as much as `prior` degrees of freedom, and is never less than its own. This is Smyth's moderated variance
(2004, "Linear models and empirical Bayes methods for assessing differential expression", Statistical Applications in Genetics
and
Molecular Biology 3(1)) with a fixed prior. With a pool of its own weight, every tenth tie of a configuration with leases three
times as noisy is reported as a difference. With a pool without weight, intervals over two compositions are 2.3 times as wide.

Cells measured on the same leases share the deviations of these leases. The degrees of freedom of a pool over such cells are
reduced accordingly (Satterthwaite, 1946, with one intra-class correlation per workload).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy

from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats, Integers
from campaign.spec.earlier_spread import EarlierSpread

# Weight of a pool in degrees of freedom: for sums of two composition variances, for a single one, and for variances of runs.
# By simulation: with less weight, intervals are too wide, and those of skewed runs miss; with more, ties of noisy configurations are
# reported as differences.
OF_PAIRS, OF_ONE, OF_RUNS = 1.0, 1.5, 16.0
# Block effects are estimated only with at least this many degrees of freedom.
_BLOCKED_FREEDOM = 4
# A pool with fewer degrees of freedom is not borrowed; earlier campaigns are used instead if they have as many.
_ENOUGH = 4


@dataclass(frozen=True, slots=True)
class CellGroups:
    """Groups of each cell, as integers.

    systems, workloads: names by stratum. stratum: workload on a system, whose cells share variances. configuration:
    configuration within a
    stratum. kind: cells that differ in their configuration only. campaign: campaign of the cell.
    """

    systems: tuple[str, ...]
    workloads: tuple[str, ...]
    stratum: Integers
    alike: Integers
    kind: Integers
    campaign: Integers

    @property
    def strata(self) -> int:
        """Number of strata among the cells."""
        return int(self.stratum.max(initial=-1)) + 1

    def same_system(self, i: Integers, j: Integers) -> npt.NDArray[np.bool_]:
        """Return whether cells i and j are on one system."""
        of = np.array(self.systems, dtype=object)[self.stratum]
        return np.asarray(of[i] == of[j], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Means:
    """Means of the runs of each cell on each lease, relative to the cell's location, sorted by cell.

    cell, lease, block, host: indices of each mean; host: index of a set of hosts, -1 if unknown; runs: number of runs in each
    mean.
    """

    cell: Integers
    lease: Integers
    block: Integers
    host: Integers
    runs: Integers
    value: Floats
    groups: CellGroups

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.groups.stratum.size)

    def compositions(self) -> Integers:
        """Count the compositions of each cell."""
        return np.bincount(self.cell, minlength=self.cells)


@dataclass(frozen=True, slots=True)
class Pooled:
    """Pooled variances of items such as cells.

    variance, freedom: of each item after borrowing, with degrees of freedom. pool, pool_freedom: of its stratum alone, nan if
    unknown. noisy: whether the item's own variance is larger than that of the others of its stratum (F test).
    """

    variance: Floats
    freedom: Floats
    pool: Floats
    pool_freedom: Floats
    noisy: npt.NDArray[np.bool_]

    def with_pool(self, compositions: Integers) -> Pooled:
        """Return the variance of the pool for each item with several compositions, unless the item is noisy."""
        take = (compositions > 1) & ~self.noisy & np.isfinite(self.pool) & (self.freedom > 0)
        variance = np.where(take, self.pool / np.maximum(compositions, 1), self.variance)
        return replace(self, variance=variance, freedom=np.where(take, self.pool_freedom, self.freedom))


@dataclass(frozen=True, slots=True)
class Variances:
    """Variances of the location of each cell; nan with 0 degrees of freedom if unknown.

    single: for intervals of single cells. between_compositions: between compositions. within_blocks: without block effects.
    within_leases: without lease effects.
    is_in_blocks: whether a cell was composed once in every block. is_borrowed: whether its variance is that of other cells.
    lending_campaigns: earlier
    campaigns whose variance it borrows, '' for none.
    """

    single: Pooled
    alone: Pooled
    blocked: Pooled
    beside: Pooled
    in_blocks: npt.NDArray[np.bool_]
    borrowed: npt.NDArray[np.bool_]
    lent_by: npt.NDArray[np.object_]

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """True if the variance over compositions of each cell is known."""
        return np.isfinite(self.alone.variance) & (self.alone.freedom > 0)


@dataclass(frozen=True, slots=True)
class Lent:
    """Variance that each workload can borrow from earlier campaigns.

    variance: of the mean of a composition. freedom: its degrees of freedom, 0 if there is none. per_run: mean of one over the
    number
    of runs in such a mean. campaigns: names of the earlier campaigns.
    """

    variance: Floats
    freedom: Floats
    per_run: Floats
    campaigns: npt.NDArray[np.object_]


def lent(found: Sequence[EarlierSpread], workloads: Sequence[str]) -> Lent:
    """Pool the spreads of earlier campaigns per workload: those of the same workload if they suffice, else all.

    Args:
        spreads: spreads of earlier campaigns.
        workloads: names of the workloads that borrow.
    """
    rows = []
    for name in workloads:
        own = [each for each in found if each.workload == name]
        use = own if sum(each.freedom for each in own) >= _ENOUGH else found
        # Workloads of one campaign may share its leases, so together they have only the degrees of freedom of the largest one.
        held = {
            name: [each.freedom for each in use if each.campaign == name] for name in {each.campaign for each in use}
        }
        freedom = np.array(
            [each.freedom * max(held[each.campaign]) / sum(held[each.campaign]) for each in use], dtype=np.float64
        )
        if freedom.sum() < _ENOUGH:
            rows.append((np.nan, 0.0, np.nan, ""))
            continue
        names = ", ".join(dict.fromkeys(each.campaign for each in use))
        variance, per_run = (
            float(np.average(of, weights=freedom))
            for of in ([each.variance for each in use], [each.per_run for each in use])
        )
        rows.append((variance, float(freedom.sum()), per_run, names))
    variance_, freedom_, per_run_, names_ = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Lent(np.array(variance_), np.array(freedom_), np.array(per_run_), np.array(names_, dtype=object))


def of_locations(means: Means, run: Pooled, in_blocks: bool = True, lent: Lent | None = None) -> Variances:
    """Estimate the variances of the locations of all cells.

    Args:
        means: means of each cell on each lease.
        run: relative variance of a run of each cell, nan if unknown.
        in_blocks: whether block effects are estimated.
        earlier_variance: variances of earlier campaigns.
    """
    k = means.compositions()
    again = np.asarray(k - 1.0, dtype=np.float64)
    residual = means.value - mean_of(means.value, means.cell, means.cells)[means.cell]
    alone, earlier = _pool_locations(means, run, residual, again, lent=lent)
    single, _ = _pool_locations(means, run, residual, again, lent=lent, prior=OF_ONE)
    drift, factor, complete = _block_effects(means, residual) if in_blocks else (residual * 0, np.zeros(k.size), k < 0)
    blocked, _ = _pool_locations(means, run, residual - drift, np.where(complete, (k - 1.0) * factor, 0.0))
    common, others = _common(means, residual)
    freedom = np.where(others > 1, (k - 1.0) * (others - 1) / np.maximum(others, 1), 0.0)
    beside, _ = _pool_locations(means, run, residual - common, freedom, shared=False, prior=OF_ONE)
    borrowed = (k == 1) & np.isfinite(alone.variance)
    lent_by = np.full(means.cells, "", dtype=object)
    if lent is not None:
        lent_by[borrowed & earlier] = lent.campaigns[means.groups.stratum[borrowed & earlier]]
    return Variances(single, alone, blocked, beside, complete, borrowed, lent_by)


def without_hosts(means: Means, residual: Floats, freedom: Floats) -> Pooled:
    """Pool variances between compositions from residuals without the effects of hosts.

    Args:
        means: means of each cell on each lease.
        residual: residuals of the means, without the effects of hosts.
        freedom: degrees of freedom that the residuals of each cell have.
    """
    k, known, groups = means.compositions(), freedom > 0, means.groups
    kept = known[means.cell]
    squares = np.bincount(means.cell[kept], residual[kept] ** 2, means.cells)
    limit = effective_freedom(
        residual[kept], means.lease[kept], means.cell[kept], freedom, means.groups.stratum, means.groups.strata
    )
    variance = np.where(known, squares / np.where(known, freedom, 1.0), np.nan)
    found = pooled(variance, freedom, groups.stratum, limit, OF_ONE, groups.alike)
    return replace(found, variance=found.variance / k)


def mean_of(values: Floats, of: Integers, count: int) -> Floats:
    """Return the means of the groups 0 .. count - 1; nan for a group without values.

    Args:
        values: values of all groups.
        group: group of each value.
        count: number of groups.
    """
    size = np.bincount(of, minlength=count)
    return np.asarray(np.bincount(of, values, count) / np.where(size > 0, size, np.nan), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Level:
    """Variance of the mean of a composition that each cell has or borrows.

    variance, freedom: of the mean; per_run: mean of one over the number of runs in such a mean.
    """

    variance: Floats
    freedom: Floats
    per_run: Floats


def _pool_locations(
    means: Means,
    run: Pooled,
    residual: Floats,
    freedom: Floats,
    *,
    shared: bool = True,
    lent: Lent | None = None,
    prior: float = OF_PAIRS,
) -> tuple[Pooled, npt.NDArray[np.bool_]]:
    """Return the variance of each location, and whether it is that of earlier campaigns.

    Args:
        means: means of each cell on each lease.
        run: relative variance of a run of each cell.
        residual: residuals of the means.
        freedom: degrees of freedom that the residuals of each cell have.
        shared: whether cells on the same leases deviate together, which lowers the effective degrees of freedom.
        lent: variances of earlier campaigns.
        prior: weight of the pool, in degrees of freedom.
    """
    level, pool = _pool_levels(means, residual, np.where(freedom > 0, freedom, 0.0), shared, prior)
    level, is_earlier = _borrow_from_earlier(level, means, lent)
    noise, noise_freedom = _estimate_run_noise(level, means, run)
    k = means.compositions()
    has_variance = (k > 0) & ~_is_contradicted(level, means, run)
    variance = np.where(has_variance, (level.variance + noise) / k, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        combined = (level.variance + noise) ** 2 / (level.variance**2 / level.freedom + noise**2 / noise_freedom)
    combined = np.where(np.isfinite(run.variance) & (noise > 0), np.nan_to_num(combined), level.freedom)
    combined = np.where(np.isfinite(variance), combined, 0.0)
    return Pooled(variance, combined, pool.pool, pool.pool_freedom, pool.noisy), is_earlier


def _pool_levels(means: Means, residual: Floats, freedom: Floats, shared: bool, prior: float) -> tuple[_Level, Pooled]:
    """Pool the variances of means over each workload, or over all workloads if no cell of the workload was composed again."""
    cells, groups = means.cells, means.groups
    stratum, everything = groups.stratum, np.zeros(cells, dtype=np.int64)
    known = freedom > 0
    squares = np.bincount(means.cell, residual**2, cells)
    variance = np.where(known, squares / np.where(known, freedom, 1.0), np.nan)
    kept = known[means.cell]

    def count_effective(strata: Integers, count: int) -> Floats:
        if not shared:
            return np.asarray(np.bincount(strata, freedom, count), dtype=np.float64)
        return effective_freedom(residual[kept], means.lease[kept], means.cell[kept], freedom, strata, count)

    own = pooled(variance, freedom, stratum, count_effective(stratum, groups.strata), prior, groups.alike)
    whole = pooled(variance, freedom, everything, count_effective(everything, 1), prior)
    share = _mean_per_run(means)
    own_share = _weighted(share, freedom, stratum, groups.strata)[stratum]
    whole_share = _weighted(share, freedom, everything, 1)[0]
    has_no_pool = ~np.isfinite(own.pool)
    level = _Level(
        np.where(has_no_pool, whole.pool, own.variance),
        np.where(has_no_pool, whole.pool_freedom, own.freedom),
        np.where(has_no_pool, whole_share, own_share),
    )
    return level, own


def _mean_per_run(means: Means) -> Floats:
    """Return for each cell the mean of one over the number of runs in its means."""
    return mean_of(1.0 / means.runs, means.cell, means.cells)


def _borrow_from_earlier(level: _Level, means: Means, lent: Lent | None) -> tuple[_Level, npt.NDArray[np.bool_]]:
    """Replace levels with too few degrees of freedom by those of earlier campaigns, for cells that were composed once."""
    if lent is None:
        return level, np.zeros(means.cells, dtype=np.bool_)
    stratum = means.groups.stratum
    is_earlier = (means.compositions() == 1) & (level.freedom < _ENOUGH) & (lent.freedom[stratum] > level.freedom)
    borrowed = _Level(
        np.where(is_earlier, lent.variance[stratum], level.variance),
        np.where(is_earlier, lent.freedom[stratum], level.freedom),
        np.where(is_earlier, lent.per_run[stratum], level.per_run),
    )
    return borrowed, is_earlier


def _estimate_run_noise(level: _Level, means: Means, run: Pooled) -> tuple[Floats, Floats]:
    """Return the variance that the runs of each cell add to its level, and its degrees of freedom.

    The number of runs in a mean differs between cells. A mean with fewer runs varies more. The smaller variance of a mean with
    more
    runs is ignored, because a variance that is borrowed from few cells is too uncertain to be reduced.
    """
    share, measured = _mean_per_run(means), np.isfinite(run.variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        # If no cell was run twice, at most the whole borrowed variance is that of runs.
        bound = level.variance * np.maximum(share / level.per_run - 1.0, 0.0)
    noise = np.nan_to_num(np.where(measured, run.variance * np.maximum(share - level.per_run, 0.0), bound))
    excess = _estimate_excess_noise(level, means, run)
    freedom = np.where(excess > 0, np.maximum(_count_run_freedom(means), 1.0), np.maximum(run.freedom, 1.0))
    return noise + excess, freedom


def _estimate_excess_noise(level: _Level, means: Means, run: Pooled) -> Floats:
    """Return the excess noise of the runs of cells that were composed once, over the cells that they borrow from."""
    share = _mean_per_run(means)
    with np.errstate(divide="ignore", invalid="ignore"):
        noisier = np.where(run.noisy, (run.variance - run.pool) * share, 0.0)
        excess = np.maximum(run.variance * share - level.variance, noisier)
        return np.where((means.compositions() == 1) & (excess > 0), excess, 0.0)


def _is_contradicted(level: _Level, means: Means, run: Pooled) -> npt.NDArray[np.bool_]:
    """Return where runs alone show that the mean of a cell varies more than the borrowed variance (F test)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = run.variance * _mean_per_run(means) / level.variance
        p = scipy.special.fdtrc(_count_run_freedom(means), level.freedom, ratio)
    return np.asarray((means.compositions() == 1) & (np.nan_to_num(p, nan=1.0) < SIGNIFICANCE_LEVEL), dtype=np.bool_)


def _count_run_freedom(means: Means) -> Floats:
    """Return the degrees of freedom of the variance of a run of each cell."""
    return np.asarray(np.bincount(means.cell, means.runs - 1.0, means.cells), dtype=np.float64)


def _weighted(values: Floats, weight: Floats, of: Integers, count: int) -> Floats:
    """Return the weighted means of the groups 0 .. count - 1; nan for a group without weight."""
    total = np.bincount(of, weight, count)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(of, weight * values, count) / np.where(total > 0, total, np.nan), dtype=np.float64
        )


def _block_effects(means: Means, residual: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Estimate block effects of means, the remaining share of degrees of freedom, and the cells with such effects.

    Block effects exist for cells that were composed once in each of the blocks 1 to k, together with the cells of the same kind
    of
    other configurations.
    """
    k = means.compositions()
    once = np.ones(means.cells, dtype=np.bool_)
    order = np.lexsort((means.block, means.cell))
    place = np.arange(order.size) - (np.cumsum(k) - k)[means.cell[order]]
    np.logical_and.at(once, means.cell[order], means.block[order] == place)
    keys = np.stack([means.groups.kind, means.groups.campaign, np.where(once & (k > 1), k, -1)])
    _, group, size = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    alike = size[group]
    complete = once & ((alike - 1) * (k - 1) >= _BLOCKED_FREEDOM)
    blocks = int(means.block.max(initial=-1)) + 1
    _, at = np.unique(group[means.cell] * blocks + means.block, return_inverse=True)
    effect = (np.bincount(at, residual) / np.maximum(np.bincount(at), 1))[at]
    return np.where(complete[means.cell], effect, 0.0), np.where(complete, (alike - 1) / alike, 0.0), complete


def _common(means: Means, residual: Floats) -> tuple[Floats, Integers]:
    """Estimate the effect of each lease on the cells of a workload, and count the cells that share all leases of each cell."""
    key = means.lease * means.groups.strata + means.groups.stratum[means.cell]
    _, where, size = np.unique(key, return_inverse=True, return_counts=True)
    common = (np.bincount(where, residual) / size)[where]
    least = np.full(means.cells, np.iinfo(np.int64).max)
    np.minimum.at(least, means.cell, size[where])
    return common, np.where(means.compositions() > 1, least, 0)


def pooled(
    variance: Floats,
    freedom: Floats,
    stratum: Integers,
    effective: Floats,
    prior: float,
    alike: Integers | None = None,
) -> Pooled:
    """Pool the variances of items over their strata, and draw each item's variance towards its pool.

    Args:
        variance: variance of each item.
        freedom: degrees of freedom of each item, 0 without a variance.
        stratum: stratum of each item.
        effective: effective degrees of freedom of the pool of each stratum.
        prior: weight of the pool, in degrees of freedom.
        variance_group: group of each item within its stratum that has one variance; by default each item has its own.
    """
    known = freedom > 0
    of = np.arange(stratum.size) if alike is None else alike
    squares = np.where(known, freedom * np.nan_to_num(variance), 0.0)
    groups = int(of.max(initial=-1)) + 1
    total, weight = (np.bincount(at, freedom, count) for at, count in ((stratum, effective.size), (of, groups)))
    with np.errstate(divide="ignore", invalid="ignore"):
        pool = (np.bincount(stratum, squares, effective.size) / total)[stratum]
        own = (np.bincount(of, squares, groups) / weight)[of]
        limit = effective[stratum]
        # Items that share leases have fewer effective degrees of freedom, and so has the pool that they form.
        held = np.where(known, np.minimum(weight[of] * limit / total[stratum], limit), 0.0)
    mixed = np.maximum(own, (prior * pool + held * own) / (prior + held))
    borrowed = np.minimum(prior + held, limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        others = ((total[stratum] * pool - weight[of] * own) / (total[stratum] - weight[of])).clip(min=0)
        p = scipy.special.fdtrc(held, limit - held, own / others)
    noisy = known & (np.nan_to_num(p, nan=1.0) < SIGNIFICANCE_LEVEL)
    # The variance of a noisy item differs, so it gains no degrees of freedom from the others.
    borrowed = np.where(noisy, held, borrowed)
    return Pooled(np.where(known, mixed, pool), np.where(known, borrowed, limit), pool, limit, noisy)


def effective_freedom(
    residual: Floats, group: Integers, item: Integers, freedom: Floats, stratum: Integers, count: int
) -> Floats:
    """Return the effective degrees of freedom of the pooled variance of each stratum, whose items share leases.

    Args:
        residual: one value per lease and item, scaled to one variance over items.
        group: lease of each residual; it counts as one unit per stratum.
        item: cell of each residual.
        freedom: degrees of freedom of each item.
        stratum: stratum of each item.
        count: number of strata.
    """
    leases = int(group.max(initial=-1)) + 1
    keys, group = np.unique(stratum[item] * leases + group, return_inverse=True)
    units, unit_stratum = keys.size, keys // max(leases, 1)
    of_item = np.bincount(item, residual**2, freedom.size)
    of_unit = np.bincount(group, residual, units) ** 2
    per_unit = np.bincount(group, minlength=units)
    squares = np.bincount(stratum, of_item, count)
    off = np.bincount(unit_stratum, of_unit, count) - squares
    possible = np.bincount(stratum[item], (per_unit[group] - 1) * residual**2, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = np.where(possible > 0, np.clip(off / possible, 0.0, 1.0), 0.0)
    # Mean number of other items with which each item shares a lease.
    beside = np.bincount(item, per_unit[group] - 1.0, freedom.size) / np.maximum(
        np.bincount(item, minlength=freedom.size), 1
    )
    total = np.bincount(stratum, freedom, count)
    spread = np.bincount(stratum, freedom * (1 + beside * alike[stratum] ** 2), count)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, total**2 / spread, 0.0)
