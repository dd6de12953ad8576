"""What races come to on planted surfaces: `python -m tests.benchmarks.racing [CAMPAIGNS]` prints a table.

Each row is of so many campaigns (300) of 3 to 24 configurations, 1 to 3 workloads and 1 or 2 batches. wrong: campaigns with a false
statement, in percent. decided: workloads whose best is known. measured: compositions, of those of the whole plan.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.planted_races import SURFACES, plant_race


@dataclass(frozen=True)
class RaceRates:
    """What races on one surface come to, in percent."""

    wrong: float
    decided: float
    measured: float


def measure_races(surface: str, compositions: int, campaigns: int, seed: int = 0) -> RaceRates:
    """Race in so many campaigns with a surface of `tests.planted_races`."""
    random = np.random.default_rng([seed, compositions])
    wrong, decided, measured = [], [], []
    for number in range(campaigns):
        size = (int(random.integers(3, 25)), int(random.integers(1, 4)), int(random.integers(1, 3)))
        planted = plant_race(surface, seed + number, *size, compositions)
        race = planted.race()
        wrong.append(bool(planted.false_statements(race)))
        decided += [bool(each.best) for each in race.workloads]
        measured.append(sum(race.compositions.values()) / race.compositions_planned)
    return RaceRates(*(100 * float(np.mean(each)) for each in (wrong, decided, measured)))


def table(campaigns: int) -> Iterator[str]:
    """Yield lines of Markdown."""
    yield "| Surface | Compositions | Wrong | Decided | Measured |"
    yield "|---|---|---|---|---|"
    for surface in SURFACES:
        for compositions in (3, 5):
            of = measure_races(surface, compositions, campaigns)
            yield f"| {surface} | {compositions} | {of.wrong:.1f} % | {of.decided:.0f} % | {of.measured:.0f} % |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else 300):
        print(line, flush=True)
