"""Geometric mean of ratios of cells, with an interval that accounts for cells that share leases.

A sentence about several cells has this mean and the range of the estimates. The largest of many estimates is larger than its
true
value, so an interval around it would be wrong too often.

Ratios of cells on one lease deviate together. The mean is a weighted sum over leases: each lease adds the deviations of its
cells
from their locations, with the weights of the cells in the mean. The squares of these sums, divided by the expected contribution
of
a lease, give one variance. Leases are independent replicates, so they are its degrees of freedom. Deviations that are
common to a block of the campaign are removed if the block holds at least three leases, as in `composition_variance`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from campaign.analysis.statistics.composition_variance import mean_of
from campaign.analysis.statistics.experiment_design import Design
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import T_OVER_RUNS_OF_COMPOSITION, T_PAIRED_BY_BLOCK, Floats, Integers, Marks

_MIN_LEASES_PER_BLOCK = 3


def average_ratio(rows: pd.DataFrame, design: Design) -> LogRatios:
    """Return the geometric mean of ratios as one element.

    Its variance is nan if a ratio may not be tested, or if no lease is a replicate of another one.

    Args:
        rows: comparisons of `campaign.analysis.statistics.comparable_cells`, each with a ratio: `ratio`, `cell_id`,
            `against_cell`,
            `method`, `tested`; for a ratio of two ratios also `cell_id_large` and `against_cell_large`.
        design: design of the cells.
    """
    mean = np.array([np.exp(np.log(rows["ratio"].to_numpy(dtype=np.float64)).mean())])
    if not rows["tested"].all():
        return LogRatios(mean, np.array([np.nan]), np.array([np.nan]))
    within = bool(rows["method"].isin([T_PAIRED_BY_BLOCK, T_OVER_RUNS_OF_COMPOSITION]).all())
    weight = _weights_of_cells(rows, design)
    variance, freedom = _variance(_deviations(design, weight != 0, within), weight, design.random_leases and not within)
    variance *= float(np.average(design.weights, weights=np.abs(weight)))
    return LogRatios(mean, np.array([variance]), np.array([freedom]))


def _weights_of_cells(rows: pd.DataFrame, design: Design) -> Floats:
    """Return the weight of the cost of each cell in the mean of the logarithms of ratios."""
    sign = 1 if "cell_id_large" in rows else -1
    sides = {"cell_id": sign, "against_cell": -sign, "cell_id_large": -1, "against_cell_large": 1}
    weight = np.zeros(design.cost.size)
    for column in sides.keys() & set(rows):
        np.add.at(weight, design.places(rows[column]), sides[column] / len(rows))
    return weight


def _deviations(design: Design, taken: Marks, within: bool) -> pd.DataFrame:
    """Return the deviations of cells from their locations, one row per cell and replicate.

    A replicate is a lease, or within one composition a block of runs.

    Args:
        design: design of the cells.
        is_used: whether a cell takes part.
        is_within_composition: whether all comparisons are within one composition.
    """
    if within:
        rows = design.each[taken[design.each["cell"]]]
        rows = rows.assign(unit=rows.groupby(["lease", "repetition"]).ngroup(), block=0)
        rows = rows.assign(value=rows["cost"] / design.cost[rows["cell"]])
    else:
        means, kept = design.means, taken[design.means.cell]
        names = {"cell": means.cell, "unit": means.lease, "block": means.block, "value": means.value}
        rows = pd.DataFrame({name: values[kept] for name, values in names.items()})
    return rows.assign(value=rows["value"] - rows.groupby("cell")["value"].transform("mean"))


def _variance(rows: pd.DataFrame, weight: Floats, in_blocks: bool) -> tuple[float, float]:
    """Return the variance of the weighted sum of cells, and its degrees of freedom.

    A replicate is expected to add the square of the sum of its weights, for effects common to its cells, and the sum of their
    squares, for effects of single cells.
    """
    count = rows.groupby("cell")["value"].transform("size").to_numpy(dtype=np.float64)
    unit: Integers = np.unique(rows["unit"].to_numpy(), return_inverse=True)[1].astype(np.int64)
    share, value = weight[rows["cell"]] / count, rows["value"].to_numpy()
    freedom = float((mean_of(1 - 1 / count, unit, int(unit.max(initial=-1)) + 1)).sum())
    in_common = np.bincount(unit, share)
    if in_blocks and not np.allclose(in_common, 0):
        value, lost = _without_blocks(value, unit, rows["block"].to_numpy())
        freedom -= lost
    expected = in_common**2 + np.bincount(unit, share**2)
    if freedom < 1:
        return float("nan"), float("nan")
    return float((np.bincount(unit, share * value) ** 2 / expected).sum() / freedom * expected.sum()), freedom


def _without_blocks(value: Floats, unit: Integers, block: Integers) -> tuple[Floats, int]:
    """Return deviations without the common effect of the leases of a block, and the degrees of freedom that this costs."""
    units = int(unit.max()) + 1
    of_unit = np.zeros(units, dtype=np.int64)
    of_unit[unit] = np.unique(block, return_inverse=True)[1]
    blocks = int(of_unit.max()) + 1
    if blocks < 2 or np.bincount(of_unit).min() < _MIN_LEASES_PER_BLOCK:
        return value, 0
    return value - mean_of(mean_of(value, unit, units), of_unit, blocks)[of_unit[unit]], blocks - 1
