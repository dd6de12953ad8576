"""Bases of a comparison: the variance that an interval uses, and the name of the method for the reader.

Both are ordered tables. The first row whose predicate holds for a pair of cells decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from campaign.analysis.statistics.cell_pairs import CellPairs
from campaign.analysis.statistics.composition_variance import PooledVariance
from campaign.analysis.statistics.ratios import LogRatios, compute_welch_freedom
from campaign.common.intervals import (
    CONFOUNDED_WITH_HOSTS,
    NO_INTERVAL_NO_RUN,
    NO_INTERVAL_NOT_POSITIVE,
    NO_INTERVAL_ONE_RUN,
    NO_INTERVAL_REFERENCE,
    NO_INTERVAL_WITHOUT_REFERENCE,
    RUN_VARIATION_ONLY,
    T_BORROWED_EARLIER_SPREAD,
    T_BORROWED_SPREAD,
    T_ON_SAME_HOSTS,
    T_OVER_BLOCKED_COMPOSITIONS,
    T_OVER_COMPOSITIONS,
    T_OVER_RUNS_OF_COMPOSITION,
    T_PAIRED_BY_BLOCK,
    T_PAIRED_BY_LEASE,
    Marks,
)


@dataclass(frozen=True)
class CellComparison:
    """Estimated ratios of pairs of cells, and which of them may be tested."""

    pairs: CellPairs

    @cached_property
    def over_compositions(self) -> LogRatios:
        """Ratios whose variance is that between compositions."""
        return _select_estimate(_COMPOSITION_ESTIMATES, self)

    @cached_property
    def is_tested_over_compositions(self) -> Marks:
        """True if the variance of compositions allows a test."""
        estimate, pairs = self.over_compositions, self.pairs
        has_variance = np.isfinite(estimate.variance) & (estimate.freedom > 0)
        return pairs.is_comparable & has_variance & ~pairs.hosts.is_confounded

    @cached_property
    def is_adjusted_for_hosts(self) -> Marks:
        """True if the effects of hosts are removed from the ratio."""
        pairs, variance = self.pairs, self.pairs.design.host_effects.variances.variance
        return pairs.hosts.is_adjusted & np.isfinite(variance[pairs.cell] + variance[pairs.reference])

    @cached_property
    def unadjusted_variance(self) -> npt.NDArray[np.float64]:
        """Variance over compositions of each pair, including the effects of hosts."""
        return self.pairs.add_variances(self.pairs.design.variances.between_compositions)[0]

    @cached_property
    def estimate(self) -> LogRatios:
        """Ratios of all pairs, with variance and degrees of freedom; nan if a pair cannot be compared."""
        comparable, itself = self.pairs.is_comparable, self.pairs.is_reference_itself
        estimate = _select_estimate(_ESTIMATES, self)
        return LogRatios(
            np.where(itself, 1.0, estimate.ratio),
            np.where(itself, 0.0, np.where(comparable, estimate.variance, np.nan)),
            np.where(comparable, estimate.freedom, np.nan),
        )

    @cached_property
    def is_tested(self) -> Marks:
        """True if a test is allowed."""
        has_variance = np.isfinite(self.estimate.variance)
        return np.where(self.pairs.is_within_composition, has_variance, self.is_tested_over_compositions)

    @cached_property
    def methods(self) -> npt.NDArray[np.object_]:
        """Name of the method of each interval, or the reason why there is no interval."""
        conditions = [basis.applies(self) for basis in _BASES]
        return np.select(conditions, [basis.method for basis in _BASES], T_OVER_COMPOSITIONS).astype(object)


def _is_reference_itself(comparison: CellComparison) -> Marks:
    return comparison.pairs.is_reference_itself


def _has_no_reference(comparison: CellComparison) -> Marks:
    return ~comparison.pairs.has_reference


def _has_no_cell(comparison: CellComparison) -> Marks:
    return ~comparison.pairs.has_cell


def _has_no_ratio(comparison: CellComparison) -> Marks:
    return ~np.isfinite(comparison.estimate.ratio)


def _is_paired_by_block(comparison: CellComparison) -> Marks:
    return comparison.pairs.run_pairs.is_paired


def _is_paired_by_lease(comparison: CellComparison) -> Marks:
    return comparison.pairs.is_within_several_leases & comparison.is_tested


def _is_tested_within_composition(comparison: CellComparison) -> Marks:
    return comparison.pairs.is_within_composition & comparison.is_tested


def _has_no_variance(comparison: CellComparison) -> Marks:
    return ~np.isfinite(comparison.estimate.variance)


def _is_confounded_with_hosts(comparison: CellComparison) -> Marks:
    return comparison.pairs.hosts.is_confounded & np.isfinite(comparison.unadjusted_variance)


def _is_not_tested(comparison: CellComparison) -> Marks:
    return ~comparison.is_tested


def _is_adjusted_for_hosts(comparison: CellComparison) -> Marks:
    return comparison.is_adjusted_for_hosts


def _borrows_from_earlier_campaigns(comparison: CellComparison) -> Marks:
    pairs = comparison.pairs
    return np.asarray(pairs.is_spread_borrowed & (pairs.lending_campaigns != ""), dtype=np.bool_)


def _borrows_from_other_cells(comparison: CellComparison) -> Marks:
    return comparison.pairs.is_spread_borrowed


def _is_in_blocks(comparison: CellComparison) -> Marks:
    return comparison.pairs.is_in_blocks


class MethodBasis(NamedTuple):
    """Method of an interval, and the predicate that selects the pairs that use it."""

    method: str
    applies: Callable[[CellComparison], Marks]


# A pair for which no row holds is compared between compositions.
_BASES = (
    MethodBasis(NO_INTERVAL_REFERENCE, _is_reference_itself),
    MethodBasis(NO_INTERVAL_WITHOUT_REFERENCE, _has_no_reference),
    MethodBasis(NO_INTERVAL_NO_RUN, _has_no_cell),
    MethodBasis(NO_INTERVAL_NOT_POSITIVE, _has_no_ratio),
    MethodBasis(T_PAIRED_BY_BLOCK, _is_paired_by_block),
    MethodBasis(T_PAIRED_BY_LEASE, _is_paired_by_lease),
    MethodBasis(T_OVER_RUNS_OF_COMPOSITION, _is_tested_within_composition),
    MethodBasis(NO_INTERVAL_ONE_RUN, _has_no_variance),
    MethodBasis(CONFOUNDED_WITH_HOSTS, _is_confounded_with_hosts),
    MethodBasis(RUN_VARIATION_ONLY, _is_not_tested),
    MethodBasis(T_ON_SAME_HOSTS, _is_adjusted_for_hosts),
    MethodBasis(T_BORROWED_EARLIER_SPREAD, _borrows_from_earlier_campaigns),
    MethodBasis(T_BORROWED_SPREAD, _borrows_from_other_cells),
    MethodBasis(T_OVER_BLOCKED_COMPOSITIONS, _is_in_blocks),
)


def _is_always_true(comparison: CellComparison) -> Marks:
    return np.ones(comparison.pairs.cell.size, dtype=np.bool_)


def _has_block_variance(comparison: CellComparison) -> Marks:
    pairs = comparison.pairs
    pool, stratum = pairs.design.variances.within_blocks.pool, pairs.design.means.groups.stratum
    return pairs.is_in_blocks & np.isfinite(pool[stratum[pairs.cell]])


def _has_lease_variance(comparison: CellComparison) -> Marks:
    pairs, variance = comparison.pairs, comparison.pairs.design.variances.within_leases.variance
    return pairs.is_within_several_leases & np.isfinite(variance[pairs.cell] + variance[pairs.reference])


def _uses_run_variance(comparison: CellComparison) -> Marks:
    pairs = comparison.pairs
    is_untested = pairs.is_comparable & ~comparison.is_tested_over_compositions & ~pairs.hosts.is_confounded
    return pairs.is_within_composition | is_untested


def _estimate_between_compositions(comparison: CellComparison) -> LogRatios:
    return _estimate_from_pool(comparison, comparison.pairs.design.variances.between_compositions)


def _estimate_in_blocks(comparison: CellComparison) -> LogRatios:
    return _estimate_from_pool(comparison, comparison.pairs.design.variances.within_blocks)


def _estimate_within_leases(comparison: CellComparison) -> LogRatios:
    return _estimate_from_pool(comparison, comparison.pairs.design.variances.within_leases)


def _estimate_from_pool(comparison: CellComparison, pool: PooledVariance) -> LogRatios:
    """Estimate the ratios of locations with a pooled variance."""
    pairs, cost = comparison.pairs, comparison.pairs.design.cost
    ratio = np.where(pairs.is_comparable, cost[pairs.reference] / cost[pairs.cell], np.nan)
    return LogRatios(ratio, *pairs.add_variances(pool))


def _estimate_on_same_hosts(comparison: CellComparison) -> LogRatios:
    """Estimate the ratios of locations with the effects of hosts removed."""
    hosts = comparison.pairs.hosts
    estimate = _estimate_from_pool(comparison, comparison.pairs.design.host_effects.variances)
    return LogRatios(
        estimate.ratio * np.exp(hosts.log_shift), estimate.variance * hosts.variance_factor, estimate.freedom
    )


def _estimate_from_runs(comparison: CellComparison) -> LogRatios:
    """Estimate the ratios over compositions with the variance of runs alone."""
    pairs = comparison.pairs
    variance, freedom = pairs.design.run_variance
    i, j = pairs.cell, pairs.reference
    combined_freedom = compute_welch_freedom((variance[i], freedom[i]), (variance[j], freedom[j]))
    return LogRatios(comparison.over_compositions.ratio, variance[i] + variance[j], combined_freedom)


def _estimate_over_compositions(comparison: CellComparison) -> LogRatios:
    return comparison.over_compositions


def _estimate_from_run_pairs(comparison: CellComparison) -> LogRatios:
    return comparison.pairs.run_pairs.estimate


class EstimateBasis(NamedTuple):
    """Function that computes an estimate for all pairs, and the predicate that selects the pairs that use it."""

    applies: Callable[[CellComparison], Marks]
    estimate: Callable[[CellComparison], LogRatios]


_COMPOSITION_ESTIMATES = (
    EstimateBasis(_is_adjusted_for_hosts, _estimate_on_same_hosts),
    EstimateBasis(_has_lease_variance, _estimate_within_leases),
    EstimateBasis(_has_block_variance, _estimate_in_blocks),
    EstimateBasis(_is_always_true, _estimate_between_compositions),
)
_ESTIMATES = (
    EstimateBasis(_is_paired_by_block, _estimate_from_run_pairs),
    EstimateBasis(_uses_run_variance, _estimate_from_runs),
    EstimateBasis(_is_always_true, _estimate_over_compositions),
)


def _select_estimate(estimates: tuple[EstimateBasis, ...], comparison: CellComparison) -> LogRatios:
    """Select for each pair the first estimate whose predicate holds."""
    conditions = [estimate.applies(comparison) for estimate in estimates]
    choices = [estimate.estimate(comparison) for estimate in estimates]
    return LogRatios(
        np.select(conditions, [choice.ratio for choice in choices]),
        np.select(conditions, [choice.variance for choice in choices]),
        np.select(conditions, [choice.freedom for choice in choices]),
    )
