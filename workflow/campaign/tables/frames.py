"""Data frames whose columns have a fixed order and type, also when they are empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

# Kinds of columns: text without missing values, whole numbers, and numbers that may be missing (nan).
TEXT, COUNT, NUMBER = "text", "count", "number"


def frame(rows: Sequence[Mapping[str, Any]], fixed: Mapping[str, str], computed: Mapping[str, Any]) -> pd.DataFrame:
    """A frame of the fixed columns in their order, then options, then all others by name; typed, also when empty."""
    names = {name for row in rows for name in row}
    options = sorted(name for name in names if name.startswith("option_"))
    others = sorted(names - set(fixed) - set(options))
    columns: dict[str, Any] = {}
    for name, kind in fixed.items():
        values = computed[name] if name in computed else [row.get(name) for row in rows]
        columns[name] = typed(values, kind)
        if name == "precision":
            columns.update({option: _option([row.get(option) for row in rows]) for option in options})
    columns.update({name: typed([row.get(name) for row in rows], NUMBER) for name in others})
    return pd.DataFrame(columns)


def typed(values: Any, kind: str) -> pd.Series[Any]:
    """Values as a column of one kind; None is empty text, or nan."""
    if kind == TEXT:
        return pd.Series(["" if value is None else str(value) for value in values], dtype="str")
    if kind == COUNT:
        return pd.Series(values, dtype="int64")
    return pd.Series(values, dtype="float64")


def _option(values: list[Any]) -> pd.Series[Any]:
    """Numbers stay numbers; anything mixed, and an option that some cells do not have, is text."""
    kinds = {type(value) for value in values}
    return typed(values, COUNT if kinds == {int} else NUMBER if kinds <= {int, float} else TEXT)
