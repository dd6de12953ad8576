"""Claims of a campaign: the ratios that its answers state; and each held against a campaign that was measured again.

A claim is the ratio of two cells, with its interval between compositions. What it predicts of compositions that are
made anew is not its confidence interval: a new mean deviates as well. With the variance V of the logarithm of the
ratio, its Student t, and a new mean over as many compositions and runs, the prediction interval is `ratio * exp(+-t *
sqrt(V + V))` (Hahn & Meeker, 1991, "Statistical Intervals", section 4.8). A campaign with fewer of either deviates by
more, at most in proportion, and its interval is that much wider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.insight.compare.matching import match
from campaign.statistics import comparable_cells, comparisons, intervals, software_options, verdict
from campaign.statistics.comparisons import Design, Ratios
from campaign.statistics.intervals import Floats
from campaign.statistics.ratios import LogRatios
from campaign.tables.io import Tables

INSIDE, OUTSIDE, NOT_COMPARABLE = "inside", "outside", "not comparable"
CELLS, SPEED_UPS = "cells", "speed-ups"
_CELLS = ("cell_id", "against_cell", "over_cell", "over_against")
_Pairs = Mapping[str, pd.Series] | pd.DataFrame
_ONE_COMPOSITION = (intervals.PAIRED, intervals.RUNS_OF_ONE)


@dataclass(frozen=True)
class _Answers:
    """Comparisons of one kind. of: `CELLS` or `SPEED_UPS`; rows: figure, cell_id, against_cell, p, p_holm, and of
    speed-ups over_cell and over_against: the cells of the ratio that theirs is over."""

    of: str
    rows: pd.DataFrame


def claims(tables: Tables) -> pd.DataFrame:
    """The comparisons that the answers of a campaign state, each once.

    figure (title), claim (words), of (what kind), cell_id, against_cell, over_cell, over_against, ratio, low, high (95 %),
    expected_low, expected_high (of a new mean over as many compositions; nan where its spread is not known), p, p_holm (over its
    figure), and `Ratios.basis`. A ratio above 1 is better than the cell that it is against. That of a speed-up by batch is over
    the same ratio of fewer devices.
    """
    found = [_stated(tables, answers) for answers in _answers(tables) if len(answers.rows)]
    if not found:
        return pd.DataFrame(columns=["figure", "claim", "of", *_CELLS, "p", "p_holm"])
    # Not every kind has every column of its basis.
    return pd.concat(found, ignore_index=True).pipe(
        lambda rows: rows.fillna({name: none for name, none in (("lent_by", ""), ("adjusted", False)) if name in rows})
    )


def _answers(tables: Tables) -> Iterator[_Answers]:
    cells, design = tables.cells, tables.design
    baseline = str(tables.context["campaign"].get("baseline", ""))
    answers = {
        "Scaling": comparable_cells.scaling(cells, design),
        "Node spread": comparable_cells.node_spread(cells, design),
        "Precision": comparable_cells.precision(cells, design),
        "Local, hybrid and fabric": comparable_cells.overhead(cells, baseline, design),
        "Part of a host": comparable_cells.part_of_host(cells, design),
        "Systems": comparable_cells.across_systems(cells, design),
        "Software optimisations": software_options.software_options(cells, design),
    }
    yield _Answers(CELLS, pd.concat([_pairs(rows, name) for name, rows in answers.items()]))
    speedups = comparable_cells.speedup_by_batch(cells, design)
    if len(speedups):
        _, effects = comparable_cells.one_family(speedups, comparable_cells.batch_effect(speedups, design))
        effects = effects.assign(over_cell=effects["against_cell_large"], over_against=effects["against_cell"])
        effects = effects.assign(ratio=1 + effects["change_pct"] / 100, against_cell=effects["cell_id"])
        yield _Answers(SPEED_UPS, _pairs(effects.assign(cell_id=effects["cell_id_large"]), "Speed-up by batch"))


def _pairs(rows: pd.DataFrame, figure: str) -> pd.DataFrame:
    """The comparisons of a figure that have a ratio."""
    if rows.empty:
        return pd.DataFrame(columns=["figure", *_CELLS, "p", "p_holm"])
    rows = rows[rows["ratio"].notna() & (rows["method"] != intervals.ITSELF)]
    return rows.assign(figure=figure).reindex(columns=["figure", *_CELLS, "p", "p_holm"])


def _stated(tables: Tables, answers: _Answers) -> pd.DataFrame:
    rows = answers.rows.drop_duplicates(list(_CELLS), ignore_index=True).assign(of=answers.of)
    ratios = _ratios(answers.of, rows, tables.design)
    value, low, high = ratios.of.bounds()
    bounds = {"ratio": value, "low": low, "high": high}
    stated = rows.assign(**bounds, claim=_words(answers.of, tables.cells, rows), **ratios.basis(rows.index))
    predicted = np.array([not _unpredicted(row) for row in stated.to_dict("records")], dtype=np.bool_)
    expected_low, expected_high = prediction(ratios.of, np.where(predicted, 1.0, np.nan))
    return stated.assign(expected_low=expected_low, expected_high=expected_high)


def _ratios(of: str, rows: _Pairs, design: Design) -> Ratios:
    found = comparisons.ratios(rows["cell_id"], rows["against_cell"], design)
    # Numbers of devices are compositions of their own, so nothing is shared between the two.
    return found.over(comparisons.ratios(rows["over_cell"], rows["over_against"], design)) if of == SPEED_UPS else found


def prediction(of: LogRatios, more: Floats) -> tuple[Floats, Floats]:
    """Bounds that hold 95 of 100 new ratios. more: variance of the new ratio, over that of the old one."""
    _, low, high = replace(of, variance=of.variance * (1 + more)).bounds()
    return low, high


def expected(base: Design, other: Design, pairs: _Pairs, here: _Pairs, of: str = CELLS) -> tuple[Floats, Floats]:
    """Bounds of what `base` predicts of the ratios in `other`, with the compositions and runs that it has.

    pairs, here: cell_id and against_cell of each ratio in base and in other, of speed-ups over_cell and over_against as well.
    """
    more = np.maximum.reduce([_more(base, other, pairs[name], here[name]) for name in _cells_of(of)])
    return prediction(_ratios(of, pairs, base).of, more)


def held_against(base: Tables, other: Tables) -> pd.DataFrame:
    """The claims of `base` with what `other` measured: here, here_low, here_high, verdict, and why it is not
    comparable; the prediction is for as many compositions and runs as `other` has."""
    stated = claims(base)
    if stated.empty:
        return stated.assign(verdict="", why="", here=np.nan, here_low=np.nan, here_high=np.nan)
    matched = match(base.cells, other.cells)
    same = dict(zip(matched.base["cell_id"], matched.other["cell_id"], strict=True))
    kinds = stated.groupby("of", sort=False)
    return pd.concat(
        [_held(str(of), rows.reset_index(drop=True), base, other, same) for of, rows in kinds], ignore_index=True
    )


def _held(of: str, stated: pd.DataFrame, base: Tables, other: Tables, same: Mapping[str, str]) -> pd.DataFrame:
    ours = {name: stated[name].map(same) for name in _CELLS}
    here = _ratios(of, ours, other.design)
    value, low, high = here.of.bounds()
    known = stated["expected_low"].notna()
    expected_low, expected_high = (
        np.where(known, bound, np.nan) for bound in expected(base.design, other.design, stated, ours, of)
    )
    states = other.cells.set_index("cell_id")["state"].to_dict()
    whys = [
        _unpredicted(row)
        or _missing(states, *(ours[name].iloc[place] for name in _cells_of(of)))
        or ("" if np.isfinite(value[place]) else "no ratio: a mean is not positive")
        or ("paired by composition in the archive, and not here" if row["method"] == intervals.PAIRED_BY_LEASE
            and here.method[place] not in (*_ONE_COMPOSITION, intervals.PAIRED_BY_LEASE) else "")
        for place, row in enumerate(stated.to_dict("records"))
    ]  # fmt: skip
    within = (value >= expected_low) & (value <= expected_high)
    verdicts = [
        NOT_COMPARABLE if why else INSIDE if inside else OUTSIDE for why, inside in zip(whys, within, strict=True)
    ]
    return stated.assign(
        expected_low=expected_low, expected_high=expected_high, here=value, here_low=low, here_high=high,
        here_compositions=here.compositions, verdict=verdicts, why=whys,
    )  # fmt: skip


def _cells_of(of: str) -> tuple[str, ...]:
    """The columns of the cells whose means are in a ratio."""
    return _CELLS if of == SPEED_UPS else _CELLS[:2]


def summary(held: pd.DataFrame) -> str:
    """How many claims came out how, in a sentence."""
    if held.empty:
        return "The archive states no comparison."
    count = {name: int((held["verdict"] == name).sum()) for name in (INSIDE, OUTSIDE, NOT_COMPARABLE)}
    compared = count[INSIDE] + count[OUTSIDE]
    said = f"{count[INSIDE]} of {wording.plural(compared, 'comparable claim')} inside the archive's prediction interval"
    chance = f" (about {0.05 * compared:.1f} outside are expected by chance)" if compared else ""
    return f"{said}, {count[OUTSIDE]} outside{chance}; {count[NOT_COMPARABLE]} not comparable."


def _more(base: Design, other: Design, cells: pd.Series[Any], here: pd.Series[Any]) -> Floats:
    """How many times the variance of each cell's location is in `other`, at most: nan where it was not measured."""
    i, j = base.places(cells), other.places(here)
    both = (i >= 0) & (j >= 0)
    i, j = np.where(both, i, 0), np.where(both, j, 0)
    if not other.cells.size:
        return np.full(len(cells), np.nan)
    of_both = [(getattr(base, name)[i], getattr(other, name)[j]) for name in ("compositions", "runs")]
    return np.where(both, np.fmax(*(one / two for one, two in of_both)), np.nan)


