"""Selection of the cells of a campaign, and pairs of them, that a published claim is about.

Conditions are matched in three steps: the models of a claim name workloads (`ReferenceSet.models`), the expressions `of` and
`against` select cells of these, and `under`, with `way` of the set, holds the document's own conditions. Of each model, the
cells that miss the fewest of these conditions are taken; the missed conditions are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from campaign.analysis.statistics.comparable_cells import option_columns
from campaign.spec.expression import parse
from campaign.spec.published_file import Here, ReferenceSet

_EQUAL = ("hosts", "devices_per_host", "devices_used", "device", "attach", "storage", "workload", "batch", "precision")
MISSED = "missed"
"""Column: how many of the document's conditions a cell misses."""

_PROGRAM = "program "


class NotHere(Exception):
    """Error for a claim that the campaign has no measurement for; its message is the reason."""


def column(cells: pd.DataFrame, axis: str) -> str:
    """Return the name of the column of an axis or an option.

    Raises NotMeasuredError if the campaign has no such axis.
    """
    for name in (axis, f"option_{axis}"):
        if name in cells.columns:
            return name
    raise NotHere(f"the campaign has no axis '{axis}'")


def equal_columns(cells: pd.DataFrame, here: Here) -> list[str]:
    """Return the columns in which the two cells of a pair have to be equal, which are all but the varying axes."""
    varying = {name for axis in here.vary for name in (axis, f"option_{axis}")}
    return [name for name in (*_EQUAL, *option_columns(cells), *here.keep) if name not in varying]


def chosen(cells: pd.DataFrame, names: ReferenceSet, here: Here) -> pd.DataFrame:
    """Return the cells that a claim is about, which are those of each model that miss the fewest conditions.

    Raises NotMeasuredError if there are none.
    """
    return _fewest(_candidates(cells, names, here), names, here.models)


def pairs(cells: pd.DataFrame, names: ReferenceSet, here: Here) -> pd.DataFrame:
    """Return each selected cell together with each measured reference cell, whose columns begin with `against_`.

    Raises NotMeasuredError if no two measured cells make a pair.
    """
    measured = cells[cells["n_ok"] > 0]
    models = here.against_models or here.models
    other = here.model_copy(update={"of": here.against or "True", "models": models, "vary": ()})
    of, against = _candidates(measured, names, here), _candidates(measured, names, other)
    keys = equal_columns(cells, here)
    if here.against_models:
        # Each model has its own batches. Without this, every batch would be compared with every other.
        of, against = _fewest(of, names, here.models), _fewest(against, names, models)
    if of_model(here):
        of, against, keys = of.drop_duplicates("workload"), against.drop_duplicates("workload"), []
    beside = against.drop(columns=MISSED).add_prefix("against_")
    both = (
        of.merge(beside, left_on=keys, right_on=[f"against_{key}" for key in keys], how="inner")
        if keys
        else of.merge(beside, how="cross")
    )
    both = both[both["cell_id"] != both["against_cell_id"]]
    if both.empty:
        raise NotHere("no two measured cells differ in this alone")
    return _fewest(both.reset_index(drop=True), names, here.models)


def _candidates(cells: pd.DataFrame, names: ReferenceSet, here: Here) -> pd.DataFrame:
    """Return all cells that fit a claim, with the number of missed conditions in a column.

    Raises NotMeasuredError if there are none.
    """
    rows = where(of_models(cells, names, here.models), names, here.of)
    if rows.empty:
        wanted = f" of {' or '.join(here.models)}" if here.models else ""
        raise NotHere(f"no cell{wanted} fits" + ("" if here.of == "True" else f": {here.of}"))
    return rows.assign(**{MISSED: _missed(rows, names, here)})


