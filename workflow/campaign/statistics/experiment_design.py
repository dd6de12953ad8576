"""What the runs of a campaign say of its cells, made once from the table of runs: every comparison is made by it.

A cell's location is the mean over its compositions of the mean cost of their runs (`campaign.statistics.location`); its error is
that of compositions where they tell it (`campaign.statistics.composition_variance`), else that of runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.earlier_spread import EarlierSpread, spreads
from campaign.documents.metric import metric_of
from campaign.documents.run_numbers import BLOCK_ORDERS, composition_of
from campaign.statistics import composition_variance, drift, location
from campaign.statistics.composition_variance import Means, Variances
from campaign.statistics.host_level import HostLevel, host_level
from campaign.statistics.intervals import BETWEEN, BORROWED, BORROWED_EARLIER, ONE_RUN, RUNS_OF_ONE, Floats, Integers
from campaign.statistics.pooled_variance import Pooled, pooled
from campaign.statistics.ratios import LogRatios

Marks = npt.NDArray[np.bool_]

# What a cell is beside its configuration.
_KIND = ("system", "workload", "batch", "precision")
STEPS = {"warmup_steps": "warm-up steps", "measured_steps": "measured steps"}


@dataclass(frozen=True)
class Errors:
    """Variance of the logarithm of locations, its freedom, and whether it holds the spread of compositions."""

    variance: Floats
    freedom: Floats
    known: Marks


@dataclass(frozen=True)
class Design:
    """What the runs of a campaign say of its cells; arrays are by place of the cell in `cells`.

    cost: location of the cell's cost. runs, compositions: how many. run_variance: of the location, from runs alone, as if its
    compositions did not differ, with its freedom. variances: with compositions.
    """

    cells: pd.Index[Any]
    cost: Floats
    runs: Integers
    compositions: Integers
    run_variance: Floats
    run_freedom: Floats
    variances: Variances
    host_level: HostLevel
    without_hosts: Pooled
    """Variances of locations with what hosts do taken out."""
    means: Means
    each: pd.DataFrame
    """One row a valid run: cell, lease, repetition, cost (outliers brought near)."""
    higher: bool
    blocks: bool
    random_leases: bool
    weights: Floats
    steps: pd.DataFrame
    """Of each cell, the fewest and the most warm-up and measured steps of its runs; without columns where nobody knows."""
    workloads: tuple[str, ...]
    """By their number in `means.stratum`: of a workload on each system."""
    systems: Integers
    """Of each cell, the number of its system."""
    lent_by: npt.NDArray[np.object_]
    """Of each cell, the earlier campaigns whose spread of compositions it borrows; '' for none."""
    adjusted: bool = False
    """Whether costs were divided by those of the reference (`campaign.statistics.drift`)."""

    @property
    def value(self) -> Floats:
        """Location of each cell in the unit of the metric."""
        return 1 / self.cost if self.higher else self.cost

    def places(self, cells: pd.Series[Any]) -> Integers:
        """Of cells, their places; -1 for none."""
        return np.asarray(self.cells.get_indexer(pd.Index(cells)), dtype=np.int64)

    def locations(self) -> tuple[LogRatios, npt.NDArray[np.object_]]:
        """The cells' values as ratios to one, and how their intervals are made."""
        known = self._between_known()
        variance = np.where(known, self.variances.alone.variance, self.run_variance)
        freedom = np.where(known, self.variances.alone.freedom, self.run_freedom)
        borrowed = known & self.variances.borrowed
        conditions = [borrowed & self.variances.earlier, borrowed, known, self.runs >= 2]
        method = np.select(conditions, [BORROWED_EARLIER, BORROWED, BETWEEN, RUNS_OF_ONE], ONE_RUN).astype(object)
        return LogRatios(self.value, variance, freedom), method

    def errors(self, cells: pd.Series[Any], group: Integers) -> Errors:
        """Of cells, the error of the logarithm of their location; cells of one group are compared with each other."""
        at = self.places(cells)
        groups = int(group.max(initial=-1)) + 1
        aligned = np.ones(groups, dtype=np.bool_)
        np.logical_and.at(aligned, group, self.variances.in_blocks[at])
        most, least = np.zeros(groups, dtype=np.int64), np.full(groups, np.iinfo(np.int64).max)
        np.maximum.at(most, group, self.compositions[at])
        np.minimum.at(least, group, self.compositions[at])
        known = self._between_known()[at]
        whole = (aligned & (most == least))[group]
        blocked, alone = self.variances.blocked, self.variances.alone
        conditions = [known & whole, known]
        variance = np.select(conditions, [blocked.variance[at], alone.variance[at]], 0.0) * self.weights[at]
        freedom = np.select(conditions, [blocked.freedom[at], alone.freedom[at]], self.run_freedom[at])
        return Errors(np.where(known, variance, self.run_variance[at]), freedom, known)

    def spread_of_compositions(self, campaign: str, metric: str) -> tuple[EarlierSpread, ...]:
        """How much the means of compositions differ, by workload, for other campaigns to borrow."""
        k, stratum = self.compositions, self.means.stratum
        found = []
        for number, workload in enumerate(self.workloads):
            here = (stratum == number) & (k > 1)
            if here.any():
                runs = self.means.runs[here[self.means.cell]]
                pool, freedom = (
                    float(each[here][0]) for each in (self.variances.alone.pool, self.variances.alone.pool_freedom)
                )
                found.append(EarlierSpread(campaign, workload, metric, pool, freedom, float(np.mean(1.0 / runs))))
        return tuple(each for each in found if each.usable)

    def _between_known(self) -> Marks:
        return np.isfinite(self.variances.alone.variance) & (self.variances.alone.freedom > 0)


