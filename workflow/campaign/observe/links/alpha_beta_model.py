"""Latency-bandwidth models of measured times, fitted with intervals.

An all-reduce over n ranks in a ring takes t = 2(n-1) alpha + 2(n-1)/n S/B. S bytes go round twice in n-1 steps of S/n (Thakur,
Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 4.5). The time of the sum
is neglected. A message between two devices that is answered by a word takes t = 2 alpha + S/B (Hockney 1994, "The communication
challenge for MPP", Parallel Computing 20(3)). alpha is the latency of one message, and B is the bandwidth of one direction.

The fit minimises the squares of relative residuals, because times span orders of magnitude and their variation grows with them. The
weights come from the fitted values, iteratively. The 95 % intervals come from the covariance of the linear fit and Student's t with
m - 2 degrees of freedom. The interval of B is the inverse of that of 1/B. Intervals treat the scatter of the sizes around the line
as random. `residual_pct` is large if a library changes its algorithm with the size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from campaign.common.intervals import Floats, student_quantile
from campaign.observe.links.document import AllReduce, BandwidthCurve, FittedModel, Models, round_digits

MIN_SIZES = 3
_ITERATIONS = 5


def add_models(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a stored links/1 document, extended by latency-bandwidth models fitted to its measurements."""
    allreduce = document["allreduce"] and AllReduce.model_validate(document["allreduce"])
    curves = {kind: BandwidthCurve.model_validate(curve) for kind, curve in document["curves"].items()}
    messages = {kind: _round_model(fit_messages(curve.size_bytes, curve.time_s)) for kind, curve in curves.items()}
    model = Models(
        allreduce=allreduce and _round_model(fit_allreduce(allreduce.size_bytes, allreduce.time_s, allreduce.ranks)),
        messages={kind: fit for kind, fit in messages.items() if fit is not None},
    )
    return {**document, "model": model.model_dump(mode="json")}


def _round_model(fit: FittedModel | None) -> FittedModel | None:
    if fit is None:
        return None
    return fit.model_copy(update={name: round_digits(value) for name, value in fit if isinstance(value, float)})


def predict_allreduce_s(size_bytes: npt.ArrayLike, ranks: int, alpha_us: float, gb_per_s: float) -> Floats:
    """Predict the time of a ring all-reduce in seconds."""
    size = np.asarray(size_bytes, dtype=np.float64)
    return np.asarray(2 * (ranks - 1) * alpha_us * 1e-6 + 2 * (ranks - 1) / ranks * size / (gb_per_s * 1e9))


def fit_allreduce(size_bytes: Sequence[int], times_s: Sequence[float], ranks: int) -> FittedModel | None:
    """Fit the ring model to all-reduce times, one per message size.

    The result is None if there is only one rank, if there are too few sizes, or if times do not grow with the size.
    """
    if ranks < 2:
        return None
    return _fit_model(size_bytes, times_s, 2.0 * (ranks - 1), 2.0 * (ranks - 1) / ranks)


def fit_messages(size_bytes: Sequence[int], times_s: Sequence[float]) -> FittedModel | None:
    """Fit Hockney's model to the times of acknowledged messages. Returns None in the same cases as `fit_allreduce`."""
    return _fit_model(size_bytes, times_s, 2.0, 1.0)


def _fit_model(size_bytes: Sequence[int], times_s: Sequence[float], steps: float, share: float) -> FittedModel | None:
    size, time = np.asarray(size_bytes, dtype=np.float64), np.asarray(times_s, dtype=np.float64)
    if len(np.unique(size)) < MIN_SIZES or not (time > 0).all():
        return None
    # Units are us and bytes per us, so that both unknowns have a similar magnitude.
    factors = np.column_stack([np.full(size.shape, steps), share * size * 1e-3])
    measured_us = time * 1e6
    expected_us = measured_us
    for _ in range(_ITERATIONS):
        weighted_factors = factors / expected_us[:, None]
        (alpha, inverse), *_ = np.linalg.lstsq(weighted_factors, measured_us / expected_us, rcond=None)
        fitted_us = factors @ np.array([alpha, inverse])
        # Fitted values below zero cannot be used as weights.
        expected_us = np.where(fitted_us > 0, fitted_us, measured_us)
    if inverse <= 0:
        return None
    residuals = measured_us / expected_us - factors @ np.array([alpha, inverse]) / expected_us
    degrees_of_freedom = len(measured_us) - 2
    covariance = np.linalg.inv(weighted_factors.T @ weighted_factors) * (residuals @ residuals) / degrees_of_freedom
    half_widths = student_quantile(degrees_of_freedom) * np.sqrt(np.diag(covariance))
    low, high = inverse - half_widths[1], inverse + half_widths[1]
    return FittedModel(
        alpha_us=float(alpha),
        alpha_low_us=float(alpha - half_widths[0]),
        alpha_high_us=float(alpha + half_widths[0]),
        gb_per_s=float(1 / inverse),
        low_gb_per_s=float(1 / high),
        high_gb_per_s=float(1 / low) if low > 0 else None,
        sizes=len(measured_us),
        residual_pct=float(100 * np.sqrt(np.mean(residuals**2))),
    )
