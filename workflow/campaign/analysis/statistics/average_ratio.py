"""Geometric mean of ratios of cells, with an interval that accounts for cells that share leases.

A sentence about several cells has this mean and the range of the estimates. The largest of many estimates is larger than its
true value, so an interval around it would be wrong too often.

Ratios of cells on one lease deviate together. The mean is a weighted sum over leases: each lease adds the deviations of its
cells from their locations, with the weights of the cells in the mean. The squares of these sums, divided by the expected
contribution of a lease, give one variance. Leases are independent replicates, so they are its degrees of freedom. Deviations
that are common to a block of the campaign are removed if the block holds at least three leases, as in `composition_variance`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from campaign.analysis.statistics.composition_variance import compute_group_means
from campaign.analysis.statistics.experiment_design import Design
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import T_OVER_RUNS_OF_COMPOSITION, T_PAIRED_BY_BLOCK, Floats, Integers, Marks

_MIN_LEASES_PER_BLOCK = 3


def compute_average_ratio(rows: pd.DataFrame, design: Design) -> LogRatios:
    """Compute the geometric mean of ratios, as an array of one element.

    Its variance is nan if a ratio must not be tested, or if leases are not replicated.

    Args:
        rows: comparisons of `campaign.analysis.statistics.comparable_cells`, each with a ratio: `ratio`,
            `cell_id`, `against_cell`, `method`, `tested`; for a ratio of two ratios also `cell_id_large` and
            `against_cell_large`.
        design: design of the cells.
    """
    mean = np.array([np.exp(np.log(rows["ratio"].to_numpy(dtype=np.float64)).mean())])
    if not rows["tested"].all():
        return LogRatios(mean, np.array([np.nan]), np.array([np.nan]))
    is_within_composition = bool(rows["method"].isin([T_PAIRED_BY_BLOCK, T_OVER_RUNS_OF_COMPOSITION]).all())
    weight = _compute_cell_weights(rows, design)
    variance, freedom = _estimate_variance(
        _compute_deviations(design, weight != 0, is_within_composition),
        weight,
        design.has_random_leases and not is_within_composition,
    )
    variance *= float(np.average(design.weights, weights=np.abs(weight)))
    return LogRatios(mean, np.array([variance]), np.array([freedom]))


def _compute_cell_weights(rows: pd.DataFrame, design: Design) -> Floats:
    """Compute the weight of each cell's cost in the mean log ratio."""
    sign = 1 if "cell_id_large" in rows else -1
    sides = {"cell_id": sign, "against_cell": -sign, "cell_id_large": -1, "against_cell_large": 1}
    weight = np.zeros(design.cost.size)
    for column in sides.keys() & set(rows):
        np.add.at(weight, design.find_cell_indices(rows[column]), sides[column] / len(rows))
    return weight


def _compute_deviations(design: Design, is_used: Marks, is_within_composition: bool) -> pd.DataFrame:
    """Compute the deviations of cells from their locations, one row per cell and replicate.

    A replicate is a lease, or within one composition a block of runs.

    Args:
        design: design of the cells.
        is_used: whether each cell is included.
        is_within_composition: whether all comparisons are within one composition.
    """
    if is_within_composition:
        rows = design.valid_runs[is_used[design.valid_runs["cell"]]]
        rows = rows.assign(unit=rows.groupby(["lease", "repetition"]).ngroup(), block=0)
        rows = rows.assign(value=rows["cost"] / design.cost[rows["cell"]])
    else:
        means, is_used_mean = design.means, is_used[design.means.cell]
        names = {"cell": means.cell, "unit": means.lease, "block": means.block, "value": means.value}
        rows = pd.DataFrame({name: values[is_used_mean] for name, values in names.items()})
    return rows.assign(value=rows["value"] - rows.groupby("cell")["value"].transform("mean"))


def _estimate_variance(rows: pd.DataFrame, weight: Floats, in_blocks: bool) -> tuple[float, float]:
    """Estimate the variance of the weighted sum of cells, and its degrees of freedom.

    A replicate is expected to add the square of the sum of its weights, for effects common to its cells, and the sum of their
    squares, for effects of single cells.
    """
    count = rows.groupby("cell")["value"].transform("size").to_numpy(dtype=np.float64)
    unit: Integers = np.unique(rows["unit"].to_numpy(), return_inverse=True)[1].astype(np.int64)
    share, value = weight[rows["cell"]] / count, rows["value"].to_numpy()
    freedom = float((compute_group_means(1 - 1 / count, unit, int(unit.max(initial=-1)) + 1)).sum())
    in_common = np.bincount(unit, share)
    if in_blocks and not np.allclose(in_common, 0):
        value, lost_freedom = _remove_block_effects(value, unit, rows["block"].to_numpy())
        freedom -= lost_freedom
    expected_squares = in_common**2 + np.bincount(unit, share**2)
    if freedom < 1:
        return float("nan"), float("nan")
    return float(
        (np.bincount(unit, share * value) ** 2 / expected_squares).sum() / freedom * expected_squares.sum()
    ), freedom


def _remove_block_effects(value: Floats, unit: Integers, block: Integers) -> tuple[Floats, int]:
    """Subtract each block's common lease effect from deviations; also return the degrees of freedom used."""
    units = int(unit.max()) + 1
    block_of_unit = np.zeros(units, dtype=np.int64)
    block_of_unit[unit] = np.unique(block, return_inverse=True)[1]
    blocks = int(block_of_unit.max()) + 1
    if blocks < 2 or np.bincount(block_of_unit).min() < _MIN_LEASES_PER_BLOCK:
        return value, 0
    return value - compute_group_means(compute_group_means(value, unit, units), block_of_unit, blocks)[
        block_of_unit[unit]
    ], blocks - 1
