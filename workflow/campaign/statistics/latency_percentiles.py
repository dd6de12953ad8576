"""Percentiles of request latencies with intervals, though requests of a queue resemble their neighbours.

Two levels replicate. Within a composition, requests are correlated: the variance of a share of them is that of means of consecutive
batches (Law & Kelton, "Simulation Modeling and Analysis", chapter 9), corrected for the correlation that neighbouring batches still
have, and never less than that of independent requests. Requests far in the tail come in bursts, which few batches show: a
percentile is taken to be correlated at least as much as the one with five times as many requests above it. Between compositions,
the variance is that of a ratio over clusters (Cochran, "Sampling Techniques", 1977, chapter 6). The wider of both intervals counts.

The interval of a share is turned into one of the percentile by the sample's own quantiles (Woodruff, 1952, Journal of the American
Statistical Association 47), so that nothing is assumed of the distribution. Its ends are worked out on the arcsine scale, where
the variance of a share does not depend on it. Where too few requests are as late as the upper end, nothing bounds the percentile
from above: it is "at least" the lower end. A mean of percentiles over compositions is no way out: in queues, percentiles of short
runs are too low, and intervals around their mean cover as few as 21 of 100 (docs/decisions/45-the-rate-that-holds.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import pandas as pd

from campaign.statistics.intervals import Floats, Integers, student_quantile

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
_BATCHES = 10  # of a run; fewer are too few for t, more are too short to be independent
_MOST_CORRELATED = 0.9
_NEXT_TAIL = 5.0
_LEAST_BEYOND = 0.25  # independent requests beyond an upper end: with fewer, ends at load 0.8 cover 88 of 100


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of the requests of one cell: those of each run in the order of arrival, and the composition of each run."""

    runs: tuple[Floats, ...]
    compositions: Integers

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)

    @property
    def clusters(self) -> int:
        return int(np.unique(self.compositions).size)


@dataclass(frozen=True, slots=True)
class BoundedEstimate:
    """A percentile or a share, and the interval that holds the true one in 95 of 100 cases; nan for an end that nothing bounds."""

    value: float
    low: float
    high: float


def percentile(sample: Sample, percent: float, error: float = 1.0) -> BoundedEstimate:
    """One percentile of a cell, nan with less than one request above it; requests that failed may be infinitely late.

    error: by how much its error is larger than that of this sample.
    """
    none = BoundedEstimate(np.nan, np.nan, np.nan)
    share, size = percent / 100.0, sample.size
    if not size:
        return none
    ordered = np.sort(np.concatenate(sample.runs))
    found = float(_at(ordered, share))
    bounds = _bounds(sample, found, share, error)
    low = float(_at(ordered, bounds.low)) if bounds.low == bounds.low else np.nan
    high = float(_at(ordered, bounds.high)) if bounds.high == bounds.high else np.nan
    return BoundedEstimate(found if size * (1 - share) >= 1 else np.nan, low, high)


def share_within(sample: Sample, limit: float) -> BoundedEstimate:
    """Share of requests that take at most so long."""
    if not sample.size:
        return BoundedEstimate(np.nan, np.nan, np.nan)
    inside = float((np.concatenate(sample.runs) <= limit).mean())
    # With no request on one side, its variance is that of one.
    near = min(max(inside, 0.5 / sample.size), 1 - 0.5 / sample.size)
    bounds = _bounds(sample, limit, near)
    low, high = (float(np.clip(end, 0.0, 1.0)) for end in (bounds.low, bounds.high))
    return BoundedEstimate(
        inside, 0.0 if bounds.low != bounds.low else low, 1.0 if bounds.high != bounds.high else high
    )


def _bounds(sample: Sample, at: float, share: float, error: float = 1.0) -> BoundedEstimate:
    """Between which shares that of requests up to `at` lies; nan below 0, near 1, and where nothing replicates."""
    tail = 1 - share
    wider = min(_NEXT_TAIL * tail, max(0.5, tail))
    ordered = np.sort(np.concatenate(sample.runs))
    correlated, freedom = _correlation(sample, at, share)
    if wider > tail:
        more, _ = _correlation(sample, float(_at(ordered, 1 - wider)), 1 - wider)
        correlated = max(correlated, more)
    alone = share * tail / sample.size
    reach = float(student_quantile(freedom)) * np.sqrt(correlated * alone) if freedom > 0 else np.nan
    if sample.clusters > 1:
        between = np.sqrt(max(_between(sample, at), alone))
        reach = float(np.fmax(reach, student_quantile(sample.clusters - 1.0) * between))
    if reach != reach:
        return BoundedEstimate(share, np.nan, np.nan)
    angle, reach = np.arcsin(np.sqrt(share)), error * reach / (2 * np.sqrt(share * tail))
    low = np.sin(angle - reach) ** 2 if reach < angle else np.nan
    high = np.sin(angle + reach) ** 2 if reach < np.pi / 2 - angle else np.nan
    independent = sample.size / np.fmax(correlated, 1.0)
    return BoundedEstimate(share, float(low), float(high) if (1 - high) * independent >= _LEAST_BEYOND else np.nan)


