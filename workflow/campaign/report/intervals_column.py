"""Intervals as a column of a table: coordinates on one scale, which the template draws. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from campaign.common import wording
from campaign.common.intervals import Floats

WIDTH, HEIGHT = 220.0, 18.0
_MARGIN = 16.0  # half of a tick's label


@dataclass(frozen=True, slots=True)
class Interval:
    """Value with its interval, nan for none. kind: colour of the interval, which is better, worse or ''."""

    value: float
    low: float
    high: float
    kind: str = ""


def column(intervals: Sequence[Interval]) -> dict[str, Any]:
    """Compute the coordinates of a column of intervals: labelled ticks, and the point and line of each interval.

    A missing point or line is ''. The scale holds 0, all values and all finite ends; an infinite end is at the edge.
    """
    numbers = np.array([(each.value, each.low, each.high) for each in intervals]).ravel()
    known = numbers[np.isfinite(numbers)]
    scale = ticks(float(known.min(initial=-1.0)), float(known.max(initial=1.0)))
    low, high = min(scale[0], known.min(initial=0.0)), max(scale[-1], known.max(initial=0.0))

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
                "point": f"M{x(each.value):g} {HEIGHT / 2:g}h0" if math.isfinite(each.value) else "",
                "line": line(each.low, each.high),
                "kind": each.kind,
            }
            for each in intervals
        ],
    }


def ticks(low: float, high: float) -> Floats:
    """Choose three to five round numbers as ticks that enclose all values.

    The ends are at least 4 % apart, so that noise looks like noise.
    """
    middle = (low + high) / 2
    half = max((high - low) / 2 * 1.05, 0.02 * abs(middle), 1e-12)
    step = 10 ** np.floor(np.log10(half))
    step *= next(factor for factor in (0.5, 1.0, 2.0, 5.0, 10.0) if 2 * half / (factor * step) <= 4)
    return np.asarray(
        np.arange(np.floor((middle - half) / step), np.ceil((middle + half) / step) + 0.5) * step, dtype=np.float64
    )
