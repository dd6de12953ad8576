"""The choice among candidates, what cannot be told from it, and the cells behind it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy

from campaign import wording
from campaign.documents import metric as metrics
from campaign.documents.metric import Metric
from campaign.insight.recommend.document import Evidence, RecommendationAnswer, RecommendedChoice
from campaign.insight.recommend.objectives import (
    CHEAPEST,
    MIX,
    PER_DEVICE_HOUR,
    PER_JOULE,
    PER_PRICE,
    THROUGHPUT,
    TIME,
    RecommendationObjective,
)
from campaign.insight.recommend.observations import configuration_of
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.statistics.intervals import SIGNIFICANT, Floats, holm, student_quantile
from campaign.statistics.ratios import welch

TIE_PCT = 5.0
"""Measured configurations tie where none is shown to be better, and a test shows that they differ by less than this."""
LISTED = 6
EVIDENCE_SHOWN = 5
_LEAST_SD = 1e-6
_MILLION = 1e6
# What the choice is made by; the rest of a row is read when it is put into words.
_WEIGHED = ["shape", "measured", "outside", "rate", "low", "high", "sd", "freedom", "known", "devices", "hosts"]
_HOUR_S = 3600.0

Say = Callable[[float], str]


@dataclass(frozen=True)
class ObjectiveOfWorkload:
    """One objective for the candidates of one workload as it is run, or, for a mix, of all its workloads.

    cells: what each is in words, and its runs and compositions, by id; about: the workload and how it is run; measured: rows of
    `candidates` of that workload, whatever the constraints say, from the cells that predictions of it rest on.
    """

    objective: RecommendationObjective
    about: str
    workloads: tuple[str, ...]
    cells: Mapping[str, tuple[str, int, int]]
    measured: pd.DataFrame
    metric: Metric = metrics.THROUGHPUT
    """The campaign's; the objective `throughput` is about it."""
    currency: str = ""
    """That of the system file's prices."""

    @property
    def by_metric(self) -> bool:
        """Whether it asks for the best of another metric than throughput."""
        return self.objective.name == THROUGHPUT and self.metric != metrics.THROUGHPUT

    @property
    def scale(self) -> _Scale:
        if self.by_metric:
            return _Scale(1 if self.metric.higher else -1, wording.rate, self.metric.unit)
        if self.objective.name == PER_PRICE:
            return _Scale(-1, wording.rate, f"{self.currency} a million samples".lstrip())
        return _SCALES[self.objective.name]


@dataclass(frozen=True)
class _Scale:
    """How a score (a logarithm, larger is better) is shown: value = exp(sign x score)."""

    sign: int
    number: Say
    unit: str

    def say(self, value: float) -> str:
        return f"{self.number(value)}\u202f{self.unit}".rstrip()


_SCALES = {
    THROUGHPUT: _Scale(1, wording.rate, "samples/s"),
    TIME: _Scale(-1, wording.seconds, "a million samples"),
    PER_DEVICE_HOUR: _Scale(1, wording.rate, "samples a device-hour"),
    PER_JOULE: _Scale(1, wording.rate, "samples/J"),
    CHEAPEST: _Scale(-1, wording.rate, "device-hours a million samples"),
    MIX: _Scale(-1, wording.times, "the time of each workload’s own fastest"),
}


def answer(question: ObjectiveOfWorkload, rows: pd.DataFrame) -> RecommendationAnswer:
    """The answer among the rows of `candidates`, which fulfil the constraints. For a mix: rows that `mixed` made."""
    scored = _scored(question.objective, usable(rows))
    if scored.empty:
        return _nothing(question, rows)
    inside, outside = scored[~scored["outside"]], scored[scored["outside"]]
    if inside.empty:
        beyond = _choice(question, outside.iloc[0], rows)
        sentence = f"{_head(question)}no configuration within the measured range fulfils the constraints."
        return _answer(question, None, beyond=beyond, sentences=(sentence, _beyond(beyond)))
    best = _reference(inside)
    chosen, tied, alike = _beside(best, inside)
    choice = _choice(question, chosen, rows)
    better = outside[outside["score"] > best["score"]]
    further = None if better.empty else _choice(question, better.iloc[0], rows)
    comparable = bool(best["known"] and np.isfinite(best["sd"]))
    given = _answer(question, choice, beyond=further, sentences=()).model_copy(
        update={
            "tied": tuple(_choice(question, tied.iloc[n], rows) for n in range(min(len(tied), LISTED))),
            "tied_total": len(tied),
            "not_told_apart": tuple(_choice(question, alike.iloc[n], rows) for n in range(min(len(alike), LISTED))),
            "not_told_apart_total": len(alike),
            "comparable": comparable,
        }
    )
    said = [_sentence(question, choice)]
    if not comparable:
        said.append("One composition each was measured, so ties are unknown.")
    elif len(tied) or len(alike):
        first = " Of those that tie, it takes the fewest devices." if chosen.name != best.name else ""
        said.append(f"{given.beside()[:1].upper()}{given.beside()[1:]}.{first}")
    return given.model_copy(update={"sentences": (*said, *([_beyond(further)] if further else []))})


