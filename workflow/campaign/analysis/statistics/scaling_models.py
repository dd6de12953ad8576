"""Scaling models of throughput over devices, and a test for points that dip below their neighbours.

Three models are fitted to each curve.

Models, for n devices with an equal batch each (throughput X, time of a step t = n * batch / X):

- Amdahl (1967), "Validity of the single processor approach": 1/X = (s + (1 - s)/n) / X1. The part s does not get faster.
- Gustafson (1988), "Reevaluating Amdahl's law", CACM 31(5): X = X1 (s + (1 - s) n). The part s does not grow.
- latency-bandwidth (Hockney, 1994, "The communication challenge for MPP", for a ring all-reduce as in Thakur, Rabenseifner &
Gropp,
  2005): t = compute + alpha * 2(n - 1) + (bytes / B) * 2(n - 1)/n.

Each model is linear in two or three non-negative parameters, so thousands of curves are fitted in one call: least squares of
relative residuals, over all sets of parameters that are not zero. The likelihood is that of the runs (residuals of the logarithm
about the curve, and of runs about their mean), so models with two and three parameters are compared by AICc (Hurvich & Tsai,
1989,
Biometrika 76(2)). Intervals are those of the fit without the bound at zero, clipped there. If the points lie further from a
model
than runs from their mean (F test, 5 %), the model is rejected, and the residuals of the points set the width of the intervals.

A dip is a point whose step time is longer than the straight line in 1/n between its two neighbours predicts (t test on the
logarithm, one-sided, Holm over all points of all curves). Every smooth communication cost is at or under that line: ring
(exactly
on it), tree, and all of the models above. A neighbour counts if it communicates in the same way: on more than one device, and on
one host if the point is on one, on several if it is on several. A cost that begins at a point is no dip. The lower bound of a
dip's interval is above `MIN_DIP_PCT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy

from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats, Marks, adjust_p_values, student_quantile


def aicc(mean_square: npt.ArrayLike, values: npt.ArrayLike, parameters: npt.ArrayLike) -> Floats:
    """Return the corrected Akaike information criterion of normal residuals, element-wise; infinite with too few values.

    Args:
        mean_square: mean square of the residuals, positive.
        values: number of values.
        parameters: number of parameters, with the variance of the residuals among them or for no model.
    """
    n, known = np.asarray(values, dtype=np.float64), np.asarray(parameters, dtype=np.float64)
    left = n - known - 1
    correction = 2 * known * (known + 1) / np.where(left > 0, left, 1.0)
    return np.asarray(np.where(left > 0, n * np.log(mean_square) + 2 * known + correction, np.inf), dtype=np.float64)


AMDAHL, GUSTAFSON, LATENCY = "Amdahl", "Gustafson", "latency-bandwidth"
MOST_RESIDUAL_PCT = 5.0
"""Limit of the root mean square of the points' relative residuals. A model further from its points does not describe them."""
LEAST_DIP_PCT = 1.0
"""Smallest dip, because very even runs show differences below the accuracy of any smooth cost, which are irrelevant."""
MODELS = (AMDAHL, GUSTAFSON, LATENCY)


@dataclass(frozen=True, slots=True)
class Curves:
    """Scaling curves as arrays [curve, point], with points in the order of devices; absent points have n_runs 0.

    batch: per device, [curve]. sd: standard deviation of a run, computed from the error of its point (times the root of n_runs),
    nan
    if unknown. freedom: degrees of freedom of these sds together, [curve]; without it, they are sds of samples of n_runs.
    """

    devices: Floats
    hosts: Floats
    throughput: Floats
    sd: Floats
    n_runs: Floats
    batch: Floats
    freedom: Floats | None = None

    @property
    def there(self) -> Marks:
        """True if the point was measured, [curve, point]."""
        return np.asarray((self.n_runs > 0) & (self.throughput > 0))

    def spread(self) -> tuple[Floats, Floats]:
        """Return the sum of squares of the runs' logarithm about their points' means, and its degrees of freedom, [curve]."""
        several = self.there & (self.n_runs > 1) & np.isfinite(self.sd)
        relative = np.where(several, self.sd / np.where(self.there, self.throughput, 1.0), 0.0)
        freedom = np.where(several, self.n_runs - 1, 0.0)
        if self.freedom is not None:
            share = several / np.maximum(several.sum(axis=1, keepdims=True), 1)
            freedom = np.nan_to_num(self.freedom)[:, None] * share
        return (freedom * relative**2).sum(axis=1), freedom.sum(axis=1)


