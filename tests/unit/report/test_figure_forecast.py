from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from campaign.analysis.tables.leases import build_leases_table
from campaign.report.context_schema import ForecastOutcome
from campaign.report.figure import FigureData, build_page_document, load_figure
from tests.unit.report.figure_columns import check

FIGURE = load_figure("forecast")


def row(number: int, actual_s: float, **changes: Any) -> dict[str, Any]:
    document = {
        "lease": f"lease-{number}", "configuration": f"c{number}", "runs_expected": 10, "runs": 10, "uses": 1,
        "expected_s": 100.0, "low_s": 80.0, "high_s": 125.0, "basis": "earlier runs of these cells", "resumed": False,
        "actual_s": actual_s, **changes,
    }  # fmt: skip
    return ForecastOutcome.model_validate(document).model_dump()


def drawn(rows: list[dict[str, Any]]) -> Any:
    return FIGURE.draw(
        FigureData(pd.DataFrame(), pd.DataFrame(), build_leases_table([]), "", {}, context={"forecast": rows})
    )


def test_forecasts_are_judged_where_a_lease_was_measured_in_one_go() -> None:
    rows = [row(1, 110.0), row(2, 90.0), row(3, 200.0), row(4, 900.0, resumed=True), row(5, 900.0, runs=4)]
    drawing = drawn(rows)
    assert drawing.findings == (
        "The actual duration was within the interval of 2 of 3 forecasts. The median error is 10\u202f% of the expected duration.",
    )
    assert "Not judged: 2 leases (*) resumed, composed again or incomplete" in drawing.caption
    assert drawing.svg.count("lease-") >= 5
    assert "mathdefault" not in drawing.svg
    assert drawing.coverage == "5 of 5 leases were measured with a forecast."
    check(FIGURE, drawing)
    assert list(drawing.data["judged"]) == [True, True, True, False, False]


def test_what_was_unknown_is_not_judged() -> None:
    drawing = drawn([row(1, 20.0, expected_s=None, low_s=None, high_s=None, basis="no run of steps yet"), row(2, 90.0)])
    assert drawing.findings[0].startswith("The actual duration was within the interval of 1 of 1 forecast")
    assert drawing.findings[1:] == ("1 lease had no forecast, because the duration was unknown before.",)
    assert [each[3] for each in drawing.rows][1] == "unknown"


def test_leases_of_which_nothing_was_known_are_no_figure_and_no_forecast() -> None:
    unknown = {"expected_s": None, "low_s": None, "high_s": None, "basis": "no run of steps yet"}
    assert drawn([row(1, 20.0, **unknown)]).empty_reason.startswith("the duration of every lease was unknown")
    drawing = drawn([row(1, 20.0, **unknown), row(2, 300.0, **unknown), row(3, 90.0)])
    assert [each[0] for each in drawing.rows] == ["lease-2", "lease-3", "lease-1"]
    assert drawing.coverage == "1 of 1 lease were measured with a forecast."


def test_without_a_forecast_the_figure_is_left_out() -> None:
    drawing = drawn([])
    assert drawing.svg is None
    assert drawing.empty_reason == "no lease was measured with a forecast"


@pytest.mark.parametrize("count", [1, 60])
def test_the_picture_stays_readable(count: int) -> None:
    drawing = drawn([row(n, 90.0 + n) for n in range(count)])
    document = build_page_document(FIGURE, drawing)
    assert len(drawing.rows) == count
    assert document["picture"]
    assert ("20 further leases are only in the table." in drawing.caption) == (count == 60)
