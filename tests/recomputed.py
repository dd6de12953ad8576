"""The numbers of a campaign's summary worked out again from its records, without the package: textbook formulas only.

The campaign is one workload, every configuration composed k times in blocks, every cell with as many runs on every
composition, and no outlier. Rates are averaged by their inverse (total work over total time), over runs and then over
compositions.
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
        for each in documents:
            cell = each["cell"]
            key = tuple(cell[name] for name in _AXES)
            block = each["repetition"] // 1000
            self.cells[key] = cell
            costs[key, block].append(1 / each["throughput_per_s"])
        self.blocks = sorted({block for _, block in costs})
        self.k = len(self.blocks)
        self.costs = dict(costs)
        mean = {at: fmean(values) for at, values in costs.items()}
        self.cost = {key: fmean(mean[key, block] for block in self.blocks) for key in self.cells}

    def rate(self, key: Key) -> float:
        return 1 / self.cost[key]

    def ranks(self, key: Key) -> int:
        return int(self.cells[key]["hosts"] * self.cells[key]["devices_used"])

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
