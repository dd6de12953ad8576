"""Selection of the cells of a campaign, and pairs of them, that a published claim is about.

Conditions are matched in three steps. The models of a claim name workloads (`ReferenceSet.models`), and the expressions `of`
and `against` select cells of these workloads. `under`, with `way` of the set, contains the conditions of the document. For each
model, the cells that miss the fewest conditions are selected, and the missed conditions are reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from campaign.analysis.statistics.comparable_cells import list_option_columns
from campaign.spec.expression import parse_expression
from campaign.spec.published_file import CampaignMapping, ReferenceSet

_EQUAL_AXES = (
    "hosts",
    "devices_per_host",
    "devices_used",
    "device",
    "attach",
    "storage",
    "workload",
    "batch",
    "precision",
)
MISMATCH_COUNT = "missed"
"""Column with the number of the document's conditions that a cell misses."""

_PROGRAM_PREFIX = "program "


class NotMeasuredError(Exception):
    """Error for a claim that the campaign has no measurement for; its message is the reason."""


def find_column(cells: pd.DataFrame, axis: str) -> str:
    """Return the name of the column of an axis or an option.

    Raises NotMeasuredError if the campaign has no such axis.
    """
    for name in (axis, f"option_{axis}"):
        if name in cells.columns:
            return name
    raise NotMeasuredError(f"the campaign has no axis '{axis}'")


def select_equal_columns(cells: pd.DataFrame, mapping: CampaignMapping) -> list[str]:
    """Return the columns in which both cells of a pair must be equal: all but the varying axes."""
    varying = {name for axis in mapping.vary for name in (axis, f"option_{axis}")}
    return [name for name in (*_EQUAL_AXES, *list_option_columns(cells), *mapping.keep) if name not in varying]


def select_cells(cells: pd.DataFrame, references: ReferenceSet, mapping: CampaignMapping) -> pd.DataFrame:
    """Return the cells that a claim applies to: for each model, those that miss the fewest conditions.

    Raises NotMeasuredError if there are none.
    """
    return _keep_fewest_mismatches(_find_candidates(cells, references, mapping), references, mapping.models)


def pair_cells(cells: pd.DataFrame, references: ReferenceSet, mapping: CampaignMapping) -> pd.DataFrame:
    """Return each selected cell together with each measured reference cell, whose columns begin with `against_`.

    Raises NotMeasuredError if no two measured cells make a pair.
    """
    measured_cells = cells[cells["n_ok"] > 0]
    models = mapping.against_models or mapping.models
    reference_mapping = mapping.model_copy(update={"of": mapping.against or "True", "models": models, "vary": ()})
    cells_of_claim, reference_cells = (
        _find_candidates(measured_cells, references, mapping),
        _find_candidates(measured_cells, references, reference_mapping),
    )
    keys = select_equal_columns(cells, mapping)
    if mapping.against_models:
        # Each model has its own batches. Without this, every batch would be compared with every other.
        cells_of_claim, reference_cells = (
            _keep_fewest_mismatches(cells_of_claim, references, mapping.models),
            _keep_fewest_mismatches(reference_cells, references, models),
        )
    if is_about_model(mapping):
        cells_of_claim, reference_cells, keys = (
            cells_of_claim.drop_duplicates("workload"),
            reference_cells.drop_duplicates("workload"),
            [],
        )
    prefixed_references = reference_cells.drop(columns=MISMATCH_COUNT).add_prefix("against_")
    pairs = (
        cells_of_claim.merge(
            prefixed_references, left_on=keys, right_on=[f"against_{key}" for key in keys], how="inner"
        )
        if keys
        else cells_of_claim.merge(prefixed_references, how="cross")
    )
    pairs = pairs[pairs["cell_id"] != pairs["against_cell_id"]]
    if pairs.empty:
        raise NotMeasuredError("no two measured cells differ only in the claimed property")
    return _keep_fewest_mismatches(pairs.reset_index(drop=True), references, mapping.models)


def _find_candidates(cells: pd.DataFrame, references: ReferenceSet, mapping: CampaignMapping) -> pd.DataFrame:
    """Return all cells that fit a claim, with the number of missed conditions in a column.

    Raises NotMeasuredError if there are none.
    """
    rows = filter_by_expression(filter_by_models(cells, references, mapping.models), references, mapping.of)
    if rows.empty:
        model_text = f" of {' or '.join(mapping.models)}" if mapping.models else ""
        condition = " was measured" if mapping.of == "True" else f" fulfils '{mapping.of}'"
        raise NotMeasuredError(f"no cell{model_text}{condition}")
    return rows.assign(**{MISMATCH_COUNT: _count_mismatches(rows, references, mapping)})