@dataclass(frozen=True, slots=True)
class Fit:
    """One model fitted to all curves. parameters, low, high: [curve, parameter], nan if a curve has too few points.

    residual_pct: root mean square of the points' relative residuals, by their degrees of freedom, [curve].

    Parameters of Amdahl and Gustafson: X1 (samples/s), s (1); of latency-bandwidth: compute (s), alpha (s), bytes / B (s).
    expected:
    throughput, [curve, point]. is_rejected: whether the points deviate from the model.
    """

    model: str
    parameters: Floats
    low: Floats
    high: Floats
    aicc: Floats
    expected: Floats
    misses: Marks
    residual_pct: Floats

    @property
    def holds(self) -> Marks:
        """True if the model describes its points, which agree with it within their errors and are close to it."""
        return np.isfinite(self.aicc) & ~self.misses & (self.residual_pct <= MOST_RESIDUAL_PCT)


def fit(curves: Curves) -> dict[str, Fit]:
    """Fit all models to all curves; a curve needs one point more than a model has parameters."""
    return {model: _fit(curves, model) for model in MODELS}


def best(fits: dict[str, Fit]) -> npt.NDArray[np.object_]:
    """Return the name of the model with the smallest AICc of each curve; '' if no model could be fitted."""
    scores = np.stack([fits[model].aicc for model in MODELS])
    known = np.isfinite(scores).any(axis=0)
    chosen = np.argmin(np.where(np.isfinite(scores), scores, np.inf), axis=0)
    return np.where(known, np.array(MODELS, dtype=object)[chosen], "")


def throughput_of(model: str, parameters: npt.ArrayLike, devices: npt.ArrayLike, batch: float) -> Floats:
    """Return the throughput (samples per second) of a fitted model at any number of devices.

    Args:
        model: name of the model.
        parameters: fitted parameters of the model.
        devices: numbers of devices.
        batch: batch per device.
    """
    first, second, *third = np.asarray(parameters, dtype=np.float64)
    n = np.asarray(devices, dtype=np.float64)
    if model == AMDAHL:
        return np.asarray(first / (second + (1.0 - second) / n))
    if model == GUSTAFSON:
        return np.asarray(first * (second + (1.0 - second) * n))
    return np.asarray(n * batch / (first + second * 2 * (n - 1) + third[0] * 2 * (n - 1) / n))


def _design(curves: Curves, model: str) -> tuple[Floats, Floats]:
    """Return the columns of the linear model [curve, point, parameter], and its target values [curve, point]."""
    n = np.where(curves.there, curves.devices, 1.0)
    rate = np.where(curves.there, curves.throughput, 1.0)
    one = np.ones_like(n)
    if model == AMDAHL:
        return np.stack([one, 1.0 / n], axis=-1), 1.0 / rate
    if model == GUSTAFSON:
        return np.stack([one, n], axis=-1), rate
    step = n * curves.batch[:, None] / rate
    return np.stack([one, 2 * (n - 1), 2 * (n - 1) / n], axis=-1), step


