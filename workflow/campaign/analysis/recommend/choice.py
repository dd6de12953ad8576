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
from campaign.analysis.statistics.comparisons import Design, compute_ratios
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
    """Question of which configuration is best, for one objective and one workload with options, or for a mix.

    label: the workload and its options in words; design: design that compares the candidates; evidence_by_cell: the measured
    cells by id.
    """

    objective: RecommendationObjective
    label: str
    workloads: tuple[str, ...]
    design: Design
    evidence_by_cell: Mapping[str, Evidence]

    def build_answer(self, *sentences: str, **fields: Any) -> RecommendationAnswer:
        """Build the answer to the question from sentences and further fields of RecommendationAnswer."""
        return RecommendationAnswer(
            objective=self.objective.command_line_text,
            meaning=self.objective.meaning,
            about=self.label,
            workloads=self.workloads,
            sentences=sentences,
            **fields,
        )


def choose_configuration(question: RankingQuestion, rows: pd.DataFrame, no_answer_reason: str) -> RecommendationAnswer:
    """Answer a question with the best row or, if rows tie, with the one that has the fewest devices.

    Args:
        question: the question.
        rows: candidates that fulfil the constraints.
        no_answer_reason: sentence of the answer if no row has the quantity.
    """
    scored_rows = score_candidates(question.objective, rows)
    if scored_rows.empty:
        return question.build_answer(f"{question.label}: {no_answer_reason}.")
    best = scored_rows.iloc[0]
    if not best["known"]:
        choice = _build_choice(question, best, scored_rows.iloc[1:])
        unknown_ties = "Ties are unknown, because each configuration was measured on one composition."
        return question.build_answer(
            _format_build_sentence(question, choice), unknown_ties, choice=choice, comparable=False
        )
    # Each shape is compared at its best batch.
    other_shapes = scored_rows[scored_rows["shape"] != best["shape"]].drop_duplicates("shape")
    is_tied, is_not_worse = find_ties(best, other_shapes, question.design)
    tied_rows, indistinguishable_rows, chosen_row, contenders = (
        other_shapes[is_tied],
        other_shapes[is_not_worse & ~is_tied],
        best,
        scored_rows.iloc[1:],
    )
    smallest = pd.concat([scored_rows.iloc[:1], tied_rows]).sort_values(["devices", "hosts"], kind="stable").iloc[0]
    if (smallest["devices"], smallest["hosts"]) < (best["devices"], best["hosts"]):
        # The row was chosen by its score among shapes of its size only.
        equal_size = tied_rows[
            (tied_rows["devices"] == smallest["devices"]) & (tied_rows["hosts"] == smallest["hosts"])
        ]
        chosen_row, contenders = smallest, equal_size.drop(smallest.name)
        tied_rows = pd.concat([scored_rows.iloc[:1], tied_rows.drop(smallest.name)])
    choice = _build_choice(question, chosen_row, contenders)
    answer = question.build_answer(
        _format_build_sentence(question, choice),
        choice=choice,
        tied=tuple(_build_choice(question, row) for _, row in tied_rows[:MAX_LISTED].iterrows()),
        tied_total=len(tied_rows),
        not_told_apart=tuple(_build_choice(question, row) for _, row in indistinguishable_rows[:MAX_LISTED].iterrows()),
        not_told_apart_total=len(indistinguishable_rows),
    )
    if not answer.alternatives:
        return answer
    size_note = (
        " Of the tied configurations, the recommended one needs the fewest devices." if chosen_row is not best else ""
    )
    alternatives_text = answer.describe_alternatives()
    return answer.model_copy(
        update={"sentences": (*answer.sentences, f"{alternatives_text[:1].upper()}{alternatives_text[1:]}.{size_note}")}
    )


