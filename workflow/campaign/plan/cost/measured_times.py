"""Times of runs of cells that ran, and of those that did not by the nearest that did: medians and t-intervals of ln(seconds). Pure.

What ran takes what it took. What did not takes the median of those that differ least from it, after what a difference usually
changes (`_USUAL`), which is no fit. How far this is off is seen by leaving out each of those that ran: it widens the intervals, or
narrows them. A prior worth `PRIOR_VALUES` values keeps few of them from looking surer than they are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from campaign.plan.cost.draws import Floats, normals, seconds_of, student

PRIOR_VALUES = 4.0
_RUN_SD, _OWN_SD = 0.05, 0.25
"""How much ln(seconds) of runs of one cell, and of cells that differ in nothing, differ before anything is known."""
_MOST = 500  # of those that ran: more change nothing and take time
_AT_ONCE = 1000

# What a doubling changes ln(seconds) by, and by how much that is off (sd). Twice the batch takes between no longer and twice as
# long (0.69). Of the rest nothing is known but that it may matter: once where a word differs, for each doubling of a number.
_USUAL: Mapping[str, tuple[float, float]] = {
    "batch": (0.35, 0.35),
    "steps": (0.4, 0.3),
    "flops": (0.5, 0.3),
    "ranks": (0.1, 0.3),
    "hosts": (0.1, 0.3),
}
_UNUSUAL = (0.0, 0.5)

Features = Mapping[str, float | str]
"""What a time may depend on: numbers as their log2, and words. What is missing is 0 or ''."""


class Observed(NamedTuple):
    """Mean and sd of ln(seconds) of so many runs of one cell. typical: whether it tells of others."""

    features: Features
    mean_log_s: float
    sd_log_s: float
    runs: int
    typical: bool = True


class MeasuredTimes:
    """Times of runs of one workload on one model of device, by cell. off_sd: of an error that all of them share."""

    def __init__(self, source: str, observed: Mapping[str, Observed], off_sd: float = 0.0) -> None:
        self._source, self._observed, self._off_sd = source, observed, off_sd
        self._names = thinned((name for name, each in observed.items() if each.typical), _MOST)
        near = [observed[name] for name in self._names]
        more = [(each.runs - 1, each.sd_log_s) for each in near]
        squares = sum(n * sd**2 for n, sd in more)
        self._run = (PRIOR_VALUES * _RUN_SD**2 + squares) / (PRIOR_VALUES + sum(n for n, _ in more))
        self._place: dict[str, int] = {}  # of columns
        self._ran, self._logs = (
            self._rows([each.features for each in near]),
            np.array([each.mean_log_s for each in near]),
        )
        self._freedom, self._scale = PRIOR_VALUES + max(0, len(near) - 1), 1.0
        if len(near) > 1:
            median, ties, _, moved = self._nearest(self._ran, left_out=True)
            off = (self._logs - median) ** 2 / (_OWN_SD**2 * (1 + 1 / ties) + (moved**2).sum(axis=1))
            self._scale = float((PRIOR_VALUES + off.sum()) / (PRIOR_VALUES + len(near)))
        self._number: dict[str, int] = {}  # of cells, as rows of the arrays
        self._log_s, self._own, self._by = np.zeros(0), np.zeros((0, 2)), np.zeros(0, int)
        self._moved = np.zeros((0, len(self._place)))

    def learn(self, wanted: Mapping[str, Features]) -> None:
        """Find the nearest of cells."""
        new = [name for name in wanted if name not in self._number]
        rows = self._rows([wanted[name] for name in new])
        more = [(0, 0), (0, rows.shape[1] - self._ran.shape[1])]  # columns that were not known before
        self._ran, self._moved = np.pad(self._ran, more), np.pad(self._moved, more)
        self._number |= {name: len(self._number) + number for number, name in enumerate(new)}
        for start in range(0, len(new), _AT_ONCE):
            median, ties, by, moved = self._nearest(rows[start : start + _AT_ONCE])
            own = self._scale * _OWN_SD**2 * np.column_stack([np.ones(len(ties)), 1 / ties])
            for number, name in enumerate(new[start : start + _AT_ONCE]):
                if (there := self._observed.get(name)) is not None:
                    median[number], own[number], moved[number] = there.mean_log_s, (self._run / there.runs, 0.0), 0.0
            self._log_s, self._own = np.append(self._log_s, median), np.append(self._own, own, axis=0)
            self._by, self._moved = np.append(self._by, by), np.append(self._moved, moved, axis=0)

    def __contains__(self, name: str) -> bool:
        """Whether a cell was learned."""
        return name in self._number

    def expected_s(self, name: str) -> float:
        """Expected time of a run of a cell that was learned."""
        row = self._number[name]
        return math.exp(self._log_s[row] + min(1.0, self._own[row, 0] + self._run) / 2)

    def draws(self, names: Sequence[str], leases: Sequence[str], runs: Floats) -> Floats:
        """Draws of the time of a run of cells in leases, each as the mean of so many runs (a column)."""
        rows = [self._number[name] for name in names]
        own = np.sqrt(self._own[rows])
        errors = (
            math.sqrt(self._scale) * self._moved[rows] @ normals([f"{self._source} {each}" for each in self._place])
        )
        errors += own[:, :1] * normals(names)
        errors += own[:, 1:] * normals(self._names)[self._by[rows]]
        errors += np.sqrt(self._run / runs) * normals([f"{n} {lease}" for n, lease in zip(names, leases, strict=True)])
        errors *= student(self._source, self._freedom)
        errors += self._off_sd * normals([self._source])
        return seconds_of(self._log_s[rows, None] + errors, self._own[rows, 0] + self._run)

    def _nearest(self, rows: Floats, *, left_out: bool = False) -> tuple[Floats, Floats, NDArray[np.int64], Floats]:
        """Of each row: the mean of the nearest that ran, how many these are, one of them, and how far they are (sd, with sign).

        left_out: rows are those that ran, each by the others.
        """
        usual = np.array([mean / sd for mean, sd in map(_usual, self._place)])
        apart = (rows**2).sum(axis=1)[:, None] + (self._ran**2).sum(axis=1) - 2 * rows @ self._ran.T
        if left_out:
            np.fill_diagonal(apart, np.inf)
        alike = apart <= apart.min(axis=1, keepdims=True) + 1e-6
        ties = alike.sum(axis=1)
        share = alike / ties[:, None]
        level = share @ (self._logs - self._ran @ usual) + rows @ usual
        return level, ties, alike.argmax(axis=1), rows - share @ self._ran

    def _rows(self, wanted: Sequence[Features]) -> Floats:
        """In standard deviations of what a difference changes: of a number by 1, of a word by being another one."""
        found: dict[str, Floats] = {}
        for name in {name: None for features in wanted for name in features}:
            values = [features.get(name, 0.0) for features in wanted]
            numbers = [0.0 if isinstance(value, str) else value for value in values]
            if any(numbers):
                found[name] = _usual(name)[1] * np.array(numbers)
            for word in {value: None for value in values if isinstance(value, str)}:
                found[f"{name}={word}"] = math.sqrt(0.5) * _UNUSUAL[1] * np.array([value == word for value in values])
        for column in found:
            self._place.setdefault(column, len(self._place))
        rows = np.zeros((len(wanted), len(self._place)))
        for column, numbers_ in found.items():
            rows[:, self._place[column]] = numbers_
        return rows


def _usual(column: str) -> tuple[float, float]:
    return _USUAL.get(column, _UNUSUAL)


def thinned(names: Iterable[str], most: int) -> list[str]:
    """Names in order, or so many of them, whatever their order."""
    known = sorted(names)
    return known if len(known) <= most else sorted(known, key=lambda name: (zlib.crc32(name.encode()), name))[:most]


def log2(number: float) -> float:
    return math.log2(max(1e-9, number))