def describe_condition_mismatches(
    rows: pd.DataFrame, references: ReferenceSet, mapping: CampaignMapping
) -> tuple[str, ...]:
    """Describe every condition that any of these cells misses, without repetition.

    Examples are 'device v100 instead of a100-40gb' and 'program resnet50 instead of ..'.
    """
    descriptions: dict[str, None] = {}
    for axis, name, allowed_values in _list_conditions(rows, references, mapping):
        for value in _list_distinct(rows.loc[~_meets_condition(rows[name], allowed_values), name]):
            descriptions[f"{axis} {value} instead of {_join_with_or(allowed_values)}"] = None
    models = [] if is_about_model(mapping) else [references.models[name] for name in mapping.models]
    documented_workloads = [workload for model in models for workload in model.same]
    for model in models:
        model_rows = rows[rows["workload"].isin(model.workloads)]
        for value in _list_distinct(
            model_rows.loc[
                model_rows["workload"].isin(model.like) & ~model_rows["workload"].isin(documented_workloads), "workload"
            ]
        ):
            descriptions[
                f"{_PROGRAM_PREFIX}{value} instead of {_join_with_or(documented_workloads) or 'the program of the document'}"
            ] = None
        if model.batch and mapping.compute != "largest_batch":
            for value in _list_distinct(model_rows.loc[~model_rows["batch"].isin(model.batch), "batch"]):
                descriptions[f"batch {value} instead of {_join_with_or(model.batch)}"] = None
    return tuple(descriptions)


def is_only_program_different(mismatches: Sequence[str]) -> bool:
    """Return whether the program is the only condition among the mismatches (`describe_condition_mismatches`)."""
    return bool(mismatches) and all(text.startswith(_PROGRAM_PREFIX) for text in mismatches)


def filter_by_models(cells: pd.DataFrame, references: ReferenceSet, models: Sequence[str]) -> pd.DataFrame:
    """Return the cells whose workloads represent the given models; without models, all cells."""
    if not models:
        return cells
    workloads = [workload for model in models for workload in references.models[model].workloads]
    return cells[cells["workload"].isin(workloads)]


def filter_by_expression(cells: pd.DataFrame, references: ReferenceSet, text: str) -> pd.DataFrame:
    """Return the cells for which an expression over the axes is true.

    Raises NotMeasuredError if the campaign has no such axis.
    """
    expression = parse_expression(text, references.axes, "claim")
    columns = {axis: find_column(cells, axis) for axis in sorted(expression.names)}
    if cells.empty:
        return cells
    if not columns:
        return cells if expression({}) else cells.iloc[:0]
    # Ten thousand cells have few different values of an expression's axes, so each combination is evaluated once.
    distinct = cells[list(columns.values())].drop_duplicates()
    is_kept = [expression(dict(zip(columns, row, strict=True))) for row in distinct.itertuples(index=False)]
    return cells.merge(distinct[np.array(is_kept, dtype=bool)], on=list(columns.values()), how="inner")


def _count_mismatches(rows: pd.DataFrame, references: ReferenceSet, mapping: CampaignMapping) -> pd.Series[int]:
    """Count the conditions of the published document that each row misses."""
    mismatch_counts = pd.Series(0, index=rows.index)
    for _, name, allowed_values in _list_conditions(rows, references, mapping):
        mismatch_counts += ~_meets_condition(rows[name], allowed_values)
    for model in () if is_about_model(mapping) else map(references.models.__getitem__, mapping.models):
        mismatch_counts += rows["workload"].isin(model.like)
        if model.batch and mapping.compute != "largest_batch":
            mismatch_counts += rows["workload"].isin(model.workloads) & ~rows["batch"].isin(model.batch)
    return mismatch_counts


def _list_conditions(
    rows: pd.DataFrame, references: ReferenceSet, mapping: CampaignMapping
) -> Iterable[tuple[str, str, Sequence[object]]]:
    """Yield the axis, the column and the document's values of each condition.

    Conditions on axes that the campaign does not have are left out, as they cannot be missed.
    """
    run_conditions = {} if is_about_model(mapping) else references.way
    for axis, allowed_values in {**run_conditions, **mapping.under}.items():
        try:
            yield axis, find_column(rows, axis), allowed_values
        except NotMeasuredError:
            continue


def _meets_condition(values: pd.Series, allowed_values: Sequence[object]) -> pd.Series[bool]:
    """Return for each value whether it is among the allowed ones, compared as text.

    Tables store boolean options as text.
    """
    return values.map(str).isin([str(value) for value in allowed_values])


def is_about_model(mapping: CampaignMapping) -> bool:
    """Return whether a claim is about the model itself, regardless of how it is trained."""
    return mapping.columns == ("parameters",)


def _keep_fewest_mismatches(rows: pd.DataFrame, references: ReferenceSet, models: Sequence[str]) -> pd.DataFrame:
    """Keep, for each model, only the rows that miss the fewest conditions."""
    is_kept = pd.Series(False, index=rows.index)
    for model in models or ("",):
        workloads = references.models[model].workloads if model else _list_distinct(rows["workload"])
        is_model_row = rows["workload"].isin(workloads)
        is_kept |= is_model_row & (rows[MISMATCH_COUNT] == rows.loc[is_model_row, MISMATCH_COUNT].min())
    return rows[is_kept].reset_index(drop=True)


def _list_distinct(values: pd.Series) -> list[object]:
    return list(dict.fromkeys(values.tolist()))


def _join_with_or(values: Sequence[object]) -> str:
    """Join values with 'or'."""
    return " or ".join(map(str, values))
