"""Experiment design of a campaign: locations of cells and their variances, built once for all comparisons.

A cell's location is the mean over its compositions of the mean cost of their runs (`campaign.analysis.statistics.location`). Its
error is that of compositions if it is known (`campaign.analysis.statistics.composition_variance`), else that of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.analysis.statistics import composition_variance, drift, location
from campaign.analysis.statistics.composition_variance import (
    POOL_WEIGHT_RUNS,
    CellGroups,
    LeaseMeans,
    LocationVariances,
    PooledVariance,
    compute_group_means,
    pool_variances,
)
from campaign.analysis.statistics.host_effects import HostEffects, estimate_host_effects
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import (
    NO_INTERVAL_ONE_RUN,
    T_BORROWED_EARLIER_SPREAD,
    T_BORROWED_SPREAD,
    T_OVER_COMPOSITIONS,
    T_OVER_RUNS_OF_COMPOSITION,
    Floats,
    Integers,
    Marks,
)
from campaign.spec.earlier_spread import EarlierSpread, parse_spreads
from campaign.spec.metric import read_primary_metric
from campaign.spec.run_numbers import BLOCK_ORDERS, get_composition_number

# Properties of a cell other than its configuration.
_KIND_COLUMNS = ("system", "workload", "batch", "precision")
STEP_COLUMN_LABELS = {"warmup_steps": "warm-up steps", "measured_steps": "measured steps"}
_USED_COLUMNS = {
    *("cell_id", "repetition", "campaign", "configuration", *_KIND_COLUMNS, "lease_id", "started", "host_names"),
    *(*STEP_COLUMN_LABELS, "warmup_steps_max", "measured_steps_min"),
}


@dataclass(frozen=True)
class LocationErrors:
    """Variance of the logarithm of locations, its degrees of freedom, and whether it includes the spread of compositions."""

    variance: Floats
    freedom: Floats
    has_composition_variance: Marks


@dataclass(frozen=True)
class Design:
    """Locations and variances of the cells of a campaign. Arrays have one element per cell, in the order of `cells`.

    cost: location of the cell's cost. runs, compositions: number of runs and of compositions. weights: factor by which
    variances grow because outlying runs count less. run_variance: variance of the location and its degrees of freedom
    from runs alone, as if compositions did not differ. variances: variances over compositions. host_effects: effects of
    hosts, and variances without them.
    means: means of each cell on each lease. valid_runs: one row per valid run with cell, lease, repetition and cost (outliers
    clipped).
    steps: fewest and most warm-up and measured steps of its runs; without columns if unknown.
    higher_is_better: whether higher values of the metric are better. has_random_runs, has_random_leases: whether runs and leases
    came in random order.
    is_adjusted: whether costs were divided by those of the reference (`campaign.analysis.statistics.drift`).
    """

    cells: pd.Index[Any]
    cost: Floats
    runs: Integers
    compositions: Integers
    weights: Floats
    run_variance: tuple[Floats, Floats]
    variances: LocationVariances
    host_effects: HostEffects
    means: LeaseMeans
    valid_runs: pd.DataFrame
    steps: pd.DataFrame
    higher_is_better: bool
    has_random_runs: bool
    has_random_leases: bool
    is_adjusted: bool = False

    @property
    def value(self) -> Floats:
        """Location of each cell in the unit of the metric."""
        return 1 / self.cost if self.higher_is_better else self.cost

    def find_cell_indices(self, cells: pd.Series[Any]) -> Integers:
        """Return the indices of cells in the design; -1 for a cell without valid runs."""
        return np.asarray(self.cells.get_indexer(pd.Index(cells)), dtype=np.int64)

    def estimate_locations(self) -> tuple[LogRatios, npt.NDArray[np.object_]]:
        """Estimate the locations of all cells, with their variances and the method of each interval."""
        is_known = self.variances.is_known
        variance = np.where(is_known, self.variances.single.variance, self.run_variance[0])
        freedom = np.where(is_known, self.variances.single.freedom, self.run_variance[1])
        is_borrowed = is_known & self.variances.is_borrowed
        conditions = [is_borrowed & (self.variances.lending_campaigns != ""), is_borrowed, is_known, self.runs >= 2]
        method = np.select(
            conditions,
            [T_BORROWED_EARLIER_SPREAD, T_BORROWED_SPREAD, T_OVER_COMPOSITIONS, T_OVER_RUNS_OF_COMPOSITION],
            NO_INTERVAL_ONE_RUN,
        ).astype(object)
        return LogRatios(self.value, variance, freedom), method

    def with_pools(self) -> Design:
        """Return a copy that uses one variance for all configurations of a workload, except noisy ones."""
        variances, k = self.variances, self.compositions
        pools = {
            name: getattr(variances, name).replace_by_pool(k)
            for name in ("single", "between_compositions", "within_blocks", "within_leases")
        }
        return replace(self, variances=replace(variances, **pools))

    def estimate_medians(self, value: Floats) -> LogRatios:
        """Estimate variances for the medians of cells; nan if the spread of compositions is unknown.

        A median varies with the compositions like the location does. With runs it varies more, by pi / 2 if they are normal.

        Args:
            value: median of the runs of each cell.
        """
        estimates, _ = self.estimate_locations()
        extra_run_variance = (np.pi / 2 - 1) * np.nan_to_num(self.run_variance[0])
        return LogRatios(
            value, np.where(self.variances.is_known, estimates.variance + extra_run_variance, np.nan), estimates.freedom
        )

    def estimate_errors(self, cells: pd.Series[Any], group: Integers) -> LocationErrors:
        """Estimate the errors of log locations, for groups of cells that are compared with each other.

        Args:
            cells: ids of the cells.
            group: group of each cell.
        """
        index = self.find_cell_indices(cells)
        groups = int(group.max(initial=-1)) + 1
        is_aligned = np.ones(groups, dtype=np.bool_)
        np.logical_and.at(is_aligned, group, self.variances.is_in_blocks[index])
        max_compositions, min_compositions = np.zeros(groups, dtype=np.int64), np.full(groups, np.iinfo(np.int64).max)
        np.maximum.at(max_compositions, group, self.compositions[index])
        np.minimum.at(min_compositions, group, self.compositions[index])
        is_known = self.variances.is_known[index]
        is_in_same_blocks = (is_aligned & (max_compositions == min_compositions))[group]
        within_blocks, between_compositions = self.variances.within_blocks, self.variances.between_compositions
        conditions = [is_known & is_in_same_blocks, is_known]
        variance = (
            np.select(conditions, [within_blocks.variance[index], between_compositions.variance[index]], 0.0)
            * self.weights[index]
        )
        freedom = np.select(
            conditions, [within_blocks.freedom[index], between_compositions.freedom[index]], self.run_variance[1][index]
        )
        return LocationErrors(np.where(is_known, variance, self.run_variance[0][index]), freedom, is_known)

    def summarize_composition_spread(self, campaign: str, metric: str) -> tuple[EarlierSpread, ...]:
        """Summarize the spread of the means of compositions by workload, for other campaigns to borrow."""
        k, stratum = self.compositions, self.means.groups.stratum
        spreads = []
        for number, workload in enumerate(self.means.groups.workloads):
            is_member = (stratum == number) & (k > 1)
            if is_member.any():
                runs = self.means.runs[is_member[self.means.cell]]
                pool, freedom = (
                    float(item[is_member][0])
                    for item in (
                        self.variances.between_compositions.pool,
                        self.variances.between_compositions.pool_freedom,
                    )
                )
                spreads.append(EarlierSpread(campaign, workload, metric, pool, freedom, float(np.mean(1.0 / runs))))
        return tuple(item for item in spreads if item.is_usable)


def build_campaign_design(
    runs: pd.DataFrame,
    campaign: Mapping[str, Any],
    reference: pd.DataFrame | None = None,
) -> Design:
    """Build the design of a campaign for its primary metric.

    Args:
        runs: runs table.
        campaign: `campaign` section of the report's context (metric, protocol).
        reference: runs of the reference; costs are adjusted by them if the protocol requests it.
    """
    metric = read_primary_metric({"campaign": campaign})
    higher_is_better, protocol = metric.is_higher_better, campaign.get("protocol")
    earlier = [spread for spread in parse_spreads(campaign.get("earlier_spread") or ()) if spread.metric == metric.name]
    if reference is None or reference.empty or not drift.is_adjusted(campaign):
        return build_design(runs, protocol, higher_is_better=higher_is_better, earlier=earlier)
    runs = drift.adjust_by_reference(runs, reference, higher_is_better=higher_is_better)
    return replace(build_design(runs, protocol, higher_is_better=higher_is_better, earlier=earlier), is_adjusted=True)


def build_design(
    runs: pd.DataFrame,
    protocol: Mapping[str, Any] | None = None,
    *,
    column: str = "",
    higher_is_better: bool = True,
    earlier: Sequence[EarlierSpread] = (),
) -> Design:
    """Build the design of a campaign from its runs table.

    Args:
        runs: runs table.
        protocol: protocol as in the report's context, with the order of runs and leases. By default both are in blocks.
            Without an order of leases, nothing is treated as a block.
        column: column that is compared; by default the campaign's primary metric.
        higher_is_better: whether higher values of the column are better.
        earlier: spreads of compositions in earlier campaigns.
    """
    settings = dict(protocol or {})
    column = column or ("value" if "value" in runs else "throughput_per_s")
    rows = _select_valid_runs(runs, column, higher_is_better)
    ids, names = pd.factorize(rows["cell_id"], sort=True)
    cell, cells = ids.astype(np.int64), len(names)
    groups = _group_cells(rows, cell)
    clipped_cost, kept_share = location.clip_outliers(rows["cost"].to_numpy(), cell, groups.stratum)
    lease, block = _number_leases(rows, cell)
    host, hosts = _number_host_sets(rows)
    rows = rows.assign(cell=cell, cost=clipped_cost, lease=lease, block=block, host=host)
    means, cost, lease_run_variance = _compute_means(rows, groups)
    in_blocks = protocol is None or settings.get("lease_order") in BLOCK_ORDERS
    earlier_variance = composition_variance.borrow_earlier_variance(earlier, groups.workloads) if earlier else None
    variances = composition_variance.estimate_location_variances(means, lease_run_variance, in_blocks, earlier_variance)
    count = np.bincount(cell, minlength=cells)
    pool = _pool_run_variances(
        clipped_cost / compute_group_means(clipped_cost, cell, cells)[cell] - 1, cell, count - 1.0, groups
    )
    # Clipped runs count less, which increases the variance.
    weights = 1 / np.clip(kept_share, 0.5, 1.0) ** 2
    location_run_variance = np.where(count > 1, pool.variance / np.maximum(count, 1) * weights, np.nan)
    return Design(
        cells=pd.Index(names),
        cost=cost,
        runs=count,
        compositions=means.count_compositions(),
        weights=weights,
        run_variance=(location_run_variance, np.where(pool.freedom > 0, pool.freedom, np.nan)),
        variances=variances,
        host_effects=estimate_host_effects(means, hosts, variances.is_in_blocks),
        means=means,
        valid_runs=rows[["cell", "lease", "repetition", "cost"]].reset_index(drop=True),
        steps=_summarize_steps(rows, cell),
        higher_is_better=higher_is_better,
        has_random_runs=settings.get("order", "blocks") != "sequential",
        has_random_leases=in_blocks,
    )


def _select_valid_runs(runs: pd.DataFrame, column: str, higher_is_better: bool) -> pd.DataFrame:
    """Return the valid runs in the order of cells, with their `cost`."""
    if column in runs:
        names = [name for name in runs if name in {*_USED_COLUMNS, column} or str(name).startswith("option_")]
        rows = runs.loc[(runs["status"] == "ok") & (runs[column] > 0), names]
        rows = rows.sort_values(["cell_id", "repetition"], kind="stable")
        value = rows[column].to_numpy(dtype=np.float64)
    else:
        rows, value = runs.iloc[:0], np.empty(0)
    return rows.assign(cost=1 / value if higher_is_better else value)


def _group_cells(rows: pd.DataFrame, cell: Integers) -> CellGroups:
    """Group the cells by system and workload, configuration, kind and campaign."""
    first = rows.iloc[np.unique(cell, return_index=True)[1]]
    system = first["system"].astype("str") if "system" in rows else pd.Series("", index=first.index)
    # Not with pandas: before version 3, its factorize fails for an empty list of pairs. Iterating over a column is slow.
    pairs = list(zip(system.to_numpy(), first["workload"].astype("str").to_numpy(), strict=True))
    strata = sorted(set(pairs))
    numbers_by_pair = {pair: number for number, pair in enumerate(strata)}
    stratum = np.array([numbers_by_pair[pair] for pair in pairs], dtype=np.int64)
    campaign, _ = pd.factorize(first["campaign"] if "campaign" in rows else pd.Series("", index=first.index))
    axes = [name for name in rows.columns if name in _KIND_COLUMNS or str(name).startswith("option_")]
    configuration = first.groupby([stratum, campaign, "configuration"], sort=False).ngroup()
    kind = first.groupby(axes, sort=False, dropna=False).ngroup()
    systems, workloads = (tuple(str(name[place]) for name in strata) for place in (0, 1))
    numbers = [np.asarray(labels, dtype=np.int64) for labels in (stratum, configuration, kind, campaign)]
    return CellGroups(systems, workloads, *numbers)


def _pool_run_variances(
    residual: Floats, cell: Integers, differences: npt.ArrayLike, groups: CellGroups
) -> PooledVariance:
    """Pool the relative run variances of the cells within their groups.

    Args:
        residual: relative residual of each run.
        cell: cell of each run.
        differences: number of independent differences of each cell.
        groups: groups of the cells.
    """
    freedom = np.maximum(np.asarray(differences, dtype=np.float64), 0.0)
    squares = np.bincount(cell, residual**2, freedom.size)
    variance = np.where(freedom > 0, squares / np.maximum(freedom, 1), np.nan)
    effective = np.asarray(np.bincount(groups.stratum, freedom, groups.stratum_count), dtype=np.float64)
    return pool_variances(variance, freedom, groups.stratum, effective, POOL_WEIGHT_RUNS)


def _summarize_steps(rows: pd.DataFrame, cell: Integers) -> pd.DataFrame:
    """Return the fewest and the most warm-up and measured steps of each cell."""
    if "warmup_steps_max" in rows:
        # Warm-ups that last until steps are steady differ in length, but are the same protocol.
        rows = rows.assign(warmup_steps=rows["warmup_steps_max"])
    if "measured_steps_min" in rows:  # The same holds for windows with a minimum duration.
        rows = rows.assign(measured_steps=rows["measured_steps_min"])
    columns = [name for name in STEP_COLUMN_LABELS if name in rows]
    return rows[columns].groupby(cell).agg(["min", "max"]) if columns else pd.DataFrame(index=np.unique(cell))


def _number_leases(rows: pd.DataFrame, cell: Integers) -> tuple[Integers, Integers]:
    """Assign a number from 0 to the lease of each run, and to the campaign block that contains the lease."""
    # If no lease is known, runs are treated as those of one lease.
    labels, is_known = rows["lease_id"], rows["lease_id"] != ""
    if not is_known.all():
        labels = labels.where(is_known, "no lease of " + rows["configuration"])
    lease = pd.factorize(labels)[0].astype(np.int64)
    numbers, index = np.unique(rows["repetition"].to_numpy(), return_inverse=True)
    block = np.array([get_composition_number(int(run)) - 1 for run in numbers], dtype=np.int64)[index]
    if block.any():
        return lease, block
    # Compositions without numbers are ordered by time.
    start = rows.groupby(lease)["started"].min().to_numpy() if len(rows) else np.empty(0)
    keys = pd.DataFrame({"cell": cell, "lease": lease}).drop_duplicates()
    keys = keys.assign(start=start[keys["lease"]]).sort_values(["cell", "start", "lease"], kind="stable")
    keys = keys.assign(block=keys.groupby("cell", sort=False).cumcount())
    cell_and_lease = pd.MultiIndex.from_frame(keys[["cell", "lease"]])
    position = cell_and_lease.get_indexer(pd.MultiIndex.from_arrays([cell, lease]))
    return lease, keys["block"].to_numpy(dtype=np.int64)[position]


def _number_host_sets(rows: pd.DataFrame) -> tuple[Integers, tuple[frozenset[str], ...]]:
    """Assign an index to the set of hosts of each run (-1 if unknown), and return the host names of each set."""
    if "host_names" not in rows:
        return np.full(len(rows), -1, dtype=np.int64), ()
    codes, names = pd.factorize(rows["host_names"].where(rows["host_names"] != ""))
    return codes.astype(np.int64), tuple(frozenset(str(name).split(", ")) for name in names)


def _compute_means(rows: pd.DataFrame, groups: CellGroups) -> tuple[LeaseMeans, Floats, PooledVariance]:
    """Compute the mean of each cell on each lease, the cell locations, and the relative run variance."""
    cell, lease, block, host = (rows[name].to_numpy() for name in ("cell", "lease", "block", "host"))
    cost, cells = rows["cost"].to_numpy(), groups.stratum.size
    key = cell * (int(lease.max(initial=-1)) + 1) + lease
    keys, first, mean_index = np.unique(key, return_index=True, return_inverse=True)
    value, size, mean_cell = (
        compute_group_means(cost, mean_index, keys.size),
        np.bincount(mean_index, minlength=keys.size),
        cell[first],
    )
    locations = compute_group_means(value, mean_cell, cells)
    residual = (cost - value[mean_index]) / locations[cell]
    lease_run_variance = _pool_run_variances(residual, cell, np.bincount(mean_cell, size - 1.0, cells), groups)
    means = LeaseMeans(mean_cell, lease[first], block[first], host[first], size, value / locations[mean_cell], groups)
    return means, locations, lease_run_variance