def of_campaign(runs: pd.DataFrame, campaign: Mapping[str, Any], reference: pd.DataFrame | None = None) -> Design:
    """The design of a campaign by its primary metric. campaign: as the report's document has it (metric, protocol).

    reference: runs of the reference, by which costs are adjusted where the protocol says so.
    """
    metric = metric_of({"campaign": campaign})
    higher, protocol = metric.higher, campaign.get("protocol")
    earlier = [each for each in spreads(campaign.get("earlier_spread") or ()) if each.metric == metric.name]
    if reference is None or reference.empty or not drift.is_adjusted(campaign):
        return design(runs, protocol, higher=higher, earlier=earlier)
    runs = drift.adjusted(runs, reference, higher=higher)
    return replace(design(runs, protocol, higher=higher, earlier=earlier), adjusted=True)


def design(
    runs: pd.DataFrame,
    protocol: Mapping[str, Any] | None = None,
    *,
    column: str = "",
    higher: bool = True,
    earlier: Sequence[EarlierSpread] = (),
) -> Design:
    """The design of a campaign from its runs table.

    protocol: the campaign's, as the report's document has it: order of runs and leases; without it, both are in blocks. Where it
    does not say the order of leases, nothing is taken for a block. column: what is compared, the campaign's metric without one;
    higher: whether more of it is better. earlier: how much compositions differed in earlier campaigns.
    """
    column = column or ("value" if "value" in runs else "throughput_per_s")
    said = dict(protocol or {})
    rows = _valid(runs, column)
    ids, cells = pd.factorize(rows["cell_id"], sort=True)
    cell = ids.astype(np.int64)
    first = np.unique(cell, return_index=True)[1]
    stratum_of_run, strata = _strata(rows)
    workloads = [str(workload) for _, workload in strata]
    campaign_of_run, _ = pd.factorize(rows["campaign"] if "campaign" in rows else pd.Series("", index=rows.index))
    stratum, campaign = stratum_of_run[first].astype(np.int64), campaign_of_run[first].astype(np.int64)
    axes = [name for name in rows.columns if name in _KIND or str(name).startswith("option_")]
    kind = rows.iloc[first].groupby(axes, sort=False, dropna=False).ngroup().to_numpy().astype(np.int64)
    value = rows[column].to_numpy(dtype=np.float64)
    near, kept = location.near(1 / value if higher else value, cell, stratum)
    lease, block = _leases(rows, cell)
    host, hosts = _hosts(rows)
    means, cost, within, freedom = _means(near, cell, (lease, block, host), (stratum, kind, campaign))
    pool = pooled(within, freedom, stratum, _sums(freedom, stratum, means.strata))
    # Runs that were brought near are no reason to doubt the compositions as well.
    known = np.where(np.isfinite(pool.pool), pool.variance, np.nan)
    pool = replace(pool, variance=known, outlying=pool.outlying & (kept == 1.0))
    in_blocks = protocol is None or said.get("lease_order") in BLOCK_ORDERS
    lent = composition_variance.lent(earlier, workloads) if earlier else None
    found = composition_variance.of_locations(means, pool, in_blocks, lent)
    level = host_level(means, hosts, found.in_blocks)
    lent_by = np.where(found.earlier, lent.campaigns[stratum], "") if lent else np.full(len(cells), "", dtype=object)
    # Runs brought near count less, and the others know as much less.
    weights = 1 / np.clip(kept, 0.5, 1.0) ** 2
    count = np.bincount(cell, minlength=len(cells))
    spread = _mean_of(near, cell, len(cells))
    squares = np.bincount(cell, (near / spread[cell] - 1) ** 2, len(cells))
    lone = np.where(count > 1, count - 1.0, 0.0)
    own = np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan)
    runs_pool = pooled(own, lone, stratum, _sums(lone, stratum, means.strata))
    total = runs_pool.variance / np.maximum(count, 1)
    return Design(
        cells=pd.Index(cells),
        cost=cost,
        runs=count,
        compositions=means.compositions(),
        run_variance=np.where(count > 1, total * weights, np.nan),
        run_freedom=np.where(runs_pool.freedom > 0, runs_pool.freedom, np.nan),
        variances=found,
        host_level=level,
        without_hosts=composition_variance.without_hosts(means, found.alone, level.residual, level.freedom),
        means=means,
        each=pd.DataFrame({"cell": cell, "lease": lease, "repetition": rows["repetition"].to_numpy(), "cost": near}),
        higher=higher,
        blocks=said.get("order", "blocks") != "sequential",
        random_leases=said.get("lease_order") != "least-recomposition",
        weights=weights,
        steps=_steps(rows, cell),
        workloads=tuple(workloads),
        systems=pd.factorize(np.array([system for system, _ in strata], dtype=object))[0][stratum].astype(np.int64),
        lent_by=lent_by,
    )


