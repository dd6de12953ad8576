"""All aggregation of measurements: summaries of samples and ratios of summaries, each with a 95 % interval.

Pure functions on numpy arrays; everything works element-wise, so thousands of cells are one call. A value that
cannot be computed (no run, one run, a mean that is not positive) is nan and its method says why.

Sources
-------
Interval of a mean: Student (1908), "The probable error of a mean", Biometrika 6(1).
Interval of a ratio: delta method on the logarithm, Hedges, Gurevitch & Curtis (1999), "The meta-analysis of
response ratios in experimental ecology", Ecology 80(4), eq. 1, with the degrees of freedom of Welch (1947) and
Satterthwaite (1946) in place of the normal quantile, because samples here are 3 to 10 runs. Preferred to Fieller's (1954)
interval: it is never unbounded or negative, and the interval of a/b is exactly the inverse of that of b/a.
Samples are taken as independent; where repetitions are blocks shared by both cells this is conservative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

CONFIDENCE = 0.95

STUDENT = "Student t, 95 %"
LOG_RATIO = "log ratio of means, Welch t, 95 %"
ONE_RUN = "none: one run"
NO_RUN = "none: no run"
NOT_POSITIVE = "none: a mean is not positive"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """A sample in numbers. `sd` is the sample's (n - 1); `ci_low`, `ci_high` bound the mean at 95 %."""

    n: int
    median: float
    mean: float
    sd: float
    cv_pct: float
    ci_low: float
    ci_high: float
    minimum: float
    maximum: float
    interval_method: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two means with its 95 % interval; `value` is nan where it does not exist."""

    value: float
    low: float
    high: float
    method: str

    def drop_pct(self) -> Ratio:
        """The ratio as a loss against the denominator, in percent: 0.919 is a drop of 8.1 %."""
        return Ratio(drop_pct(self.value), drop_pct(self.high), drop_pct(self.low), self.method)

    def increase_pct(self) -> Ratio:
        """The ratio as a gain over the denominator, in percent: 1.07 is an increase of 7 %."""
        return Ratio(-drop_pct(self.value), -drop_pct(self.low), -drop_pct(self.high), self.method)

    def scaled(self, factor: float) -> Ratio:
        """Value and interval times a positive constant (an efficiency from a speed-up)."""
        return Ratio(self.value * factor, self.low * factor, self.high * factor, self.method)


def drop_pct(ratio: float) -> float:
    """100 x (1 - ratio)."""
    return 100.0 * (1.0 - ratio)


def cv_pct(values: npt.ArrayLike) -> float:
    """Coefficient of variation of a sample, 100 x sd / mean; nan for fewer than two values or a mean of zero."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2 or not sample.mean():
        return float("nan")
    return float(100.0 * sample.std(ddof=1) / abs(sample.mean()))


def student_interval(
    mean: npt.ArrayLike, sd: npt.ArrayLike, n: npt.ArrayLike, confidence: float = CONFIDENCE
) -> tuple[Floats, Floats]:
    """Bounds of the means of samples given by mean, sample sd and size, element-wise; nan where n < 2."""
    size = np.asarray(n, dtype=np.float64)
    enough = np.where(size >= 2, size, np.nan)
    quantile = stdtrit(enough - 1.0, 0.5 + confidence / 2.0)
    half = quantile * np.asarray(sd, dtype=np.float64) / np.sqrt(enough)
    centre = np.asarray(mean, dtype=np.float64)
    return centre - half, centre + half


def interval_methods(n: npt.ArrayLike) -> npt.NDArray[np.object_]:
    """The method of `student_interval` for samples of these sizes, as words."""
    size = np.asarray(n)
    return np.where(size >= 2, STUDENT, np.where(size == 1, ONE_RUN, NO_RUN)).astype(object)


def summarize(values: npt.ArrayLike) -> Summary:
    """Summary of one sample; nan are not accepted (a run without a number is not in a sample).

    Raises ValueError for nan.
    """
    sample = np.asarray(values, dtype=np.float64).ravel()
    if np.isnan(sample).any():
        raise ValueError("a sample holds nan; leave runs without a number out of it")
    if not sample.size:
        nan = float("nan")
        return Summary(0, nan, nan, nan, nan, nan, nan, nan, nan, NO_RUN)
    mean = float(sample.mean())
    sd = float(sample.std(ddof=1)) if sample.size > 1 else float("nan")
    low, high = student_interval(mean, sd, sample.size)
    return Summary(
        n=int(sample.size),
        median=float(np.median(sample)),
        mean=mean,
        sd=sd,
        cv_pct=cv_pct(sample),
        ci_low=float(low),
        ci_high=float(high),
        minimum=float(sample.min()),
        maximum=float(sample.max()),
        interval_method=STUDENT if sample.size > 1 else ONE_RUN,
    )


def ratio_bounds(
    mean_a: npt.ArrayLike,
    sd_a: npt.ArrayLike,
    n_a: npt.ArrayLike,
    mean_b: npt.ArrayLike,
    sd_b: npt.ArrayLike,
    n_b: npt.ArrayLike,
    confidence: float = CONFIDENCE,
) -> tuple[Floats, Floats, Floats]:
    """Ratios a/b of means and their bounds, element-wise: (value, low, high).

    value is nan unless both means are positive; the bounds are nan as well unless both samples hold two runs or more.
    Degrees of freedom: Welch-Satterthwaite on the two relative variances of the means.
    """
    a, b = np.asarray(mean_a, dtype=np.float64), np.asarray(mean_b, dtype=np.float64)
    size_a, size_b = np.asarray(n_a, dtype=np.float64), np.asarray(n_b, dtype=np.float64)
    positive = (a > 0) & (b > 0)
    a, b = np.where(positive, a, np.nan), np.where(positive, b, np.nan)
    enough = (size_a >= 2) & (size_b >= 2)
    size_a, size_b = np.where(enough, size_a, np.nan), np.where(enough, size_b, np.nan)
    part_a = (np.asarray(sd_a, dtype=np.float64) / a) ** 2 / size_a
    part_b = (np.asarray(sd_b, dtype=np.float64) / b) ** 2 / size_b
    variance = part_a + part_b
    # Two samples without any spread have no degrees of freedom to estimate; their interval has no width.
    denominator = part_a**2 / (size_a - 1) + part_b**2 / (size_b - 1)
    spread = denominator > 0
    freedom = np.where(spread, variance**2 / np.where(spread, denominator, 1.0), 1.0)
    half = np.where(variance > 0, stdtrit(freedom, 0.5 + confidence / 2.0) * np.sqrt(variance), variance)
    value = a / b
    with np.errstate(over="ignore"):
        return value, value * np.exp(-half), value * np.exp(half)


def ratio_with_interval(a: Summary, b: Summary) -> Ratio:
    """The ratio of the means a/b with its 95 % interval; `method` names it, or says why there is none."""
    value, low, high = ratio_bounds(a.mean, a.sd, a.n, b.mean, b.sd, b.n)
    if not a.n or not b.n:
        method = NO_RUN
    elif np.isnan(value):
        method = NOT_POSITIVE
    else:
        method = LOG_RATIO if min(a.n, b.n) >= 2 else ONE_RUN
    return Ratio(float(value), float(low), float(high), method)