def _fit(curves: Curves, model: str) -> Fit:
    """Fit one model to all curves."""
    columns, target = _design(curves, model)
    there, runs = curves.there, np.where(curves.there, curves.n_runs, 0.0)
    count = columns.shape[-1]
    # Rows of relative residuals, weighted by the runs behind them.
    weighted = columns / target[..., None] * np.sqrt(runs)[..., None]
    enough = (there.sum(axis=1) > count) & (runs.sum(axis=1) > count + 2)
    normal = np.where(enough[:, None, None], np.einsum("cpi,cpj->cij", weighted, weighted), np.eye(count))
    right = np.einsum("cpi,cp->ci", weighted, np.sqrt(runs))
    linear = _not_negative(normal, right)
    fitted = np.maximum(np.einsum("cpi,ci->cp", columns, linear), np.finfo(float).tiny)
    residual = np.where(there, np.log(fitted / target), 0.0)
    about_curve, (about_mean, freedom) = (runs * residual**2).sum(axis=1), curves.spread()
    total = runs.sum(axis=1)
    # Exact data have no residuals. The floor keeps the logarithm finite and orders such fits by their parameters.
    mean_square = np.maximum((about_curve + about_mean) / np.maximum(total, 1), 1e-24)
    criterion = np.where(enough, aicc(mean_square, total, count + 1), np.nan)
    left = np.maximum(there.sum(axis=1) - count, 1.0)
    misses, variance, free = _noise(about_curve, left, about_mean, freedom)
    free_fit = np.linalg.solve(normal, right[..., None])[..., 0]
    covariance = np.linalg.inv(normal) * variance[:, None, None]
    quantile = student_quantile(free)
    parameters, low, high = _parameters(model, linear, free_fit, covariance, quantile)
    unknown = ~enough[:, None]
    parameters, low, high = (np.where(unknown, np.nan, each) for each in (parameters, low, high))
    gives = fitted if model == GUSTAFSON else 1.0 / fitted
    expected = gives * (curves.devices * curves.batch[:, None] if model == LATENCY else 1.0)
    expected = np.where(unknown | ~there, np.nan, expected)
    away = 100 * np.sqrt((residual**2).sum(axis=1) / left)
    return Fit(model, parameters, low, high, criterion, expected, misses & enough, np.where(enough, away, np.nan))


def _noise(about_curve: Floats, left: Floats, about_mean: Floats, freedom: Floats) -> tuple[Marks, Floats, Floats]:
    """Return whether points deviate from the curve more than runs from their mean, and the run variance with its freedom."""
    of_points = about_curve / left
    with np.errstate(divide="ignore", invalid="ignore"):
        of_runs = about_mean / freedom
        ratio = of_points / of_runs
    repeated = (freedom > 0) & (of_runs > 0)
    misses = repeated & (
        scipy.special.fdtrc(left, np.maximum(freedom, 1), np.where(repeated, ratio, 0.0)) < SIGNIFICANCE_LEVEL
    )
    pooled = (about_curve + about_mean) / (left + freedom)
    alone = misses | ~repeated
    return np.asarray(misses), np.where(alone, of_points, pooled), np.where(alone, left, left + freedom)


def _not_negative(normal: Floats, right: Floats) -> Floats:
    """Solve least squares with parameters >= 0 for each system, by trying every set of parameters that are not zero."""
    count = right.shape[-1]
    best_value = np.full(len(right), -np.inf)
    found = np.zeros_like(right)
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            part = np.linalg.solve(normal[:, chosen][:, :, chosen], right[:, chosen, None])[..., 0]
            # Sum of squares that a set explains: its parameters times the right side.
            explained = (part * right[:, chosen]).sum(axis=1)
            better = (part >= 0).all(axis=1) & (explained > best_value)
            best_value = np.where(better, explained, best_value)
            whole = np.zeros_like(right)
            whole[:, chosen] = part
            found = np.where(better[:, None], whole, found)
    return found


def _parameters(
    model: str, linear: Floats, free: Floats, covariance: Floats, quantile: Floats
) -> tuple[Floats, Floats, Floats]:
    """Convert the linear parameters to the parameters of the model, with their intervals."""
    if model == LATENCY:
        error = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        low, high = free - quantile[:, None] * error, free + quantile[:, None] * error
        return linear, np.clip(low, 0.0, linear), np.maximum(high, linear)

    def own(values: Floats) -> Floats:
        total = values.sum(axis=1)
        return np.stack([1.0 / total if model == AMDAHL else total, values[:, 0] / total], axis=1)

    total = free.sum(axis=1)
    first = np.stack([-1.0 / total**2] * 2, axis=1) if model == AMDAHL else np.ones_like(free)
    second = np.stack([free[:, 1], -free[:, 0]], axis=1) / (total**2)[:, None]
    slopes = np.stack([first, second], axis=1)
    error = np.sqrt(np.maximum(np.einsum("cki,cij,ckj->ck", slopes, covariance, slopes), 0.0))
    value, centre = own(linear), own(free)
    low, high = centre - quantile[:, None] * error, centre + quantile[:, None] * error
    top = np.array([np.inf, 1.0])
    return value, np.minimum(np.clip(low, 0.0, None), value), np.maximum(np.minimum(high, top), value)


