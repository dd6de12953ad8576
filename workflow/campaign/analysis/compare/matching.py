"""Matching of the cells of two campaigns.

Cells match by content if shape of the configuration, workload, batch, precision and options are equal. The remaining cells are
matched by names (of configuration and workload, with batch, precision and the options that both campaigns have). Cells that
still have no counterpart are matched by shape without the device's model, since sites give hardware different names. Both of
these methods report in what the cells differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics.comparable_cells import HARDWARE_COLUMNS, list_option_columns

CONTENT, NAMES, SHAPES = "content", "names", "shape"
_AXES = ("workload", "batch", "precision")


@dataclass(frozen=True)
class CellMatches:
    """Matched cells of two campaigns, and the cells without a counterpart.

    Args:
        base: rows of the base campaign, one per pair.
        other: rows of the other campaign, in the same order.
        methods: method of each match: CONTENT, NAMES or SHAPES.
        differences: description of the differences of each pair.
    """

    base: pd.DataFrame
    other: pd.DataFrame
    methods: list[str]
    differences: list[str]
    only_base: pd.DataFrame
    only_other: pd.DataFrame


def match_cells(base: pd.DataFrame, other: pd.DataFrame) -> CellMatches:
    """Match the rows of two cells tables, in the order of the first.

    Of several equal cells, the n-th of one table is matched with the n-th of the other.
    """
    options = sorted({*list_option_columns(base), *list_option_columns(other)})
    base_table, other_table = _add_option_columns(base, options), _add_option_columns(other, options)
    content = _pair_rows(base_table, other_table, [*HARDWARE_COLUMNS, *_AXES, *options])
    unmatched_base, unmatched_other = (
        _exclude_rows(base_table, content["base"]),
        _exclude_rows(other_table, content["other"]),
    )
    shared_options = [name for name in options if name in base.columns and name in other.columns]
    names = _pair_rows(unmatched_base, unmatched_other, ["configuration", *_AXES, *shared_options])
    # Several cells of one name cannot be distinguished.
    names = names[(names["nth"] == 0) & names["alone"]]
    unmatched_base, unmatched_other = (
        _exclude_rows(unmatched_base, names["base"]),
        _exclude_rows(unmatched_other, names["other"]),
    )
    shapes = _pair_rows(
        unmatched_base,
        unmatched_other,
        [*(name for name in HARDWARE_COLUMNS if name != "device"), *_AXES, *shared_options],
    )
    shapes = shapes[(shapes["nth"] == 0) & shapes["alone"]]
    pairs_by_method = [content.assign(by=CONTENT), names.assign(by=NAMES), shapes.assign(by=SHAPES)]
    pairs = pd.concat(pairs_by_method).sort_values("base", kind="stable")
    base_rows, other_rows = base_table.loc[pairs["base"]], other_table.loc[pairs["other"]]
    return CellMatches(
        base_rows.reset_index(drop=True),
        other_rows.reset_index(drop=True),
        pairs["by"].tolist(),
        _describe_differences(base_rows, other_rows, [*HARDWARE_COLUMNS, *options], pairs["by"].tolist()),
        _exclude_rows(base_table, pairs["base"]).reset_index(drop=True),
        _exclude_rows(other_table, pairs["other"]).reset_index(drop=True),
    )


def _add_option_columns(cells: pd.DataFrame, options: list[str]) -> pd.DataFrame:
    """Return the table with a text column for each option, empty if the campaign has no such axis."""
    option_values = {
        name: cells[name].astype("object").where(cells[name].notna(), "").map(_format_option)
        if name in cells.columns
        else ""
        for name in options
    }
    return cells.assign(**option_values).reset_index(drop=True)


def _format_option(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pair_rows(base: pd.DataFrame, other: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Pair the rows of two tables whose keys are equal.

    The result has the indexes of both rows, the position among rows with equal keys (`nth`), and whether the keys are unique in
    both tables (`alone`).
    """
    if not len(base) or not len(other):
        return pd.DataFrame({"base": [], "other": [], "nth": [], "alone": []}).astype(
            {"base": "int64", "other": "int64", "nth": "int64", "alone": "bool"}
        )
    sides = []
    for name, cells in (("base", base), ("other", other)):
        groups = cells.groupby(keys, sort=False, dropna=False)
        size: Any = groups["cell_id"].transform("size")
        sides.append(cells[keys].assign(**{name: cells.index, "nth": groups.cumcount(), f"size_{name}": size}))
    pairs = sides[0].merge(sides[1], on=[*keys, "nth"], how="inner")
    return pairs.assign(alone=(pairs["size_base"] == 1) & (pairs["size_other"] == 1))[["base", "other", "nth", "alone"]]


def _exclude_rows(cells: pd.DataFrame, indexes: pd.Series[int]) -> pd.DataFrame:
    """Return the rows whose index is not among the given ones."""
    return cells[~cells.index.isin(indexes)]


def _describe_differences(
    base_rows: pd.DataFrame, other_rows: pd.DataFrame, columns: list[str], methods: list[str]
) -> list[str]:
    """Describe the differences of each pair that was not matched by content, such as 'device a100 / h100'.

    The text is '' for pairs matched by content.
    """
    descriptions = [""] * len(methods)
    for index in np.flatnonzero(np.array(methods) != CONTENT):
        a, b = base_rows.iloc[index], other_rows.iloc[index]
        parts = [
            f"{name.removeprefix('option_')} {a[name] or 'none'} / {b[name] or 'none'}"
            for name in columns
            if a[name] != b[name]
        ]
        descriptions[index] = ", ".join(parts)
    return descriptions
