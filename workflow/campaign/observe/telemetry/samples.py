"""Reads the growing file of a sampler, and gives the samples of one run as series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from campaign.files import read_json_lines
from campaign.observe.telemetry.series import Series

_JUMP_S, _SLEW = 0.05, 1e-3
Key = tuple[str, str]
"""Part and quantity."""


class _Header(BaseModel):
    host: str
    machine: str
    network: int
    interval_s: float


class Tick(BaseModel):
    """One sample. time: Unix seconds by the host's clock; monotonic: seconds of its monotonic clock."""

    time: float
    monotonic: float
    read: dict[str, dict[str, float]]


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

    def parts(self, *kinds: str) -> list[str]:
        """Parts of some kinds (`gpu`, `nic` ..), in their order."""
        return list(dict.fromkeys(part for part, _ in self.series if part.partition(":")[0] in kinds))


class SampleFile:
    """One sampler's file, which may not be there yet. What has been read is kept until `forget`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._header: _Header | None = None
        self._ticks: list[Tick] = []

    def read_on(self) -> None:
        """Read the lines that were completed since the last call; torn lines and lines of another form are skipped."""
        try:
            lines, self._offset = read_json_lines(self._path, self._offset)
        except OSError:
            return
        for found in lines:
            with suppress(ValidationError):
                if "schema_version" in found:
                    self._header = _Header.model_validate(found)
                else:
                    self._ticks.append(Tick.model_validate(found))

    def between(self, start: float, end: float) -> HostSamples | None:
        """Samples from `start` to `end`, Unix seconds by the host's clock; None where the sampler has said nothing at all."""
        if self._header is None:
            return None
        series, jumped_s = series_of([tick for tick in self._ticks if start <= tick.time <= end])
        return HostSamples(**self._header.model_dump(), series=series, jumped_s=jumped_s)

    def forget(self, before: float) -> None:
        """Drop the samples before a time."""
        self._ticks = [tick for tick in self._ticks if tick.time > before]


def series_of(ticks: Sequence[Tick]) -> tuple[dict[Key, Series], float]:
    """Series by part and quantity, and by how much the clock was set between the ticks (0: not at all).

    Where it was set, times go on from the first tick by the monotonic clock.
    """
    jumped_s = max((_jump_s(*pair) for pair in pairwise(ticks)), default=0.0)
    found: dict[Key, dict[float, float]] = {}
    latest = float("-inf")
    for tick in ticks:
        time = ticks[0].time + tick.monotonic - ticks[0].monotonic if jumped_s else tick.time
        if time <= latest:
            continue
        latest = time
        for part, values in tick.read.items():
            for quantity, value in values.items():
                found.setdefault((part, quantity), {})[time] = value
    return {key: Series(tuple(values), tuple(values.values())) for key, values in found.items()}, jumped_s


def _jump_s(sooner: Tick, later: Tick) -> float:
    """0 for what a clock that is kept in step may drift between two ticks."""
    passed = later.monotonic - sooner.monotonic
    jumped_s = abs(later.time - sooner.time - passed)
    return 0.0 if jumped_s <= _JUMP_S + _SLEW * abs(passed) else jumped_s


def rows(hosts: Iterable[HostSamples]) -> dict[str, list[Any]]:
    """Columns of the long table that is kept: time (Unix seconds), host, part, quantity, value."""
    names = ("time", "host", "part", "quantity", "value")
    table = [
        (time, samples.host, *key, value)
        for samples in hosts
        for key, series in samples.series.items()
        for time, value in zip(series.times, series.values, strict=True)
    ]
    return {name: [row[column] for row in table] for column, name in enumerate(names)}
