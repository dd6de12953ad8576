"""Claims of a campaign: the ratios that its answers state; and each held against a campaign that was measured again.

A claim is the ratio of two cells, with its interval between compositions. What it predicts of compositions that are
made anew is not its confidence interval: a new mean deviates as well. With the variance V of the logarithm of the
ratio, its Student t, and a new mean over as many compositions and runs, the prediction interval is `ratio * exp(+-t *
sqrt(V + V))` (Hahn & Meeker, 1991, "Statistical Intervals", section 4.8). A campaign with fewer of either deviates by
more, at most in proportion, and its interval is that much wider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.insight.compare.matching import match
from campaign.statistics import comparable_cells, comparisons, intervals, verdict
from campaign.statistics.comparisons import Design
from campaign.statistics.intervals import Floats
from campaign.statistics.ratios import LogRatios
from campaign.tables.io import Tables

INSIDE, OUTSIDE, NOT_COMPARABLE = "inside", "outside", "not comparable"
_ONE_COMPOSITION = (intervals.PAIRED, intervals.RUNS_OF_ONE)


def claims(tables: Tables) -> pd.DataFrame:
    """The comparisons that the answers of a campaign state, each once.

    figure (title), claim (words), cell_id, against_cell, ratio, low, high (95 %), expected_low, expected_high (of a new
    mean over as many compositions; nan where its spread is not known), p, p_holm (over its figure), and `Ratios.basis`.
    A ratio above 1 is better than the cell that it is against.
    """
    cells, design = tables.cells, tables.design
    baseline = str(tables.context["campaign"].get("baseline", ""))
    answers = {
        "Scaling": comparable_cells.scaling(cells, design),
        "Node spread": comparable_cells.node_spread(cells, design),
        "Precision": comparable_cells.precision(cells, design),
        "Local, hybrid and fabric": comparable_cells.overhead(cells, baseline, design),
        "Part of a host": comparable_cells.part_of_host(cells, design),
        "Systems": comparable_cells.across_systems(cells, design),
    }
    columns = ["cell_id", "against_cell", "ratio", "p", "p_holm"]
    found = [rows[[*columns, "method"]].assign(figure=name) for name, rows in answers.items() if len(rows)]
    if not found:
        return pd.DataFrame(columns=["figure", "claim", *columns])
    rows = pd.concat(found, ignore_index=True)
    rows = rows[rows["ratio"].notna() & (rows["method"] != intervals.ITSELF)]
    rows = rows.drop_duplicates(["cell_id", "against_cell"], ignore_index=True).drop(columns="method")
    ratios = comparisons.ratios(rows["cell_id"], rows["against_cell"], design)
    _, low, high = ratios.of.bounds()
    stated = rows.assign(low=low, high=high, claim=_words(cells, rows), **ratios.basis(rows.index))
    predicted = np.array([not _unpredicted(row) for row in stated.to_dict("records")], dtype=np.bool_)
    expected_low, expected_high = prediction(ratios.of, np.where(predicted, 1.0, np.nan))
    return stated.assign(expected_low=expected_low, expected_high=expected_high)


def prediction(of: LogRatios, more: Floats) -> tuple[Floats, Floats]:
    """Bounds that hold 95 of 100 new ratios. more: variance of the new ratio, over that of the old one."""
    _, low, high = replace(of, variance=of.variance * (1 + more)).bounds()
    return low, high


_Pairs = Mapping[str, pd.Series] | pd.DataFrame


def expected(base: Design, other: Design, pairs: _Pairs, here: _Pairs) -> tuple[Floats, Floats]:
    """Bounds of what `base` predicts of the ratios in `other`, with the compositions and runs that it has.

    pairs, here: cell_id and against_cell of each ratio in base and in other.
    """
    of = comparisons.ratios(pairs["cell_id"], pairs["against_cell"], base).of
    more = np.maximum(*(_more(base, other, pairs[name], here[name]) for name in ("cell_id", "against_cell")))
    return prediction(of, more)


def held_against(base: Tables, other: Tables) -> pd.DataFrame:
    """The claims of `base` with what `other` measured: here, here_low, here_high, verdict, and why it is not
    comparable; the prediction is for as many compositions and runs as `other` has."""
    stated = claims(base)
    if stated.empty:
        return stated.assign(verdict="", why="", here=np.nan, here_low=np.nan, here_high=np.nan)
    matched = match(base.cells, other.cells)
    same = dict(zip(matched.base["cell_id"], matched.other["cell_id"], strict=True))
    ours = {name: stated[name].map(same) for name in ("cell_id", "against_cell")}
    here = comparisons.ratios(ours["cell_id"], ours["against_cell"], other.design)
    value, low, high = here.of.bounds()
    known = stated["expected_low"].notna()
    expected_low, expected_high = (
        np.where(known, bound, np.nan) for bound in expected(base.design, other.design, stated, ours)
    )
    states = other.cells.set_index("cell_id")["state"].to_dict()
    whys = [
        _unpredicted(row)
        or _missing(states, ours["cell_id"].iloc[place], ours["against_cell"].iloc[place])
        or ("no ratio: a mean is not positive" if not np.isfinite(value[place]) else "")
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


def _words(cells: pd.DataFrame, rows: pd.DataFrame) -> Sequence[str]:
    """'2x2-local against 1x4-local (bert, batch 8)': where the two differ, and what they share of what the campaign varies."""
    names = [name for name in comparable_cells.naming_columns(cells) if cells[name].nunique(dropna=False) > 1]
    by_id = cells.drop_duplicates("cell_id").set_index("cell_id")
    told = []
    for cell, against in zip(rows["cell_id"], rows["against_cell"], strict=True):
        a, b = by_id.loc[cell], by_id.loc[against]
        apart = [name for name in names if a[name] != b[name]]
        shared = wording.describe(a, [name for name in names if name not in apart and a[name] != ""])
        told.append(
            f"{wording.describe(a, apart)} against {wording.describe(b, apart)}{f' ({shared})' if shared else ''}"
        )
    return told
