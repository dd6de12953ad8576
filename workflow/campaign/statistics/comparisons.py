"""Comparisons of cells: which are within leases and which between compositions; ratios with intervals and p-values.

The one place that decides this. A `Design` is made once from a table of runs; `ratios` compares any pairs of its cells:

- between compositions: two cells that do not share all of their leases. Their variance is that of compositions
  (`campaign.statistics.composition_variance`), with the freedom of compositions, not of runs.
- within leases: two cells that were measured on the same leases, several of them. What a lease does to both cancels; what it does
  to one of them is a variance of its own.
- within one composition: both on one lease. Paired by block (one repetition of all cells of the lease) where there are enough
  pairs, else from the runs (Welch's t). The statement is about this composition.
- one composition each, and nothing that tells how much compositions differ: the interval holds run-to-run variation only, and
  there is no test.

A ratio is of throughput: the cost of the reference over the cost of the cell (`campaign.statistics.location`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.run_numbers import composition_of
from campaign.statistics import composition_variance, drift, location
from campaign.statistics.composition_variance import Means, Variances
from campaign.statistics.intervals import (
    BETWEEN,
    BLOCKED,
    BORROWED,
    ITSELF,
    NO_REFERENCE,
    NO_RUN,
    NOT_POSITIVE,
    ONE_EACH,
    ONE_RUN,
    PAIRED,
    PAIRED_BY_LEASE,
    RUNS_OF_ONE,
    Floats,
    Integers,
)
from campaign.statistics.pooled_variance import Pooled, pooled
from campaign.statistics.ratios import LogRatios, is_paired, paired, welch

Marks = npt.NDArray[np.bool_]

# What a cell is beside its configuration.
_KIND = ("workload", "batch", "precision")
_STEPS = {"warmup_steps": "warm-up steps", "measured_steps": "measured steps"}


@dataclass(frozen=True)
class Ratios:
    """Ratios of cells to their references, in the order asked.

    of: value, variance and freedom of each. tested: whether a test is allowed. paired, pairs: whether the same leases or blocks
    hold both, and how many. method: how the interval was made, or why there is none. compositions, against_compositions: on how
    many each was measured, 0 for no cell. unlike: how their warm-up or measured steps differ, '' where they do not. in_order:
    whether they were measured in an order that is not random, so that drift can pose as a difference. adjusted: whether costs were
    divided by those of the reference.
    """

    of: LogRatios
    tested: Marks
    paired: Marks
    pairs: Integers
    method: npt.NDArray[np.object_]
    compositions: Integers
    against_compositions: Integers
    unlike: npt.NDArray[np.object_]
    in_order: Marks
    adjusted: Marks

    def p(self, none: npt.ArrayLike = 1.0) -> Floats:
        """Two-sided p-values of the hypothesis that the ratio is `none`; nan without a test."""
        return np.where(self.tested, self.of.p(none), np.nan)

    def least_detectable_pct(self) -> Floats:
        """See `LogRatios`; nan without a test."""
        return np.where(self.tested, self.of.least_detectable_pct(), np.nan)

    def basis(self, index: pd.Index[Any]) -> dict[str, Any]:
        """Columns that say what a statement rests on; `campaign.statistics.verdict` puts them into words."""
        return {
            "tested": self.tested,
            "method": pd.Series(self.method, index=index, dtype="str"),
            "compositions": self.compositions,
            "against_compositions": self.against_compositions,
            "freedom": np.where(self.tested, self.of.freedom, np.nan),
            "unlike": pd.Series(self.unlike, index=index, dtype="str"),
            "in_order": self.in_order,
            **({"adjusted": self.adjusted} if self.adjusted.any() else {}),
            "least_detectable_pct": self.least_detectable_pct(),
        }

    def over(self, other: Ratios) -> Ratios:
        """The ratio of these ratios to others that are independent of them."""
        both = self.tested & other.tested
        paired_, in_order = self.paired & other.paired, self.in_order | other.in_order
        return replace(self, of=self.of.over(other.of), tested=both, paired=paired_, in_order=in_order)


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
    means: Means
    each: pd.DataFrame
    """One row a valid run: cell, lease, repetition, cost (outliers brought near)."""
    higher: bool
    blocks: bool
    random_leases: bool
    weights: Floats
    steps: pd.DataFrame
    """Of each cell, the fewest and the most warm-up and measured steps of its runs; without columns where nobody knows."""
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
        method = np.select(
            [known & self.variances.borrowed, known, self.runs >= 2], [BORROWED, BETWEEN, RUNS_OF_ONE], ONE_RUN
        ).astype(object)
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

    def _between_known(self) -> Marks:
        return np.isfinite(self.variances.alone.variance) & (self.variances.alone.freedom > 0)


def of_campaign(runs: pd.DataFrame, campaign: Mapping[str, Any], reference: pd.DataFrame | None = None) -> Design:
    """The design of a campaign by its primary metric. campaign: as the report's document has it (metric, protocol).

    reference: runs of the reference, by which costs are adjusted where the protocol says so.
    """
    higher = dict(campaign.get("metric") or {}).get("better", "higher") == "higher"
    if reference is None or reference.empty or not drift.is_adjusted(campaign):
        return design(runs, campaign.get("protocol"), higher=higher)
    runs = drift.adjusted(runs, reference, higher=higher)
    return replace(design(runs, campaign.get("protocol"), higher=higher), adjusted=True)


def design(
    runs: pd.DataFrame,
    protocol: Mapping[str, Any] | None = None,
    *,
    column: str = "",
    higher: bool = True,
) -> Design:
    """The design of a campaign from its runs table.

    protocol: the campaign's, as the report's document has it: order of runs and leases; without it, both are in blocks. Where it
    does not say the order of leases, nothing is taken for a block. column: what is compared, the
    campaign's metric without one; higher: whether more of it is better.
    """
    column = column or ("value" if "value" in runs else "throughput_per_s")
    said = dict(protocol or {})
    rows = _valid(runs, column)
    ids, cells = pd.factorize(rows["cell_id"], sort=True)
    cell = ids.astype(np.int64)
    first = np.unique(cell, return_index=True)[1]
    stratum_of_run, _ = pd.factorize(rows["workload"], sort=True)
    campaign_of_run, _ = pd.factorize(rows["campaign"] if "campaign" in rows else pd.Series("", index=rows.index))
    stratum, campaign = stratum_of_run[first].astype(np.int64), campaign_of_run[first].astype(np.int64)
    axes = [name for name in rows.columns if name in _KIND or str(name).startswith("option_")]
    kind = rows.iloc[first].groupby(axes, sort=False, dropna=False).ngroup().to_numpy().astype(np.int64)
    value = rows[column].to_numpy(dtype=np.float64)
    near, kept = location.near(1 / value if higher else value, cell, stratum)
    lease, block = _leases(rows, cell)
    means, cost, within, freedom = _means(near, cell, lease, block, (stratum, kind, campaign))
    pool = pooled(within, freedom, stratum, _sums(freedom, stratum, means.strata))
    run_variance = np.where(np.isfinite(pool.pool), pool.variance, np.nan)
    in_blocks = protocol is None or said.get("lease_order") == "blocks"
    found = composition_variance.of_locations(means, (run_variance, np.maximum(pool.freedom, 1.0)), in_blocks)
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
        means=means,
        each=pd.DataFrame({"cell": cell, "lease": lease, "repetition": rows["repetition"].to_numpy(), "cost": near}),
        higher=higher,
        blocks=said.get("order", "blocks") != "sequential",
        random_leases=said.get("lease_order") != "least-recomposition",
        weights=weights,
        steps=_steps(rows, cell),
    )


def _steps(rows: pd.DataFrame, cell: Integers) -> pd.DataFrame:
    if "warmup_steps_max" in rows:
        # Warm-ups that go on until steps are steady differ in length, and are alike all the same.
        rows = rows.assign(warmup_steps=rows["warmup_steps_max"])
    known = [name for name in _STEPS if name in rows]
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


def _sums(values: Floats, of: Integers, count: int) -> Floats:
    return np.asarray(np.bincount(of, values, count), dtype=np.float64)


def _mean_of(values: Floats, of: Integers, count: int) -> Floats:
    size = np.bincount(of, minlength=count)
    return np.asarray(np.bincount(of, values, count) / np.maximum(size, 1), dtype=np.float64)


def _means(
    cost: Floats, cell: Integers, lease: Integers, block: Integers, groups: tuple[Integers, Integers, Integers]
) -> tuple[Means, Floats, Floats, Floats]:
    """Means of each cell on each lease; locations of cells; variance of a run on a lease, relative, with its freedom."""
    stratum, kind, campaign = groups
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
    means = Means(of, at, block[first], size, value / location_[of], stratum, strata, kind, campaign)
    return means, location_, within, freedom


def ratios(of: pd.Series[Any], to: pd.Series[Any], by: Design) -> Ratios:
    """Ratio of each cell to the cell in the same place of `to` (ids; a missing one is no cell)."""
    a, b = by.places(of), by.places(to)
    count = len(a)
    there, against = a >= 0, b >= 0
    itself = (pd.Series(of).to_numpy() == pd.Series(to).to_numpy()) & there
    both = there & against & ~itself
    i, j = np.where(both, a, 0), np.where(both, b, 0)
    if not by.cells.size:
        i = j = np.zeros(0, dtype=np.int64)
        empty = np.full(count, np.nan)
        none = np.where(pd.Series(to).isna().to_numpy() | ~against, NO_REFERENCE, NO_RUN).astype(object)
        off, zero = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
        same = np.full(count, "", dtype=object)
        return Ratios(LogRatios(empty, empty, empty), off, off, zero, none, zero, zero, same, off, off)
    return _ratios(by, i, j, both, itself, there, against)


def _ratios(by: Design, i: Integers, j: Integers, both: Marks, itself: Marks, there: Marks, against: Marks) -> Ratios:
    shared = _shared(by, i, j, both)
    k_i, k_j = by.compositions[i], by.compositions[j]
    within = both & (shared == k_i) & (shared == k_j)
    several, one = within & (shared >= 2), within & (shared == 1)
    value = np.where(both, by.cost[j] / by.cost[i], np.nan)
    blocked, alone, beside = by.variances.blocked, by.variances.alone, by.variances.beside
    aligned = by.variances.in_blocks[i] & by.variances.in_blocks[j] & (k_i == k_j)
    between = _sum(by, alone, i, j)
    found = _either(aligned & np.isfinite(blocked.pool[by.means.stratum[i]]), _sum(by, blocked, i, j), between)
    found = _either(several & np.isfinite(beside.variance[i] + beside.variance[j]), _sum(by, beside, i, j), found)
    tested = both & np.isfinite(found[0]) & (found[1] > 0)
    alone_runs = welch((by.run_variance[i], by.run_freedom[i]), (by.run_variance[j], by.run_freedom[j]))
    runs_only = (by.run_variance[i] + by.run_variance[j], alone_runs)
    found = _either(one | (both & ~tested), runs_only, found)
    pairs, ratio, pair_variance, pair_freedom, blocks = _pairs(by, i, j, one)
    found = _either(blocks, (pair_variance, pair_freedom), found)
    value = np.where(blocks, ratio, value)
    tested = np.where(one, np.isfinite(found[0]), tested)
    value, variance = np.where(itself, 1.0, value), np.where(itself, 0.0, np.where(both, found[0], np.nan))
    freedom = np.where(both, found[1], np.nan)
    lone = by.variances.borrowed[i] | by.variances.borrowed[j]
    conditions = [
        itself, ~against, ~there, ~np.isfinite(value), blocks, several & tested, one & tested, ~np.isfinite(variance),
        ~tested, lone, aligned,
    ]  # fmt: skip
    words = [
        ITSELF, NO_REFERENCE, NO_RUN, NOT_POSITIVE, PAIRED, PAIRED_BY_LEASE, RUNS_OF_ONE, ONE_RUN, ONE_EACH, BORROWED, BLOCKED,
    ]  # fmt: skip
    method = np.select(conditions, words, BETWEEN).astype(object)
    counted = np.where(blocks, pairs, np.where(several, shared, 0))
    in_order = both & np.where(within, not by.blocks, not by.random_leases and not by.adjusted)
    of = LogRatios(value, variance, freedom)
    k_i, k_j = np.where(there, k_i, 0), np.where(against, k_j, 0)
    unlike = _unlike(by.steps, i, j, both)
    return Ratios(
        of,
        tested & ~itself,
        blocks | several,
        counted,
        method,
        k_i,
        k_j,
        unlike,
        in_order,
        both & by.adjusted & ~within,
    )


def _unlike(steps: pd.DataFrame, i: Integers, j: Integers, both: Marks) -> npt.NDArray[np.object_]:
    """In what the protocol of two cells differs: '5 to 8 warm-up steps against 5'; '' in nothing."""
    told = np.full(i.size, "", dtype=object)
    for name in dict.fromkeys(steps.columns.get_level_values(0)) if len(steps.columns) else ():
        ends = steps[name].to_numpy()
        for place in np.flatnonzero(both & (ends[i] != ends[j]).any(axis=1)):
            ours, theirs = (" to ".join(dict.fromkeys(f"{int(n):,}" for n in ends[at[place]])) for at in (i, j))
            told[place] += f"{', ' if told[place] else ''}{ours} {_STEPS[name]} against {theirs}"
    return told


_Part = tuple[Floats, Floats]


def _sum(by: Design, of: Pooled, i: Integers, j: Integers) -> _Part:
    """Variance of the difference of two cells, and its freedom: that of the pool where both are from one."""
    variance = of.variance * by.weights
    total = variance[i] + variance[j]
    own = welch((variance[i], of.freedom[i]), (variance[j], of.freedom[j]))
    limit = np.maximum(np.maximum(of.freedom[i], of.freedom[j]), 0.0)
    # Two variances of one pool are known no better than the pool.
    one = by.means.stratum[i] == by.means.stratum[j]
    return total, np.where(one, np.minimum(own, limit), own)


def _either(take: Marks, first: _Part, second: _Part) -> _Part:
    return np.where(take, first[0], second[0]), np.where(take, first[1], second[1])


def _shared(by: Design, i: Integers, j: Integers, both: Marks) -> Integers:
    """On how many leases both cells of each comparison were measured."""
    leases = int(by.means.lease.max(initial=-1)) + 1
    known = by.means.cell * leases + by.means.lease
    places = np.flatnonzero(both)
    start = np.cumsum(by.compositions) - by.compositions
    size = by.compositions[i[places]]
    of = np.repeat(places, size)
    at = np.repeat(start[i[places]] - (np.cumsum(size) - size), size) + np.arange(of.size)
    found = np.isin(j[of] * leases + by.means.lease[at], known)
    return np.bincount(of[found], minlength=i.size).astype(np.int64)


def _pairs(by: Design, i: Integers, j: Integers, one: Marks) -> tuple[Integers, Floats, Floats, Floats, Marks]:
    """Of comparisons within one composition: pairs of runs of one block, and the ratio that they make where they are enough."""
    places = np.flatnonzero(one) if by.blocks else np.empty(0, dtype=np.int64)
    asked = pd.DataFrame({"cell": i[places], "to": j[places], "place": np.arange(places.size)})
    ours = asked.merge(by.each, on="cell")
    theirs = by.each.rename(columns={"cell": "to", "cost": "theirs"})
    both = ours.merge(theirs, on=["to", "lease", "repetition"])
    found = paired(both["theirs"], both["cost"], both["place"], places.size)
    counted = np.bincount(both["place"], minlength=places.size)
    pairs, take = np.zeros(i.size, dtype=np.int64), np.zeros(i.size, dtype=np.bool_)
    pairs[places] = counted
    take[places] = is_paired(counted, by.runs[i[places]], by.runs[j[places]])
    ratio, variance, freedom = (np.full(i.size, np.nan) for _ in range(3))
    weight = np.maximum(by.weights[i[places]], by.weights[j[places]])
    ratio[places], variance[places], freedom[places] = found.ratio, found.variance * weight, found.freedom
    return pairs, ratio, variance, freedom, take
