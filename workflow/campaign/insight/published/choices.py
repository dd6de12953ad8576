"""The cells of a claim under each way in which the document's runs may have been made (`Choice`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.config.published_file import Choice, ChoiceValue, Claim, ReferenceSet
from campaign.insight.published.selection import NotHere, column, of_model, of_models, where
from campaign.tables.io import Tables


@dataclass(frozen=True)
class Case:
    """The tables under one value of each choice; words: which, '' without a choice; stated: whether the document says so.

    Where the document states none of the values of a choice, each of them counts as stated.
    """

    words: str
    stated: bool
    tables: Tables


def cases(claim: Claim, names: ReferenceSet, tables: Tables) -> Iterator[Case]:
    """One case for each combination of values that all workloads of the claim were measured under."""
    if claim.here is None or of_model(claim.here):
        yield Case("", True, tables)
        return
    cells = tables.cells
    mine = of_models(cells, names, (*claim.here.models, *claim.here.against_models))
    measured = mine[mine["n_ok"] > 0]
    varied = [each for choice in names.choices if (each := _varied(choice, names, cells, measured))]
    if not varied:
        yield Case("", True, tables)
        return
    workloads = set(measured["workload"])
    for ways in product(*varied):
        kept = np.logical_and.reduce([way.keeps for way in ways])
        if not workloads <= set(cells["workload"].to_numpy()[kept & (cells["n_ok"].to_numpy() > 0)]):
            continue
        yield Case(
            ", ".join(way.value.words for way in ways),
            all(way.stated for way in ways),
            _with_cells(tables, cells[kept].reset_index(drop=True)),
        )


def _with_cells(tables: Tables, cells: pd.DataFrame) -> Tables:
    found = replace(tables, cells=cells)
    # Runs are the same, and what they say of all cells takes longer than everything else.
    vars(found)["design"] = tables.design
    return found


@dataclass(frozen=True)
class _Way:
    """One value of a choice. keeps: the cells with this value, and those that the choice is not about."""

    value: ChoiceValue
    stated: bool
    keeps: npt.NDArray[np.bool_]


def _varied(choice: Choice, names: ReferenceSet, cells: pd.DataFrame, measured: pd.DataFrame) -> tuple[_Way, ...]:
    """A choice among the measured cells of a claim; none: the campaign has no such axis, or one value alone."""
    try:
        axis = column(cells, choice.axis)
        concerned = where(measured, names, choice.when)
        all_concerned = cells["cell_id"].isin(where(cells, names, choice.when)["cell_id"])
    except NotHere:
        return ()
    known = [str(value.value) for value in choice.values]
    found, of_cells = concerned[axis].map(str), cells[axis].map(str)
    # A workload that was run in one way only, such as one that reads no input, is not what the choice is about.
    several = found[found.isin(known)].groupby(concerned["workload"]).nunique() > 1
    about = set(several.index[several])
    there = set(found[concerned["workload"].isin(about)])
    free = (~all_concerned | ~cells["workload"].isin(about) | ~of_cells.isin(known)).to_numpy()
    open_ = not any(value.stated for value in choice.values)
    return tuple(
        _Way(value, value.stated or open_, free | (of_cells == str(value.value)).to_numpy())
        for value in choice.values
        if str(value.value) in there
    )
