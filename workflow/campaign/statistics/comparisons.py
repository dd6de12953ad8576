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

Changes between two campaigns
-----------------------------
Cells of one configuration share leases, so their changes deviate together: configurations (`group`), not cells, are what a mean is
over and what its freedom counts (the cluster-robust variance of Liang & Zeger, 1986, "Longitudinal data analysis using generalized
linear models", Biometrika 73(1), with Student's t).

Where each side of a comparison was composed once, the other configurations tell how much a change deviates by composing again:
their changes differ among each other by just that. A cell is then tested against the spread of the changes of the other
configurations; one that is named no longer takes part in judging others. That needs `LEAST_OTHERS` of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.statistics.composition_variance import Pooled
from campaign.statistics.experiment_design import STEPS, Design, Marks, design, of_campaign
from campaign.statistics.intervals import (
    AMONG_CHANGES,
    BETWEEN,
    BLOCKED,
    BORROWED,
    BORROWED_EARLIER,
    CONFOUNDED,
    ITSELF,
    NO_REFERENCE,
    NO_RUN,
    NOT_POSITIVE,
    ON_HOSTS,
    ONE_EACH,
    ONE_RUN,
    PAIRED,
    PAIRED_BY_LEASE,
    RUNS_OF_ONE,
    SIGNIFICANT,
    Floats,
    Integers,
    holm,
)
from campaign.statistics.ratios import LogRatios, is_paired, paired, welch

__all__ = ["Design", "Ratios", "design", "of_campaign", "ratios"]


@dataclass(frozen=True)
class Ratios:
    """Ratios of cells to their references, in the order asked.

    of: value, variance and freedom of each. tested: whether a test is allowed. paired, pairs: whether the same leases or blocks
    hold both, and how many. method: how the interval was made, or why there is none. compositions, against_compositions: on how
    many each was measured, 0 for no cell. unlike: how their warm-up or measured steps differ, '' where they do not. in_order:
    whether they were measured in an order that is not random, so that drift can pose as a difference. adjusted: whether costs were
    divided by those of the reference. lent_by: the earlier campaigns whose spread of compositions is borrowed, '' for none.
    noisy: which of the two has compositions that deviate more than those of the other configurations, '' for none.
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
    lent_by: npt.NDArray[np.object_]
    noisy: npt.NDArray[np.object_]

    def p(self, none: npt.ArrayLike = 1.0) -> Floats:
        """Two-sided p-values of the hypothesis that the ratio is `none`; nan without a test."""
        return np.where(self.tested, self.of.p(none), np.nan)

    def least_detectable_pct(self, tests: int) -> Floats:
        """Return `LogRatios.least_detectable_pct` of each comparison in a family of tests; nan without a test."""
        return np.where(self.tested, self.of.least_detectable_pct(max(tests, 1)), np.nan)

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
            **({"lent_by": pd.Series(self.lent_by, index=index, dtype="str")} if (self.lent_by != "").any() else {}),
            **({"noisy": pd.Series(self.noisy, index=index, dtype="str")} if (self.noisy != "").any() else {}),
        }

    def tests(self, none: npt.ArrayLike = 1.0) -> dict[str, Any]:
        """Columns of the tests that the ratios are `none`, which are one figure's: p, p_holm over all of them, n_tests, and
        least_detectable_pct among as many."""
        p = self.p(none)
        count = int(np.isfinite(p).sum())
        return {"p": p, "p_holm": holm(p), "n_tests": count, "least_detectable_pct": self.least_detectable_pct(count)}

    def columns(self, index: pd.Index[Any], none: npt.ArrayLike = 1.0) -> dict[str, Any]:
        """Columns of a table of comparisons: ratio with its bounds, pairs, tests (`tests`) and `basis`."""
        value, low, high = self.of.bounds()
        bounds = {"ratio": value, "ratio_low": low, "ratio_high": high}
        return bounds | {"n_pairs": self.pairs, "paired": self.paired} | self.tests(none) | self.basis(index)

    def over(self, other: Ratios) -> Ratios:
        """The ratio of these ratios to others that are independent of them."""
        both = self.tested & other.tested
        paired_, in_order = self.paired & other.paired, self.in_order | other.in_order
        return replace(self, of=self.of.over(other.of), tested=both, paired=paired_, in_order=in_order)


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
        return Ratios(LogRatios(empty, empty, empty), off, off, zero, none, zero, zero, same, off, off, same, same)
    return _ratios(by, i, j, both, itself, there, against)


def _ratios(by: Design, i: Integers, j: Integers, both: Marks, itself: Marks, there: Marks, against: Marks) -> Ratios:
    shared = _shared(by, i, j, both)
    k_i, k_j = by.compositions[i], by.compositions[j]
    within = both & (shared == k_i) & (shared == k_j)
    several, one = within & (shared >= 2), within & (shared == 1)
    value = np.where(both, by.cost[j] / by.cost[i], np.nan)
    blocked, alone, beside = by.variances.blocked, by.variances.alone, by.variances.beside
    apart = ~by.means.groups.same_system(i, j)  # two systems drift on their own
    aligned = by.variances.in_blocks[i] & by.variances.in_blocks[j] & (k_i == k_j) & ~apart
    between = _sum(by, alone, i, j)
    found = _either(aligned & np.isfinite(blocked.pool[by.means.groups.stratum[i]]), _sum(by, blocked, i, j), between)
    found = _either(several & np.isfinite(beside.variance[i] + beside.variance[j]), _sum(by, beside, i, j), found)
    hosts = by.host_effects.pairs(i, j, within | ~both)
    hosts = replace(hosts, confounded=hosts.confounded & ~apart)  # hosts are part of what systems differ in
    without = by.host_effects.variances
    on_hosts = hosts.adjusted & np.isfinite(without.variance[i] + without.variance[j])
    variance, freedom = _sum(by, without, i, j)
    found = _either(on_hosts, (variance * hosts.more, freedom), found)
    value = np.where(on_hosts, value * np.exp(hosts.shift), value)
    tested = both & np.isfinite(found[0]) & (found[1] > 0) & ~hosts.confounded
    run_variance, run_freedom = by.of_runs
    alone_runs = welch((run_variance[i], run_freedom[i]), (run_variance[j], run_freedom[j]))
    runs_only = (run_variance[i] + run_variance[j], alone_runs)
    found = _either(one | (both & ~tested & ~hosts.confounded), runs_only, found)
    pairs, ratio, pair_variance, pair_freedom, blocks = _pairs(by, i, j, one)
    found = _either(blocks, (pair_variance, pair_freedom), found)
    value = np.where(blocks, ratio, value)
    tested = np.where(one, np.isfinite(found[0]), tested)
    value, variance = np.where(itself, 1.0, value), np.where(itself, 0.0, np.where(both, found[0], np.nan))
    freedom = np.where(both, found[1], np.nan)
    confounded = hosts.confounded & np.isfinite(between[0])
    lone = by.variances.borrowed[i] | by.variances.borrowed[j]
    lent_by = np.where(by.variances.lent_by[i] != "", by.variances.lent_by[i], by.variances.lent_by[j])
    lent = lone & (lent_by != "")
    conditions = [
        itself, ~against, ~there, ~np.isfinite(value), blocks, several & tested, one & tested, ~np.isfinite(variance),
        confounded, ~tested, on_hosts, lent, lone, aligned,
    ]  # fmt: skip
    words = [
        ITSELF, NO_REFERENCE, NO_RUN, NOT_POSITIVE, PAIRED, PAIRED_BY_LEASE, RUNS_OF_ONE, ONE_RUN, CONFOUNDED,
        ONE_EACH, ON_HOSTS, BORROWED_EARLIER,
        BORROWED, BLOCKED,
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
        np.where(method == BORROWED_EARLIER, lent_by, "").astype(object),
        _noisy(alone.noisy[i], alone.noisy[j], tested & ~within),
    )


def _noisy(cell: Marks, reference: Marks, take: Marks) -> npt.NDArray[np.object_]:
    """Name the sides of each comparison whose compositions deviate more than those of other configurations."""
    return np.select(
        [take & cell & reference, take & cell, take & reference],
        ["this configuration and the reference", "this configuration", "the reference"],
        "",
    ).astype(object)


def _unlike(steps: pd.DataFrame, i: Integers, j: Integers, both: Marks) -> npt.NDArray[np.object_]:
    """The differences in protocol of two cells, such as '5 to 8 warm-up steps against 5'; '' for none."""
    told = np.full(i.size, "", dtype=object)
    for name in dict.fromkeys(steps.columns.get_level_values(0)) if len(steps.columns) else ():
        ends = steps[name].to_numpy()
        for place in np.flatnonzero(both & (ends[i] != ends[j]).any(axis=1)):
            ours, theirs = (" to ".join(dict.fromkeys(f"{int(n):,}" for n in ends[at[place]])) for at in (i, j))
            told[place] += f"{', ' if told[place] else ''}{ours} {STEPS[name]} against {theirs}"
    return told


_Part = tuple[Floats, Floats]


def _sum(by: Design, of: Pooled, i: Integers, j: Integers) -> _Part:
    """Variance of the difference of two cells, and its degrees of freedom: those of the pool where both cells are from one."""
    variance = of.variance * by.weights
    total = variance[i] + variance[j]
    own = welch((variance[i], of.freedom[i]), (variance[j], of.freedom[j]))
    limit = np.maximum(of.pool_freedom[i], np.maximum(of.freedom[i], of.freedom[j]))
    # Two variances of one pool are known no better than the pool, and one that both have no better than for each of them.
    own = np.where(by.means.groups.stratum[i] == by.means.groups.stratum[j], np.minimum(own, limit), own)
    return total, np.where(
        by.means.groups.alike[i] == by.means.groups.alike[j], np.minimum(of.freedom[i], of.freedom[j]), own
    )


def _either(take: Marks, first: _Part, second: _Part) -> _Part:
    return np.where(take, first[0], second[0]), np.where(take, first[1], second[1])


def _shared(by: Design, i: Integers, j: Integers, both: Marks) -> Integers:
    """The number of leases on which both cells of each comparison were measured."""
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
    """Pairs of runs of one block for comparisons within one composition, and their ratio where they are enough."""
    places = np.flatnonzero(one) if by.blocks else np.empty(0, dtype=np.int64)
    ratio, variance, freedom = (np.full(i.size, np.nan) for _ in range(3))
    pairs, take = np.zeros(i.size, dtype=np.int64), np.zeros(i.size, dtype=np.bool_)
    if not places.size:
        return pairs, ratio, variance, freedom, take
    asked = pd.DataFrame({"cell": i[places], "to": j[places], "place": np.arange(places.size)})
    ours = asked.merge(by.each, on="cell")
    theirs = by.each.rename(columns={"cell": "to", "cost": "theirs"})
    both = ours.merge(theirs, on=["to", "lease", "repetition"])
    found = paired(both["theirs"], both["cost"], both["place"], places.size)
    counted = np.bincount(both["place"], minlength=places.size)
    pairs[places] = counted
    take[places] = is_paired(counted, by.runs[i[places]], by.runs[j[places]])
    weight = np.maximum(by.weights[i[places]], by.weights[j[places]])
    ratio[places], variance[places], freedom[places] = found.ratio, found.variance * weight, found.freedom
    return pairs, ratio, variance, freedom, take


LEAST_OTHERS = 4


def mean_change(ratio: npt.ArrayLike, group: npt.ArrayLike) -> LogRatios:
    """Geometric mean of ratios (positive, at least one), as one element; without variance for one group."""
    logs = np.log(np.asarray(ratio, dtype=np.float64))
    of = np.unique(np.asarray(group), return_inverse=True)[1]
    groups = int(of.max()) + 1
    sums = np.bincount(of, logs - logs.mean())
    variance = float((sums**2).sum()) / logs.size**2 * groups / (groups - 1) if groups > 1 else np.nan
    freedom = groups - 1.0 if groups > 1 else np.nan
    return LogRatios(np.array([np.exp(logs.mean())]), np.array([variance]), np.array([freedom]))


def among_each_other(found: Ratios, group: npt.ArrayLike) -> Ratios:
    """Ratios with a test where they had none: against the spread of the ratios of other groups."""
    of = np.unique(np.asarray(group), return_inverse=True)[1].astype(np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(found.of.ratio)
    open_ = ~found.tested & np.isfinite(logs) & (found.method != CONFOUNDED)
    named = np.zeros(logs.size, dtype=np.bool_)
    result = found
    while True:
        variance, freedom = _of_others(logs, of, open_ & ~named)
        known = open_ & (freedom >= LEAST_OTHERS - 1)
        if not known.any():
            return result
        variance = np.where(known, np.fmax(variance, found.of.variance), found.of.variance)
        ratios = LogRatios(found.of.ratio, variance, np.where(known, freedom, found.of.freedom))
        method = np.where(known, AMONG_CHANGES, found.method).astype(object)
        result = replace(found, of=ratios, tested=found.tested | known, method=method)
        slow = known & (np.nan_to_num(holm(result.p()), nan=1.0) < SIGNIFICANT) & ~named
        if not slow.any():
            return result
        named |= slow


def _of_others(logs: Floats, of: Integers, take: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """The mean square of the changes of other groups about their mean, for each cell, and its freedom."""
    groups = int(of.max(initial=-1)) + 1
    size = np.bincount(of[take], minlength=groups)
    there = size > 0
    mean = np.bincount(of[take], logs[take], groups) / np.maximum(size, 1)
    square = np.bincount(of[take], logs[take] ** 2, groups) / np.maximum(size, 1)
    others = there.sum() - there
    some = np.maximum(others, 1)
    centre = (mean[there].sum() - np.where(there, mean, 0.0)) / some
    about = (square[there].sum() - np.where(there, square, 0.0)) / some - centre**2
    variance = np.maximum(about, 0.0) * others / np.maximum(others - 1, 1)
    return np.asarray(variance[of]), np.asarray(others[of] - 1.0)
