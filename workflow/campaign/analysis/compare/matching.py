"""Which cell of one campaign is which of the other.

By content: shape of the configuration, workload, batch, precision and options are equal. Only what is left is matched by names
(of configuration and workload, with batch, precision and the options that both campaigns have), and what is still left by shape
without the device's model, since sites give hardware different names; both say in what the cells differ.
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
    """base and other: rows in the same order, one pair in each place. by: CONTENT, NAMES or SHAPES; differs: in what, of each."""

    base: pd.DataFrame
    other: pd.DataFrame
    by: list[str]
    differs: list[str]
    only_base: pd.DataFrame
    only_other: pd.DataFrame


def match(base: pd.DataFrame, other: pd.DataFrame) -> Matched:
    """Match the rows of two cells tables, in the order of the first; the n-th of equal cells with the n-th."""
    options = sorted({*option_columns(base), *option_columns(other)})
    first, second = _with(base, options), _with(other, options)
    content = _pairs(first, second, [*SHAPE, *_AXES, *options])
    left_a, left_b = _left(first, content["base"]), _left(second, content["other"])
    shared = [name for name in options if name in base.columns and name in other.columns]
    names = _pairs(left_a, left_b, ["configuration", *_AXES, *shared])
    # Of several cells under one name nobody knows which is which.
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
    """The table with all options as texts, empty where a campaign has no such axis."""
    known = {
        name: cells[name].astype("object").where(cells[name].notna(), "").map(_text) if name in cells.columns else ""
        for name in options
    }
    return cells.assign(**known).reset_index(drop=True)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pairs(base: pd.DataFrame, other: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Index of both rows of each pair, its place among equal keys (`nth`), and whether its keys are its `alone` on both sides."""
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
    return cells[~cells.index.isin(taken)]


def _differences(one: pd.DataFrame, two: pd.DataFrame, columns: list[str], by: list[str]) -> list[str]:
    """How pairs differ that are not by content: 'device a100 / h100'; '' for pairs that are equal."""
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
