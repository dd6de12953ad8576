"""Scaling models of throughput over devices, and a test for points that dip below their neighbours.

Three models are fitted to each curve.

Models, for n devices with an equal batch each (throughput X, time of a step t = n * batch / X):

- Amdahl (1967), "Validity of the single processor approach": 1/X = (s + (1 - s)/n) / X1. The part s does not get faster.
- Gustafson (1988), "Reevaluating Amdahl's law", CACM 31(5): X = X1 (s + (1 - s) n). The part s does not grow.
- latency-bandwidth (Hockney, 1994, "The communication challenge for MPP", for a ring all-reduce as in Thakur,
  Rabenseifner & Gropp, 2005): t = compute + alpha * 2(n - 1) + (bytes / B) * 2(n - 1)/n.

Each model is linear in two or three non-negative parameters, so thousands of curves are fitted in one call: least squares of
relative residuals, over all sets of parameters that are not zero. The likelihood is that of the runs (residuals of the
logarithm about the curve, and of runs about their mean), so models with two and three parameters are compared by AICc
(Hurvich & Tsai, 1989, Biometrika 76(2)). Intervals are those of the fit without the bound at zero, clipped there. If the
points lie further from a model than runs from their mean (F test, 5 %), the model is rejected, and the residuals of the
points set the width of the intervals.

A dip is a point whose step time is longer than the straight line in 1/n between its two neighbours predicts (t test on the
logarithm, one-sided, Holm over all points of all curves). Every smooth communication cost is at or under that line: ring
(exactly on it), tree, and all of the models above. A neighbour counts if it communicates in the same way: on more than one
device, and on one host if the point is on one, on several if it is on several. A cost that begins at a point is no dip. The
lower bound of a dip's interval is above `MIN_DIP_PCT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy

from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats, Marks, adjust_p_values, student_quantile


def compute_aicc(mean_square: npt.ArrayLike, values: npt.ArrayLike, parameters: npt.ArrayLike) -> Floats:
    """Compute the corrected Akaike criterion of normal residuals, element-wise; infinite for too few values.

    Args:
        mean_square: mean square of the residuals, positive.
        values: number of values.
        parameters: number of parameters, counting the variance of the residuals for every model or for none.
    """
    n, parameter_count = np.asarray(values, dtype=np.float64), np.asarray(parameters, dtype=np.float64)
    remaining = n - parameter_count - 1
    correction = 2 * parameter_count * (parameter_count + 1) / np.where(remaining > 0, remaining, 1.0)
    return np.asarray(
        np.where(remaining > 0, n * np.log(mean_square) + 2 * parameter_count + correction, np.inf), dtype=np.float64
    )


AMDAHL, GUSTAFSON, LATENCY = "Amdahl", "Gustafson", "latency-bandwidth"
MAX_RESIDUAL_PCT = 5.0
"""Limit of the root mean square of the points' relative residuals. A model with a larger deviation does not describe its points."""
MIN_DIP_PCT = 1.0
"""Smallest dip, because very even runs show differences below the accuracy of any smooth cost, which are irrelevant."""
MODELS = (AMDAHL, GUSTAFSON, LATENCY)


@dataclass(frozen=True, slots=True)
class ScalingCurves:
    """Scaling curves as arrays [curve, point], with points in the order of devices; absent points have n_runs 0.

    batch: per device, [curve]. sd: standard deviation of a run, computed from the error of its point (times the root of
    n_runs), nan if unknown. freedom: degrees of freedom of these sds together, [curve]; without it, they are sds of samples
    of n_runs.
    """

    devices: Floats
    hosts: Floats
    throughput: Floats
    sd: Floats
    n_runs: Floats
    batch: Floats
    freedom: Floats | None = None

    @property
    def has_point(self) -> Marks:
        """Whether each point was measured, [curve, point]."""
        return np.asarray((self.n_runs > 0) & (self.throughput > 0))

    def sum_run_squares(self) -> tuple[Floats, Floats]:
        """Sum the squares of the runs' logarithms about their points' means; also return the freedom, [curve]."""
        has_spread = self.has_point & (self.n_runs > 1) & np.isfinite(self.sd)
        relative = np.where(has_spread, self.sd / np.where(self.has_point, self.throughput, 1.0), 0.0)
        freedom = np.where(has_spread, self.n_runs - 1, 0.0)
        if self.freedom is not None:
            share = has_spread / np.maximum(has_spread.sum(axis=1, keepdims=True), 1)
            freedom = np.nan_to_num(self.freedom)[:, None] * share
        return (freedom * relative**2).sum(axis=1), freedom.sum(axis=1)