def _strata(rows: pd.DataFrame) -> tuple[npt.NDArray[np.int64], list[tuple[str, str]]]:
    """Of each run, the number of its stratum, whose cells share variances; and the strata: system and workload."""
    system = rows["system"].astype("str") if "system" in rows else pd.Series("", index=rows.index)
    both = pd.MultiIndex.from_arrays([system, rows["workload"]])
    codes, strata = pd.factorize(both, sort=True)
    return codes.astype(np.int64), [(str(system), str(workload)) for system, workload in strata]


def _steps(rows: pd.DataFrame, cell: Integers) -> pd.DataFrame:
    if "warmup_steps_max" in rows:
        # Warm-ups that go on until steps are steady differ in length, and are alike all the same.
        rows = rows.assign(warmup_steps=rows["warmup_steps_max"])
    known = [name for name in STEPS if name in rows]
    return rows[known].groupby(cell).agg(["min", "max"]) if known else pd.DataFrame(index=np.unique(cell))


def _valid(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    ok = (runs["status"] == "ok") & (runs[column] > 0)
    return runs[ok].sort_values(["cell_id", "repetition"], kind="stable")


def _leases(rows: pd.DataFrame, cell: Integers) -> tuple[Integers, Integers]:
    """Of each run, its lease and the block of the campaign that this lease belongs to, counted from 0."""
    # Where no lease is known, nothing says that runs were on different ones.
    named = rows["lease_id"].where(rows["lease_id"] != "", "no lease of " + rows["configuration"])
    lease = pd.factorize(named)[0].astype(np.int64)
    numbered = np.array([composition_of(int(run)) - 1 for run in rows["repetition"]], dtype=np.int64)
    if numbered.any():
        return lease, numbered
    # Compositions that are not numbered are taken in the order of time.
    start = rows.groupby(lease)["started"].min().to_numpy() if len(rows) else np.empty(0)
    keys = pd.DataFrame({"cell": cell, "lease": lease}).drop_duplicates()
    keys = keys.assign(start=start[keys["lease"]]).sort_values(["cell", "start", "lease"], kind="stable")
    keys = keys.assign(block=keys.groupby("cell", sort=False).cumcount())
    both = pd.MultiIndex.from_frame(keys[["cell", "lease"]])
    at = both.get_indexer(pd.MultiIndex.from_arrays([cell, lease]))
    return lease, keys["block"].to_numpy(dtype=np.int64)[at]


def _hosts(rows: pd.DataFrame) -> tuple[Integers, tuple[frozenset[str], ...]]:
    """Of each run, the number of its set of hosts, -1 where it is not known; and the names of each set."""
    if "host_names" not in rows:
        return np.full(len(rows), -1, dtype=np.int64), ()
    known = rows["host_names"] != ""
    if "predicted" in rows:  # hosts of replays are names, and cannot differ
        known &= ~rows["predicted"].astype(bool)
    codes, names = pd.factorize(rows["host_names"].where(known))
    return codes.astype(np.int64), tuple(frozenset(str(name).split(", ")) for name in names)


def _sums(values: Floats, of: Integers, count: int) -> Floats:
    return np.asarray(np.bincount(of, values, count), dtype=np.float64)


def _mean_of(values: Floats, of: Integers, count: int) -> Floats:
    size = np.bincount(of, minlength=count)
    return np.asarray(np.bincount(of, values, count) / np.maximum(size, 1), dtype=np.float64)


def _means(
    cost: Floats,
    cell: Integers,
    of_lease: tuple[Integers, Integers, Integers],
    groups: tuple[Integers, Integers, Integers],
) -> tuple[Means, Floats, Floats, Floats]:
    """Means of each cell on each lease; locations of cells; variance of a run on a lease, relative, with its freedom."""
    (lease, block, host), (stratum, kind, campaign) = of_lease, groups
    leases = int(lease.max(initial=-1)) + 1
    key, first, where = np.unique(cell * leases + lease, return_index=True, return_inverse=True)
    size = np.bincount(where, minlength=key.size)
    value = np.bincount(where, cost, key.size) / np.maximum(size, 1)
    of, at = cell[first], lease[first]
    location_ = _mean_of(value, of, stratum.size)
    squares = np.bincount(cell, ((cost - value[where]) / location_[cell]) ** 2, stratum.size)
    freedom = _sums(np.asarray(size - 1.0, dtype=np.float64), of, stratum.size)
    within = np.asarray(np.where(freedom > 0, squares / np.where(freedom > 0, freedom, 1.0), np.nan), dtype=np.float64)
    strata = int(stratum.max(initial=-1)) + 1
    means = Means(of, at, block[first], size, value / location_[of], stratum, strata, kind, campaign, host[first])
    return means, location_, within, freedom
