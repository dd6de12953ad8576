"""The choice among candidates, what cannot be told from it, and the cells behind it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy

from campaign import wording
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
from campaign.statistics.ratios import LogRatios, welch

TIE_PCT = 5.0
"""Measured configurations tie where none is shown to be better, and a test shows that they differ by less than this."""
LISTED = 6
EVIDENCE_SHOWN = 5
_LEAST_SD = 1e-6
_MILLION = 1e6
# What the choice is made by; the rest of a row is read when it is put into words.
_WEIGHED = ["shape", "measured", "outside", "rate", "low", "high", "sd", "freedom", "known", "devices", "hosts"]
_HOUR_S = 3600.0


@dataclass(frozen=True)
class ObjectiveOfWorkload:
    """One objective for the candidates of one workload as it is run, or, for a mix, of all its workloads.

    cells: the measured ones by id; about: the workload and how it is run; measured: rows of `candidates` of that workload, whatever
    the constraints say, from the cells that predictions of it rest on.
    """

    objective: RecommendationObjective
    about: str
    workloads: tuple[str, ...]
    cells: Mapping[str, Evidence]
    measured: pd.DataFrame


def answer(question: ObjectiveOfWorkload, rows: pd.DataFrame) -> RecommendationAnswer:
    """The answer among the rows of `candidates`, which fulfil the constraints. For a mix: rows that `mixed` made."""

    def choices(some: pd.DataFrame) -> list[RecommendedChoice]:
        return [_choice(question, some.iloc[n], rows) for n in range(min(len(some), LISTED))]

    empty = RecommendationAnswer(
        objective=question.objective.text,
        meaning=question.objective.meaning,
        about=question.about,
        workloads=question.workloads,
        choice=None,
        sentences=(),
    )
    scored = _scored(question.objective, usable(rows))
    if scored.empty:
        return empty.model_copy(update={"sentences": (f"{question.about}: {_why_none(question, rows)}.",)})
    inside, outside = scored[~scored["outside"]], scored[scored["outside"]]
    if inside.empty:
        (beyond,) = choices(outside[:1])
        said = f"{question.about}: no configuration within the measured range fulfils the constraints."
        return empty.model_copy(update={"beyond": beyond, "sentences": (said, _beyond(beyond))})
    best = _reference(inside)
    chosen, tied, alike = _beside(best, inside)
    choice = _choice(question, chosen, rows)
    further = choices(outside[outside["score"] > best["score"]][:1])
    given = empty.model_copy(
        update={
            "choice": choice,
            "beyond": further[0] if further else None,
            "tied": tuple(choices(tied)),
            "tied_total": len(tied),
            "not_told_apart": tuple(choices(alike)),
            "not_told_apart_total": len(alike),
            "comparable": bool(best["known"] and np.isfinite(best["sd"])),
        }
    )
    how = f"{choice.how}{choice.compositions()}" if choice.measured else "predicted, not measured"
    memory = "; whether the batch fits into memory is unknown" if choice.memory == "unknown" else ""
    sentences = [f"{question.about}: build {_built(choice)}: {choice.said}, {how}{memory}."]
    if not given.comparable:
        sentences.append("One composition each was measured, so ties are unknown.")
    elif len(tied) or len(alike):
        first = " Of those that tie, it takes the fewest devices." if chosen.name != best.name else ""
        sentences.append(f"{given.beside()[:1].upper()}{given.beside()[1:]}.{first}")
    return given.model_copy(update={"sentences": (*sentences, *map(_beyond, further))})


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


def _why_none(question: ObjectiveOfWorkload, rows: pd.DataFrame) -> str:
    is_mix = question.objective.name == MIX and len(question.measured) > 0
    if rows.empty and not is_mix:
        return "no configuration fulfils the constraints"
    if question.objective.name == PER_JOULE:
        return "no cell has samples of power"
    if question.objective.name == PER_PRICE:
        return "the system file has no prices (`price_per_h` of its devices)"
    if is_mix:
        return (
            "no configuration has all workloads of the mix like this; choose a precision or options with --constraint"
        )
    return "no configuration that fulfils the constraints was measured, and no prediction is good enough to choose by"


def _scored(objective: RecommendationObjective, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that have the quantity, with `score` and the `sd` of it, the best first."""
    if rows.empty:
        return rows
    rate, sd, an_hour = rows["rate"], rows["sd"], rows["rate"] * _HOUR_S
    value = {
        TIME: rate / _MILLION,
        PER_DEVICE_HOUR: an_hour / rows["devices"],
        PER_PRICE: an_hour / rows["price_per_h"] / _MILLION,
        PER_JOULE: 1 / rows["energy_j"],
    }.get(objective.name, rate)  # of a mix, it is the inverse of its slow-down
    if objective.name == CHEAPEST:
        enough = rate >= fastest_rate(rows) * (1 - objective.within_pct / 100)
        value = (an_hour / rows["devices"] / _MILLION).where(enough)
    if objective.name == PER_JOULE:
        sd = rows["energy_sd"].fillna(sd)
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
    measured, said = (by_score[of].drop_duplicates("shape") for of in (by_score["measured"], ~by_score["measured"]))
    own = measured.set_index("shape").reindex(said["shape"]).set_index(said.index)
    better = (_against(said, own).p() < SIGNIFICANT) & (said["score"] > own["score"])
    said = said[better | own["score"].isna()]
    first: pd.DataFrame = pd.concat([measured[~measured["shape"].isin(said["shape"])], said])
    return first.sort_values("score", ascending=False, kind="stable")