@dataclass(frozen=True, slots=True)
class ScalingFit:
    """Fit of one model to all curves. parameters, low, high: [curve, parameter], nan for too few points.

    residual_pct: root mean square of the points' relative residuals, by their degrees of freedom, [curve].

    Parameters of Amdahl and Gustafson: X1 (samples/s), s (1); of latency-bandwidth: compute (s), alpha (s), bytes / B (s).
    expected: throughput, [curve, point]. is_rejected: whether the points deviate from the model.
    """

    model: str
    parameters: Floats
    low: Floats
    high: Floats
    aicc: Floats
    expected: Floats
    is_rejected: Marks
    residual_pct: Floats

    @property
    def is_valid(self) -> Marks:
        """Whether the model describes a curve: its points are close to the model and agree within their errors."""
        return np.isfinite(self.aicc) & ~self.is_rejected & (self.residual_pct <= MAX_RESIDUAL_PCT)


def fit_models(curves: ScalingCurves) -> dict[str, ScalingFit]:
    """Fit all models to all curves; a curve needs at least one more point than the model has parameters."""
    return {model: _fit_model(curves, model) for model in MODELS}


def select_best_models(fits: dict[str, ScalingFit]) -> npt.NDArray[np.object_]:
    """Select for each curve the model with the smallest AICc; an empty string if none could be fitted."""
    scores = np.stack([fits[model].aicc for model in MODELS])
    has_fit = np.isfinite(scores).any(axis=0)
    best_index = np.argmin(np.where(np.isfinite(scores), scores, np.inf), axis=0)
    return np.where(has_fit, np.array(MODELS, dtype=object)[best_index], "")


