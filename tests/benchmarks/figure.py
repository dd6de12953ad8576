"""One number of speed, and the reason why there is none."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class Skipped(Exception):
    """A benchmark that cannot be had on this machine; its message says why."""


@dataclass(frozen=True)
class Figure:
    """One number with what it may be at most (infinity: it is only told). floor: what bare tools take for the same, and which."""

    name: str
    measured: float
    unit: str
    limit: float
    floor: float | None = None
    floor_of: str = ""
    cpu_s: float | None = None

    @property
    def holds(self) -> bool:
        return self.measured <= self.limit

    @property
    def ratio(self) -> float | None:
        """Of the measured value to its floor, or to its limit where it has none: machines of unlike speed can be compared by it."""
        least = self.limit if self.floor is None else self.floor
        return self.measured / least if 0 < least < math.inf else None


KEPT = Path(__file__).with_name("figures.csv")
"""Ratios of figures, the newest last: commit, figure, ratio."""
MORE = 1.1
"""A ratio that is so many times the last one is named."""


def last_ratios(kept: Path = KEPT) -> dict[str, float]:
    """The ratio of each figure as it was kept last."""
    with kept.open(newline="") as file:
        return {row["figure"]: float(row["ratio"]) for row in csv.DictReader(file)}


def keep_ratios(figures: Iterable[Figure], commit: str, kept: Path = KEPT) -> None:
    """Add the ratios of a commit, in the place of those that it had."""
    ratios = {figure.name: f"{figure.ratio:.4g}" for figure in figures if figure.ratio is not None}
    with kept.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["commit"] != commit or row["figure"] not in ratios]
    rows += [{"commit": commit, "figure": name, "ratio": ratio} for name, ratio in ratios.items()]
    with kept.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("commit", "figure", "ratio"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
