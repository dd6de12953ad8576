"""Variance of the location of a cell over compositions of its configuration, with degrees of freedom.

Model: the relative cost of a run is that of its cell, plus one deviation for the composition (lease) that it was measured on,
one for the cell on this composition, and one for the run. The location of a cell is the mean over its compositions of the
mean over their runs. Its variance is therefore that of the compositions' means divided by their number, whatever the number
of runs (Kalibera & Jones, 2013, "Rigorous benchmarking in reasonable time", ISMM, section 6). Three variances of such a mean
are estimated:

- `between_compositions`: about the cell's own location, k - 1 differences per cell;
- `within_blocks`: without the effects that all configurations share in a block of the campaign (the drift of weeks), if each
  configuration was composed once in every block;
- `within_leases`: without the effects that all cells of a workload share on a lease, for cells that share their leases.

Each is pooled over the cells of a workload, `between_compositions` once more for intervals of single cells (`single`). A cell
with one composition borrows the pool of its workload, or else that of the campaign, or else that of earlier campaigns on the
system. Its own runs show how much more or less of their spread is in its mean.

Pooling
-------
Cells with three compositions each give a poor estimate of their own variance, and so few compositions do not show
whether one configuration is noisier than the others. So no test decides on pooling. A configuration that an F test
finds noisier (5 %) is marked, and keeps the degrees of freedom of its own variance. Each configuration's variance is
drawn towards the pool of its workload, which weighs as much as `prior` degrees of freedom, and is never less than its
own. This is Smyth's moderated variance (2004, "Linear models and empirical Bayes methods for assessing differential
expression", Statistical Applications in Genetics and Molecular Biology 3(1)) with a fixed prior. With a pool of its own
weight, every tenth tie of a configuration with leases three times as noisy is reported as a difference. With a pool
without weight, intervals over two compositions are 2.3 times as wide.

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
# The weights come from simulations. With less weight, intervals are too wide, and those of skewed runs miss the truth. With
# more weight, ties of noisy configurations are reported as differences.
POOL_WEIGHT_PAIRED, POOL_WEIGHT_SINGLE, POOL_WEIGHT_RUNS = 1.0, 1.5, 16.0
# Block effects are estimated only with at least this many degrees of freedom.
_MIN_DOF_FOR_BLOCK_EFFECTS = 4
# A pool with fewer degrees of freedom is not borrowed; earlier campaigns are used instead if they have as many.
_MIN_DOF_TO_BORROW = 4


@dataclass(frozen=True, slots=True)
class CellGroups:
    """Groups of each cell, as integers.

    systems, workloads: names by stratum. stratum: workload on a system, whose cells share variances. configuration:
    configuration within a stratum. kind: cells that differ in their configuration only. campaign: campaign of the cell.
    """

    systems: tuple[str, ...]
    workloads: tuple[str, ...]
    stratum: Integers
    configuration: Integers
    kind: Integers
    campaign: Integers

    @property
    def stratum_count(self) -> int:
        """Number of strata to which the cells belong."""
        return int(self.stratum.max(initial=-1)) + 1

    def is_same_system(self, i: Integers, j: Integers) -> npt.NDArray[np.bool_]:
        """Return whether cells i and j were measured on the same system."""
        system = np.array(self.systems, dtype=object)[self.stratum]
        return np.asarray(system[i] == system[j], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class LeaseMeans:
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
    def cell_count(self) -> int:
        """Number of cells."""
        return int(self.groups.stratum.size)

    def count_compositions(self) -> Integers:
        """Count the compositions of each cell."""
        return np.bincount(self.cell, minlength=self.cell_count)


@dataclass(frozen=True, slots=True)
class PooledVariance:
    """Pooled variances of items such as cells.

    variance, freedom: of each item after borrowing, with degrees of freedom. pool, pool_freedom: of its stratum alone, nan if
    unknown. noisy: whether the item's own variance is larger than that of the others of its stratum (F test).
    """

    variance: Floats
    freedom: Floats
    pool: Floats
    pool_freedom: Floats
    noisy: npt.NDArray[np.bool_]

    def replace_by_pool(self, compositions: Integers) -> PooledVariance:
        """Replace the variance of each item with several compositions by its pool's, unless the item is noisy."""
        uses_pool = (compositions > 1) & ~self.noisy & np.isfinite(self.pool) & (self.freedom > 0)
        variance = np.where(uses_pool, self.pool / np.maximum(compositions, 1), self.variance)
        return replace(self, variance=variance, freedom=np.where(uses_pool, self.pool_freedom, self.freedom))


