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

from campaign.analysis.statistics.comparable_cells import SHAPE, option_columns

CONTENT, NAMES, SHAPES = "content", "names", "shape"
_AXES = ("workload", "batch", "precision")


@dataclass(frozen=True)
class Matched:
    """Matched cells of two campaigns, and the cells without a counterpart.

    Args:
        base: rows of the base campaign, one per pair.
        other: rows of the other campaign, in the same order.
        methods: method of each match: CONTENT, NAMES or SHAPES.
        differences: description of the differences of each pair.
    """

    base: pd.DataFrame
    other: pd.DataFrame
    by: list[str]
    differs: list[str]
    only_base: pd.DataFrame
    only_other: pd.DataFrame


def match(base: pd.DataFrame, other: pd.DataFrame) -> Matched:
    """Match the rows of two cells tables, in the order of the first.

    Of several equal cells, the n-th of one table is matched with the n-th of the other.
    """
    options = sorted({*option_columns(base), *option_columns(other)})
    first, second = _with(base, options), _with(other, options)
    content = _pairs(first, second, [*SHAPE, *_AXES, *options])
    left_a, left_b = _left(first, content["base"]), _left(second, content["other"])
    shared = [name for name in options if name in base.columns and name in other.columns]
    names = _pairs(left_a, left_b, ["configuration", *_AXES, *shared])
    # Several cells of one name cannot be told apart.
    names = names[(names["nth"] == 0) & names["alone"]]
    left_a, left_b = _left(left_a, names["base"]), _left(left_b, names["other"])
    shapes = _pairs(left_a, left_b, [*(name for name in SHAPE if name != "device"), *_AXES, *shared])
    shapes = shapes[(shapes["nth"] == 0) & shapes["alone"]]
    found = [content.assign(by=CONTENT), names.assign(by=NAMES), shapes.assign(by=SHAPES)]
    both = pd.concat(found).sort_values("base", kind="stable")
    one, two = first.loc[both["base"]], second.loc[both["other"]]
    return Matched(
        one.reset_index(drop=True),
        two.reset_index(drop=True),
        both["by"].tolist(),
        _differences(one, two, [*SHAPE, *options], both["by"].tolist()),
        _left(first, both["base"]).reset_index(drop=True),
        _left(second, both["other"]).reset_index(drop=True),
    )


def _with(cells: pd.DataFrame, options: list[str]) -> pd.DataFrame:
    """Return the table with a text column for each option, empty if the campaign has no such axis."""
    known = {
        name: cells[name].astype("object").where(cells[name].notna(), "").map(_text) if name in cells.columns else ""
        for name in options
    }
    return cells.assign(**known).reset_index(drop=True)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs(base: pd.DataFrame, other: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
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
    both = sides[0].merge(sides[1], on=[*keys, "nth"], how="inner")
    return both.assign(alone=(both["size_base"] == 1) & (both["size_other"] == 1))[["base", "other", "nth", "alone"]]


def _left(cells: pd.DataFrame, taken: pd.Series[int]) -> pd.DataFrame:
    """Return the rows whose index is not among the given ones."""
    return cells[~cells.index.isin(taken)]


def _differences(one: pd.DataFrame, two: pd.DataFrame, columns: list[str], by: list[str]) -> list[str]:
    """Describe the differences of each pair that was not matched by content, such as 'device a100 / h100'.

    The text is '' for pairs matched by content.
    """
    told = [""] * len(by)
    for place in np.flatnonzero(np.array(by) != CONTENT):
        a, b = one.iloc[place], two.iloc[place]
        parts = [
            f"{name.removeprefix('option_')} {a[name] or 'none'} / {b[name] or 'none'}"
            for name in columns
            if a[name] != b[name]
        ]
        told[place] = ", ".join(parts)
    return told
