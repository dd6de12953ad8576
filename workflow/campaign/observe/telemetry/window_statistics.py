"""Integrals, means and rates of sampled values over a window. Pure.

Values are interpolated linearly between samples (trapezoid rule) and constant before the first and after the last one. So integrals
over adjacent windows add up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from campaign.observe.telemetry.samples import Series

_LATE_INTERVALS = 2.5
_LATE_SHARE, _LATE_S = 0.15, 1.5


@dataclass(frozen=True, slots=True)
class Window:
    """Unix seconds, by the clock of the sampled host."""

    start: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.start


def at(series: Series, time: float) -> float:
    """The value at a time."""
    times, values = series.times, series.values
    place = bisect_left(times, time)
    if place == 0:
        return values[0]
    if place == len(times):
        return values[-1]
    share = (time - times[place - 1]) / (times[place] - times[place - 1])
    return values[place - 1] + share * (values[place] - values[place - 1])


def integral(series: Series, window: Window) -> float:
    """Value times seconds, over the window."""
    times, values = points(series, window)
    return sum((times[i + 1] - times[i]) * (values[i] + values[i + 1]) / 2 for i in range(len(times) - 1))


def points(series: Series, window: Window) -> tuple[list[float], list[float]]:
    """Times and values in the window, with those at its two edges."""
    inside = slice(bisect_right(series.times, window.start), bisect_left(series.times, window.end))
    times = [window.start, *series.times[inside], window.end]
    return times, [at(series, window.start), *series.values[inside], at(series, window.end)]


def mean(series: Series, window: Window) -> float:
    """Over the time of the window, so that samples which are not evenly spread count for as long as they stand."""
    return integral(series, window) / window.length_s


def peak(series: Series, window: Window) -> float:
    """The largest sample in the window."""
    return max(
        value for time, value in zip(series.times, series.values, strict=True) if window.start <= time <= window.end
    )


def covers(series: Series, window: Window, interval_s: float) -> bool:
    """Whether there are two samples in the window or more, from its start to its end.

    A last sample may be on its way still, and a sampler that has much to read takes turns; a part that is gone leaves a longer gap.
    """
    inside = [time for time in series.times if window.start <= time <= window.end]
    if window.length_s <= 0 or len(inside) < 2:
        return False
    usual_s = max(interval_s, series.spacing_s())
    most_s = _LATE_INTERVALS * usual_s + min(_LATE_S, _LATE_SHARE * window.length_s)
    known = [window.start, *inside, window.end]
    return max(later - sooner for sooner, later in pairwise(known)) <= most_s


def rate(counter: Series, window: Window) -> float | None:
    """How fast a counter grows, per second, over the part of the window between samples.

    None where it went back (a reset, or a counter that begins anew at a limit): what it had counted by then is not known.
    """
    start, end = max(window.start, counter.times[0]), min(window.end, counter.times[-1])
    if end <= start or not _grows(counter.values):
        return None
    return (at(counter, end) - at(counter, start)) / (end - start)


def fastest(counter: Series, window: Window) -> float | None:
    """The largest rate, per second, between two samples that both are in the window; None where it went back."""
    pairs = [
        (time, value)
        for time, value in zip(counter.times, counter.values, strict=True)
        if window.start <= time <= window.end
    ]
    if len(pairs) < 2 or not _grows(counter.values):
        return None
    return max((value - before) / (time - sooner) for (sooner, before), (time, value) in pairwise(pairs))


def _grows(values: Sequence[float]) -> bool:
    return all(later >= sooner for sooner, later in pairwise(values))


def together(parts: Sequence[Series]) -> Series | None:
    """The sum of several counters, at the times at which all were read; None without such times."""
    if not parts:
        return None
    common = sorted(set(parts[0].times).intersection(*(each.times for each in parts[1:])))
    values = [dict(zip(each.times, each.values, strict=True)) for each in parts]
    return Series(tuple(common), tuple(sum(each[time] for each in values) for time in common)) if common else None
