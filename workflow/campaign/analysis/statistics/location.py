"""Location of a cell, which the report shows first: harmonic mean of rates, mean of times; rare slow runs count less.

The cost of a run with a rate is its inverse (the time of equal work), with a time the time itself. The mean cost keeps total
work
over total time (Hoefler & Belli, 2015, "Scientific benchmarking of parallel computing systems", SC15, rule 3). A run that lies
further than `OUTLIER_LIMIT_SD` robust standard deviations from the median of its cell is clipped there (Huber, 1964, "Robust
estimation of a location parameter", Annals of Mathematical Statistics 35(1)); none is left out. The standard deviation is the
larger one of the cell's own (from the median absolute deviation) and of all cells of its workload, so that few runs do not make
outliers.
"""

from __future__ import annotations

import numpy as np

from campaign.common.intervals import Floats, Integers

FAR = 3.5
_NORMAL = 0.6744897501960817
_MEDIAN_OF_DIFFERENCES = 0.9538726  # median of |a - b| for two standard normal numbers
# Correction factors of the median absolute deviation of few normal values: Croux & Rousseeuw (1992), COMPSTAT, table 1.
_FEW = np.array([np.nan, np.nan, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107])
# Logs print rates with about four digits. Runs that agree within half of the fourth digit do not show their spread.
_FINEST = 0.0005
_MOST_LAGS = 12


def near(cost: Floats, cell: Integers, stratum: Integers) -> tuple[Floats, Floats]:
    """Clip costs that are far from the median of their cell, and return for each cell the share of costs that was kept.

    Args:
        cost: cost of each run, positive.
        cell: cell of each run.
        stratum: workload of each cell.
    """
    count = stratum.size
    size = np.bincount(cell, minlength=count)
    middle = _medians(cost, cell, size)
    relative = cost / middle[cell]
    away = np.abs(relative - 1.0)
    factor = np.where(size < _FEW.size, _FEW[np.minimum(size, _FEW.size - 1)], size / (size - 0.8))
    own = np.nan_to_num(factor * _medians(away, cell, size) / _NORMAL)
    shared = _shared_scale(relative, cell, stratum)
    limit = FAR * np.maximum(np.maximum(own, shared[stratum]), _FINEST)
    # With two runs, neither can be identified as the outlier.
    limit = np.where(size >= 3, limit, np.inf)[cell]
    clipped = 1.0 + np.clip(relative - 1.0, -limit, limit)
    kept = np.bincount(cell, away <= limit, count) / np.maximum(size, 1)
    return clipped * middle[cell], kept


def _medians(values: Floats, of: Integers, size: Integers) -> Floats:
    """Return the median of each group; nan for a group without values."""
    if not values.size:
        return np.full(size.size, np.nan)
    order = np.lexsort((values, of))
    start = np.cumsum(size) - size
    ranked = values[order]
    last = max(values.size - 1, 0)
    low = np.minimum(start + np.maximum(size - 1, 0) // 2, last)
    high = np.minimum(start + size // 2, last)
    return np.asarray(np.where(size > 0, 0.5 * (ranked[low] + ranked[high]), np.nan), dtype=np.float64)


def _shared_scale(relative: Floats, cell: Integers, stratum: Integers) -> Floats:
    """Return the robust standard deviation of runs within cells, per stratum, from differences of pairs of runs of one cell."""
    order = np.argsort(cell, kind="stable")
    x, of = relative[order], cell[order]
    found, where = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for lag in range(1, min(_MOST_LAGS, max(int(np.bincount(cell).max(initial=0)), 1))):
        same = of[:-lag] == of[lag:]
        found.append(np.abs(x[:-lag] - x[lag:])[same])
        where.append(stratum[of[:-lag][same]])
    apart, at = np.concatenate(found), np.concatenate(where)
    size = np.bincount(at, minlength=int(stratum.max(initial=-1)) + 1)
    return np.nan_to_num(_medians(apart, at, size)) / _MEDIAN_OF_DIFFERENCES
