"""Coordinates of intervals that a template draws in a column of a table, on one scale. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from campaign.common import wording
from campaign.common.intervals import Floats

WIDTH, HEIGHT = 220.0, 18.0
_MARGIN = 16.0  # half the width of a tick label


@dataclass(frozen=True, slots=True)
class Interval:
    """Value with its interval, nan for none. `kind` determines the colour: 'better', 'worse' or ''."""

    value: float
    low: float
    high: float
    kind: str = ""


def build_intervals_column(intervals: Sequence[Interval]) -> dict[str, Any]:
    """Compute the coordinates of a column of intervals: labelled ticks, and the point and line of each interval.

    A missing point or line is ''. The scale includes 0, all values and all finite ends; an infinite end is at the edge.
    """
    numbers = np.array([(interval.value, interval.low, interval.high) for interval in intervals]).ravel()
    finite_numbers = numbers[np.isfinite(numbers)]
    scale = choose_ticks(float(finite_numbers.min(initial=-1.0)), float(finite_numbers.max(initial=1.0)))
    low, high = min(scale[0], finite_numbers.min(initial=0.0)), max(scale[-1], finite_numbers.max(initial=0.0))

    def x(number: float) -> float:
        place = np.clip((number - low) / (high - low), 0, 1)
        return round(float(_MARGIN + place * (WIDTH - 2 * _MARGIN)), 1)

    def line(one: float, two: float) -> str:
        return "" if math.isnan(one) or math.isnan(two) else f"M{x(one):g} {HEIGHT / 2:g}H{x(two):g}"

    return {
        "width": f"{WIDTH:g}",
        "height": f"{HEIGHT:g}",
        "ticks": [(x(tick), wording.use_minus_signs(f"{tick:,.6g}")) for tick in scale],
        "grid": "".join(f"M{x(tick):g} 0v{HEIGHT:g}" for tick in scale if tick),
        "zero": f"M{x(0):g} 0v{HEIGHT:g}",
        "rows": [
            {
                "point": f"M{x(interval.value):g} {HEIGHT / 2:g}h0" if math.isfinite(interval.value) else "",
                "line": line(interval.low, interval.high),
                "kind": interval.kind,
            }
            for interval in intervals
        ],
    }


def choose_ticks(low: float, high: float) -> Floats:
    """Choose three to five round numbers as ticks that enclose all values.

    The ends are at least 4 % apart, so that noise looks like noise.
    """
    middle = (low + high) / 2
    half_range = max((high - low) / 2 * 1.05, 0.02 * abs(middle), 1e-12)
    step = 10 ** np.floor(np.log10(half_range))
    step *= next(factor for factor in (0.5, 1.0, 2.0, 5.0, 10.0) if 2 * half_range / (factor * step) <= 4)
    return np.asarray(
        np.arange(np.floor((middle - half_range) / step), np.ceil((middle + half_range) / step) + 0.5) * step,
        dtype=np.float64,
    )