@dataclass(frozen=True, slots=True)
class Dips:
    """Points compared with their neighbours, [curve, point]; nan for a point without two valid neighbours.

    expected: throughput by the neighbours. drop_pct: how far the point is below it in percent, with its 95 % interval.
    """

    expected: Floats
    under_pct: Floats
    low_pct: Floats
    high_pct: Floats
    p: Floats
    p_holm: Floats

    @property
    def dip(self) -> Marks:
        """True if a point is a dip."""
        return is_dip(self.p_holm, self.low_pct)


def is_dip(p_holm: npt.ArrayLike, low_pct: npt.ArrayLike) -> Marks:
    """Return which points are dips: significant among all of them, and certainly larger than `MIN_DIP_PCT`; nan is no dip."""
    return np.asarray((np.asarray(p_holm) < SIGNIFICANCE_LEVEL) & (np.asarray(low_pct) > LEAST_DIP_PCT))


def dips(curves: Curves, lease_variance: npt.ArrayLike = 0.0) -> Dips:
    """Test every inner point of the curves for a dip.

    Args:
        curves: scaling curves.
        lease_variance: variance of the logarithm between leases, [curve] or one value, because points of a curve are on separate
            leases. If it is nan, nothing is tested, because a lease may cause the dip.
    """
    between = np.broadcast_to(np.asarray(lease_variance, dtype=np.float64), curves.batch.shape)
    there, n = curves.there, np.where(curves.there, curves.devices, np.nan)
    step = n * curves.batch[:, None] / np.where(there, curves.throughput, np.nan)
    squares, freedom = curves.spread()
    runs = np.where(there, curves.n_runs, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_runs = np.broadcast_to((squares / freedom)[:, None], runs.shape)
        if curves.freedom is not None:
            of_runs = (curves.sd / curves.throughput) ** 2
        variance = of_runs / runs + between[:, None]
    left, right = _neighbours(there)
    rows = np.arange(len(n))[:, None]

    def at(values: Floats, places: npt.NDArray[np.int64]) -> Floats:
        return np.where(places >= 0, values[rows, np.maximum(places, 0)], np.nan)

    several = np.where(there, (curves.hosts > 1).astype(float), np.nan)
    alike = (at(several, left) == several) & (at(several, right) == several) & (at(n, left) > 1)
    weight = (1 / n - 1 / at(n, right)) / (1 / at(n, left) - 1 / at(n, right))
    parts = np.stack([weight * at(step, left), (1 - weight) * at(step, right)])
    line = np.where(alike, parts.sum(axis=0), np.nan)
    error = np.sqrt(variance + (parts**2 * np.stack([at(variance, left), at(variance, right)])).sum(axis=0) / line**2)
    slower = np.log(step / line)
    free = np.maximum(freedom, 1.0)[:, None]
    tested = np.isfinite(slower) & np.isfinite(error) & (freedom[:, None] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, scipy.special.stdtr(free, -slower / error), np.where(slower > 1e-9, 0.0, 1.0))
    half = student_quantile(free) * error
    p = np.where(tested, p, np.nan)
    under, low, high = (np.where(tested, 100 * (1 - np.exp(-(slower + side))), np.nan) for side in (0.0, -half, half))
    return Dips(
        np.where(np.isfinite(line), n * curves.batch[:, None] / line, np.nan), under, low, high, p, adjust_p_values(p)
    )


def _neighbours(there: Marks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the index of the nearest measured point on each side; -1 if there is none."""
    count = there.shape[1]
    places = np.where(there, np.arange(count), -1)
    before = np.maximum.accumulate(places, axis=1)
    left = np.concatenate([np.full((len(there), 1), -1), before[:, :-1]], axis=1)
    after = np.minimum.accumulate(np.where(there, np.arange(count), count)[:, ::-1], axis=1)[:, ::-1]
    right = np.concatenate([after[:, 1:], np.full((len(there), 1), count)], axis=1)
    return left, np.where(right == count, -1, right)
