"""The numbers of a campaign's summary worked out again from its records, without the package: textbook formulas only.

The campaign is one workload, every configuration composed k times in blocks, every cell with as many runs on every
composition, and no outlier. Rates are averaged by their inverse (total work over total time), over runs and then over
compositions. Comparisons between configurations: analysis of variance of compositions' means in randomised complete blocks.
Comparisons within compositions: the same with the compositions as blocks. Variances are drawn towards that of all; cells on one
lease share its deviation, for which their freedom is reduced (Satterthwaite).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import scipy

Key = tuple[str, int, str]  # configuration, batch, precision
Interval = tuple[float, float, float]

_AXES = ("configuration", "batch", "precision")
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Printed:
    """A number as a text has it, and by how much it may differ: half of its last digit."""

    value: float
    rounding: float
    text: str


def printed(text: str, names: Sequence[str]) -> list[Printed]:
    """The numbers of a text in order. names: of configurations and the like, whose digits are no numbers."""
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, " ")
    found = []
    for match in _NUMBER.finditer(text):
        digits = match.group().rstrip(",").replace("−", "-").replace(",", "")
        decimals = len(digits.partition(".")[2])
        found.append(Printed(float(digits), 0.5 * 10.0**-decimals, match.group()))
    return found


def differences(text: str, names: Sequence[str], expected: Sequence[float]) -> list[str]:
    """What is wrong with the numbers of a text: one that nobody expects is wrong as well as one that differs."""
    found = printed(text, names)
    if len(found) != len(expected):
        return [
            f"{len(found)} numbers instead of {len(expected)}: {[each.text for each in found]} for {list(expected)}"
        ]
    return [
        f"{each.text} instead of {true:.6g}"
        for each, true in zip(found, expected, strict=True)
        if not abs(each.value - true) <= each.rounding * (1 + 1e-9)
    ]


class Campaign:
    """The records of a results directory, and what follows from them."""

    def __init__(self, results: Path) -> None:
        documents = [json.loads(path.read_text()) for path in sorted((results / "records").rglob("*.json"))]
        self.records: list[Mapping[str, Any]] = documents
        self.cells: dict[Key, Mapping[str, Any]] = {}
        costs: dict[tuple[Key, int], list[float]] = defaultdict(list)
        self.lease: dict[tuple[Key, int], str] = {}
        for each in documents:
            cell = each["cell"]
            key = tuple(cell[name] for name in _AXES)
            block = each["repetition"] // 1000
            self.cells[key] = cell
            costs[key, block].append(1 / each["throughput_per_s"])
            self.lease[key, block] = each["lease_id"]
        self.blocks = sorted({block for _, block in costs})
        self.k = len(self.blocks)
        self.costs = dict(costs)
        mean = {at: fmean(values) for at, values in costs.items()}
        self.cost = {key: fmean(mean[key, block] for block in self.blocks) for key in self.cells}
        # Of each composition's mean, how far it is from that of the cell.
        self.off = {(key, block): mean[key, block] / self.cost[key] - 1 for key, block in mean}

    def rate(self, key: Key) -> float:
        return 1 / self.cost[key]

    def ranks(self, key: Key) -> int:
        return int(self.cells[key]["hosts"] * self.cells[key]["devices_used"])

    # Analysis of variance

    def _pooled(self, residual: Mapping[tuple[Key, int], float], freedom: float) -> float:
        """Variance of a composition's mean. freedom: of one cell."""
        return sum(value**2 for value in residual.values()) / (freedom * len(self.cells))

    def _freedom(self, residual: Mapping[tuple[Key, int], float], freedom: float) -> float:
        """Of the pooled variance: cells of one lease are alike by their intra-class correlation."""
        of_lease: dict[str, list[float]] = defaultdict(list)
        for at, value in residual.items():
            of_lease[self.lease[at]].append(value)
        together = sum(sum(values) ** 2 for values in of_lease.values())
        squares = sum(value**2 for value in residual.values())
        possible = sum((len(values) - 1) * sum(v**2 for v in values) for values in of_lease.values())
        alike = min(1.0, max(0.0, (together - squares) / possible))
        beside = fmean(len(of_lease[self.lease[at]]) - 1 for at in residual)
        return freedom * len(self.cells) / (1 + beside * alike**2)

    def _moderated(
        self, residual: Mapping[tuple[Key, int], float], freedom: float, total: float, key: Key, prior: float
    ) -> tuple[float, float]:
        """Variance of a location and its freedom: the configuration's own, drawn towards the pool, and never less."""
        pool = self._pooled(residual, freedom)
        alike = [other for other in self.cells if other[0] == key[0]]
        own = sum(v**2 for (other, _), v in residual.items() if other[0] == key[0]) / (freedom * len(alike))
        held = total * len(alike) / len(self.cells)
        variance = max(own, (prior * pool + held * own) / (prior + held))
        return variance / self.k, min(prior + held, total)

    def between(self, of: Key, to: Key) -> Interval:
        """Speed of one cell over another on a different configuration, with its interval."""
        configurations = len({key[0] for key in self.cells})
        of_block = {
            (key[1:], block): fmean(self.off[other, block] for other in self.cells if other[1:] == key[1:])
            for key, block in self.off
        }
        residual = {(key, block): value - of_block[key[1:], block] for (key, block), value in self.off.items()}
        freedom = (self.k - 1) * (configurations - 1) / configurations
        total = self._freedom(residual, freedom)
        (ours, a), (theirs, b) = (self._moderated(residual, freedom, total, key, 1.0) for key in (of, to))
        welch = (ours + theirs) ** 2 / (ours**2 / a + theirs**2 / b)
        return _interval(self.cost[to] / self.cost[of], ours + theirs, min(welch, total))

    def within(self, of: Key, to: Key) -> Interval:
        """Speed of one cell over another on the same leases."""
        of_lease: dict[str, list[float]] = defaultdict(list)
        for at, value in self.off.items():
            of_lease[self.lease[at]].append(value)
        residual = {at: value - fmean(of_lease[self.lease[at]]) for at, value in self.off.items()}
        beside = fmean(len(values) for values in of_lease.values())
        freedom = (self.k - 1) * (beside - 1) / beside
        variance, own = self._moderated(residual, freedom, freedom * len(self.cells), of, 1.5)
        return _interval(self.cost[to] / self.cost[of], 2 * variance, own)

    def alone(self, key: Key) -> Interval:
        """Rate of a cell."""
        freedom = self.k - 1.0
        return _interval(
            self.rate(key), *self._moderated(self.off, freedom, self._freedom(self.off, freedom), key, 1.5)
        )

    def run_to_run_pct(self) -> Interval:
        """Standard deviation of runs of one cell on one lease, with the interval of a chi-square."""
        logs = [[math.log(value) for value in values] for values in self.costs.values()]
        own = sum(len(values) - 1 for values in logs)
        sd = 100 * math.sqrt(sum((value - fmean(values)) ** 2 for values in logs for value in values) / own)
        low, high = (sd * math.sqrt(own / scipy.stats.chi2.ppf(part, own)) for part in (0.975, 0.025))
        return sd, low, high

    # What a sentence is about

    def where(self, **axes: Any) -> list[Key]:
        """Cells with these axes."""
        return [key for key, cell in self.cells.items() if all(cell[name] == value for name, value in axes.items())]

    def of_cell(self, key: Key) -> list[Mapping[str, Any]]:
        return [each for each in self.records if all(each["cell"][n] == v for n, v in zip(_AXES, key, strict=True))]

    def devices(self, key: Key) -> int:
        """Composed ones, used or not."""
        return int(self.cells[key]["hosts"] * self.cells[key]["devices_per_host"])

    def leases(self, results: Path) -> list[Mapping[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((results / "leases").glob("*.json"))]


def _interval(value: float, variance: float, freedom: float) -> Interval:
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    return value, value * math.exp(-half), value * math.exp(half)


def like(key: Key, configuration: str) -> Key:
    """The equal cell of another configuration."""
    return (configuration, *key[1:])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest values."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def best(keys: Sequence[Key], by: Callable[[Key], float]) -> Key:
    return max(keys, key=by)
