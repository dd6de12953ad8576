"""Samples of one run from the growing files of samplers, as series with integrals, means and rates over a window.

Values are interpolated linearly between samples (trapezoid rule). They are constant before the first sample and after the last one.
Integrals over adjacent windows therefore add up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ValidationError

from campaign.common.files import read_json_lines

_MAX_GAP_INTERVALS = 2.5
_MAX_GAP_SHARE, _MAX_GAP_S = 0.15, 1.5


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Time window from start to end, in Unix seconds by the clock of the sampled host."""

    start: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class SampleSeries:
    """Time series of one quantity of one part of a host, with ascending times."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def interpolate(self, time: float) -> float:
        """Return the value of the series at a given time, interpolated linearly between samples."""
        times, values = self.times, self.values
        index = bisect_left(times, time)
        if index in (0, len(times)):
            return values[min(index, len(times) - 1)]
        share = (time - times[index - 1]) / (times[index] - times[index - 1])
        return values[index - 1] + share * (values[index] - values[index - 1])

    def restrict(self, window: TimeWindow) -> SampleSeries:
        """Return the part of the series inside a window, including samples exactly at its edges."""
        part = slice(bisect_left(self.times, window.start), bisect_right(self.times, window.end))
        return SampleSeries(self.times[part], self.values[part])

    def integrate(self, window: TimeWindow) -> float:
        """Return the integral of the series over the window (unit of the value times seconds)."""
        inside = self.restrict(window)
        times = (window.start, *inside.times, window.end)
        values = (self.interpolate(window.start), *inside.values, self.interpolate(window.end))
        spans = zip(pairwise(times), pairwise(values), strict=True)
        return sum((later - sooner) * (before + after) / 2 for (sooner, later), (before, after) in spans)

    def compute_mean(self, window: TimeWindow) -> float:
        """Return the time-weighted mean over the window. Unevenly spaced samples count by their duration."""
        return self.integrate(window) / window.length_s

    def find_peak(self, window: TimeWindow) -> float:
        """Return the largest sampled value in the window."""
        return max(self.restrict(window).values)

    def covers(self, window: TimeWindow, interval_s: float) -> bool:
        """Return whether at least two samples cover the window from its start to its end.

        Short gaps are allowed, because the last sample may not have been written yet, and because a sampler with many probes reads
        them one after another. A part that was lost leaves a longer gap.
        """
        inside = self.restrict(window).times
        if window.length_s <= 0 or len(inside) < 2:
            return False
        max_gap_s = _MAX_GAP_INTERVALS * self._compute_usual_interval_s(interval_s) + min(
            _MAX_GAP_S, _MAX_GAP_SHARE * window.length_s
        )
        return max(later - sooner for sooner, later in pairwise((window.start, *inside, window.end))) <= max_gap_s

    def compute_covered_share(self, window: TimeWindow, interval_s: float) -> float:
        """Return the share of a window that is covered by samples. Each sample covers at most the usual sampling interval."""
        inside = self.restrict(window).times
        if window.length_s <= 0 or not inside:
            return 0.0
        usual_s = self._compute_usual_interval_s(interval_s)
        gaps = (later - sooner for sooner, later in pairwise((window.start, *inside, window.end)))
        return sum(min(gap, usual_s) for gap in gaps) / window.length_s

    def _compute_usual_interval_s(self, interval_s: float) -> float:
        return max(interval_s, median([later - sooner for sooner, later in pairwise(self.times)] or [0.0]))

    def compute_growth_rate(self, window: TimeWindow) -> float | None:
        """Return the mean growth of a counter per second, over the part of the window that lies between samples.

        The result is None if the counter decreased there (because of a reset or a wrap), since the lost count is unknown.
        """
        start, end = max(window.start, self.times[0]), min(window.end, self.times[-1])
        return (
            (self.interpolate(end) - self.interpolate(start)) / (end - start)
            if end > start and self._is_monotonic(window)
            else None
        )

    def find_max_growth_rate(self, window: TimeWindow) -> float | None:
        """Return a counter's largest growth per second between two successive samples in the window, or None if it decreased."""
        inside = self.restrict(window)
        spans = zip(pairwise(inside.times), pairwise(inside.values), strict=True)
        rates = ((after - before) / (later - sooner) for (sooner, later), (before, after) in spans)
        return max(rates, default=None) if self._is_monotonic(window) else None

    def _is_monotonic(self, window: TimeWindow) -> bool:
        """Return whether the counter never decreased between the samples that enclose the window."""
        around = slice(max(0, bisect_right(self.times, window.start) - 1), bisect_left(self.times, window.end) + 1)
        return all(later >= sooner for sooner, later in pairwise(self.values[around]))


def sum_counters(parts: Sequence[SampleSeries]) -> SampleSeries | None:
    """Add up several counters at all times at which every one was read. Returns None if there is no such time."""
    if not parts:
        return None
    values = [dict(zip(values_by_time.times, values_by_time.values, strict=True)) for values_by_time in parts]
    common_times = [time for time in parts[0].times if all(time in values_by_time for values_by_time in values)]
    return (
        SampleSeries(
            tuple(common_times), tuple(sum(values_by_time[time] for values_by_time in values) for time in common_times)
        )
        if common_times
        else None
    )


_MIN_CLOCK_JUMP_S, _MAX_CLOCK_DRIFT = 0.05, 1e-3
SeriesKey = tuple[str, str]
"""Key of a series: part of the host and quantity."""


