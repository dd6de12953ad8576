"""The table of step times: of valid runs, of the slowest rank, bounded in length."""

from __future__ import annotations

from typing import Any

import numpy as np

from campaign.analysis.tables.runs import MAX_STEPS, STEP_COLUMNS, build_step_times_table
from campaign.spec.record import Record
from tests.unit.report.report_data import planned, record

CELL = planned()[0].cell


def run(repetition: int, **changes: Any) -> Record:
    return record(CELL, repetition, 10.0, **changes)


def test_steps_are_those_of_the_slowest_rank_of_valid_runs_in_ascending_order() -> None:
    steps = ((0.1, 0.3, 0.2), (0.4, 0.1, 0.5))
    table = build_step_times_table(
        [run(1, step_times_s=steps, window_s=(0.6, 1.0)), run(2, status="nan", step_times_s=steps)]
    )
    assert table["time_s"].tolist() == [0.1, 0.4, 0.5]
    assert set(table["repetition"]) == {1}


def test_of_many_steps_quantiles_stand_for_all() -> None:
    steps = tuple(np.random.default_rng(1).lognormal(size=5000))
    table = build_step_times_table([run(1, step_times_s=(steps,), window_s=(sum(steps),))])
    assert len(table) == MAX_STEPS
    assert (table["time_s"].min(), table["time_s"].max()) == (min(steps), max(steps))
    assert abs(table["time_s"].median() / np.median(steps) - 1) < 0.01


def test_without_steps_the_columns_are_there() -> None:
    bare = run(1, step_times_s=(), window_s=())
    assert list(build_step_times_table([])) == list(build_step_times_table([bare])) == list(STEP_COLUMNS)
