"""Reads the growing file of a sampler, and gives the samples of one run as series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from campaign.files import read_json_lines

_JUMP_S, _SLEW = 0.05, 1e-3
Key = tuple[str, str]
"""Part and quantity."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One sample. time: Unix seconds by the host's clock; monotonic: seconds of its monotonic clock."""

    time: float
    monotonic: float
    read: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one quantity of one part; times rise."""

    times: tuple[float, ...]
    values: tuple[float, ...]

    def spacing_s(self) -> float:
        """The usual time from one sample to the next; 0 for fewer than two."""
        gaps = [later - sooner for sooner, later in pairwise(self.times)]
        return median(gaps) if gaps else 0.0


@dataclass(frozen=True)
class HostSamples:
    """What one sampler saw of one run.

    machine, network: what tells these apart from others (hosts that are emulated share a machine, or even its network);
    jumped_s: by how much the host's clock was set while the run was on.
    """

    host: str
    machine: str
    network: int
    interval_s: float
    series: Mapping[Key, Series] = field(default_factory=dict)
    jumped_s: float = 0.0

    def of(self, part: str, quantity: str) -> Series | None:
        return self.series.get((part, quantity))

    def parts(self, kind: str) -> list[str]:
        """Parts of a kind (`gpu`, `nic` ..), in their order."""
        return list(dict.fromkeys(part for part, _ in self.series if part.startswith(f"{kind}:")))


class SampleFile:
    """One sampler's file, which may not be there yet. What has been read is kept until `forget`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._header: Mapping[str, Any] = {}
        self._ticks: list[Tick] = []

    def read_on(self) -> None:
        """Read the lines that were completed since the last call; torn lines and lines of another form are skipped."""
        try:
            lines, self._offset = read_json_lines(self._path, self._offset)
        except OSError:
            return
        for found in lines:
            if "schema_version" in found:
                self._header = found
            elif (tick := _tick(found)) is not None:
                self._ticks.append(tick)

    def between(self, start: float, end: float) -> HostSamples | None:
        """Samples from `start` to `end`, Unix seconds by the host's clock; None where the sampler has said nothing at all."""
        if not self._header:
            return None
        try:
            who = (str(self._header["host"]), str(self._header["machine"]), int(self._header["network"]))
            interval_s = float(self._header["interval_s"])
        except (KeyError, TypeError, ValueError):
            return None
        series, jumped_s = series_of([tick for tick in self._ticks if start <= tick.time <= end])
        return HostSamples(*who, interval_s, series, jumped_s)

    def forget(self, before: float) -> None:
        """Drop the samples before a time."""
        self._ticks = [tick for tick in self._ticks if tick.time > before]


def series_of(ticks: Sequence[Tick]) -> tuple[dict[Key, Series], float]:
    """Series by part and quantity, and by how much the clock was set between the ticks (0: not at all).

    Where it was set, times go on from the first tick by the monotonic clock.
    """
    jumped_s = max((abs(_jump_s(*pair)) for pair in pairwise(ticks)), default=0.0)
    found: dict[Key, tuple[list[float], list[float]]] = {}
    for tick in ticks:
        time = ticks[0].time + tick.monotonic - ticks[0].monotonic if jumped_s else tick.time
        for part, values in tick.read.items():
            for quantity, value in values.items():
                times, numbers = found.setdefault((part, quantity), ([], []))
                if not times or time > times[-1]:
                    times.append(time)
                    numbers.append(value)
    return {key: Series(tuple(times), tuple(numbers)) for key, (times, numbers) in found.items()}, jumped_s


def _jump_s(sooner: Tick, later: Tick) -> float:
    """0 for what a clock that is kept in step may drift between two ticks."""
    by_clock, passed = later.time - sooner.time, later.monotonic - sooner.monotonic
    return 0.0 if abs(by_clock - passed) <= _JUMP_S + _SLEW * abs(passed) else by_clock - passed


def _tick(found: Mapping[str, Any]) -> Tick | None:
    try:
        read = {
            str(part): {str(name): float(value) for name, value in values.items()}
            for part, values in found["read"].items()
        }
        return Tick(float(found["time"]), float(found["monotonic"]), read)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def rows(hosts: Iterable[HostSamples]) -> dict[str, list[Any]]:
    """Columns of the long table that is kept: time (Unix seconds), host, part, quantity, value."""
    table: dict[str, list[Any]] = {"time": [], "host": [], "part": [], "quantity": [], "value": []}
    for samples in hosts:
        for (part, quantity), series in samples.series.items():
            count = len(series.times)
            table["time"] += series.times
            table["host"] += [samples.host] * count
            table["part"] += [part] * count
            table["quantity"] += [quantity] * count
            table["value"] += series.values
    return table
