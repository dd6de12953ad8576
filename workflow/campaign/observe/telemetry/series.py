"""Series of sampled values, and their integrals, means and rates over a window. Pure.

Values are interpolated linearly between samples (trapezoid rule) and constant before the first and after the last one. So integrals
over adjacent windows add up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

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


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one quantity of one part; times rise."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, time: float) -> float:
        """The value at a time."""
        times, values = self.times, self.values
        place = bisect_left(times, time)
        if place in (0, len(times)):
            return values[min(place, len(times) - 1)]
        share = (time - times[place - 1]) / (times[place] - times[place - 1])
        return values[place - 1] + share * (values[place] - values[place - 1])

    def inside(self, window: Window) -> Series:
        """The samples in a window, its edges included."""
        part = slice(bisect_left(self.times, window.start), bisect_right(self.times, window.end))
        return Series(self.times[part], self.values[part])

    def integral(self, window: Window) -> float:
        """Value times seconds, over the window."""
        inside = self.inside(window)
        times = (window.start, *inside.times, window.end)
        values = (self.at(window.start), *inside.values, self.at(window.end))
        spans = zip(pairwise(times), pairwise(values), strict=True)
        return sum((later - sooner) * (before + after) / 2 for (sooner, later), (before, after) in spans)

    def mean(self, window: Window) -> float:
        """Over the time of the window, so that samples which are not evenly spread count for as long as they stand."""
        return self.integral(window) / window.length_s

    def peak(self, window: Window) -> float:
        """The largest sample in the window."""
        return max(self.inside(window).values)

    def covers(self, window: Window, interval_s: float) -> bool:
        """Whether there are two samples in the window or more, from its start to its end.

        A last sample may be on its way still, and a sampler that has much to read takes turns; a part that is gone leaves a longer
        gap.
        """
        inside = self.inside(window).times
        if window.length_s <= 0 or len(inside) < 2:
            return False
        usual_s = max(interval_s, median(later - sooner for sooner, later in pairwise(self.times)))
        most_s = _LATE_INTERVALS * usual_s + min(_LATE_S, _LATE_SHARE * window.length_s)
        return max(later - sooner for sooner, later in pairwise((window.start, *inside, window.end))) <= most_s

    def rate(self, window: Window) -> float | None:
        """How fast a counter grows, per second, over the part of the window between samples.

        None where it went back (a reset, or a counter that begins anew at a limit): what it had counted by then is not known.
        """
        start, end = max(window.start, self.times[0]), min(window.end, self.times[-1])
        return (self.at(end) - self.at(start)) / (end - start) if end > start and self._grows() else None

    def fastest(self, window: Window) -> float | None:
        """The largest rate, per second, between two samples that both are in the window; None where it went back."""
        inside = self.inside(window)
        spans = zip(pairwise(inside.times), pairwise(inside.values), strict=True)
        rates = ((after - before) / (later - sooner) for (sooner, later), (before, after) in spans)
        return max(rates, default=None) if self._grows() else None

    def _grows(self) -> bool:
        return all(later >= sooner for sooner, later in pairwise(self.values))


def together(parts: Sequence[Series]) -> Series | None:
    """The sum of several counters, at the times at which all were read; None without such times."""
    if not parts:
        return None
    values = [dict(zip(each.times, each.values, strict=True)) for each in parts]
    common = [time for time in parts[0].times if all(time in each for each in values)]
    return Series(tuple(common), tuple(sum(each[time] for each in values) for time in common)) if common else None
