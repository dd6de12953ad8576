"""Choice among the candidates of a question, with its interval and ties. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy

from campaign.analysis.recommend.candidates import SHAPE
from campaign.analysis.recommend.document import Evidence, RecommendationAnswer, RecommendedChoice
from campaign.analysis.recommend.objectives import (
    CHEAPEST,
    MIX,
    PER_DEVICE_HOUR,
    PER_PRICE,
    TIME,
    RecommendationObjective,
)
from campaign.analysis.statistics.comparisons import Design, ratios
from campaign.analysis.statistics.selected_estimate import bound_best_cell
from campaign.common import wording
from campaign.common.intervals import CONFOUNDED_WITH_HOSTS, SIGNIFICANCE_LEVEL, Marks, adjust_p_values
from campaign.spec.cell import Configuration

TIE_PCT = 5.0
"""Configurations tie where none is shown to be better, and a test shows that they differ by less than this."""
MAX_LISTED = 6
_MILLION = 1e6
_HOUR_S = 3600.0
_MIN_VARIANCE = 1e-12


@dataclass(frozen=True)
class RankingQuestion:
    """Question for one objective and one workload with its options, or for a mix.

    label: the workload and its options in words; design: design that compares the candidates; evidence_by_cell: the measured
    cells by id.
    """

    objective: RecommendationObjective
    about: str
    workloads: tuple[str, ...]
    design: Design
    cells: Mapping[str, Evidence]

    def answer(self, *sentences: str, **found: Any) -> RecommendationAnswer:
        """Build the answer to the question from sentences and further fields of RecommendationAnswer."""
        return RecommendationAnswer(
            objective=self.objective.text,
            meaning=self.objective.meaning,
            about=self.about,
            workloads=self.workloads,
            sentences=sentences,
            **found,
        )


def choose(question: RankingQuestion, rows: pd.DataFrame, why_none: str) -> RecommendationAnswer:
    """Answer a question with the best row, or with the one with the fewest devices among those that tie.

    Args:
        question: the question.
        rows: candidates that fulfil the constraints.
        no_answer_reason: sentence of the answer if no row has the quantity.
    """
    scored = score(question.objective, rows)
    if scored.empty:
        return question.answer(f"{question.about}: {why_none}.")
    best = scored.iloc[0]
    if not best["known"]:
        choice = _choice(question, best, scored.iloc[1:])
        unknown = "One composition each was measured, so ties are unknown."
        return question.answer(_build(question, choice), unknown, choice=choice, comparable=False)
    # Each shape is compared at its best batch.
    others = scored[scored["shape"] != best["shape"]].drop_duplicates("shape")
    tie, alike = compare_with(best, others, question.design)
    tied, further, chosen, contenders = others[tie], others[alike & ~tie], best, scored.iloc[1:]
    fewest = pd.concat([scored.iloc[:1], tied]).sort_values(["devices", "hosts"], kind="stable").iloc[0]
    if (fewest["devices"], fewest["hosts"]) < (best["devices"], best["hosts"]):
        # The row was chosen by its score among shapes of its size only.
        equal = tied[(tied["devices"] == fewest["devices"]) & (tied["hosts"] == fewest["hosts"])]
        chosen, contenders = fewest, equal.drop(fewest.name)
        tied = pd.concat([scored.iloc[:1], tied.drop(fewest.name)])
    choice = _choice(question, chosen, contenders)
    answer = question.answer(
        _build(question, choice),
        choice=choice,
        tied=tuple(_choice(question, row) for _, row in tied[:MAX_LISTED].iterrows()),
        tied_total=len(tied),
        not_told_apart=tuple(_choice(question, row) for _, row in further[:MAX_LISTED].iterrows()),
        not_told_apart_total=len(further),
    )
    if not answer.alternatives:
        return answer
    first = " Of those that tie, it takes the fewest devices." if chosen is not best else ""
    beside = answer.beside()
    return answer.model_copy(update={"sentences": (*answer.sentences, f"{beside[:1].upper()}{beside[1:]}.{first}")})


def score(objective: RecommendationObjective, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that have an objective's quantity, the best first, with their scores.

    Added columns: `factor` (multiplier of the rate) and `score` (logarithm, which `ScoreScale` formats).
    """
    if rows.empty:
        return rows
    factor = pd.Series(1.0, index=rows.index)
    if objective.name == TIME:
        factor /= _MILLION
    elif objective.name == PER_DEVICE_HOUR:
        factor = _HOUR_S / rows["devices"]
    elif objective.name == PER_PRICE:
        factor = _HOUR_S / rows["price_per_h"] / _MILLION
    elif objective.name == CHEAPEST:
        enough = rows["rate"] >= rows["rate"].max() * (1 - objective.within_pct / 100)
        factor = (_HOUR_S / rows["devices"] / _MILLION).where(enough)
    scored = rows.assign(factor=factor, score=np.log(factor * rows["rate"]))
    found: pd.DataFrame = scored[np.isfinite(scored["score"])]
    return found.sort_values("score", ascending=False, kind="stable")


