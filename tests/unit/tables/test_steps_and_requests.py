"""The tables of step times (of valid runs, of the slowest rank, bounded in length) and of requests (all of them, typed)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from campaign.documents.record import Record
from campaign.documents.requests import Requests
from campaign.tables.runs import MOST_STEPS, REQUEST_COLUMNS, STEP_COLUMNS, requests_table, step_times_table
from tests.unit.report.report_data import planned, record

CELL = planned()[0].cell


def run(repetition: int, **changes: Any) -> Record:
    return record(CELL, repetition, 10.0, **changes)


def test_steps_are_those_of_the_slowest_rank_of_valid_runs_in_ascending_order() -> None:
    steps = ((0.1, 0.3, 0.2), (0.4, 0.1, 0.5))
    table = step_times_table(
        [run(1, step_times_s=steps, window_s=(0.6, 1.0)), run(2, status="nan", step_times_s=steps)]
    )
    assert table["time_s"].tolist() == [0.1, 0.4, 0.5]
    assert set(table["repetition"]) == {1}


def test_of_many_steps_quantiles_stand_for_all() -> None:
    steps = tuple(np.random.default_rng(1).lognormal(size=5000))
    table = step_times_table([run(1, step_times_s=(steps,), window_s=(sum(steps),))])
    assert len(table) == MOST_STEPS
    assert (table["time_s"].min(), table["time_s"].max()) == (min(steps), max(steps))
    assert abs(table["time_s"].median() / np.median(steps) - 1) < 0.01


ROWS = {
    "intended_s": [0.0, 1.0, 2.0],
    "sent_s": [0.0, 1.0000004, 2.0],
    "first_s": [0.1, None, 2.25],
    "last_s": [0.2, None, 2.5],
    "prompt_tokens": [8, 8, 8],
    "output_tokens": [2, 0, 4],
    "error": [None, "time-out", None],
    "reported": [True, False, True],
}


def test_a_row_a_request_also_of_runs_in_which_too_many_failed() -> None:
    requests = Requests.of(ROWS, (0.5, 2.0))
    table = requests_table([run(1, requests=requests), run(2, requests=requests, status="invalid")])
    assert list(table) == list(REQUEST_COLUMNS)
    assert table["repetition"].tolist() == [1, 1, 1, 2, 2, 2]
    assert table["error"].tolist()[:3] == ["", "time-out", ""]
    assert table["in_window"].tolist()[:3] == [False, True, False]
    assert table["sent_s"].tolist()[3:] == [0.0, 1.0, 2.0]
    assert math.isnan(table["first_s"][1])
    assert [str(kind) for kind in table.dtypes[["repetition", "last_s", "output_tokens", "in_window"]]] == [
        *("int64", "float64", "float64", "bool")
    ]


def test_without_steps_or_requests_the_columns_are_there() -> None:
    bare = run(1, step_times_s=(), window_s=())
    assert list(step_times_table([])) == list(step_times_table([bare])) == list(STEP_COLUMNS)
    assert list(requests_table([])) == list(requests_table([bare])) == list(REQUEST_COLUMNS)