@dataclass(frozen=True, slots=True)
class LocationVariances:
    """Variances of the location of each cell; nan with 0 degrees of freedom if unknown.

    single: for intervals of single cells. between_compositions: between compositions. within_blocks: without block effects.
    within_leases: without lease effects.
    is_in_blocks: whether a cell was composed once in every block. is_borrowed: whether its variance is that of other cells.
    lending_campaigns: earlier campaigns whose variance it borrows, '' for none.
    """

    single: PooledVariance
    between_compositions: PooledVariance
    within_blocks: PooledVariance
    within_leases: PooledVariance
    is_in_blocks: npt.NDArray[np.bool_]
    is_borrowed: npt.NDArray[np.bool_]
    lending_campaigns: npt.NDArray[np.object_]

    @property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """Whether the variance over compositions is known, for each cell."""
        return np.isfinite(self.between_compositions.variance) & (self.between_compositions.freedom > 0)


@dataclass(frozen=True, slots=True)
class BorrowedVariance:
    """Variance that each workload can borrow from earlier campaigns.

    variance: of the mean of a composition. freedom: its degrees of freedom, 0 if there is none. per_run: mean of one over the
    number of runs in such a mean. campaigns: names of the earlier campaigns.
    """

    variance: Floats
    freedom: Floats
    per_run: Floats
    campaigns: npt.NDArray[np.object_]


def borrow_earlier_variance(spreads: Sequence[EarlierSpread], workloads: Sequence[str]) -> BorrowedVariance:
    """Pool the spreads of earlier campaigns per workload: of the same workload if enough exist, else of all.

    Args:
        spreads: spreads of earlier campaigns.
        workloads: names of the workloads that borrow.
    """
    rows = []
    for name in workloads:
        workload_spreads = [spread for spread in spreads if spread.workload == name]
        used_spreads = (
            workload_spreads if sum(spread.freedom for spread in workload_spreads) >= _MIN_DOF_TO_BORROW else spreads
        )
        # Workloads of one campaign may share its leases, so together they have only the degrees of freedom of the largest one.
        freedom_by_campaign = {
            name: [spread.freedom for spread in used_spreads if spread.campaign == name]
            for name in {spread.campaign for spread in used_spreads}
        }
        freedom = np.array(
            [
                spread.freedom * max(freedom_by_campaign[spread.campaign]) / sum(freedom_by_campaign[spread.campaign])
                for spread in used_spreads
            ],
            dtype=np.float64,
        )
        if freedom.sum() < _MIN_DOF_TO_BORROW:
            rows.append((np.nan, 0.0, np.nan, ""))
            continue
        names = ", ".join(dict.fromkeys(spread.campaign for spread in used_spreads))
        variance, per_run = (
            float(np.average(values, weights=freedom))
            for values in ([spread.variance for spread in used_spreads], [spread.per_run for spread in used_spreads])
        )
        rows.append((variance, float(freedom.sum()), per_run, names))
    variance_, freedom_, per_run_, names_ = zip(*rows, strict=True) if rows else ((), (), (), ())
    return BorrowedVariance(np.array(variance_), np.array(freedom_), np.array(per_run_), np.array(names_, dtype=object))


