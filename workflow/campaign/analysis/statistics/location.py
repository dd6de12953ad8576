"""Location of a cell, which the report shows first: harmonic mean of rates, mean of times; rare slow runs count less.

The cost of a run with a rate is its inverse (the time of equal work), with a time the time itself. The mean cost keeps total
work over total time (Hoefler & Belli, 2015, "Scientific benchmarking of parallel computing systems", SC15, rule 3). A run
that lies further than `OUTLIER_LIMIT_SD` robust standard deviations from the median of its cell is clipped there (Huber,
1964, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35(1)); no run is excluded. The standard
deviation is the larger one of the cell's own (from the median absolute deviation) and of all cells of its workload, so that
few runs do not make outliers.
"""

from __future__ import annotations

import numpy as np

from campaign.common.intervals import Floats, Integers

OUTLIER_LIMIT_SD = 3.5
_MAD_OF_NORMAL = 0.6744897501960817
_MEDIAN_DIFFERENCE_OF_NORMALS = 0.9538726  # This is the median of |a - b| for two standard normal numbers.
# Correction factors of the median absolute deviation of few normal values: Croux & Rousseeuw (1992), COMPSTAT, table 1.
_SMALL_SAMPLE_FACTORS = np.array([np.nan, np.nan, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107])
# Logs print rates with about four digits. Runs that agree within half of the fourth digit do not show their spread.
_LOG_RESOLUTION = 0.0005
_MAX_LAGS = 12


def clip_outliers(cost: Floats, cell: Integers, stratum: Integers) -> tuple[Floats, Floats]:
    """Clip costs far from the median of their cell; also return the share of costs kept in each cell.

    Args:
        cost: cost of each run, positive.
        cell: cell of each run.
        stratum: workload of each cell.
    """
    count = stratum.size
    size = np.bincount(cell, minlength=count)
    middle = _compute_medians(cost, cell, size)
    relative = cost / middle[cell]
    distance = np.abs(relative - 1.0)
    factor = np.where(
        size < _SMALL_SAMPLE_FACTORS.size,
        _SMALL_SAMPLE_FACTORS[np.minimum(size, _SMALL_SAMPLE_FACTORS.size - 1)],
        size / (size - 0.8),
    )
    cell_sd = np.nan_to_num(factor * _compute_medians(distance, cell, size) / _MAD_OF_NORMAL)
    shared_sd = _estimate_shared_sd(relative, cell, stratum)
    limit = OUTLIER_LIMIT_SD * np.maximum(np.maximum(cell_sd, shared_sd[stratum]), _LOG_RESOLUTION)
    # With two runs, neither can be identified as the outlier.
    limit = np.where(size >= 3, limit, np.inf)[cell]
    clipped_cost = 1.0 + np.clip(relative - 1.0, -limit, limit)
    kept_share = np.bincount(cell, distance <= limit, count) / np.maximum(size, 1)
    return clipped_cost * middle[cell], kept_share


def _compute_medians(values: Floats, group: Integers, size: Integers) -> Floats:
    """Compute the median of each group; nan for a group without values."""
    if not values.size:
        return np.full(size.size, np.nan)
    order = np.lexsort((values, group))
    start = np.cumsum(size) - size
    sorted_values = values[order]
    last = max(values.size - 1, 0)
    low = np.minimum(start + np.maximum(size - 1, 0) // 2, last)
    high = np.minimum(start + size // 2, last)
    return np.asarray(np.where(size > 0, 0.5 * (sorted_values[low] + sorted_values[high]), np.nan), dtype=np.float64)


def _estimate_shared_sd(relative: Floats, cell: Integers, stratum: Integers) -> Floats:
    """Estimate the robust standard deviation of runs within cells, per stratum, from differences of run pairs."""
    order = np.argsort(cell, kind="stable")
    x, sorted_cell = relative[order], cell[order]
    differences, strata = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for lag in range(1, min(_MAX_LAGS, max(int(np.bincount(cell).max(initial=0)), 1))):
        is_same_cell = sorted_cell[:-lag] == sorted_cell[lag:]
        differences.append(np.abs(x[:-lag] - x[lag:])[is_same_cell])
        strata.append(stratum[sorted_cell[:-lag][is_same_cell]])
    all_differences, all_strata = np.concatenate(differences), np.concatenate(strata)
    size = np.bincount(all_strata, minlength=int(stratum.max(initial=-1)) + 1)
    return np.nan_to_num(_compute_medians(all_differences, all_strata, size)) / _MEDIAN_DIFFERENCE_OF_NORMALS
