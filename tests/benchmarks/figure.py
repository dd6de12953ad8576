"""One figure of speed, and the file that keeps the ratios of earlier commits."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class Skipped(Exception):
    """Raised if this machine cannot run a benchmark; the message gives the reason."""


@dataclass(frozen=True)
class Figure:
    """A measured value, and the floor that was measured in the same run.

    Only the ratio of both is kept, because it can be compared between machines of different speed.
    """

    name: str
    value: float
    unit: str
    floor: float
    floor_name: str

    @property
    def ratio(self) -> float:
        return self.value / self.floor


KEPT_RATIOS = Path(__file__).with_name("figures.csv")
"""Ratios of all figures, the newest last: commit, figure, ratio."""
MAX_GROWTH = 1.1
"""Ratio to the last kept one, above which a figure is named."""


def read_last_ratios(path: Path = KEPT_RATIOS) -> dict[str, float]:
    """Return the last kept ratio of each figure, by its name."""
    with path.open(newline="") as file:
        return {row["figure"]: float(row["ratio"]) for row in csv.DictReader(file)}


def keep_ratios(figures: Iterable[Figure], commit: str, path: Path = KEPT_RATIOS) -> None:
    """Add the ratios of a commit. They replace those of the same commit and figure."""
    ratios = {figure.name: f"{figure.ratio:.4g}" for figure in figures}
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["commit"] != commit or row["figure"] not in ratios]
    rows += [{"commit": commit, "figure": name, "ratio": ratio} for name, ratio in ratios.items()]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("commit", "figure", "ratio"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
