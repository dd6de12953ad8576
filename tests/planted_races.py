"""Campaigns with a planted truth in which configurations race, and what came of the race.

Throughput deviates by 2 % (sd) from composition to composition and by 1 % from run to run; each cell has two runs per composition.
Half of the variance of a composition is common to all cells on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.analysis.racing import evaluate_races
from campaign.analysis.tables.io import Tables
from campaign.spec.cell import Cell, Configuration, Settings
from campaign.spec.race import RaceDocument
from campaign.spec.run_numbers import compute_run_number

Floats = npt.NDArray[np.float64]

SURFACES = {
    "clear winner": "the others are 10 to 55 % below the best",
    "ties": "a quarter of the others are equal to the best",
    "edges": "a quarter of the others are 5 % below the best, or a little more",
    "noisy rival": "one is 7 % below the best, and its compositions deviate three times as much",
    "noisy best": "a quarter of the others are 7 % below the best, whose compositions deviate three times as much",
    "crash once": "the best fails on its first composition, a tenth of all cells on one composition",
    "out of memory": "the best always fails for one workload, a third of the others at the largest batch",
    "cliff": "a third of the configurations lose 37 % at the largest batch",
    "slope": "configurations differ by 15 % (sd), alike for every workload",
    "drift": "a quarter of the others are 7 % below the best; the system slows by 1.5 % per block; as crash once",
}
WITHIN_PCT = 5.0
LEASE_SD, RUN_SD, RUNS = 0.02, 0.01, 2
_CONTEXT = {"campaign": {"name": "planted", "metric": None, "protocol": {"lease_order": "blocks", "order": "blocks"}}}


@dataclass(frozen=True)
class PlantedRace:
    """A campaign whose truth is known.

    rate: true throughput of each cell, [configuration, workload, batch]; 0 if it always fails.
    """

    cells: tuple[Cell, ...]
    rate: Floats
    runs: pd.DataFrame

    @property
    def tables(self) -> Tables:
        return Tables(self.runs, pd.DataFrame(), (), (), _CONTEXT)

    def race(self) -> RaceDocument:
        """Return the end of the race."""
        return evaluate_races(self.cells, self.tables, lambda *_: True, WITHIN_PCT)

    def false_statements(self, race: RaceDocument) -> list[str]:
        """Return what is false: a configuration is named that is not within the tolerance, or one is dropped that is."""
        found = []
        names = list(dict.fromkeys(cell.configuration.name for cell in self.cells))
        for number, panel in enumerate(race.workloads):
            best = self.rate[:, number].max(axis=1)
            as_good = {name for name, rate in zip(names, best, strict=True) if rate >= best.max() * 0.95 * (1 - 1e-9)}
            if not best.any():
                continue
            if panel.best and panel.best not in as_good:
                found.append(f"{panel.about}: {panel.best} is named")
            left = {each.configuration for each in panel.candidates}
            found += [f"{panel.about}: {name} is dropped" for name in sorted(as_good - left)]
        return found


def plant_race(
    surface: str, seed: int, configurations: int = 12, workloads: int = 1, batches: int = 2, compositions: int = 5
) -> PlantedRace:
    """Return a campaign with a surface of `SURFACES`."""
    random = np.random.default_rng(
        [seed, list(SURFACES).index(surface), configurations, workloads, batches, compositions]
    )
    shape = (configurations, workloads, batches)
    below, noise = _plant_surface(surface, random, configurations, workloads)
    by_batch = np.cumsum(random.uniform(0.02, 0.2, batches)) - 0.02
    log = np.broadcast_to(by_batch - below[:, :, None], shape).copy()
    if surface == "cliff":
        log[random.random(configurations) < 1 / 3, :, -1] -= 0.46
    fails = np.zeros((*shape, compositions), dtype=np.bool_)
    best = log.max(axis=2).argmax(axis=0)
    if surface in ("crash once", "drift"):
        at = random.integers(compositions, size=shape)
        at[best, np.arange(workloads)] = 0
        struck = random.random(shape) < 0.1
        struck[best, np.arange(workloads)] = True
        fails |= struck[..., None] & (at[..., None] == np.arange(compositions))
    if surface == "out of memory":
        fails[best[0]] = True
        fails[random.random(configurations) < 1 / 3, :, -1] = True
    rate = np.where(fails.all(axis=3), 0.0, 100 * np.exp(log))
    on_lease = random.standard_normal((configurations, 1, 1, compositions)) / np.sqrt(2)
    alone = random.standard_normal((*shape, compositions)) / np.sqrt(2)
    deviation = LEASE_SD * noise[:, None, None, None] * (on_lease + alone)
    drift = -0.015 * np.arange(compositions)[:, None] * (surface == "drift")
    runs = (
        log[..., None, None]
        + drift
        + deviation[..., None]
        + RUN_SD * random.standard_normal((*shape, compositions, RUNS))
    )
    return _table(shape, compositions, 100 * np.exp(runs), fails, rate)


def _plant_surface(
    surface: str, random: np.random.Generator, configurations: int, workloads: int
) -> tuple[Floats, Floats]:
    """Return how far each configuration is below the best, [configuration, workload], and how much noisier it is than others."""
    best = int(random.integers(configurations))
    noise = np.ones(configurations)
    below = random.uniform(0.1, 0.8, (configurations, workloads))
    below[best] = 0.0
    others = np.delete(np.arange(configurations), best)
    rivals = random.choice(others, max(1, configurations // 4), replace=False)
    if surface == "ties":
        below[rivals] = 0.0
    elif surface == "edges":
        # Half are exactly as good as is allowed, half are a little worse.
        below[rivals[::2]], below[rivals[1::2]] = -np.log(0.95), 0.06
        if configurations == 3 or random.random() < 0.5:
            below[rivals] = 0.06
    elif surface == "noisy rival":
        below[rivals[0]], noise[rivals[0]] = 0.07, 3.0
    elif surface == "noisy best":
        below[rivals], noise[best] = 0.07, 3.0
    elif surface == "drift":
        below[rivals] = 0.07
    elif surface == "slope":
        below = np.abs(0.15 * random.standard_normal((configurations, 1)))
        below = below - below.min() + 0 * np.zeros(workloads)
    return below, noise


def _table(
    shape: tuple[int, int, int], compositions: int, value: Floats, fails: npt.NDArray[np.bool_], rate: Floats
) -> PlantedRace:
    settings = Settings(repetitions=RUNS * compositions, compositions=compositions)
    cells = [
        Cell(
            f"c{c:02d}-w{w}-b{b}", Configuration(f"c{c:02d}", 1, c + 1, 0, c + 1, "a100", "fabric", "local"),
            f"w{w}", 2**b, "fp32", {}, settings,
        )
        for c, w, b in np.ndindex(*shape)
    ]  # fmt: skip
    place, composition, number = (axis.ravel() for axis in np.indices((len(cells), compositions, RUNS)))
    failed = np.broadcast_to(fails[..., None], value.shape).ravel()
    values = np.where(failed, np.nan, value.ravel())
    of = [cells[at] for at in place]
    runs = pd.DataFrame(
        {
            "cell_id": [cell.id for cell in of],
            "repetition": [
                compute_run_number(int(k) + 1, int(n) + 1) for k, n in zip(composition, number, strict=True)
            ],
            "composition": composition + 1,
            "configuration": [cell.configuration.name for cell in of],
            "workload": [cell.workload for cell in of],
            "batch": [cell.batch for cell in of],
            "precision": "fp32",
            "status": np.where(failed, "crashed", "ok"),
            "lease_id": [f"{cell.configuration.name}.c{k + 1}" for cell, k in zip(of, composition, strict=True)],
            "started": composition.astype("float64"),
            "value": values,
            "throughput_per_s": values,
        }
    )
    return PlantedRace(tuple(cells), rate, runs)
