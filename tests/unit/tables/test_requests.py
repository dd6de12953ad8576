"""The table of requests: all of them, typed, and with its columns where there are none."""

from __future__ import annotations

import math

from campaign.documents.requests import Requests
from campaign.tables.requests import COLUMNS, requests_table
from tests.unit.report.report_data import planned, record

CELL = planned()[0].cell
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
    table = requests_table(
        [record(CELL, 1, 10.0, requests=requests), record(CELL, 2, 10.0, requests=requests, status="invalid")]
    )
    assert list(table) == list(COLUMNS)
    assert table["repetition"].tolist() == [1, 1, 1, 2, 2, 2]
    assert table["error"].tolist()[:3] == ["", "time-out", ""]
    assert table["in_window"].tolist()[:3] == [False, True, False]
    assert table["sent_s"].tolist()[3:] == [0.0, 1.0, 2.0]
    assert math.isnan(table["first_s"][1])
    assert [str(kind) for kind in table.dtypes[["repetition", "last_s", "output_tokens", "in_window"]]] == [
        "int64",
        "float64",
        "float64",
        "bool",
    ]


def test_without_requests_the_columns_are_there() -> None:
    assert list(requests_table([])) == list(requests_table([record(CELL, 1, 10.0)])) == list(COLUMNS)
