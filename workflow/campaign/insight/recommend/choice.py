"""The choice among candidates, what cannot be told from it, and the cells behind it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy

from campaign import wording
from campaign.documents import metric as metrics
from campaign.documents.cell import Configuration
from campaign.documents.metric import Metric
from campaign.insight.recommend.document import Answer, Choice, Evidence
from campaign.insight.recommend.objectives import (
    CHEAPEST,
    MIX,
    PER_DEVICE_HOUR,
    PER_JOULE,
    PER_PRICE,
    THROUGHPUT,
    TIME,
    Objective,
)
from campaign.insight.recommend.shape_enumeration import COLUMNS
from campaign.statistics import SIGNIFICANT, holm, student_quantile
from campaign.statistics.ratios import welch

TIED_SHOWN = 6
EVIDENCE_SHOWN = 5
_LEAST_SD = 1e-6
_MILLION = 1e6
# What the choice is made by; the rest of a row is read when it is put into words.
_WEIGHED = ["shape", "measured", "outside", "rate", "sd", "freedom", "known", "devices", "hosts"]
_HOUR_S = 3600.0

Say = Callable[[float], str]


@dataclass(frozen=True)
class Question:
    """One objective for the candidates of one workload as it is run, or, for a mix, of all its workloads.

    cells: what each is in words, and its runs and compositions, by id; about: the workload and how it is run; measured: rows of
    `candidates` of that workload, whatever the constraints say, from the cells that predictions of it rest on.
    """

    objective: Objective
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


def answer(question: Question, rows: pd.DataFrame) -> Answer:
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
    chosen, tied, comparable = _tied(best, inside)
    choice = _choice(question, chosen, rows)
    better = outside[outside["score"] > best["score"]]
    further = None if better.empty else _choice(question, better.iloc[0], rows)
    given = _answer(question, choice, beyond=further, sentences=()).model_copy(
        update={
            "tied": tuple(_choice(question, tied.iloc[n], rows) for n in range(min(len(tied), TIED_SHOWN))),
            "tied_total": len(tied),
            "comparable": comparable,
        }
    )
    said = [_sentence(question, choice)]
    if not comparable:
        said.append("One composition each was measured, so ties are unknown.")
    elif len(tied):
        shown = "replays" if choice.replayed else "measurements"
        said.append(f"A tie with {given.tied_words()}: the {shown} show no difference.")
    return given.model_copy(update={"sentences": (*said, *([_beyond(further)] if further else []))})


def _tied(best: pd.Series[Any], inside: pd.DataFrame) -> tuple[pd.Series[Any], pd.DataFrame, bool]:
    """(the choice, other shapes that the best is not told from, whether intervals are known): of measured ties, the fewest
    devices on the fewest hosts are chosen; a prediction stands for itself."""
    others = _one_a_shape(inside)
    others = others[others["shape"] != best["shape"]]
    if not best["known"] or not np.isfinite(best["sd"]):
        return best, others.iloc[:0], False
    tied = others[~(told_apart(others, best) < SIGNIFICANT)].sort_values("measured", ascending=False, kind="stable")
    cheaper = (tied["devices"] < best["devices"]) | (
        (tied["devices"] == best["devices"]) & (tied["hosts"] < best["hosts"])
    )
    alike = tied[tied["measured"] & cheaper]
    if not best["measured"] or alike.empty:
        return best, tied, True
    chosen = alike.sort_values(["devices", "hosts"], kind="stable").iloc[0]
    return chosen, pd.concat([inside.loc[[best.name]], tied[tied.index != chosen.name]]), True


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


def _answer(question: Question, choice: Choice | None, *, beyond: Choice | None, sentences: tuple[str, ...]) -> Answer:
    return Answer(
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


def _nothing(question: Question, rows: pd.DataFrame) -> Answer:
    if rows.empty:
        why = "no configuration fulfils the constraints"
    elif question.objective.name == PER_JOULE:
        why = "no cell has samples of power"
    elif question.objective.name == PER_PRICE:
        why = "the system file has no prices (`price_per_h` of its devices)"
    elif question.objective.name == MIX:
        why = "no configuration has all workloads of the mix"
    else:
        why = (
            "no configuration that fulfils the constraints was measured, and no prediction is good enough to choose by"
        )
    return _answer(question, None, beyond=None, sentences=(f"{_head(question)}{why}.",))


def _scored(objective: Objective, rows: pd.DataFrame) -> pd.DataFrame:
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
    scored = rows[_WEIGHED].assign(score=np.log(value.where(value > 0)), sd=sd.clip(lower=_LEAST_SD))
    known: pd.DataFrame = scored[np.isfinite(scored["score"])]
    return known.sort_values(["score", "measured"], ascending=False, kind="stable")


def fastest_rate(rows: pd.DataFrame) -> float:
    """The rate that others are held against: of what would be chosen for throughput."""
    inside = rows[~rows["outside"]]
    return float(_reference(_scored(Objective(THROUGHPUT), inside if len(inside) else rows))["rate"])


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


def told_apart(rows: pd.DataFrame, best: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """p-values (t on the logarithms) that rows differ from one; nan where the spread of compositions is unknown.

    Adjusted over all pairs, as the one is the best of them only because it was looked for.
    """
    variance, freedom = (rows[name].to_numpy(dtype=float) for name in ("sd", "freedom"))
    variance, own = variance**2, float(best["sd"]) ** 2
    # Measured cells share one estimate of their spread, which two of them know no better than one.
    shared = rows["measured"].to_numpy(dtype=bool) & bool(best["measured"])
    both = welch((variance, freedom), (np.full(len(rows), own), np.full(len(rows), float(best["freedom"]))))
    both = np.where(shared, np.minimum(both, np.maximum(freedom, float(best["freedom"]))), both)
    apart = np.abs(rows["score"].to_numpy(dtype=float) - float(best["score"])) / np.sqrt(variance + own)
    known = rows["known"].to_numpy(dtype=bool) & bool(best["known"])
    p = np.where(known, 2 * scipy.special.stdtr(both, -apart), np.nan)
    return np.asarray(np.minimum(holm(p) * (known.sum() + 1) / 2, 1.0), dtype=np.float64)


def _choice(question: Question, weighed: pd.Series[Any], rows: pd.DataFrame) -> Choice:
    (found,) = rows.loc[[weighed.name]].to_dict("records")
    row: dict[str, Any] = {
        **{str(name): value for name, value in found.items()},
        **weighed[["score", "sd"]].astype(float),
    }
    scale = question.scale
    half = _half(question, row)
    ends = sorted(float(np.exp(scale.sign * (row["score"] + side * half))) for side in (-1, 1))
    value = float(np.exp(scale.sign * row["score"]))
    known = bool(np.isfinite(half))
    evidence, total = _evidence(question, row)
    return Choice(
        configuration=str(row["configuration"]),
        shape={name: row[name] if isinstance(row[name], str) else int(row[name]) for name in COLUMNS},
        words=_built(row),
        batches=str(row["batch"]) if question.objective.name == MIX else f"batch {row['batch']}",
        measured=bool(row["measured"]),
        replayed=bool(row["replayed"]),
        extrapolated=str(row["extrapolated"]),
        memory="fits" if row["memory"] == "fits" else "unknown",
        value=value,
        low=ends[0] if known else None,
        high=ends[1] if known else None,
        said=f"{scale.say(value)} (95\u202f% interval {wording.between(ends[0], ends[1], scale.number)})"
        if known
        else scale.say(value),
        predicted=_said_of(question, row, scale),
        evidence=evidence,
        evidence_total=total,
    )


def _half(question: Question, row: Mapping[str, Any]) -> float:
    """Half the 95 % interval of a score.

    Of what is measured and follows from the rate alone, it is that of the cells table: `sd` is for telling configurations
    apart, and leaves out what they have in common.
    """
    if row["measured"] and question.objective.name not in (PER_JOULE, MIX):
        return float(np.log(row["high"] / row["low"])) / 2
    return float(student_quantile(row["freedom"])) * float(row["sd"])


def _said_of(question: Question, row: Mapping[str, Any], scale: _Scale) -> str:
    """What the model says of a measured shape that it was not shown."""
    if not row["measured"] or not np.isfinite(row["said_rate"]) or question.objective.name == PER_JOULE:
        return ""
    off = row["said_rate"] / row["rate"]
    value = float(np.exp(scale.sign * (row["score"] + np.log(off))))
    return f"{scale.say(value)}, {wording.percent(100 * (off - 1))} off in throughput"


def _built(row: Mapping[str, Any]) -> str:
    shape: dict[str, Any] = {name: row[name] if isinstance(row[name], str) else int(row[name]) for name in COLUMNS}
    model, _, layout = str(shape["device"]).partition(" (")
    return Configuration(**{"name": "", **shape, "device": model, "layout": layout.removesuffix(")")}).words()


def _evidence(question: Question, row: Mapping[str, Any]) -> tuple[tuple[Evidence, ...], int]:
    """The cell itself where it was measured; otherwise those nearest to it of all that its model was fitted to."""
    if question.objective.name == MIX:
        ids = [cell for cell in row["cells"] if cell]
        return tuple(_told(question, cell) for cell in ids), len(ids)
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


def _told(question: Question, cell: str) -> Evidence:
    words, runs, compositions = question.cells.get(cell, (cell, 0, 0))
    return Evidence(cell_id=cell, words=words, runs=runs, compositions=compositions)


def _head(question: Question) -> str:
    return f"{question.about}: " if question.about else ""


def _sentence(question: Question, choice: Choice) -> str:
    how = f"{choice.how}{choice.compositions()}" if choice.measured else "predicted, not measured"
    memory = "; whether the batch fits into memory is unknown" if choice.memory == "unknown" else ""
    return f"{_head(question)}build {choice.configuration} ({choice.words}), {choice.batches}: {choice.said}, {how}{memory}."


def _beyond(choice: Choice) -> str:
    return (
        f"Beyond the measured range, {choice.configuration} ({choice.words}), {choice.batches}, might give {choice.said}: an "
        f"extrapolation ({choice.extrapolated})."
    )
