"""The changes that are shown because they are the largest have intervals that hold as often as they say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.common.intervals import student_quantile
from campaign.report.compare_page import select_largest_changes

FREEDOM = 20.0


def changes(random: np.random.Generator, true: np.ndarray) -> pd.DataFrame:
    """Return measured changes with the interval of one each, and their truth."""
    log = 0.01 * (true + random.standard_normal(true.size))
    half = 0.01 * np.sqrt(random.chisquare(FREEDOM, true.size) / FREEDOM) * student_quantile(FREEDOM)
    columns = {"ratio": np.exp(log), "low": np.exp(log - half), "high": np.exp(log + half)}
    return pd.DataFrame({**columns, "freedom": FREEDOM, "true": np.exp(0.01 * true)})


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("cells", [2, 20, 60])
@pytest.mark.parametrize("spread", [0.0, 3.0], ids=["equal", "unequal"])
def test_of_the_intervals_that_are_shown_95_of_100_hold(cells: int, count: int, spread: float) -> None:
    random = np.random.default_rng(2)
    held = []
    for _ in range(300 if count == 1 else 60):
        shown = select_largest_changes(changes(random, spread * random.standard_normal(cells)), count)
        assert len(shown) == min(cells, count)
        held.append(float(((shown["low"] <= shown["true"]) & (shown["true"] <= shown["high"])).mean()))
    assert np.mean(held) >= 0.925


def test_intervals_are_those_of_the_cells_where_all_are_shown() -> None:
    rows = changes(np.random.default_rng(1), np.zeros(8))
    shown = select_largest_changes(rows, 8)
    assert shown[["low", "high"]].sort_index().to_numpy() == pytest.approx(rows[["low", "high"]].to_numpy())
    assert np.abs(np.log(shown["ratio"])).is_monotonic_decreasing
    # What is not tested keeps its interval, and a cell without a ratio is no change.
    untested = select_largest_changes(rows.assign(freedom=np.nan), 1)
    assert untested["low"].iloc[0] == pytest.approx(rows.loc[untested.index, "low"].iloc[0])
    assert len(select_largest_changes(rows.assign(ratio=np.nan), 8)) == 0