def estimate_location_variances(
    means: LeaseMeans, run: PooledVariance, in_blocks: bool = True, earlier_variance: BorrowedVariance | None = None
) -> LocationVariances:
    """Estimate the variances of the locations of all cells.

    Args:
        means: means of each cell on each lease.
        run: relative variance of a run of each cell, nan if unknown.
        in_blocks: whether block effects are estimated.
        earlier_variance: variances of earlier campaigns.
    """
    k = means.count_compositions()
    repeats = np.asarray(k - 1.0, dtype=np.float64)
    residual = means.value - compute_group_means(means.value, means.cell, means.cell_count)[means.cell]
    between_compositions, is_earlier = _pool_location_variances(
        means, run, residual, repeats, earlier_variance=earlier_variance
    )
    single, _ = _pool_location_variances(
        means, run, residual, repeats, earlier_variance=earlier_variance, prior=POOL_WEIGHT_SINGLE
    )
    drift, factor, is_complete = (
        _estimate_block_effects(means, residual) if in_blocks else (residual * 0, np.zeros(k.size), k < 0)
    )
    within_blocks, _ = _pool_location_variances(
        means, run, residual - drift, np.where(is_complete, (k - 1.0) * factor, 0.0)
    )
    lease_effect, cells_per_lease = _estimate_lease_effects(means, residual)
    freedom = np.where(cells_per_lease > 1, (k - 1.0) * (cells_per_lease - 1) / np.maximum(cells_per_lease, 1), 0.0)
    within_leases, _ = _pool_location_variances(
        means, run, residual - lease_effect, freedom, shares_leases=False, prior=POOL_WEIGHT_SINGLE
    )
    is_borrowed = (k == 1) & np.isfinite(between_compositions.variance)
    lending_campaigns = np.full(means.cell_count, "", dtype=object)
    if earlier_variance is not None:
        lending_campaigns[is_borrowed & is_earlier] = earlier_variance.campaigns[
            means.groups.stratum[is_borrowed & is_earlier]
        ]
    return LocationVariances(
        single, between_compositions, within_blocks, within_leases, is_complete, is_borrowed, lending_campaigns
    )


def pool_without_host_effects(means: LeaseMeans, residual: Floats, freedom: Floats) -> PooledVariance:
    """Pool variances between compositions from residuals without the effects of hosts.

    Args:
        means: means of each cell on each lease.
        residual: residuals of the means, without the effects of hosts.
        freedom: degrees of freedom that the residuals of each cell have.
    """
    k, has_freedom, groups = means.count_compositions(), freedom > 0, means.groups
    is_used = has_freedom[means.cell]
    squares = np.bincount(means.cell[is_used], residual[is_used] ** 2, means.cell_count)
    limit = compute_effective_freedom(
        residual[is_used],
        means.lease[is_used],
        means.cell[is_used],
        freedom,
        means.groups.stratum,
        means.groups.stratum_count,
    )
    variance = np.where(has_freedom, squares / np.where(has_freedom, freedom, 1.0), np.nan)
    pool = pool_variances(variance, freedom, groups.stratum, limit, POOL_WEIGHT_SINGLE, groups.configuration)
    return replace(pool, variance=pool.variance / k)


