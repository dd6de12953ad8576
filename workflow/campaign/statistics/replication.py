"""How many compositions, runs and steps find a difference of a given size for the least cost. Pure.

The variance of a cell's mean has three parts, each divided by how often its level is repeated (Kalibera & Jones, "Rigorous
Benchmarking in Reasonable Time", ISMM 2013): compositions k, runs r in each of them, steps s in each run. A level is worth
repeating as far as it is cheap and noisy beside the level above it. The difference of two configurations is tested on compositions
in complete blocks, so with (k - 1)(c - 1) degrees of freedom for c configurations, and at 5 % over all c - 1 differences from one
of them (Holm's first step). Detectable: found in 80 of 100 campaigns, by the noncentral t distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from campaign.statistics.intervals import CONFIDENCE, SIGNIFICANT

POWER = 0.8
MOST_COMPOSITIONS, MOST_RUNS = 20, 6
_STEP_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Spread:
    """Standard deviations in percent of throughput: from composition to composition, from run to run, from step to step."""

    composition_pct: float
    run_pct: float
    step_pct: float
    source: str

    def variance(self, compositions: int, runs: int, steps: int) -> float:
        """Of the mean of a cell, of its logarithm."""
        parts = self.composition_pct**2 + (self.run_pct**2 + self.step_pct**2 / max(steps, 1)) / runs
        return parts / compositions / 1e4


@dataclass(frozen=True)
class Design:
    """What one choice tells and costs. runs, steps: in each composition, in each run."""

    compositions: int
    runs: int
    steps: int
    half_width_pct: float
    """Of the 95 % interval of a difference of two configurations."""
    detectable_pct: float
    """The least difference that 80 of 100 campaigns find."""
    device_hours: float


def design(
    spread: Spread, configurations: int, compositions: int, runs: int, steps: int, device_hours: float
) -> Design:
    """What one choice tells. Infinite for one composition: without a second one, nothing says how much compositions differ."""
    compared = max(configurations, 2)
    freedom = (compositions - 1) * (compared - 1)
    if freedom < 1:
        return Design(compositions, runs, steps, np.inf, np.inf, device_hours)
    error = np.sqrt(2.0 * spread.variance(compositions, runs, steps))
    half = 100.0 * np.expm1(scipy.special.stdtrit(freedom, 0.5 + CONFIDENCE / 2.0) * error)
    tested = scipy.special.stdtrit(freedom, 1.0 - SIGNIFICANT / (compared - 1) / 2.0)
    detectable = 100.0 * np.expm1(scipy.special.nctdtrinc(freedom, 1.0 - POWER, tested) * error)
    return Design(compositions, runs, steps, float(half), float(detectable), device_hours)


def cheapest_by_compositions(
    spread: Spread,
    detect_pct: float,
    configurations: int,
    steps: int,
    device_hours: Callable[[int, int, int], float],
) -> Iterator[Design]:
    """For every number of compositions that can find the difference: the cheapest runs and steps that do.

    steps: measured steps today, which are varied by powers of two; 0 where the program has no steps. device_hours: of compositions,
    runs in each, steps in each.
    """
    lengths = sorted({max(4, round(factor * steps)) for factor in _STEP_FACTORS}) if steps else [0]
    for compositions in range(2, MOST_COMPOSITIONS + 1):
        found = [
            each
            for runs in range(1, MOST_RUNS + 1)
            for length in lengths
            if (
                each := design(
                    spread, configurations, compositions, runs, length, device_hours(compositions, runs, length)
                )
            ).detectable_pct
            <= detect_pct
        ]
        if found:
            yield min(found, key=lambda each: (each.device_hours, each.runs, each.steps))


def best(designs: Iterable[Design]) -> Design | None:
    """The cheapest; None where there is none."""
    return min(designs, key=lambda each: (each.device_hours, each.compositions), default=None)
