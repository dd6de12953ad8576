"""Idle time between the runs of a lease."""

from __future__ import annotations

import itertools
import math
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.analysis.tables.leases import compute_idle_before, summarize_idle_times


def runs(*rows: tuple[str, float, float], configuration: str = "c") -> pd.DataFrame:
    """A runs table with what matters here: lease, start and end."""
    table = pd.DataFrame(
        {
            "lease_id": pd.Series([row[0] for row in rows], dtype="str"),
            "configuration": configuration,
            "started": pd.Series([row[1] for row in rows], dtype="float64"),
            "ended": pd.Series([row[2] for row in rows], dtype="float64"),
        }
    )
    return table.assign(wall_s=table["ended"] - table["started"])


def with_idle(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(idle_before_s=compute_idle_before(table))


def test_idle_is_from_the_end_of_one_run_to_the_start_of_the_next_on_the_same_lease() -> None:
    table = runs(("a", 20.0, 30.0), ("b", 11.0, 15.0), ("a", 1.0, 10.0), ("a", 30.5, 40.0), ("b", 18.0, 19.0))
    assert compute_idle_before(table).tolist() == pytest.approx([10.0, math.nan, math.nan, 0.5, 3.0], nan_ok=True)


def test_a_run_that_was_never_started_takes_no_part() -> None:
    table = runs(("a", 1.0, 2.0), ("a", 3.0, 3.0), ("a", 5.0, 6.0))
    assert compute_idle_before(table).tolist() == pytest.approx([math.nan, math.nan, 3.0], nan_ok=True)


def test_what_other_runs_did_meanwhile_is_not_idle() -> None:
    table = runs(("a", 1.0, 2.0), ("a", 10.0, 11.0))
    others = [("a", 2.5, 9.0), ("b", 2.0, 10.0)]
    assert compute_idle_before(table, others).tolist() == pytest.approx([math.nan, 1.0], nan_ok=True)


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 1.0, 10.0), ("a", 9.0, 12.0)],  # the clock was set back
        [("a", 1.0, 10.0), ("a", 2.0, 3.0), ("a", 10.0, 11.0)],  # ... by much
    ],
)
def test_clocks_make_no_idle_time_less_than_none(rows: list[tuple[str, float, float]]) -> None:
    assert compute_idle_before(runs(*rows)).fillna(0.0).tolist() == [0.0] * len(rows)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 40)), max_size=20), st.randoms())
def test_runs_and_idle_time_fill_the_time_from_first_start_to_last_end(
    steps: list[tuple[str, int, int]], shuffle: random.Random
) -> None:
    clock = {"a": 1000.0, "b": 2000.0}
    rows = []
    for lease, idle, wall in steps:
        rows.append((lease, clock[lease] + idle, clock[lease] + idle + wall))
        clock[lease] += idle + wall
    shuffle.shuffle(rows)
    summed = summarize_idle_times(with_idle(runs(*rows)), "lease_id").set_index("lease_id")
    for lease in "ab":
        mine = sorted(row[1:] for row in rows if row[0] == lease)
        assert (lease in summed.index) == (len(mine) > 1)
        if len(mine) > 1:
            gaps = [start - end for (_, end), (start, _) in itertools.pairwise(mine)]
            row = summed.loc[lease]
            assert (row["gaps"], row["idle_s"], row["idle_longest_s"]) == (len(gaps), sum(gaps), max(gaps))
            assert row["span_s"] == mine[-1][1] - mine[0][0]
            assert row["idle_pct"] == pytest.approx(100 * sum(gaps) / row["span_s"])


def test_leases_of_a_configuration_are_taken_together() -> None:
    table = with_idle(
        runs(("a", 0.0, 8.0), ("a", 10.0, 20.0), ("b", 100.0, 104.0), ("b", 105.0, 109.0), ("b", 112.0, 120.0))
    )
    (row,) = summarize_idle_times(table, "configuration").to_dict("records")
    assert (row["leases"], row["runs"], row["gaps"]) == (2, 5, 3)
    assert (row["idle_median_s"], row["idle_longest_s"], row["idle_s"], row["span_s"]) == (2.0, 3.0, 6.0, 40.0)
    assert row["idle_pct"] == pytest.approx(15)


@pytest.mark.parametrize("rows", [[], [("a", 1.0, 2.0)], [("a", 1.0, 2.0), ("b", 5.0, 6.0)], [("a", 1.0, 1.0)]])
def test_without_a_second_run_on_a_lease_there_is_nothing_to_say(rows: list[tuple[str, float, float]]) -> None:
    assert summarize_idle_times(with_idle(runs(*rows)), "lease_id").empty