def score_candidates(objective: RecommendationObjective, rows: pd.DataFrame) -> pd.DataFrame:
    """Score the rows that have an objective's quantity, and return them with the best first.

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
        is_within = rows["rate"] >= rows["rate"].max() * (1 - objective.within_pct / 100)
        factor = (_HOUR_S / rows["devices"] / _MILLION).where(is_within)
    scored_rows = rows.assign(factor=factor, score=np.log(factor * rows["rate"]))
    finite_rows: pd.DataFrame = scored_rows[np.isfinite(scored_rows["score"])]
    return finite_rows.sort_values("score", ascending=False, kind="stable")


def bound_score(row: pd.Series[Any], contenders: pd.DataFrame, design: Design) -> tuple[float, float]:
    """Compute 95 % bounds for the score of a row that was chosen for its score; nan if unknown.

    Args:
        row: the chosen row.
        contenders: the other rows among which it was chosen.
        design: design that compares the rows.
    """
    score, variance, cells = ([row[name], *contenders[name]] for name in ("score", "variance", "cell"))
    return bound_best_cell(score, variance, row["freedom"], cells, design.with_pools())


def find_ties(best: pd.Series[Any], other_rows: pd.DataFrame, design: Design) -> tuple[Marks, Marks]:
    """Find which other rows tie with the best one, and which are not shown to be worse.

    Tests of differences are adjusted over all pairs, as the best one was selected by its number. A tie is shown by two
    one-sided tests (Schuirmann 1987), adjusted by Holm. Configurations that always ran on separate hosts are compared as they
    were measured, and never tie: it is unknown how much of a difference is due to the hosts.
    """
    pair_ratios = compute_ratios(other_rows["cell"], pd.Series(best["cell"], index=other_rows.index), design)
    ratio = pair_ratios.estimate.ratio * (other_rows["factor"] / best["factor"]).to_numpy(dtype=np.float64)
    is_comparable = pair_ratios.is_tested | (pair_ratios.method == CONFOUNDED_WITH_HOSTS)
    p = np.where(is_comparable, replace(pair_ratios.estimate, ratio=ratio).compute_p_values(), np.nan)
    adjusted_p = np.minimum(adjust_p_values(p) * (np.isfinite(p).sum() + 1) / 2, 1.0)
    is_not_worse = ~((adjusted_p < SIGNIFICANCE_LEVEL) & (ratio < 1))
    log_distance = np.abs(np.log(ratio)) + np.log1p(-TIE_PCT / 100)
    variance = np.maximum(pair_ratios.estimate.variance, _MIN_VARIANCE)
    p_tie = np.where(
        pair_ratios.is_tested,
        scipy.special.stdtr(pair_ratios.estimate.freedom, log_distance / np.sqrt(variance)),
        np.nan,
    )
    return is_not_worse & (adjust_p_values(p_tie) < SIGNIFICANCE_LEVEL), is_not_worse


def _build_choice(
    question: RankingQuestion, row: pd.Series[Any], contenders: pd.DataFrame | None = None
) -> RecommendedChoice:
    """Describe a row with its interval, either of this row alone or of a row that was chosen from contenders."""
    scale, value = question.objective.scale, question.objective.scale.to_value(row["score"])
    if contenders is None:
        bounds = tuple(np.log(row["factor"] * np.array([row["low"], row["high"]], dtype=np.float64)))
    else:
        bounds = bound_score(row, contenders, question.design)
    low, high = sorted(scale.to_value(bound) for bound in bounds)
    value_text = scale.format_value(value)
    if np.isfinite(bounds).all():
        bounds_text = wording.format_range(low, high, scale.format_number)
        interval = (
            f"95\u202f% interval {bounds_text}" if row["known"] else f"{bounds_text} between runs of one composition"
        )
        value_text = f"{value_text} ({interval})"
    shape: dict[str, Any] = {name: row[name] if isinstance(row[name], str) else int(row[name]) for name in SHAPE}
    return RecommendedChoice(
        configuration=str(row["configuration"]),
        shape=shape,
        words=Configuration(name="", **shape).describe(),
        batches=str(row["batch"]) if question.objective.name == MIX else f"batch {row['batch']}",
        value=value,
        low=low if np.isfinite(low) else None,
        high=high if np.isfinite(high) else None,
        said=value_text,
        evidence=tuple(question.evidence_by_cell[cell] for cell in row["cells"]),
    )


def _format_build_sentence(question: RankingQuestion, choice: RecommendedChoice) -> str:
    """Format the sentence that recommends a choice."""
    return f"{question.label}: build {choice.full_name}: {choice.said}, measured{choice.format_compositions()}."
