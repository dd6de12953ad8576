from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from campaign.report.context_schema import ForecastSaid
from campaign.report.figure import FigureData, load_figure, page_document
from campaign.tables.leases import leases_table
from tests.unit.report.figure_columns import check

FIGURE = load_figure("forecast")
PARTS = load_figure("forecast_parts")


def row(number: int, actual_s: float, **changes: Any) -> dict[str, Any]:
    document = {
        "lease": f"lease-{number}", "configuration": f"c{number}", "runs_expected": 10, "runs": 10, "uses": 1,
        "expected_s": 100.0, "low_s": 80.0, "high_s": 125.0, "basis": "earlier runs of these cells", "resumed": False,
        "actual_s": actual_s, **changes,
    }  # fmt: skip
    return ForecastSaid.model_validate(document).model_dump()


def drawn(rows: list[dict[str, Any]]) -> Any:
    return FIGURE.draw(FigureData(pd.DataFrame(), pd.DataFrame(), leases_table([]), "", {}, context={"forecast": rows}))


def test_forecasts_are_judged_where_a_lease_was_measured_in_one_go() -> None:
    rows = [row(1, 110.0), row(2, 90.0), row(3, 200.0), row(4, 900.0, resumed=True), row(5, 900.0, runs=4)]
    drawing = drawn(rows)
    assert drawing.findings == (
        "2 of 3 forecasts correct: the actual duration is within the 95 % interval. Median error: 10\u202f% of the expected "
        "duration.",
    )
    assert "2 leases marked *: resumed, composed again or incomplete, not judged" in drawing.caption
    assert drawing.svg.count("lease-") >= 5
    assert "mathdefault" not in drawing.svg
    assert drawing.coverage == "5 of 5 leases were measured with a forecast."
    check(FIGURE, drawing)
    assert list(drawing.data["judged"]) == [True, True, True, False, False]


def test_what_was_assumed_is_not_called_a_forecast() -> None:
    drawing = drawn([row(1, 20.0, low_s=None, high_s=None, basis="assumed 10 s a run")])
    assert drawing.findings == (
        "No earlier runs were available for 1 lease, so durations were assumed. Median error: 80\u202f%.",
    )
    assert drawing.rows[0][3] == "assumed"


def test_what_was_unknown_is_not_judged() -> None:
    drawing = drawn([row(1, 20.0, expected_s=None, low_s=None, high_s=None, basis="no run of steps yet"), row(2, 90.0)])
    assert drawing.findings[0].startswith("1 of 1 forecast correct")
    assert drawing.findings[1:] == ("Nothing was known of the duration of 1 lease before they were measured.",)
    assert [each[3] for each in drawing.rows][1] == "unknown"


def test_leases_of_which_nothing_was_known_are_no_figure_and_no_forecast() -> None:
    unknown = {"expected_s": None, "low_s": None, "high_s": None, "basis": "no run of steps yet"}
    assert drawn([row(1, 20.0, **unknown)]).empty_reason.startswith("nothing was known")
    drawing = drawn([row(1, 20.0, **unknown), row(2, 300.0, **unknown), row(3, 90.0)])
    assert [each[0] for each in drawing.rows] == ["lease-2", "lease-3", "lease-1"]
    assert drawing.coverage == "1 of 1 lease were measured with a forecast."


def test_without_a_forecast_the_figure_is_left_out() -> None:
    drawing = drawn([])
    assert drawing.svg is None
    assert drawing.empty_reason == "no lease was measured with a forecast"


def part(name: str, actual_s: float | None = 10.0, **changes: Any) -> dict[str, Any]:
    return {
        "part": name, "expected_s": 10.0, "low_s": 8.0, "high_s": 12.5, "actual_s": actual_s, "devices": 4.0, "hosts": 1.0,
        **changes,
    }  # fmt: skip


def parts(of_runs: float, **changes: Any) -> list[dict[str, Any]]:
    others = [part(name) for name in ("composing", "between", "release")]
    return [
        part("start", 20.0, **changes),
        part("runs", of_runs, expected_s=3600.0, low_s=3000.0, high_s=4000.0),
        *others,
    ]


def test_parts_are_summed_over_leases_and_judged_lease_by_lease() -> None:
    rows = [row(1, 0.0, parts=parts(3650.0)), row(2, 0.0, parts=parts(5000.0)), row(3, 0.0, uses=2, parts=parts(1.0))]
    data = FigureData(pd.DataFrame(), pd.DataFrame(), leases_table([]), "", {}, context={"forecast": rows})
    drawing = PARTS.draw(data)
    told = {each[0]: each[1:] for each in drawing.rows}
    assert told["runs"][:5] == ("2.0\u202fh", "100\u202fmin to 2.2\u202fh", "2.4\u202fh", "20\u202f%", "1 of 2")
    assert told["start"][4] == "0 of 2"
    assert drawing.findings == (
        "7 of 10 parts of leases took a time within the 95 % interval.",
        "Held: 9.72 device-hours and 2.43 host-hours; expected were 8.09 and 2.02.",
    )
    assert "Sums over 2 leases that were measured in one go" in drawing.caption
    check(PARTS, drawing)
    unknown = {"expected_s": None, "low_s": None, "high_s": None}
    others = [row(4, 0.0, **unknown, parts=parts(3650.0, **unknown))]
    assert (
        "Without 1 other of unknown duration" in PARTS.draw(replace(data, context={"forecast": rows + others})).caption
    )
    rows = [row(1, 0.0, parts=parts(3650.0, **unknown))]
    drawing = PARTS.draw(
        FigureData(pd.DataFrame(), pd.DataFrame(), leases_table([]), "", {}, context={"forecast": rows})
    )
    assert drawing.findings[1].endswith("not every part was known beforehand.")


@pytest.mark.parametrize("count", [1, 60])
def test_the_picture_stays_readable(count: int) -> None:
    drawing = drawn([row(n, 90.0 + n) for n in range(count)])
    document = page_document(FIGURE, drawing)
    assert len(drawing.rows) == count
    assert document["picture"]
    assert ("20 more in the table" in drawing.caption) == (count == 60)
