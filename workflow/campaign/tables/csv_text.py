"""A table as CSV: the text of `DataFrame.to_csv(index=False)`, which takes three times as long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

# Outside of these, and for whole numbers, Python and Arrow write the same number in different ways.
_SMALLEST, _LARGEST = 1e-4, 1e9
_AT_ONCE = 5_000  # rows, so that a long table is not in memory as text


def csv_lines(table: pd.DataFrame) -> Iterator[str]:
    """The lines of a table, its names of columns first; what is missing is empty."""
    yield ",".join(_quoted(pa.array([str(name) for name in table.columns], pa.string())).to_pylist()) + "\n"
    for start in range(0, len(table), _AT_ONCE):
        part = table.iloc[start : start + _AT_ONCE]
        columns = [_texts(part.iloc[:, place]) for place in range(part.shape[1])]
        yield from (f"{line}\n" for line in pc.binary_join_element_wise(*columns, ",").to_pylist())


def _texts(column: pd.Series[Any]) -> Any:
    """The fields of a column, none of them missing."""
    if column.dtype == np.float64:
        return _numbers(column.to_numpy())
    if column.dtype == np.int64:
        return pa.array(column.to_numpy()).cast(pa.string())
    if column.dtype != "str":
        column = column.astype(object).where(column.notna(), "").astype("str")
    return _quoted(pa.array(column).cast(pa.string()).fill_null(""))


def _numbers(values: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    size = np.abs(values)
    otherwise = (size < _SMALLEST) | (size >= _LARGEST) | (values == np.floor(values))
    written = pa.array(list(map(repr, values[otherwise].tolist())), pa.string())
    texts = pc.replace_with_mask(pa.array(values).cast(pa.string()), pa.array(otherwise), written)
    return pc.if_else(pa.array(np.isnan(values)), "", texts)


def _quoted(texts: Any) -> Any:
    """Texts in quotes where they would end a field, a line or a quotation."""
    special = pc.match_substring_regex(texts, '[,"\r\n]')
    if not pc.any(special).as_py():
        return texts
    inside = pc.replace_substring(texts, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise('"', inside, '"', ""), texts)