class _Header(BaseModel):
    host: str
    machine: str
    network: int
    interval_s: float
    look_s: float = 0.0
    problems: tuple[str, ...] = ()


class SampleTick(BaseModel):
    """One sample of a host.

    Attributes:
        time: time of the sample in Unix seconds, by the host's clock.
        monotonic: time of the sample in seconds, by the host's monotonic clock.
        read: current values by part and quantity.
        sampled: times and values of samples that the device driver has taken since the previous one, by part and quantity.
    """

    time: float
    monotonic: float
    read: dict[str, dict[str, float]]
    sampled: dict[str, dict[str, list[tuple[float, float]]]] = {}


@dataclass(frozen=True)
class HostSamples:
    """Samples of one host during one run.

    Attributes:
        host: name of the host.
        machine: identity of the machine, which emulated hosts share.
        network: identity of the network namespace of the host.
        interval_s: actual sampling interval in seconds.
        series: series by part and quantity.
        jumped_s: amount in seconds by which the host's clock was set during the run.
        look_s: processor time of taking one sample, in seconds.
        problems: reasons why devices cannot be read.
        earlier: last sample taken before the run.
    """

    host: str
    machine: str
    network: int
    interval_s: float
    series: Mapping[SeriesKey, SampleSeries] = field(default_factory=dict)
    jumped_s: float = 0.0
    look_s: float = 0.0
    problems: tuple[str, ...] = ()
    earlier: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def find_series(self, part: str, quantity: str) -> SampleSeries | None:
        """Return the series of a part and quantity, or None if there is none."""
        return self.series.get((part, quantity))

    def list_parts(self, *kinds: str) -> list[str]:
        """List the parts of the host that have one of the given kinds (`gpu`, `nic` ..), in the order of the samples."""
        return list(dict.fromkeys(part for part, _ in self.series if part.partition(":")[0] in kinds))


class SampleFile:
    """Output file of one sampler, which may not exist yet. Samples read from it stay in memory until `drop_before`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._header: _Header | None = None
        self._ticks: list[SampleTick] = []

    def read_new_lines(self) -> None:
        """Read the lines of the file that were completed since the last call. Malformed lines are skipped."""
        try:
            lines, self._offset = read_json_lines(self._path, self._offset)
        except OSError:
            return
        for line in lines:
            with suppress(ValidationError):
                if "schema_version" in line:
                    self._header = _Header.model_validate(line)
                else:
                    self._ticks.append(SampleTick.model_validate(line))

    def collect_samples(self, start: float, end: float) -> HostSamples | None:
        """Return the samples taken between two Unix times of the host's clock, or None if the sampler has written nothing."""
        if self._header is None:
            return None
        series, jumped_s = build_series([tick for tick in self._ticks if start <= tick.time <= end])
        earlier = next((tick.read for tick in reversed(self._ticks) if tick.time < start), {})
        return HostSamples(**self._header.model_dump(), series=series, jumped_s=jumped_s, earlier=earlier)

    def drop_before(self, time: float) -> None:
        """Drop the samples before a given time from memory, except for the last of them."""
        past_ticks = sum(tick.time <= time for tick in self._ticks)
        self._ticks = self._ticks[max(0, past_ticks - 1) :]


def build_series(ticks: Sequence[SampleTick]) -> tuple[dict[SeriesKey, SampleSeries], float]:
    """Convert samples to time series by part and quantity. Return them and the seconds by which the clock was set (or 0).

    If the clock was set, times after the first sample are based on the monotonic clock, and samples taken by the device driver are
    left out.
    """
    jumped_s = max((_compute_clock_jump_s(*pair) for pair in pairwise(ticks)), default=0.0)
    values_by_key: dict[SeriesKey, dict[float, float]] = {}
    latest_time = float("-inf")
    start = ticks[0].time if ticks else 0.0
    for part, quantity, samples in (
        (part, quantity, samples)
        for tick in ([] if jumped_s else ticks)
        for part, values in tick.sampled.items()
        for quantity, samples in values.items()
    ):
        values_by_key.setdefault((part, quantity), {}).update(
            (sample_time, value) for sample_time, value in samples if sample_time >= start
        )
    for tick in ticks:
        time = ticks[0].time + tick.monotonic - ticks[0].monotonic if jumped_s else tick.time
        if time <= latest_time:
            continue
        latest_time = time
        for part, values in tick.read.items():
            for quantity, value in values.items():
                values_by_key.setdefault((part, quantity), {})[time] = value
    return {
        key: SampleSeries(*zip(*sorted(values.items()), strict=True)) for key, values in values_by_key.items() if values
    }, jumped_s


def _compute_clock_jump_s(earlier: SampleTick, later: SampleTick) -> float:
    """Return by how many seconds the clock was set between two samples, or 0 if the difference is only normal drift."""
    elapsed_s = later.monotonic - earlier.monotonic
    difference_s = abs(later.time - earlier.time - elapsed_s)
    return 0.0 if difference_s <= _MIN_CLOCK_JUMP_S + _MAX_CLOCK_DRIFT * abs(elapsed_s) else difference_s


def build_columns(hosts: Iterable[HostSamples]) -> dict[str, list[Any]]:
    """Build the columns of the table in which samples are stored: time (Unix seconds), host, part, quantity, value."""
    names = ("time", "host", "part", "quantity", "value")
    table = [
        (time, samples.host, *key, value)
        for samples in hosts
        for key, series in samples.series.items()
        for time, value in zip(series.times, series.values, strict=True)
    ]
    return {name: [row[column] for row in table] for column, name in enumerate(names)}
