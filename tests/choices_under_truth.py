"""How often `campaign recommend` chooses what is best in truth, over campaigns whose steps are simulated."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from campaign.documents.cell import Cell, Configuration
from campaign.insight.recommend.choice import ObjectiveOfWorkload, answer, usable
from campaign.insight.recommend.document import RecommendationAnswer
from campaign.insight.recommend.objectives import PER_DEVICE_HOUR, THROUGHPUT, asked
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.statistics.comparable_cells import option_columns
from tests.simulated_campaigns import Simulated

_ADVISE = importlib.import_module("campaign.insight.recommend.advise")


def choices(
    simulated: Simulated,
    campaigns: int,
    deviation: float,
    objectives: Sequence[str] = (THROUGHPUT, PER_DEVICE_HOUR),
    where: Sequence[str] = (),
    seed: int = 1,
) -> pd.DataFrame:
    """A row for each answer of each campaign: `objective`, `about`, `outcome`, `loss_pct` in truth, how many are `tied` or not told
    apart, `chosen`, `best`, and whether the interval `covers` the truth.

    outcome: `best` of all candidates within the measured range, measured or not; `tied` where the best one is named beside it;
    `none`; or `wrong`. deviation: of the logarithm of time, of compositions and of runs.
    """
    random, truth, found = np.random.default_rng(seed), _Truth(simulated), list[dict[str, Any]]()

    def judged(question: ObjectiveOfWorkload, rows: pd.DataFrame) -> RecommendationAnswer:
        given = answer(question, rows)
        found.append({"about": question.about, "objective": question.objective.name, **truth.of(given, rows)})
        return given

    with mock.patch.object(_ADVISE, "answer", judged):
        for _ in range(campaigns):
            tables = simulated.tables(random, deviation, deviation)
            workloads = sorted(set(tables.cells["workload"]))
            _ADVISE.advise(tables, asked(list(objectives), list(where), [], workloads, []))
    return pd.DataFrame(found)


class _Truth:
    def __init__(self, simulated: Simulated) -> None:
        self.machine = simulated.machine
        self.known: dict[tuple[Any, ...], float] = {}

    def of(self, given: RecommendationAnswer, rows: pd.DataFrame) -> dict[str, Any]:
        rows = usable(rows[~rows["outside"]]).reset_index(drop=True)
        if rows.empty:
            return {"outcome": "none"}
        rate = self.rates(rows)
        score = rate / rows["devices"] if given.objective == PER_DEVICE_HOUR else rate
        shapes = list(rows[list(COLUMNS)].itertuples(index=False, name=None))
        best = int(np.argmax(score))
        if given.choice is None:
            return {"outcome": "none", "best": rows["configuration"][best]}
        chosen = _shape(given.choice.shape)
        (place,) = (
            n
            for n, shape in enumerate(shapes)
            if shape == chosen and f"batch {rows['batch'][n]}" == given.choice.batches
        )
        tied = [_shape(each.shape) for each in given.alternatives]
        # Shapes may be equal in truth; then each of them is the best.
        alike = {shape for shape, value in zip(shapes, score, strict=True) if value > score[best] * (1 - 1e-6)}
        outcome = "best" if chosen in alike else "tied" if alike & set(tied) else "wrong"
        value = rate[place] * (3600 / rows["devices"][place] if given.objective == PER_DEVICE_HOUR else 1.0)
        low, high = given.choice.low, given.choice.high
        return {
            "outcome": outcome,
            "loss_pct": 100 * (1 - score[place] / score[best]),
            "tied": given.tied_total + given.not_told_apart_total,
            "chosen": given.choice.configuration,
            "best": rows["configuration"][best],
            "covers": low is not None and high is not None and low <= value <= high,
        }

    def rates(self, rows: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of each row, in truth; a shape is simulated once."""
        options = option_columns(rows)
        names = [*COLUMNS, "workload", "batch", "precision", *options]
        keys = list(rows[names].itertuples(index=False, name=None))
        new = {key: _cell(dict(zip(names, key, strict=True)), options) for key in keys if key not in self.known}
        cells = list(new.values())
        rates = np.array([cell.batch_global for cell in cells]) / self.machine.step_s(cells) if cells else []
        self.known.update(zip(new, rates, strict=True))
        return np.array([self.known[key] for key in keys])


def _cell(row: dict[str, Any], options: Sequence[str]) -> Cell:
    at = Configuration(name="", **{name: row[name] for name in COLUMNS})
    chosen = {name.removeprefix("option_"): row[name] for name in options}
    return Cell("", at, row["workload"], int(row["batch"]), row["precision"], chosen)


def _shape(of: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(of[name] for name in COLUMNS)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """By question: how often each outcome came, the largest loss in truth, and how often intervals hold the truth, in percent."""
    by = found.groupby(["objective", "about"], sort=False)
    outcomes = by["outcome"].value_counts(normalize=True).unstack(fill_value=0.0) * 100
    return outcomes.assign(loss_max_pct=by["loss_pct"].max(), tied=by["tied"].mean(), covers=100 * by["covers"].mean())