def compute_group_means(values: Floats, group: Integers, count: int) -> Floats:
    """Compute the mean of the values of each of `count` groups; nan for a group without values.

    Args:
        values: values of all groups.
        group: group of each value.
        count: number of groups.
    """
    size = np.bincount(group, minlength=count)
    return np.asarray(np.bincount(group, values, count) / np.where(size > 0, size, np.nan), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _CompositionVariance:
    """Variance of a composition's mean, which each cell has or borrows.

    variance, freedom: of the mean; per_run: mean of one over the number of runs in such a mean.
    """

    variance: Floats
    freedom: Floats
    per_run: Floats


def _pool_location_variances(
    means: LeaseMeans,
    run: PooledVariance,
    residual: Floats,
    freedom: Floats,
    *,
    shares_leases: bool = True,
    earlier_variance: BorrowedVariance | None = None,
    prior: float = POOL_WEIGHT_PAIRED,
) -> tuple[PooledVariance, npt.NDArray[np.bool_]]:
    """Estimate the variance of each location, and whether it is borrowed from earlier campaigns.

    Args:
        means: means of each cell on each lease.
        run: relative variance of a run of each cell.
        residual: residuals of the means.
        freedom: degrees of freedom that the residuals of each cell have.
        shares_leases: whether cells on the same leases deviate together, which lowers the effective degrees of freedom.
        earlier_variance: variances of earlier campaigns.
        prior: weight of the pool, in degrees of freedom.
    """
    level, pool = _pool_composition_variances(
        means, residual, np.where(freedom > 0, freedom, 0.0), shares_leases, prior
    )
    level, is_earlier = _borrow_from_earlier(level, means, earlier_variance)
    noise, noise_freedom = _estimate_run_noise(level, means, run)
    k = means.count_compositions()
    has_variance = (k > 0) & ~_is_contradicted(level, means, run)
    variance = np.where(has_variance, (level.variance + noise) / k, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        combined_freedom = (level.variance + noise) ** 2 / (
            level.variance**2 / level.freedom + noise**2 / noise_freedom
        )
    combined_freedom = np.where(np.isfinite(run.variance) & (noise > 0), np.nan_to_num(combined_freedom), level.freedom)
    combined_freedom = np.where(np.isfinite(variance), combined_freedom, 0.0)
    return PooledVariance(variance, combined_freedom, pool.pool, pool.pool_freedom, pool.noisy), is_earlier


def _pool_composition_variances(
    means: LeaseMeans, residual: Floats, freedom: Floats, shares_leases: bool, prior: float
) -> tuple[_CompositionVariance, PooledVariance]:
    """Pool the variances of means over each workload, or over all workloads if no cell of the workload was composed again."""
    cells, groups = means.cell_count, means.groups
    stratum, everything = groups.stratum, np.zeros(cells, dtype=np.int64)
    has_freedom = freedom > 0
    squares = np.bincount(means.cell, residual**2, cells)
    variance = np.where(has_freedom, squares / np.where(has_freedom, freedom, 1.0), np.nan)
    is_used = has_freedom[means.cell]

    def count_effective(strata: Integers, count: int) -> Floats:
        if not shares_leases:
            return np.asarray(np.bincount(strata, freedom, count), dtype=np.float64)
        return compute_effective_freedom(
            residual[is_used], means.lease[is_used], means.cell[is_used], freedom, strata, count
        )

    workload_pool = pool_variances(
        variance, freedom, stratum, count_effective(stratum, groups.stratum_count), prior, groups.configuration
    )
    campaign_pool = pool_variances(variance, freedom, everything, count_effective(everything, 1), prior)
    per_run = _compute_mean_per_run(means)
    workload_per_run = _compute_weighted_means(per_run, freedom, stratum, groups.stratum_count)[stratum]
    campaign_per_run = _compute_weighted_means(per_run, freedom, everything, 1)[0]
    has_no_pool = ~np.isfinite(workload_pool.pool)
    level = _CompositionVariance(
        np.where(has_no_pool, campaign_pool.pool, workload_pool.variance),
        np.where(has_no_pool, campaign_pool.pool_freedom, workload_pool.freedom),
        np.where(has_no_pool, campaign_per_run, workload_per_run),
    )
    return level, workload_pool


def _compute_mean_per_run(means: LeaseMeans) -> Floats:
    """Compute for each cell the average of 1 / n, where n is the number of runs in each of its means."""
    return compute_group_means(1.0 / means.runs, means.cell, means.cell_count)


def _borrow_from_earlier(
    level: _CompositionVariance, means: LeaseMeans, earlier_variance: BorrowedVariance | None
) -> tuple[_CompositionVariance, npt.NDArray[np.bool_]]:
    """Replace levels with too few degrees of freedom by those of earlier campaigns, for cells that were composed once."""
    if earlier_variance is None:
        return level, np.zeros(means.cell_count, dtype=np.bool_)
    stratum = means.groups.stratum
    is_earlier = (
        (means.count_compositions() == 1)
        & (level.freedom < _MIN_DOF_TO_BORROW)
        & (earlier_variance.freedom[stratum] > level.freedom)
    )
    new_level = _CompositionVariance(
        np.where(is_earlier, earlier_variance.variance[stratum], level.variance),
        np.where(is_earlier, earlier_variance.freedom[stratum], level.freedom),
        np.where(is_earlier, earlier_variance.per_run[stratum], level.per_run),
    )
    return new_level, is_earlier


def _estimate_run_noise(level: _CompositionVariance, means: LeaseMeans, run: PooledVariance) -> tuple[Floats, Floats]:
    """Estimate the variance that the runs of each cell add to its level, with its degrees of freedom.

    The number of runs in a mean differs between cells. A mean with fewer runs varies more. The smaller variance of a mean
    with more runs is ignored, because a variance that is borrowed from few cells is too uncertain to be reduced.
    """
    per_run, has_variance = _compute_mean_per_run(means), np.isfinite(run.variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        # If no cell was run twice, at most the whole borrowed variance is that of runs.
        max_noise = level.variance * np.maximum(per_run / level.per_run - 1.0, 0.0)
    noise = np.nan_to_num(np.where(has_variance, run.variance * np.maximum(per_run - level.per_run, 0.0), max_noise))
    excess = _estimate_excess_noise(level, means, run)
    freedom = np.where(excess > 0, np.maximum(_count_run_freedom(means), 1.0), np.maximum(run.freedom, 1.0))
    return noise + excess, freedom


def _estimate_excess_noise(level: _CompositionVariance, means: LeaseMeans, run: PooledVariance) -> Floats:
    """Estimate by how much runs of cells composed once are noisier than those of the cells they borrow from."""
    per_run = _compute_mean_per_run(means)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess_over_pool = np.where(run.noisy, (run.variance - run.pool) * per_run, 0.0)
        excess = np.maximum(run.variance * per_run - level.variance, excess_over_pool)
        return np.where((means.count_compositions() == 1) & (excess > 0), excess, 0.0)


def _is_contradicted(level: _CompositionVariance, means: LeaseMeans, run: PooledVariance) -> npt.NDArray[np.bool_]:
    """Return for which cells the runs alone contradict the borrowed variance as too small (F test)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = run.variance * _compute_mean_per_run(means) / level.variance
        p = scipy.special.fdtrc(_count_run_freedom(means), level.freedom, ratio)
    return np.asarray(
        (means.count_compositions() == 1) & (np.nan_to_num(p, nan=1.0) < SIGNIFICANCE_LEVEL), dtype=np.bool_
    )


def _count_run_freedom(means: LeaseMeans) -> Floats:
    """Count the degrees of freedom of each cell's run variance."""
    return np.asarray(np.bincount(means.cell, means.runs - 1.0, means.cell_count), dtype=np.float64)


def _compute_weighted_means(values: Floats, weight: Floats, group: Integers, count: int) -> Floats:
    """Compute the weighted mean of the values of each of `count` groups; nan for a group without weight."""
    total = np.bincount(group, weight, count)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(group, weight * values, count) / np.where(total > 0, total, np.nan), dtype=np.float64
        )


def _estimate_block_effects(means: LeaseMeans, residual: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Estimate block effects of means, the remaining share of degrees of freedom, and the cells with such effects.

    Block effects exist for cells that were composed once in each of the blocks 1 to k, together with the cells of the same
    kind of other configurations.
    """
    k = means.count_compositions()
    is_once_per_block = np.ones(means.cell_count, dtype=np.bool_)
    order = np.lexsort((means.block, means.cell))
    place = np.arange(order.size) - (np.cumsum(k) - k)[means.cell[order]]
    np.logical_and.at(is_once_per_block, means.cell[order], means.block[order] == place)
    keys = np.stack([means.groups.kind, means.groups.campaign, np.where(is_once_per_block & (k > 1), k, -1)])
    _, group, size = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    group_size = size[group]
    is_complete = is_once_per_block & ((group_size - 1) * (k - 1) >= _MIN_DOF_FOR_BLOCK_EFFECTS)
    blocks = int(means.block.max(initial=-1)) + 1
    _, block_index = np.unique(group[means.cell] * blocks + means.block, return_inverse=True)
    effect = (np.bincount(block_index, residual) / np.maximum(np.bincount(block_index), 1))[block_index]
    return (
        np.where(is_complete[means.cell], effect, 0.0),
        np.where(is_complete, (group_size - 1) / group_size, 0.0),
        is_complete,
    )


def _estimate_lease_effects(means: LeaseMeans, residual: Floats) -> tuple[Floats, Integers]:
    """Estimate the effect of each lease on the cells of a workload, and count the cells that share all leases of each cell."""
    key = means.lease * means.groups.stratum_count + means.groups.stratum[means.cell]
    _, unit, size = np.unique(key, return_inverse=True, return_counts=True)
    effect = (np.bincount(unit, residual) / size)[unit]
    min_cells = np.full(means.cell_count, np.iinfo(np.int64).max)
    np.minimum.at(min_cells, means.cell, size[unit])
    return effect, np.where(means.count_compositions() > 1, min_cells, 0)


def pool_variances(
    variance: Floats,
    freedom: Floats,
    stratum: Integers,
    effective: Floats,
    prior: float,
    variance_group: Integers | None = None,
) -> PooledVariance:
    """Pool the variances of items within their strata, and shrink each item's variance towards its pool.

    Args:
        variance: variance of each item.
        freedom: degrees of freedom of each item, 0 without a variance.
        stratum: stratum of each item.
        effective: effective degrees of freedom of the pool of each stratum.
        prior: weight of the pool, in degrees of freedom.
        variance_group: group of each item within its stratum that has one variance; by default each item has its own.
    """
    has_variance = freedom > 0
    group_index = np.arange(stratum.size) if variance_group is None else variance_group
    squares = np.where(has_variance, freedom * np.nan_to_num(variance), 0.0)
    groups = int(group_index.max(initial=-1)) + 1
    total, weight = (
        np.bincount(labels, freedom, count) for labels, count in ((stratum, effective.size), (group_index, groups))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        pool = (np.bincount(stratum, squares, effective.size) / total)[stratum]
        group_variance = (np.bincount(group_index, squares, groups) / weight)[group_index]
        limit = effective[stratum]
        # Items that share leases have fewer effective degrees of freedom, and so has the pool that they form.
        group_freedom = np.where(has_variance, np.minimum(weight[group_index] * limit / total[stratum], limit), 0.0)
    moderated_variance = np.maximum(
        group_variance, (prior * pool + group_freedom * group_variance) / (prior + group_freedom)
    )
    moderated_freedom = np.minimum(prior + group_freedom, limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        remaining_variance = (
            (total[stratum] * pool - weight[group_index] * group_variance) / (total[stratum] - weight[group_index])
        ).clip(min=0)
        p = scipy.special.fdtrc(group_freedom, limit - group_freedom, group_variance / remaining_variance)
    is_noisy = has_variance & (np.nan_to_num(p, nan=1.0) < SIGNIFICANCE_LEVEL)
    # The variance of a noisy item differs, so it gains no degrees of freedom from the others.
    moderated_freedom = np.where(is_noisy, group_freedom, moderated_freedom)
    return PooledVariance(
        np.where(has_variance, moderated_variance, pool),
        np.where(has_variance, moderated_freedom, limit),
        pool,
        limit,
        is_noisy,
    )


def compute_effective_freedom(
    residual: Floats, group: Integers, item: Integers, freedom: Floats, stratum: Integers, count: int
) -> Floats:
    """Compute the effective degrees of freedom of each stratum's pooled variance, as its items share leases.

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
    item_squares = np.bincount(item, residual**2, freedom.size)
    unit_squares = np.bincount(group, residual, units) ** 2
    per_unit = np.bincount(group, minlength=units)
    squares = np.bincount(stratum, item_squares, count)
    cross_products = np.bincount(unit_stratum, unit_squares, count) - squares
    max_cross_products = np.bincount(stratum[item], (per_unit[group] - 1) * residual**2, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = np.where(max_cross_products > 0, np.clip(cross_products / max_cross_products, 0.0, 1.0), 0.0)
    # Mean number of other items with which each item shares a lease.
    mean_neighbours = np.bincount(item, per_unit[group] - 1.0, freedom.size) / np.maximum(
        np.bincount(item, minlength=freedom.size), 1
    )
    total = np.bincount(stratum, freedom, count)
    spread = np.bincount(stratum, freedom * (1 + mean_neighbours * correlation[stratum] ** 2), count)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, total**2 / spread, 0.0)