def _correlation(sample: Sample, at: float, share: float) -> tuple[float, float]:
    """How many times as large as of independent requests the variance of a share is within compositions, and its freedom."""
    residuals, before, after = [], [], []
    for composition in np.unique(sample.compositions):
        own = [run for run, of in zip(sample.runs, sample.compositions, strict=True) if of == composition]
        means = [_batch_means(run <= at) for run in own if run.size >= 2 * _BATCHES]
        if means:
            middle = np.concatenate(means).mean()
            for each in means:
                residuals.append(each - middle)
                before.append(each[:-1] - middle)
                after.append(each[1:] - middle)
    if not residuals:
        return np.nan, 0.0
    of_all = np.concatenate(residuals)
    batches, squares = of_all.size, float((of_all**2).sum())
    freedom = batches - sample.clusters
    if squares <= 0:
        return 1.0, float(freedom)
    # The sample's correlation is too small by about one over the number of batches (Kendall, 1954).
    lag = float(np.concatenate(before) @ np.concatenate(after)) / squares * _BATCHES / (_BATCHES - 1) + 1 / _BATCHES
    lag = float(np.clip(lag, 0.0, _MOST_CORRELATED))
    variance = squares / (batches * freedom) * (1 + lag) / (1 - lag)
    return max(1.0, variance / (share * (1 - share) / sample.size)), freedom * (1 - lag) / (1 + lag)


def _batch_means(inside: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    length = inside.size // _BATCHES
    return np.asarray(inside[: length * _BATCHES].reshape(_BATCHES, length).mean(axis=1), dtype=np.float64)


def _between(sample: Sample, at: float) -> float:
    """Variance of the share between compositions."""
    _, of = np.unique(sample.compositions, return_inverse=True)
    count = int(of.max()) + 1
    sizes = np.bincount(of, [run.size for run in sample.runs], count)
    inside = np.bincount(of, [float((run <= at).sum()) for run in sample.runs], count)
    residual = inside - sizes * inside.sum() / sizes.sum()
    return float(count / (count - 1) * (residual**2).sum() / sizes.sum() ** 2)


def quantile(sample: Sample, share: float) -> float:
    """The quantile of the sample alone, without an interval."""
    return _at(np.sort(np.concatenate(sample.runs)), share)


def _at(ordered: Floats, share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    place = int(np.ceil(share * ordered.size - 1e-9)) - 1
    return float(ordered[min(max(place, 0), ordered.size - 1)])


def samples(requests: pd.DataFrame, column: str) -> dict[str, Sample]:
    """The samples of all cells, by cell_id. requests: cell_id, repetition, lease_id, intended_s and the column; those without a
    value are left out."""
    rows = requests.loc[requests[column].notna(), ["cell_id", "repetition", "lease_id", "intended_s", column]]
    rows = rows.sort_values(["cell_id", "repetition", "intended_s"], kind="stable")
    found: dict[str, tuple[list[Floats], list[str]]] = {}
    for (cell, _, lease), values in rows.groupby(["cell_id", "repetition", "lease_id"], sort=False)[column]:
        runs, leases = found.setdefault(str(cell), ([], []))
        runs.append(values.to_numpy(dtype=np.float64))
        leases.append(str(lease))
    return {cell: Sample(tuple(runs), pd.factorize(np.array(of))[0]) for cell, (runs, of) in found.items()}


def percentiles(
    requests: pd.DataFrame, columns: Sequence[str], percents: Sequence[float] = PERCENTILES
) -> pd.DataFrame:
    """One row a cell, column and percentile: cell_id, latency, percent, value, low, high, n_requests, n_compositions."""
    rows = [
        (cell, column, percent, *astuple(percentile(sample, percent)), sample.size, sample.clusters)
        for column in columns
        for cell, sample in samples(requests, column).items()
        for percent in percents
    ]
    names = ["cell_id", "latency", "percent", "value", "low", "high", "n_requests", "n_compositions"]
    return pd.DataFrame(rows, columns=names)
