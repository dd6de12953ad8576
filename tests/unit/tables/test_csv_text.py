"""Tables as CSV: byte for byte what pandas writes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.tables.csv_text import csv_lines

NUMBERS = [
    *(0.0, -0.0, 1.0, 0.1 + 0.2, 1e-4, 9.999e-5, -1e-5, 1e-7, 2.5e-310, 5e-324, 123456.7, 1e9, 1e9 + 0.5, 1e10 + 0.25),
    *(1e14, 1e15, 1e16, 1.5e16, 123456789012345678.0, 1e22, 1.7976931348623157e308, np.nan, np.inf, -np.inf),
]
WORDS = ["plain", "", "with, comma", 'a "quote"', "two\nlines", "é ±", None]


@pytest.mark.parametrize(
    "values",
    [NUMBERS, WORDS, list(range(-3, 4)), [True, False], ["mixed", 1, 2.5, None, True], []],
    ids=["numbers", "words", "whole numbers", "yes and no", "mixed", "none"],
)
def test_a_column_is_written_as_pandas_writes_it(values: list[object]) -> None:
    table = pd.DataFrame({"a, b": values, "second": range(len(values))})
    assert "".join(csv_lines(table)) == table.to_csv(index=False, lineterminator="\n")


def test_numbers_of_all_sizes_are_written_as_pandas_writes_them() -> None:
    random = np.random.default_rng(1)
    numbers = random.normal(size=20_000) * 10.0 ** random.integers(-12, 20, 20_000)
    table = pd.DataFrame({"exact": numbers, "rounded": np.round(numbers, 3)})
    assert "".join(csv_lines(table)) == table.to_csv(index=False, lineterminator="\n")