def predict_throughput(model: str, parameters: npt.ArrayLike, devices: npt.ArrayLike, batch: float) -> Floats:
    """Predict the throughput (samples per second) of a fitted model at any number of devices.

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


def _build_linear_model(curves: ScalingCurves, model: str) -> tuple[Floats, Floats]:
    """Return the columns of the linear model [curve, point, parameter], and its target values [curve, point]."""
    n = np.where(curves.has_point, curves.devices, 1.0)
    rate = np.where(curves.has_point, curves.throughput, 1.0)
    one = np.ones_like(n)
    if model == AMDAHL:
        return np.stack([one, 1.0 / n], axis=-1), 1.0 / rate
    if model == GUSTAFSON:
        return np.stack([one, n], axis=-1), rate
    step = n * curves.batch[:, None] / rate
    return np.stack([one, 2 * (n - 1), 2 * (n - 1) / n], axis=-1), step


def _fit_model(curves: ScalingCurves, model: str) -> ScalingFit:
    """Fit one model to all curves."""
    columns, target = _build_linear_model(curves, model)
    has_point, runs = curves.has_point, np.where(curves.has_point, curves.n_runs, 0.0)
    count = columns.shape[-1]
    # Rows of relative residuals, weighted by the runs behind them.
    weighted_columns = columns / target[..., None] * np.sqrt(runs)[..., None]
    is_fitted = (has_point.sum(axis=1) > count) & (runs.sum(axis=1) > count + 2)
    normal = np.where(
        is_fitted[:, None, None], np.einsum("cpi,cpj->cij", weighted_columns, weighted_columns), np.eye(count)
    )
    right_side = np.einsum("cpi,cp->ci", weighted_columns, np.sqrt(runs))
    linear = _solve_nonnegative_least_squares(normal, right_side)
    fitted_values = np.maximum(np.einsum("cpi,ci->cp", columns, linear), np.finfo(float).tiny)
    residual = np.where(has_point, np.log(fitted_values / target), 0.0)
    about_curve, (about_mean, freedom) = (runs * residual**2).sum(axis=1), curves.sum_run_squares()
    total = runs.sum(axis=1)
    # Exact data have no residuals. The floor keeps the logarithm finite and orders such fits by their parameters.
    mean_square = np.maximum((about_curve + about_mean) / np.maximum(total, 1), 1e-24)
    criterion = np.where(is_fitted, compute_aicc(mean_square, total, count + 1), np.nan)
    residual_freedom = np.maximum(has_point.sum(axis=1) - count, 1.0)
    is_rejected, variance, variance_freedom = _estimate_noise(about_curve, residual_freedom, about_mean, freedom)
    unbounded_parameters = np.linalg.solve(normal, right_side[..., None])[..., 0]
    covariance = np.linalg.inv(normal) * variance[:, None, None]
    quantile = student_quantile(variance_freedom)
    parameters, low, high = _convert_parameters(model, linear, unbounded_parameters, covariance, quantile)
    is_unfitted = ~is_fitted[:, None]
    parameters, low, high = (np.where(is_unfitted, np.nan, values) for values in (parameters, low, high))
    prediction = fitted_values if model == GUSTAFSON else 1.0 / fitted_values
    expected_throughput = prediction * (curves.devices * curves.batch[:, None] if model == LATENCY else 1.0)
    expected_throughput = np.where(is_unfitted | ~has_point, np.nan, expected_throughput)
    residual_pct = 100 * np.sqrt((residual**2).sum(axis=1) / residual_freedom)
    return ScalingFit(
        model,
        parameters,
        low,
        high,
        criterion,
        expected_throughput,
        is_rejected & is_fitted,
        np.where(is_fitted, residual_pct, np.nan),
    )


def _estimate_noise(
    about_curve: Floats, residual_freedom: Floats, about_mean: Floats, freedom: Floats
) -> tuple[Marks, Floats, Floats]:
    """Test if points deviate from a curve more than runs do; also return the run variance and its freedom."""
    point_variance = about_curve / residual_freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        run_variance = about_mean / freedom
        ratio = point_variance / run_variance
    has_replicates = (freedom > 0) & (run_variance > 0)
    is_rejected = has_replicates & (
        scipy.special.fdtrc(residual_freedom, np.maximum(freedom, 1), np.where(has_replicates, ratio, 0.0))
        < SIGNIFICANCE_LEVEL
    )
    pooled_variance = (about_curve + about_mean) / (residual_freedom + freedom)
    uses_points_only = is_rejected | ~has_replicates
    return (
        np.asarray(is_rejected),
        np.where(uses_points_only, point_variance, pooled_variance),
        np.where(uses_points_only, residual_freedom, residual_freedom + freedom),
    )


def _solve_nonnegative_least_squares(normal: Floats, right: Floats) -> Floats:
    """Solve nonnegative least squares for each system by trying every set of nonzero parameters."""
    count = right.shape[-1]
    best_value = np.full(len(right), -np.inf)
    solution = np.zeros_like(right)
    for size in range(1, count + 1):
        for active in map(list, combinations(range(count), size)):
            part = np.linalg.solve(normal[:, active][:, :, active], right[:, active, None])[..., 0]
            # Sum of squares that a set explains: its parameters times the right side.
            explained_squares = (part * right[:, active]).sum(axis=1)
            is_better = (part >= 0).all(axis=1) & (explained_squares > best_value)
            best_value = np.where(is_better, explained_squares, best_value)
            candidate = np.zeros_like(right)
            candidate[:, active] = part
            solution = np.where(is_better[:, None], candidate, solution)
    return solution


def _convert_parameters(
    model: str, linear: Floats, unbounded_parameters: Floats, covariance: Floats, quantile: Floats
) -> tuple[Floats, Floats, Floats]:
    """Convert the parameters of the linear model to those of the scaling model, with intervals."""
    if model == LATENCY:
        error = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        low, high = unbounded_parameters - quantile[:, None] * error, unbounded_parameters + quantile[:, None] * error
        return linear, np.clip(low, 0.0, linear), np.maximum(high, linear)

    def convert(values: Floats) -> Floats:
        total = values.sum(axis=1)
        return np.stack([1.0 / total if model == AMDAHL else total, values[:, 0] / total], axis=1)

    total = unbounded_parameters.sum(axis=1)
    first = np.stack([-1.0 / total**2] * 2, axis=1) if model == AMDAHL else np.ones_like(unbounded_parameters)
    second = np.stack([unbounded_parameters[:, 1], -unbounded_parameters[:, 0]], axis=1) / (total**2)[:, None]
    slopes = np.stack([first, second], axis=1)
    error = np.sqrt(np.maximum(np.einsum("cki,cij,ckj->ck", slopes, covariance, slopes), 0.0))
    value, centre = convert(linear), convert(unbounded_parameters)
    low, high = centre - quantile[:, None] * error, centre + quantile[:, None] * error
    top = np.array([np.inf, 1.0])
    return value, np.minimum(np.clip(low, 0.0, None), value), np.maximum(np.minimum(high, top), value)


@dataclass(frozen=True, slots=True)
class Dips:
    """Points compared with their neighbours, [curve, point]; nan for a point without two valid neighbours.

    expected: throughput that the neighbours predict. drop_pct: drop of the point below it in percent, with its 95 % interval.
    """

    expected: Floats
    drop_pct: Floats
    low_pct: Floats
    high_pct: Floats
    p: Floats
    p_holm: Floats

    @property
    def is_dip(self) -> Marks:
        """Whether each point is a dip."""
        return is_dip(self.p_holm, self.low_pct)


def is_dip(p_holm: npt.ArrayLike, low_pct: npt.ArrayLike) -> Marks:
    """Return which drops are dips: significant and with a lower bound above `MIN_DIP_PCT`; nan is not a dip."""
    return np.asarray((np.asarray(p_holm) < SIGNIFICANCE_LEVEL) & (np.asarray(low_pct) > MIN_DIP_PCT))


def find_dips(curves: ScalingCurves, lease_variance: npt.ArrayLike = 0.0) -> Dips:
    """Test every inner point of the curves for a dip.

    Args:
        curves: scaling curves.
        lease_variance: variance of the logarithm between leases, [curve] or one value, because points of a curve are on separate
            leases. If it is nan, nothing is tested, because a lease may cause the dip.
    """
    lease_variances = np.broadcast_to(np.asarray(lease_variance, dtype=np.float64), curves.batch.shape)
    has_point, n = curves.has_point, np.where(curves.has_point, curves.devices, np.nan)
    step = n * curves.batch[:, None] / np.where(has_point, curves.throughput, np.nan)
    squares, freedom = curves.sum_run_squares()
    runs = np.where(has_point, curves.n_runs, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        run_variance = np.broadcast_to((squares / freedom)[:, None], runs.shape)
        if curves.freedom is not None:
            run_variance = (curves.sd / curves.throughput) ** 2
        variance = run_variance / runs + lease_variances[:, None]
    left_neighbour, right_neighbour = _find_neighbours(has_point)
    rows = np.arange(len(n))[:, None]

    def take(values: Floats, places: npt.NDArray[np.int64]) -> Floats:
        return np.where(places >= 0, values[rows, np.maximum(places, 0)], np.nan)

    is_multi_host = np.where(has_point, (curves.hosts > 1).astype(float), np.nan)
    has_neighbours = (
        (take(is_multi_host, left_neighbour) == is_multi_host)
        & (take(is_multi_host, right_neighbour) == is_multi_host)
        & (take(n, left_neighbour) > 1)
    )
    weight = (1 / n - 1 / take(n, right_neighbour)) / (1 / take(n, left_neighbour) - 1 / take(n, right_neighbour))
    parts = np.stack([weight * take(step, left_neighbour), (1 - weight) * take(step, right_neighbour)])
    line = np.where(has_neighbours, parts.sum(axis=0), np.nan)
    error = np.sqrt(
        variance
        + (parts**2 * np.stack([take(variance, left_neighbour), take(variance, right_neighbour)])).sum(axis=0) / line**2
    )
    slower = np.log(step / line)
    clipped_freedom = np.maximum(freedom, 1.0)[:, None]
    is_tested = np.isfinite(slower) & np.isfinite(error) & (freedom[:, None] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(
            error > 0, scipy.special.stdtr(clipped_freedom, -slower / error), np.where(slower > 1e-9, 0.0, 1.0)
        )
    half_width = student_quantile(clipped_freedom) * error
    p = np.where(is_tested, p, np.nan)
    drop, low, high = (
        np.where(is_tested, 100 * (1 - np.exp(-(slower + side))), np.nan) for side in (0.0, -half_width, half_width)
    )
    return Dips(
        np.where(np.isfinite(line), n * curves.batch[:, None] / line, np.nan), drop, low, high, p, adjust_p_values(p)
    )


def _find_neighbours(has_point: Marks) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the index of the nearest measured point on each side; -1 if there is none."""
    count = has_point.shape[1]
    places = np.where(has_point, np.arange(count), -1)
    before = np.maximum.accumulate(places, axis=1)
    left_neighbour = np.concatenate([np.full((len(has_point), 1), -1), before[:, :-1]], axis=1)
    after = np.minimum.accumulate(np.where(has_point, np.arange(count), count)[:, ::-1], axis=1)[:, ::-1]
    right_neighbour = np.concatenate([after[:, 1:], np.full((len(has_point), 1), count)], axis=1)
    return left_neighbour, np.where(right_neighbour == count, -1, right_neighbour)