def told_apart(rows: pd.DataFrame, best: pd.Series[Any]) -> Floats:
    """p-values (t on the logarithms) that rows differ from one; nan where the spread of compositions is unknown.

    Adjusted over all pairs, as the one is the best of them only because it was looked for.
    """
    p = _against(rows, best).p()
    return np.asarray(np.minimum(holm(p) * (np.isfinite(p).sum() + 1) / 2, 1.0), dtype=np.float64)


def _equivalent(rows: pd.DataFrame, best: pd.Series[Any]) -> Floats:
    """p-values that rows differ from one by less than TIE_PCT: two one-sided tests (Schuirmann 1987), Holm over the rows."""
    found = _against(rows, best)
    apart = np.abs(np.log(found.ratio)) + np.log1p(-TIE_PCT / 100)
    return holm(scipy.special.stdtr(found.freedom, apart / np.sqrt(found.variance)))


def _against(rows: pd.DataFrame, one: pd.Series[Any] | pd.DataFrame) -> LogRatios:
    """Rows over one of them, or over a row each; nan where the spread of compositions is unknown."""

    def of(name: str) -> tuple[Floats, Floats]:
        values = np.asarray(rows[name], dtype=np.float64)
        return values, np.broadcast_to(np.asarray(one[name], dtype=np.float64), values.shape)

    (score, other), (sd, other_sd), freedom = of("score"), of("sd"), of("freedom")
    known, measured = (np.nan_to_num(of(name)).all(axis=0) for name in ("known", "measured"))
    both = welch((sd**2, freedom[0]), (other_sd**2, freedom[1]))
    # Measured cells share one estimate of their spread, which two of them know no better than one.
    both = np.where(measured, np.minimum(both, np.maximum(*freedom)), both)
    return LogRatios(np.where(known, np.exp(score - other), np.nan), sd**2 + other_sd**2, both)


def _choice(question: ObjectiveOfWorkload, weighed: pd.Series[Any], rows: pd.DataFrame) -> RecommendedChoice:
    (row,) = rows.loc[[weighed.name]].to_dict("records")
    scale, score, half = question.objective.scale, float(weighed["score"]), float(weighed["half"])
    low, high = sorted(scale.value(score + side * half) for side in (-1, 1))
    value, between = scale.value(score), wording.between(low, high, scale.number)
    interval = f"95\u202f% interval {between}" if row["known"] else f"{between} from run to run, on one composition"
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
        low=low if np.isfinite(half) else None,
        high=high if np.isfinite(half) else None,
        said=scale.say(value) + (f" ({interval})" if np.isfinite(half) else ""),
        predicted=_without_it(question.objective, row, score),
        evidence=evidence,
        evidence_total=total,
    )


def _without_it(objective: RecommendationObjective, row: Mapping[Any, Any], score: float) -> str:
    """What the model says of a measured shape that it was not shown."""
    if not row["measured"] or not np.isfinite(row["said_rate"]) or objective.name == PER_JOULE:
        return ""
    off = row["said_rate"] / row["rate"]
    value = objective.scale.value(score + float(np.log(off)))
    return f"{objective.scale.say(value)}, {wording.percent(100 * (off - 1))} off in throughput"


def _evidence(question: ObjectiveOfWorkload, row: Mapping[Any, Any]) -> tuple[tuple[Evidence, ...], int]:
    """The cell itself where it was measured; otherwise those nearest to it of all that its model was fitted to."""
    if question.objective.name == MIX:
        own = tuple(question.cells[cell] for cell in row["cells"] if cell)
        return own, len(own) if row["measured"] else len(question.measured)
    if row["measured"]:
        return (question.cells[row["cell_id"]],), 1
    measured = question.measured
    far = (
        np.abs(np.log(measured["ranks"] / row["ranks"]))
        + 0.7 * (measured["way"] != row["way"])
        + 0.3 * np.abs(np.log(measured["hosts"] / row["hosts"]))
        + 0.5 * np.abs(np.log(measured["batch"] / row["batch"]))
    )
    nearest = measured["cell_id"].to_numpy()[np.argsort(far.to_numpy(), kind="stable")[:EVIDENCE_SHOWN]]
    return tuple(question.cells[cell] for cell in nearest), len(measured)


def _built(choice: RecommendedChoice) -> str:
    return f"{choice.configuration} ({choice.words}), {choice.batches}"


def _beyond(choice: RecommendedChoice) -> str:
    return f"Beyond the measured range, {_built(choice)}, might give {choice.said}: an extrapolation ({choice.extrapolated})."