def _beside(best: pd.Series[Any], inside: pd.DataFrame) -> tuple[pd.Series[Any], pd.DataFrame, pd.DataFrame]:
    """(the choice, other shapes that tie with the best, further ones that are not told apart from it).

    Of ties, the one with the fewest devices on the fewest hosts is chosen. A prediction never ties; it is not told apart where its
    interval reaches that of the best.
    """
    others = _one_a_shape(inside)
    others = others[others["shape"] != best["shape"]]
    if not best["known"] or not np.isfinite(best["sd"]):
        return best, others.iloc[:0], others.iloc[:0]
    tested = others["measured"].to_numpy(dtype=bool) & bool(best["measured"])
    measured = others[tested]
    alike = ~(told_apart(measured, best) < SIGNIFICANT)
    tie = alike & (_equivalent(measured, best) < SIGNIFICANT)
    reaches = others[~tested & (others["score"] + others["half"] >= best["score"] - best["half"]).to_numpy()]
    tied, further = measured[tie], pd.concat([measured[alike & ~tie], reaches])
    cheaper = (tied["devices"] < best["devices"]) | (
        (tied["devices"] == best["devices"]) & (tied["hosts"] < best["hosts"])
    )
    if not cheaper.any():
        return best, tied, further
    chosen = tied[cheaper].sort_values(["devices", "hosts"], kind="stable").iloc[0]
    return chosen, pd.concat([inside.loc[[best.name]], tied[tied.index != chosen.name]]), further


