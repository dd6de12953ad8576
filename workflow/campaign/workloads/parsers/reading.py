"""What is read from a program's log, and what has to be known of the run to read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

ReadingStatus = Literal["ok", "nan", "invalid", "incomplete"]


@dataclass(frozen=True)
class Scope:
    """What is known of the run beforehand; None is not known. batch: samples per device and step; batch_global: of all devices."""

    ranks: int | None = None
    hosts: int | None = None
    batch: int | None = None
    batch_global: int | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None


@dataclass(frozen=True)
class Matrix:
    """A number for every pair; None where it was not measured. unit: as a suffix of names is (`gb_per_s`, `us`)."""

    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Curve:
    """A number for every message size in bytes, sizes ascending."""

    unit: str
    points: tuple[tuple[int, float], ...]

    @property
    def peak(self) -> float:
        return max(value for _, value in self.points)


@dataclass(frozen=True)
class Reading:
    """What a log says. problem: why it is not `ok`; throughput_per_s: samples per second of all ranks together.

    step_times_s: [rank][step]. metrics: unit in the name. flags: what a reader of the numbers should know.
    """

    status: ReadingStatus = "ok"
    problem: str = ""
    throughput_per_s: float | None = None
    step_times_s: tuple[tuple[float, ...], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    steady: tuple[float, float] | None = None
    flags: tuple[str, ...] = ()


class Reader(Protocol):
    """Reads one log, line by line."""

    def feed(self, line: str) -> None:
        """One line, without its end, terminal codes and label of its rank."""

    def reading(self, scope: Scope) -> Reading:
        """What the lines so far say. Whatever they hold, this gives a reading and raises nothing."""


@dataclass(frozen=True)
class Format:
    """How to read one program's logs. Lines with none of `needles`, in which `rows` is not found either, say nothing.

    rows: of bytes, begins with a line feed. document: text near the beginning of a log of which every line counts.
    """

    reader: Callable[[], Reader]
    needles: Sequence[bytes] = ()
    rows: re.Pattern[bytes] | None = None
    document: bytes | None = None
    line_max: int = 16 << 10
