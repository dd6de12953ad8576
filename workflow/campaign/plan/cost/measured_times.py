"""Times of what ran, and of what did not by the nearest that did: medians and t-intervals of ln(seconds). Pure.

What ran takes what it took. What did not takes the median of those that differ least from it, after what a difference usually
changes (`_USUAL`), which is no fit. How far this is off is seen by leaving out each of those that ran: it widens the intervals, or
narrows them. A prior worth `PRIOR_VALUES` values keeps few of them from looking surer than they are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # loaded only where something was measured
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PRIOR_VALUES = 4.0
_MOST = 500  # of those that ran: more change nothing and take time
_NEAREST = 5
_AT_ONCE = 1000

# What a doubling changes ln(seconds) by, and by how much that is off (sd). Twice the batch takes between no longer and twice as
# long (0.69). Of the rest nothing is known but that it may matter: once where a word differs, for each doubling of a number.
_USUAL: Mapping[str, tuple[float, float]] = {
    "batch": (0.35, 0.35),
    "steps": (0.4, 0.3),
    "flops": (0.5, 0.3),
    "ranks": (0.1, 0.3),
    "hosts": (0.1, 0.3),
    "moved": (0.2, 0.4),
    "gaps": (0.0, 0.4),
}
_UNUSUAL = (0.0, 0.5)

Features = Mapping[str, float | str]
"""What a time may depend on: numbers as their log2, and words. What is missing is 0 or ''."""


class Observed(NamedTuple):
    """Mean and sd of ln(seconds) of so many runs of one thing. typical: whether it tells of others."""

    features: Features
    mean_log_s: float
    sd_log_s: float
    runs: int
    typical: bool = True


class LogTime(NamedTuple):
    """ln(seconds): its median; what it shares with others of its table and is uncertain (sd, with sign); variances of its own, and
    of one run."""

    median: float
    shared: Mapping[str, float]
    own: float
    run: float
    freedom: float


class MeasuredTimes:
    """Times of one kind of thing, by name: of the runs of cells, or of the leases on shapes."""

    def __init__(self, observed: Mapping[str, Observed], run_sd: float, own_sd: float) -> None:
        """run_sd, own_sd: how much runs of one thing, and things that differ in nothing, differ before anything is known."""
        self._observed = observed
        names = thinned((name for name, each in observed.items() if each.typical), _MOST)
        self._names, self._near = names, [observed[name] for name in names]
        more = [(each.runs - 1, each.sd_log_s) for each in self._near]
        squares = sum(n * sd**2 for n, sd in more)
        self._run = (PRIOR_VALUES * run_sd**2 + squares) / (PRIOR_VALUES + sum(n for n, _ in more))
        self._own = own_sd**2
        self.freedom = PRIOR_VALUES + max(0, len(names) - 1)
        self._scale = 1.0
        if len(names) > 1:
            each = list(self._nearest([each.features for each in self._near], left_out=True))
            squares = sum(
                (row.mean_log_s - time.median) ** 2 / (time.own + sum(sd**2 for sd in time.shared.values()))
                for row, time in zip(self._near, each, strict=True)
            )
            self._scale = (PRIOR_VALUES + squares) / (PRIOR_VALUES + len(names))

    def __bool__(self) -> bool:
        """Whether there is anything to learn from."""
        return bool(self._near)

    def of(self, wanted: Mapping[str, Features]) -> dict[str, LogTime]:
        """Times by name."""
        found, new = {}, []
        for name in wanted:
            if (own := self._observed.get(name)) is None:
                new.append(name)
            else:
                found[name] = LogTime(own.mean_log_s, {}, self._run / own.runs, self._run, self.freedom)
        found.update(zip(new, self._nearest([wanted[name] for name in new]), strict=True))
        return found

    def _nearest(self, wanted: Sequence[Features], *, left_out: bool = False) -> Iterator[LogTime]:
        """Times by the nearest; left_out: of each that ran, by the others."""
        import numpy as np

        all_rows, others = (
            [_columns(each) for each in some] for some in (wanted, (row.features for row in self._near))
        )
        columns = sorted({column for each in (*all_rows, *others) for column in each})
        ran, usual = _matrix(others, columns), np.array([_usual(column)[0] / _usual(column)[1] for column in columns])
        y, own = np.array([each.mean_log_s for each in self._near]) - ran @ usual, self._scale * self._own
        for start in range(0, len(wanted), _AT_ONCE):
            rows = _matrix(all_rows[start : start + _AT_ONCE], columns)
            apart = (rows**2).sum(axis=1)[:, None] + (ran**2).sum(axis=1) - 2 * rows @ ran.T
            if left_out:
                apart[np.arange(len(rows)), start + np.arange(len(rows))] = np.inf
            nearest = np.argpartition(apart, min(_NEAREST, len(ran)) - 1, axis=1)[:, :_NEAREST]
            distance = np.take_along_axis(apart, nearest, axis=1)
            alike = distance <= distance.min(axis=1, keepdims=True) + 1e-6
            median = np.nanmedian(np.where(alike, y[nearest], np.nan), axis=1) + rows @ usual
            share = alike / alike.sum(axis=1, keepdims=True)
            moved = math.sqrt(self._scale) * (rows - np.einsum("rn,rnc->rc", share, ran[nearest]))
            for place in range(len(rows)):
                shared = {columns[column]: float(moved[place, column]) for column in np.flatnonzero(moved[place])}
                shared |= {
                    self._names[each]: float(part) * math.sqrt(own)
                    for each, part in zip(nearest[place], share[place], strict=True)
                    if part
                }
                yield LogTime(float(median[place]), shared, own, self._run, self.freedom)


def _usual(column: str) -> tuple[float, float]:
    return _USUAL.get(column, _UNUSUAL)


def _columns(features: Features) -> dict[str, float]:
    """In standard deviations of what a difference changes: of a number by 1, of a word by being another one."""
    return {
        f"{name}={value}" if isinstance(value, str) else name: (
            math.sqrt(0.5) * _UNUSUAL[1] if isinstance(value, str) else _usual(name)[1] * value
        )
        for name, value in features.items()
    }


def _matrix(rows: Sequence[Mapping[str, float]], columns: Sequence[str]) -> Floats:
    import numpy as np

    place = {column: number for number, column in enumerate(columns)}
    found = np.zeros((len(rows), len(columns)))
    for number, row in enumerate(rows):
        found[number, [place[column] for column in row]] = list(row.values())
    return found


def thinned(names: Iterable[str], most: int) -> list[str]:
    """Names in order, or so many of them, whatever their order."""
    known = sorted(names)
    return known if len(known) <= most else sorted(known, key=lambda name: (zlib.crc32(name.encode()), name))[:most]


def log2(number: float) -> float:
    return math.log2(max(1e-9, number))