def usable(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that may be chosen: a batch that ran out of memory never, predictions where their model is trusted."""
    return rows[(rows["memory"] != "out") & (rows["measured"] | rows["trusted"])]


def _reference(scored: pd.DataFrame) -> pd.Series[Any]:
    """The best that was measured; a prediction only where it is better by test, or where nothing was measured."""
    measured = scored[scored["measured"]]
    if measured.empty:
        return scored.iloc[0]
    best = measured.iloc[0]
    better = _one_a_shape(scored[~scored["measured"] & (scored["score"] > best["score"])])
    better = better[told_apart(better, best) < SIGNIFICANT]
    return best if better.empty else better.iloc[0]


def _answer(
    question: ObjectiveOfWorkload,
    choice: RecommendedChoice | None,
    *,
    beyond: RecommendedChoice | None,
    sentences: tuple[str, ...],
) -> RecommendationAnswer:
    return RecommendationAnswer(
        objective=question.metric.name if question.by_metric else question.objective.text,
        meaning=f"the {'highest' if question.metric.higher else 'lowest'} {question.metric.label}"
        if question.by_metric
        else question.objective.meaning,
        about=question.about,
        workloads=question.workloads,
        choice=choice,
        beyond=beyond,
        sentences=sentences,
    )


def _nothing(question: ObjectiveOfWorkload, rows: pd.DataFrame) -> RecommendationAnswer:
    is_mix = question.objective.name == MIX and len(question.measured) > 0
    if rows.empty and not is_mix:
        why = "no configuration fulfils the constraints"
    elif question.objective.name == PER_JOULE:
        why = "no cell has samples of power"
    elif question.objective.name == PER_PRICE:
        why = "the system file has no prices (`price_per_h` of its devices)"
    elif is_mix:
        why = "no configuration has all workloads of the mix like this; choose a precision or options with --constraint"
    else:
        why = (
            "no configuration that fulfils the constraints was measured, and no prediction is good enough to choose by"
        )
    return _answer(question, None, beyond=None, sentences=(f"{_head(question)}{why}.",))


def _scored(objective: RecommendationObjective, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that have the quantity, with `score` and the `sd` of it, the best first."""
    if rows.empty:
        return rows
    rate, sd = rows["rate"], rows["sd"]
    if objective.name == TIME:
        value = rate / _MILLION
    elif objective.name == PER_DEVICE_HOUR:
        value = rate * _HOUR_S / rows["devices"]
    elif objective.name == PER_PRICE:
        value = rate * _HOUR_S / rows["price_per_h"] / _MILLION
    elif objective.name == PER_JOULE:
        value, sd = 1 / rows["energy_j"], rows["energy_sd"].fillna(rows["sd"])
    elif objective.name == CHEAPEST:
        fastest = fastest_rate(rows)
        enough = rate >= fastest * (1 - objective.within_pct / 100)
        value = (rate / rows["devices"] * _HOUR_S / _MILLION).where(enough)
    else:  # throughput, and a mix, whose rate is the inverse of its slow-down
        value = rate
    sd = sd.clip(lower=_LEAST_SD)
    # What is measured and follows from the rate alone has the interval of the cells table: `sd` is for telling configurations
    # apart, and leaves out what they have in common.
    own = rows["measured"] & (objective.name not in (PER_JOULE, MIX))
    half = student_quantile(rows["freedom"].to_numpy(dtype=float)) * sd
    if own.any():
        half = half.mask(own, np.log((rows["high"] / rows["low"]).astype(float)) / 2)
    scored = rows[_WEIGHED].assign(score=np.log(value.where(value > 0)), sd=sd, half=half)
    known: pd.DataFrame = scored[np.isfinite(scored["score"])]
    return known.sort_values(["score", "measured"], ascending=False, kind="stable")


def fastest_rate(rows: pd.DataFrame) -> float:
    """The rate that others are held against: of what would be chosen for throughput."""
    inside = rows[~rows["outside"]]
    return float(_reference(_scored(RecommendationObjective(THROUGHPUT), inside if len(inside) else rows))["rate"])


def fastest_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The row of each shape with the batch that it is fastest with."""
    fastest: pd.DataFrame = rows.loc[_one_a_shape(_scored(RecommendationObjective(THROUGHPUT), rows)).index]
    return fastest


def _one_a_shape(scored: pd.DataFrame) -> pd.DataFrame:
    """A shape is built once, for the batch that is best: its best measured row, or a prediction that is better than it by test."""
    by_score = scored.sort_values("score", ascending=False, kind="stable")
    measured = by_score[by_score["measured"]].drop_duplicates("shape")
    said = by_score[~by_score["measured"]].drop_duplicates("shape")
    # Of a shape that was not measured, all is nan; so is the sd where nothing is known of compositions, and nothing is better then.
    own = measured.set_index("shape")[["score", "sd", "freedom"]].astype(float).reindex(said["shape"]).to_numpy().T
    score, sd, freedom = said[["score", "sd", "freedom"]].to_numpy(dtype=float).T
    apart = (score - own[0]) / np.hypot(sd, own[1])
    p = 2 * scipy.special.stdtr(welch((sd**2, freedom), (own[1] ** 2, own[2])), -np.abs(apart))
    said = said[np.isnan(own[0]) | (p < SIGNIFICANT) & (apart > 0)]
    first: pd.DataFrame = pd.concat([measured[~measured["shape"].isin(said["shape"])], said])
    ordered: pd.DataFrame = first.sort_values("score", ascending=False, kind="stable")
    return ordered


def told_apart(rows: pd.DataFrame, best: pd.Series[Any]) -> Floats:
    """p-values (t on the logarithms) that rows differ from one; nan where the spread of compositions is unknown.

    Adjusted over all pairs, as the one is the best of them only because it was looked for.
    """
    apart, error, freedom = _difference(rows, best)
    p = 2 * scipy.special.stdtr(freedom, -apart / error)
    return np.asarray(np.minimum(holm(p) * (np.isfinite(p).sum() + 1) / 2, 1.0), dtype=np.float64)


def _equivalent(rows: pd.DataFrame, best: pd.Series[Any]) -> Floats:
    """p-values that rows differ from one by less than TIE_PCT: two one-sided tests (Schuirmann 1987), Holm over the rows."""
    apart, error, freedom = _difference(rows, best)
    return holm(scipy.special.stdtr(freedom, (apart + np.log1p(-TIE_PCT / 100)) / error))


def _difference(rows: pd.DataFrame, best: pd.Series[Any]) -> tuple[Floats, Floats, Floats]:
    """By how much the scores of rows differ from that of one, its standard error and its degrees of freedom; nan where the spread
    of compositions is unknown."""
    variance, freedom = (rows[name].to_numpy(dtype=float) for name in ("sd", "freedom"))
    variance, own = variance**2, float(best["sd"]) ** 2
    # Measured cells share one estimate of their spread, which two of them know no better than one.
    shared = rows["measured"].to_numpy(dtype=bool) & bool(best["measured"])
    both = welch((variance, freedom), (np.full(len(rows), own), np.full(len(rows), float(best["freedom"]))))
    both = np.where(shared, np.minimum(both, np.maximum(freedom, float(best["freedom"]))), both)
    known = rows["known"].to_numpy(dtype=bool) & bool(best["known"])
    apart = np.abs(rows["score"].to_numpy(dtype=float) - float(best["score"]))
    return np.where(known, apart, np.nan), np.sqrt(variance + own), both


def _choice(question: ObjectiveOfWorkload, weighed: pd.Series[Any], rows: pd.DataFrame) -> RecommendedChoice:
    (found,) = rows.loc[[weighed.name]].to_dict("records")
    row: dict[str, Any] = {
        **{str(name): value for name, value in found.items()},
        **weighed[["score", "half"]].astype(float),
    }
    scale, half = question.scale, row["half"]
    ends = sorted(float(np.exp(scale.sign * (row["score"] + side * half))) for side in (-1, 1))
    value = float(np.exp(scale.sign * row["score"]))
    known = bool(np.isfinite(half))
    evidence, total = _evidence(question, row)
    return RecommendedChoice(
        configuration=str(row["configuration"]),
        shape={name: row[name] if isinstance(row[name], str) else int(row[name]) for name in COLUMNS},
        words=configuration_of(row).words(),
        batches=str(row["batch"]) if question.objective.name == MIX else f"batch {row['batch']}",
        measured=bool(row["measured"]),
        replayed=bool(row["replayed"]),
        extrapolated=str(row["extrapolated"]),
        memory="fits" if row["memory"] == "fits" else "unknown",
        value=value,
        low=ends[0] if known else None,
        high=ends[1] if known else None,
        said=f"{scale.say(value)}{_interval(row, ends, scale)}",
        predicted=_said_of(question, row, scale),
        evidence=evidence,
        evidence_total=total,
    )


def _interval(row: Mapping[str, Any], ends: Sequence[float], scale: _Scale) -> str:
    """The interval in brackets, with what it holds; '' where there is none."""
    if not np.isfinite(row["half"]):
        return ""
    between = wording.between(ends[0], ends[1], scale.number)
    return f" (95\u202f% interval {between})" if row["known"] else f" ({between} from run to run, on one composition)"


def _said_of(question: ObjectiveOfWorkload, row: Mapping[str, Any], scale: _Scale) -> str:
    """What the model says of a measured shape that it was not shown."""
    if not row["measured"] or not np.isfinite(row["said_rate"]) or question.objective.name == PER_JOULE:
        return ""
    off = row["said_rate"] / row["rate"]
    value = float(np.exp(scale.sign * (row["score"] + np.log(off))))
    return f"{scale.say(value)}, {wording.percent(100 * (off - 1))} off in throughput"


def _evidence(question: ObjectiveOfWorkload, row: Mapping[str, Any]) -> tuple[tuple[Evidence, ...], int]:
    """The cell itself where it was measured; otherwise those nearest to it of all that its model was fitted to."""
    if question.objective.name == MIX:
        own = tuple(_told(question, cell) for cell in row["cells"] if cell)
        return own, len(own) if row["measured"] else len(question.measured)
    if row["measured"]:
        return (_told(question, str(row["cell_id"])),), 1
    measured = question.measured
    far = (
        np.abs(np.log(measured["ranks"] / row["ranks"]))
        + 0.7 * (measured["way"] != row["way"])
        + 0.3 * np.abs(np.log(measured["hosts"] / row["hosts"]))
        + 0.5 * np.abs(np.log(measured["batch"] / row["batch"]))
    )
    nearest = measured["cell_id"].to_numpy()[np.argsort(far.to_numpy(), kind="stable")[:EVIDENCE_SHOWN]]
    return tuple(_told(question, str(cell)) for cell in nearest), len(measured)


def _told(question: ObjectiveOfWorkload, cell: str) -> Evidence:
    words, runs, compositions = question.cells.get(cell, (cell, 0, 0))
    return Evidence(cell_id=cell, words=words, runs=runs, compositions=compositions)


def _head(question: ObjectiveOfWorkload) -> str:
    return f"{question.about}: " if question.about else ""


def _sentence(question: ObjectiveOfWorkload, choice: RecommendedChoice) -> str:
    how = f"{choice.how}{choice.compositions()}" if choice.measured else "predicted, not measured"
    memory = "; whether the batch fits into memory is unknown" if choice.memory == "unknown" else ""
    return f"{_head(question)}build {choice.configuration} ({choice.words}), {choice.batches}: {choice.said}, {how}{memory}."


def _beyond(choice: RecommendedChoice) -> str:
    return (
        f"Beyond the measured range, {choice.configuration} ({choice.words}), {choice.batches}, might give {choice.said}: an "
        f"extrapolation ({choice.extrapolated})."
    )
