"""The highest rate of requests that holds a service objective, from the percentiles measured at several rates.

A rate holds where the percentile of each objective is at most its limit. The highest one is where the curve of the percentile over
the rate first crosses the limit, between two measured rates: along a straight line in the logarithm of the latency. The error of
the curve there is that of the requests of both rates, each divided by the percentile of its rate, as one sample
(`campaign.statistics.latency_percentiles`): so it holds what compositions do to both rates. The interval reaches to where the curve
would cross the limit, were it off by as much. Ends lie where a curve between two measured rates can be at most: the lower one along
a straight line in the latency (latencies of a queue bend upwards), the upper one along a straight line in its inverse (those of
M/M/1 are exactly that).

What is not crossed is censored: "at least" the highest measured rate where none fails, "below" the lowest one where none holds. A
rate that holds again above one that fails counts as one that fails.

Per device, this is what DistServe calls goodput (Zhong et al., OSDI 2024): the highest rate that holds the objectives, divided by
the number of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from campaign.statistics.intervals import Floats
from campaign.statistics.latency_percentiles import BoundedEstimate, Sample, percentile, quantile

Found = Literal["crossed", "none fails", "none holds", "not known"]


@dataclass(frozen=True, slots=True, order=True)
class Objective:
    """A percentile of a latency and its limit: `ttft_ms`, 99, 500."""

    latency: str
    percent: float
    limit: float


@dataclass(frozen=True, slots=True)
class HighestRate:
    """The highest rate that holds.

    value: nan where it is censored. low, high: 95 %, nan for an end that nothing bounds. again: rates shown to hold above one
    that is shown to fail. decides: the objective that is crossed first."""

    found: Found
    value: float
    low: float
    high: float
    decides: Objective
    again: tuple[float, ...] = ()


def objectives(document: Mapping[str, Mapping[str, float]]) -> tuple[Objective, ...]:
    """The objectives of a workload file: {"ttft_ms": {"p99": 500}}."""
    return tuple(
        Objective(latency, float(name.removeprefix("p")), float(limit))
        for latency, limits in document.items()
        for name, limit in limits.items()
    )


def highest_rate(measured: Mapping[Objective, Mapping[float, Sample]]) -> HighestRate:
    """The highest rate of one cell: that of the objective which is crossed first. measured: at least one objective, by rate."""
    each = [_of_one(objective, by_rate) for objective, by_rate in measured.items()]
    unknown = [one for one in each if one.found == "not known"]
    first = min(each, key=_rank)
    decides = unknown[0] if unknown and first.found == "none fails" else first
    # Every objective has to hold: one without a lower end takes it from all.
    low, high = float(np.min([one.low for one in each])), float(np.fmin.reduce([one.high for one in each]))
    again = tuple(sorted({rate for one in each for rate in one.again}))
    return HighestRate(decides.found, decides.value, low, high, decides.decides, again)


def _rank(one: HighestRate) -> float:
    return {"none holds": -1.0, "none fails": np.inf, "not known": np.inf}.get(one.found, one.value)


def _of_one(objective: Objective, by_rate: Mapping[float, Sample]) -> HighestRate:
    percent, limit = objective.percent, objective.limit
    rates = np.array(sorted(by_rate))
    samples = [by_rate[float(rate)] for rate in rates]
    curve = np.array([quantile(each, percent / 100.0) for each in samples])
    own = [percentile(each, percent) for each in samples]
    fails, holds = (np.array(mark) for mark in ([e.low > limit for e in own], [e.high <= limit for e in own]))
    again = tuple(rates[holds & (np.cumsum(fails) > 0)].tolist())
    value = crossing(rates, curve, limit, "logarithm")
    at = np.searchsorted(rates, min(max(value, rates[0]), rates[-1]))
    beside = [int(at)] if value in (0.0, np.inf) else [int(at) - 1, int(at)]
    # A percentile with less than one request above it is no number.
    if any(np.isnan(own[place].value) for place in beside):
        return HighestRate("none holds" if fails[0] else "not known", np.nan, np.nan, np.nan, objective, again)
    band = _band([samples[place] for place in beside], curve[beside], percent, _weight(rates[beside], value))
    low, high = _end(rates, curve * band.high, limit, "latency"), _end(rates, curve * band.low, limit, "inverse")
    if np.isnan(low) and holds[0]:  # what measured rates show by themselves
        low = float(rates[np.cumprod(holds).sum() - 1])
    if value == 0.0:
        return HighestRate("none holds", np.nan, np.nan, rates[0] if fails[0] else high, objective, again)
    if value == np.inf:
        low = float(rates[-1]) if holds[-1] else low
        return HighestRate("none fails", np.nan, low, np.nan, objective, again)
    return HighestRate("crossed", value, low, high, objective, again)


def _weight(rates: Floats, value: float) -> float:
    """The weight of the second of two rates in what stands between them; 0 for one rate."""
    return float((value - rates[0]) / (rates[1] - rates[0])) if rates.size == 2 else 0.0


def _band(samples: Sequence[Sample], values: Floats, percent: float, weight: float) -> BoundedEstimate:
    """How far the curve may be off, as factors, where it stands between the two samples, or at the only one."""
    if not np.isfinite(values).all():
        return BoundedEstimate(1.0, np.nan, np.nan)
    runs = tuple(run / value for each, value in zip(samples, values, strict=True) for run in each.runs)
    pooled = Sample(runs, np.concatenate([each.compositions for each in samples]))
    error = np.sqrt(2 * (weight**2 + (1 - weight) ** 2)) if len(samples) == 2 else 1.0
    return percentile(pooled, percent, float(error))


def _end(rates: Floats, latency: Floats, limit: float, straight: Literal["latency", "inverse"]) -> float:
    """Where a bound of the curve crosses; nan where it has none, or does not within the measured rates."""
    found = crossing(rates, latency, limit, straight) if not np.isnan(latency).any() else np.nan
    return found if 0 < found < np.inf else np.nan


_STRAIGHT: Mapping[str, Callable[[float], float]] = {
    "latency": lambda latency: latency,
    "logarithm": np.log,
    "inverse": lambda latency: -1 / latency,
}


def crossing(
    rates: Floats, latency: Floats, limit: float, straight: Literal["latency", "logarithm", "inverse"]
) -> float:
    """The rate at which a curve first crosses a limit; 0 where it is above it at the first rate, infinite where it never is.

    straight: in what the curve is a straight line between two rates.
    """
    above = np.flatnonzero(latency > limit)
    if not above.size:
        return np.inf
    place = int(above[0])
    if place == 0:
        return 0.0
    at, before, after = map(_STRAIGHT[straight], (limit, latency[place - 1], latency[place]))
    part = (at - before) / (after - before)
    return float(rates[place - 1] + part * (rates[place] - rates[place - 1]))