def _unpredicted(row: Mapping[Any, Any]) -> str:
    """Why a claim says nothing of compositions that are made anew; '' where it does."""
    if row["method"] in _ONE_COMPOSITION:
        return "measured within one composition, whose spread says nothing about another"
    return "" if row["tested"] else f"not tested in the archive: {verdict.not_tested(row)}"


def _missing(states: Mapping[Any, str], *cells: Any) -> str:
    """Why one of two cells has no value here."""
    unmatched = [each for each in cells if not isinstance(each, str)]
    if unmatched:
        return "a cell of it is not planned here"
    return next((f"a cell of it is {states[each]} here" for each in cells if states[each] != "measured"), "")


def _words(of: str, cells: pd.DataFrame, rows: pd.DataFrame) -> Sequence[str]:
    """'2x2-local against 1x4-local (bert, batch 8)': where the two differ, and what they share of what the campaign varies."""
    names = [name for name in comparable_cells.naming_columns(cells) if cells[name].nunique(dropna=False) > 1]
    by_id = cells.drop_duplicates("cell_id").set_index("cell_id")
    told = []
    for row in rows.to_dict("records"):
        a, b = by_id.loc[row["cell_id"]], by_id.loc[row["against_cell"]]
        apart = [name for name in names if a[name] != b[name]]
        shared = wording.describe(a, [name for name in names if name not in apart and a[name] != ""])
        words = f"{wording.describe(a, apart)} against {wording.describe(b, apart)}{f' ({shared})' if shared else ''}"
        if of == SPEED_UPS:
            fewer = by_id.loc[row["over_cell"]]
            words += f", over {wording.describe(fewer, [name for name in names if a[name] != fewer[name]])}"
        told.append(words)
    return told