def said_missed(rows: pd.DataFrame, names: ReferenceSet, here: Here) -> tuple[str, ...]:
    """Describe each condition that these cells miss, once.

    Examples are 'device v100 instead of a100-40gb' and 'program resnet50 instead of ..'.
    """
    told: dict[str, None] = {}
    for axis, name, allowed in _conditions(rows, names, here):
        for value in _unique(rows.loc[~_meets(rows[name], allowed), name]):
            told[f"{axis} {value} instead of {_or(allowed)}"] = None
    models = [] if of_model(here) else [names.models[name] for name in here.models]
    own = [workload for model in models for workload in model.same]
    for model in models:
        mine = rows[rows["workload"].isin(model.workloads)]
        for value in _unique(mine.loc[mine["workload"].isin(model.like) & ~mine["workload"].isin(own), "workload"]):
            told[f"{_PROGRAM}{value} instead of {_or(own) or 'the document’s own'}"] = None
        if model.batch and here.compute != "largest_batch":
            for value in _unique(mine.loc[~mine["batch"].isin(model.batch), "batch"]):
                told[f"batch {value} instead of {_or(model.batch)}"] = None
    return tuple(told)


def only_the_program(missed: Sequence[str]) -> bool:
    """Return whether the program is the only condition among the mismatches (`describe_condition_mismatches`)."""
    return bool(missed) and all(each.startswith(_PROGRAM) for each in missed)


def of_models(cells: pd.DataFrame, names: ReferenceSet, models: Sequence[str]) -> pd.DataFrame:
    """Return the cells whose workloads stand for the given models; without models, all cells."""
    if not models:
        return cells
    known = [workload for model in models for workload in names.models[model].workloads]
    return cells[cells["workload"].isin(known)]


def where(cells: pd.DataFrame, names: ReferenceSet, text: str) -> pd.DataFrame:
    """Return the cells for which an expression over the axes is true.

    Raises NotMeasuredError if the campaign lacks an axis of the expression.
    """
    expression = parse(text, names.axes, "claim")
    columns = {axis: column(cells, axis) for axis in sorted(expression.names)}
    if cells.empty:
        return cells
    if not columns:
        return cells if expression({}) else cells.iloc[:0]
    # Ten thousand cells have few different values of an expression's axes, so each combination is evaluated once.
    distinct = cells[list(columns.values())].drop_duplicates()
    kept = [expression(dict(zip(columns, row, strict=True))) for row in distinct.itertuples(index=False)]
    return cells.merge(distinct[np.array(kept, dtype=bool)], on=list(columns.values()), how="inner")


def _missed(rows: pd.DataFrame, names: ReferenceSet, here: Here) -> pd.Series[int]:
    """Return the number of the document's conditions that each row misses."""
    missed = pd.Series(0, index=rows.index)
    for _, name, allowed in _conditions(rows, names, here):
        missed += ~_meets(rows[name], allowed)
    for model in () if of_model(here) else map(names.models.__getitem__, here.models):
        missed += rows["workload"].isin(model.like)
        if model.batch and here.compute != "largest_batch":
            missed += rows["workload"].isin(model.workloads) & ~rows["batch"].isin(model.batch)
    return missed


def _conditions(rows: pd.DataFrame, names: ReferenceSet, here: Here) -> Iterable[tuple[str, str, Sequence[object]]]:
    """Yield the axis, the column and the document's values of each condition.

    Conditions on axes that the campaign does not have are left out, as they cannot be missed.
    """
    of_runs = {} if of_model(here) else names.way
    for axis, allowed in {**of_runs, **here.under}.items():
        try:
            yield axis, column(rows, axis), allowed
        except NotHere:
            continue


def _meets(values: pd.Series, allowed: Sequence[object]) -> pd.Series[bool]:
    """Return which values are among the allowed ones, compared as text.

    Boolean options are text in tables.
    """
    return values.map(str).isin([str(each) for each in allowed])


def of_model(here: Here) -> bool:
    """Return whether a claim is about the model itself, regardless of the training."""
    return here.columns == ("parameters",)


def _fewest(rows: pd.DataFrame, names: ReferenceSet, models: Sequence[str]) -> pd.DataFrame:
    """Return the rows of each model that miss the fewest conditions."""
    kept = pd.Series(False, index=rows.index)
    for model in models or ("",):
        workloads = names.models[model].workloads if model else _unique(rows["workload"])
        mine = rows["workload"].isin(workloads)
        kept |= mine & (rows[MISSED] == rows.loc[mine, MISSED].min())
    return rows[kept].reset_index(drop=True)


def _unique(values: pd.Series) -> list[object]:
    return list(dict.fromkeys(values.tolist()))


def _or(values: Sequence[object]) -> str:
    """Join values with 'or'."""
    return " or ".join(map(str, values))