def bound_score(row: pd.Series[Any], contenders: pd.DataFrame, design: Design) -> tuple[float, float]:
    """Return the 95 % bounds of the score of a row that was chosen for its score; nan without an interval.

    Args:
        row: the chosen row.
        contenders: rows that it was chosen from, without itself.
        design: design that compares the rows.
    """
    score, variance, cells = ([row[name], *contenders[name]] for name in ("score", "variance", "cell"))
    return bound_best_cell(score, variance, row["freedom"], cells, design.with_pools())


def compare_with(best: pd.Series[Any], others: pd.DataFrame, design: Design) -> tuple[Marks, Marks]:
    """Return which other rows tie with the best one, and which are not shown to be worse.

    Tests of differences are adjusted over all pairs, as the best one was selected by its number. A tie is shown by two one-sided
    tests (Schuirmann 1987), adjusted by Holm. Configurations that always ran on separate hosts are compared as they were
    measured,
    and never tie: it is unknown how much of a difference is due to the hosts.
    """
    found = ratios(others["cell"], pd.Series(best["cell"], index=others.index), design)
    ratio = found.of.ratio * (others["factor"] / best["factor"]).to_numpy(dtype=np.float64)
    measured = found.tested | (found.method == CONFOUNDED_WITH_HOSTS)
    p = np.where(measured, replace(found.of, ratio=ratio).p(), np.nan)
    adjusted = np.minimum(adjust_p_values(p) * (np.isfinite(p).sum() + 1) / 2, 1.0)
    alike = ~((adjusted < SIGNIFICANCE_LEVEL) & (ratio < 1))
    outside = np.abs(np.log(ratio)) + np.log1p(-TIE_PCT / 100)
    variance = np.maximum(found.of.variance, _MIN_VARIANCE)
    p_tie = np.where(found.tested, scipy.special.stdtr(found.of.freedom, outside / np.sqrt(variance)), np.nan)
    return alike & (adjust_p_values(p_tie) < SIGNIFICANCE_LEVEL), alike


def _choice(
    question: RankingQuestion, row: pd.Series[Any], contenders: pd.DataFrame | None = None
) -> RecommendedChoice:
    """Describe a row with its interval, either of this row alone or of a row that was chosen from contenders."""
    scale, value = question.objective.scale, question.objective.scale.value(row["score"])
    if contenders is None:
        bounds = tuple(np.log(row["factor"] * np.array([row["low"], row["high"]], dtype=np.float64)))
    else:
        bounds = bound_score(row, contenders, question.design)
    low, high = sorted(scale.value(each) for each in bounds)
    said = scale.say(value)
    if np.isfinite(bounds).all():
        between = wording.format_range(low, high, scale.number)
        interval = f"95\u202f% interval {between}" if row["known"] else f"{between} from run to run, on one composition"
        said = f"{said} ({interval})"
    shape: dict[str, Any] = {name: row[name] if isinstance(row[name], str) else int(row[name]) for name in SHAPE}
    return RecommendedChoice(
        configuration=str(row["configuration"]),
        shape=shape,
        words=Configuration(name="", **shape).words(),
        batches=str(row["batch"]) if question.objective.name == MIX else f"batch {row['batch']}",
        value=value,
        low=low if np.isfinite(low) else None,
        high=high if np.isfinite(high) else None,
        said=said,
        evidence=tuple(question.cells[cell] for cell in row["cells"]),
    )


def _build(question: RankingQuestion, choice: RecommendedChoice) -> str:
    """Return the sentence that recommends a choice."""
    return f"{question.about}: build {choice.built}: {choice.said}, measured{choice.compositions()}."
