"""Comparisons of cells: ratios with intervals and p-values, within leases or between compositions.

A `Design` is built once from a table of runs; `compute_ratios` compares any pairs of its cells. One table decides which
comparison each pair allows (`campaign.analysis.statistics.comparison_bases`):

- between compositions: two cells that do not share all of their leases. Their variance is that of compositions
  (`campaign.analysis.statistics.composition_variance`), with the degrees of freedom of compositions, not of runs.
- within leases: two cells that were measured on the same leases, several of them. The effect of a lease on both cancels; its
  effect on one of them has a variance of its own.
- within one composition: both on one lease. Paired by block (one repetition of all cells of the lease) if there are enough
  pairs, else from the runs (Welch's t). The statement is about this composition.
- one composition each, with an unknown spread of compositions: the interval includes run-to-run variation only, and there is no
  test.

A ratio is of throughput: the cost of the reference over the cost of the cell (`campaign.analysis.statistics.location`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.analysis.statistics.cell_pairs import CellPairs
from campaign.analysis.statistics.comparison_bases import CellComparison
from campaign.analysis.statistics.experiment_design import Design, build_campaign_design, build_design
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import (
    NO_INTERVAL_NO_RUN,
    NO_INTERVAL_WITHOUT_REFERENCE,
    T_BORROWED_EARLIER_SPREAD,
    Floats,
    Integers,
    Marks,
    adjust_p_values,
)

__all__ = ["Design", "Ratios", "build_campaign_design", "build_design", "compute_ratios"]


@dataclass(frozen=True)
class Ratios:
    """Ratios of cells to their references, in the order of the requested pairs.

    estimate: value, variance and degrees of freedom. is_tested: whether a test is allowed. is_paired, pair_count:
    whether the same leases or blocks contain both cells, and the number of these. method: method of the interval, or
    the reason that there is none. compositions, against_compositions: numbers of compositions, 0 for no cell.
    step_differences: differences of warm-up or measured steps, '' for none.
    is_in_order: whether the order of measurement was not random, so that drift can look like a difference. is_adjusted:
    whether costs were divided by those of the reference. lending_campaigns: earlier campaigns whose spread of
    compositions is borrowed, '' for none. noisy_side: side whose compositions deviate more than those of the other
    configurations, '' for none.
    """

    estimate: LogRatios
    is_tested: Marks
    is_paired: Marks
    pair_count: Integers
    method: npt.NDArray[np.object_]
    compositions: Integers
    against_compositions: Integers
    step_differences: npt.NDArray[np.object_]
    is_in_order: Marks
    is_adjusted: Marks
    lending_campaigns: npt.NDArray[np.object_]
    noisy_side: npt.NDArray[np.object_]

    def compute_p_values(self, null_ratio: npt.ArrayLike = 1.0) -> Floats:
        """Return two-sided p-values of the hypothesis that each ratio equals the null ratio; nan without a test."""
        return np.where(self.is_tested, self.estimate.compute_p_values(null_ratio), np.nan)

    def compute_detectable_pct(self, tests: int) -> Floats:
        """Return the least detectable difference of each comparison in a family of tests, in percent; nan without a test."""
        return np.where(self.is_tested, self.estimate.compute_detectable_pct(max(tests, 1)), np.nan)

    def build_basis_columns(self, index: pd.Index[Any]) -> dict[str, Any]:
        """Build the columns with the basis of each comparison; `campaign.analysis.statistics.verdict` describes them in words."""
        return {
            "tested": self.is_tested,
            "method": pd.Series(self.method, index=index, dtype="str"),
            "compositions": self.compositions,
            "against_compositions": self.against_compositions,
            "freedom": np.where(self.is_tested, self.estimate.freedom, np.nan),
            "unlike": pd.Series(self.step_differences, index=index, dtype="str"),
            "in_order": self.is_in_order,
            **({"adjusted": self.is_adjusted} if self.is_adjusted.any() else {}),
            **(
                {"lent_by": pd.Series(self.lending_campaigns, index=index, dtype="str")}
                if (self.lending_campaigns != "").any()
                else {}
            ),
            **(
                {"noisy": pd.Series(self.noisy_side, index=index, dtype="str")} if (self.noisy_side != "").any() else {}
            ),
        }

    def build_test_columns(self, null_ratio: npt.ArrayLike = 1.0) -> dict[str, Any]:
        """Build the test columns of one figure: p, p_holm over all tests, n_tests and least_detectable_pct.

        Args:
            null_ratio: ratio under the null hypothesis.
        """
        p = self.compute_p_values(null_ratio)
        count = int(np.isfinite(p).sum())
        return {
            "p": p,
            "p_holm": adjust_p_values(p),
            "n_tests": count,
            "least_detectable_pct": self.compute_detectable_pct(count),
        }

    def build_columns(self, index: pd.Index[Any], null_ratio: npt.ArrayLike = 1.0) -> dict[str, Any]:
        """Build the columns of a table of comparisons: ratio with its bounds, pairs, tests and basis."""
        value, low, high = self.estimate.compute_bounds()
        bounds = {"ratio": value, "ratio_low": low, "ratio_high": high}
        return (
            bounds
            | {"n_pairs": self.pair_count, "paired": self.is_paired}
            | self.build_test_columns(null_ratio)
            | self.build_basis_columns(index)
        )

    def divide_by(self, divisor: Ratios) -> Ratios:
        """Divide these ratios by other, independent ratios."""
        is_tested = self.is_tested & divisor.is_tested
        is_paired, is_in_order = self.is_paired & divisor.is_paired, self.is_in_order | divisor.is_in_order
        return replace(
            self,
            estimate=self.estimate.divide_by(divisor.estimate),
            is_tested=is_tested,
            is_paired=is_paired,
            is_in_order=is_in_order,
        )


def compute_ratios(cells: pd.Series[Any], references: pd.Series[Any], design: Design) -> Ratios:
    """Compare each cell with the reference in the same position.

    Args:
        cells: ids of the cells.
        references: ids of the references; a missing id means no reference.
        design: design of the campaign.
    """
    pairs = _pair_cells(cells, references, design)
    return (
        _compare_pairs(pairs)
        if design.cells.size
        else _build_empty_ratios(pairs, pd.Series(references).isna().to_numpy())
    )


def _pair_cells(cells: pd.Series[Any], references: pd.Series[Any], design: Design) -> CellPairs:
    """Find the indices of cells and references in the design."""
    cell, reference = design.find_cell_indices(cells), design.find_cell_indices(references)
    has_cell, has_reference = cell >= 0, reference >= 0
    is_itself = (pd.Series(cells).to_numpy() == pd.Series(references).to_numpy()) & has_cell
    is_comparable = has_cell & has_reference & ~is_itself
    cell, reference = np.where(is_comparable, cell, 0), np.where(is_comparable, reference, 0)
    return CellPairs(design, cell, reference, has_cell, has_reference, is_itself)


def _build_empty_ratios(pairs: CellPairs, is_missing: Marks) -> Ratios:
    """Build ratios for a design without cells, with the reason that each has no value."""
    count = pairs.cell.size
    nan, no, zero = np.full(count, np.nan), np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    blank = np.full(count, "", dtype=object)
    method = np.where(is_missing | ~pairs.has_reference, NO_INTERVAL_WITHOUT_REFERENCE, NO_INTERVAL_NO_RUN).astype(
        object
    )
    return Ratios(
        estimate=LogRatios(nan, nan, nan),
        is_tested=no,
        is_paired=no,
        pair_count=zero,
        method=method,
        compositions=zero,
        against_compositions=zero,
        step_differences=blank,
        is_in_order=no,
        is_adjusted=no,
        lending_campaigns=blank,
        noisy_side=blank,
    )


def _compare_pairs(pairs: CellPairs) -> Ratios:
    """Compare the pairs of a design that has cells."""
    comparison, run_pairs, is_within_leases = CellComparison(pairs), pairs.run_pairs, pairs.is_within_several_leases
    is_borrowed = comparison.methods == T_BORROWED_EARLIER_SPREAD
    return Ratios(
        estimate=comparison.estimate,
        is_tested=comparison.is_tested,
        is_paired=run_pairs.is_paired | is_within_leases,
        pair_count=np.where(run_pairs.is_paired, run_pairs.count, np.where(is_within_leases, pairs.shared_leases, 0)),
        method=comparison.methods,
        compositions=np.where(pairs.has_cell, pairs.cell_compositions, 0),
        against_compositions=np.where(pairs.has_reference, pairs.reference_compositions, 0),
        step_differences=pairs.describe_step_differences(),
        is_in_order=pairs.is_measured_in_order,
        is_adjusted=pairs.is_comparable & pairs.design.is_adjusted & ~pairs.is_within_leases,
        lending_campaigns=np.where(is_borrowed, pairs.lending_campaigns, "").astype(object),
        noisy_side=_name_noisy_sides(comparison),
    )


def _name_noisy_sides(comparison: CellComparison) -> npt.NDArray[np.object_]:
    """Name the sides of each comparison whose compositions deviate more than those of other configurations."""
    pairs, is_noisy = comparison.pairs, comparison.pairs.design.variances.between_compositions.noisy
    is_concerned = comparison.is_tested & ~pairs.is_within_leases
    cell, reference = is_concerned & is_noisy[pairs.cell], is_concerned & is_noisy[pairs.reference]
    return np.select(
        [cell & reference, cell, reference],
        ["this configuration and the reference", "this configuration", "the reference"],
        "",
    ).astype(object)
