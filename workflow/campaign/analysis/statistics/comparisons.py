"""Comparisons of cells: ratios with intervals and p-values, within leases or between compositions.

A `Design` is built once from a table of runs; `compute_ratios` compares any pairs of its cells. One table decides which
comparison
each pair allows (`campaign.analysis.statistics.comparison_bases`):

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
from campaign.analysis.statistics.experiment_design import Design, design, of_campaign
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

__all__ = ["Design", "Ratios", "design", "of_campaign", "ratios"]


@dataclass(frozen=True)
class Ratios:
    """Ratios of cells to their references, in the order of the requested pairs.

    estimate: value, variance and degrees of freedom. is_tested: whether a test is allowed. is_paired, pair_count: whether the
    same leases or blocks
    contain both cells, and the number of these. method: method of the interval, or the reason that there is none. compositions,
    against_compositions: numbers of compositions, 0 for no cell. step_differences: differences of warm-up or measured steps, ''
    for none.
    is_in_order: whether the order of measurement was not random, so that drift can pose as a difference. is_adjusted: whether
    costs were
    divided by those of the reference. lending_campaigns: earlier campaigns whose spread of compositions is borrowed, '' for
    none. noisy_side: side
    whose compositions deviate more than those of the other configurations, '' for none.
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
        """Return two-sided p-values of the hypothesis that each ratio equals the null ratio; nan without a test."""
        return np.where(self.tested, self.of.p(none), np.nan)

    def least_detectable_pct(self, tests: int) -> Floats:
        """Return the least detectable difference of each comparison in a family of tests, in percent; nan without a test."""
        return np.where(self.tested, self.of.least_detectable_pct(max(tests, 1)), np.nan)

    def basis(self, index: pd.Index[Any]) -> dict[str, Any]:
        """Build the columns with the basis of each comparison; `campaign.analysis.statistics.verdict` describes them in words."""
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
        """Build the test columns of one figure: p, p_holm over all tests, n_tests and least_detectable_pct.

        Args:
            null_ratio: ratio under the null hypothesis.
        """
        p = self.p(none)
        count = int(np.isfinite(p).sum())
        return {
            "p": p,
            "p_holm": adjust_p_values(p),
            "n_tests": count,
            "least_detectable_pct": self.least_detectable_pct(count),
        }

    def columns(self, index: pd.Index[Any], none: npt.ArrayLike = 1.0) -> dict[str, Any]:
        """Build the columns of a table of comparisons: ratio with its bounds, pairs, tests and basis."""
        value, low, high = self.of.bounds()
        bounds = {"ratio": value, "ratio_low": low, "ratio_high": high}
        return bounds | {"n_pairs": self.pairs, "paired": self.paired} | self.tests(none) | self.basis(index)

    def over(self, other: Ratios) -> Ratios:
        """Return the ratio of these ratios to other, independent ratios."""
        both = self.tested & other.tested
        paired_, in_order = self.paired & other.paired, self.in_order | other.in_order
        return replace(self, of=self.of.over(other.of), tested=both, paired=paired_, in_order=in_order)


def ratios(of: pd.Series[Any], to: pd.Series[Any], by: Design) -> Ratios:
    """Compare each cell with the reference in the same position.

    Args:
        cells: ids of the cells.
        references: ids of the references; a missing id is no cell.
        design: design of the campaign.
    """
    pairs = _pair_cells(of, to, by)
    return _compare_pairs(pairs) if by.cells.size else _compare_with_nothing(pairs, pd.Series(to).isna().to_numpy())


def _pair_cells(cells: pd.Series[Any], references: pd.Series[Any], design: Design) -> CellPairs:
    """Find the indices of cells and references in the design."""
    cell, reference = design.places(cells), design.places(references)
    has_cell, has_reference = cell >= 0, reference >= 0
    itself = (pd.Series(cells).to_numpy() == pd.Series(references).to_numpy()) & has_cell
    comparable = has_cell & has_reference & ~itself
    cell, reference = np.where(comparable, cell, 0), np.where(comparable, reference, 0)
    return CellPairs(design, cell, reference, has_cell, has_reference, itself)


def _compare_with_nothing(pairs: CellPairs, is_missing: Marks) -> Ratios:
    """Build ratios for a design without cells, with the reason that each has no value."""
    count = pairs.cell.size
    nan, no, zero = np.full(count, np.nan), np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    blank = np.full(count, "", dtype=object)
    method = np.where(is_missing | ~pairs.has_reference, NO_INTERVAL_WITHOUT_REFERENCE, NO_INTERVAL_NO_RUN).astype(
        object
    )
    return Ratios(
        of=LogRatios(nan, nan, nan),
        tested=no,
        paired=no,
        pairs=zero,
        method=method,
        compositions=zero,
        against_compositions=zero,
        unlike=blank,
        in_order=no,
        adjusted=no,
        lent_by=blank,
        noisy=blank,
    )


def _compare_pairs(pairs: CellPairs) -> Ratios:
    """Compare the pairs of a design that has cells."""
    comparison, run_pairs, several = CellComparison(pairs), pairs.run_pairs, pairs.is_within_several_leases
    borrowed = comparison.method == T_BORROWED_EARLIER_SPREAD
    return Ratios(
        of=comparison.estimate,
        tested=comparison.is_tested,
        paired=run_pairs.is_enough | several,
        pairs=np.where(run_pairs.is_enough, run_pairs.count, np.where(several, pairs.shared_leases, 0)),
        method=comparison.method,
        compositions=np.where(pairs.has_cell, pairs.cell_compositions, 0),
        against_compositions=np.where(pairs.has_reference, pairs.reference_compositions, 0),
        unlike=pairs.describe_step_differences(),
        in_order=pairs.is_measured_in_order,
        adjusted=pairs.is_comparable & pairs.design.adjusted & ~pairs.is_within_leases,
        lent_by=np.where(borrowed, pairs.lending_campaigns, "").astype(object),
        noisy=_name_noisy_sides(comparison),
    )


def _name_noisy_sides(comparison: CellComparison) -> npt.NDArray[np.object_]:
    """Name the sides of each comparison whose compositions deviate more than those of other configurations."""
    pairs, noisy = comparison.pairs, comparison.pairs.design.variances.alone.noisy
    concerned = comparison.is_tested & ~pairs.is_within_leases
    cell, reference = concerned & noisy[pairs.cell], concerned & noisy[pairs.reference]
    return np.select(
        [cell & reference, cell, reference],
        ["this configuration and the reference", "this configuration", "the reference"],
        "",
    ).astype(object)
