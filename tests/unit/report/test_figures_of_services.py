"""The figure of services shows the planted percentiles of each latency against the rate, a line per configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from campaign.analysis.statistics import comparable_cells
from campaign.report.figure import FigureData, load_figure
from tests.unit.report.figure_columns import check, with_pictures
from tests.unit.report.service_data import figure_data, latency_ms

FIGURE = load_figure("latencies")
SPEEDS = {"1x4-local": 1.0, "1x4-fabric": 0.8}


@pytest.fixture(scope="module")
def data() -> FigureData:
    return figure_data(SPEEDS)


def test_percentiles_of_all_latencies_are_drawn_by_rate_and_configuration(data: FigureData) -> None:
    drawing, pictures = with_pictures(FIGURE, data)
    check(FIGURE, drawing, pictures)
    assert {axes.get_ylabel() for axes in pictures[0].axes} == {"TTFT (ms)", "TPOT (ms)", "E2E (ms)"}
    assert {axes.get_xlabel() for axes in pictures[0].axes} == {"offered requests/s"}
    rows = drawing.data.set_index(["configuration", "rate_per_s", "quantity"])
    assert len(rows) == len(drawing.rows) == 2 * 3 * 2 * 3
    for name, speed in SPEEDS.items():
        for rate in (10.0, 20.0, 30.0):
            for percent in (50, 99):
                row = rows.loc[(name, rate, f"p{percent} TTFT")]
                truth = latency_ms(percent, rate, speed)
                assert row["mean"] == pytest.approx(truth, rel=0.05)
                assert row["ci_low"] < row["mean"] < row["ci_high"]
    lines = [
        line for line in pictures[0].axes[0].lines if len(line.get_xdata()) == 3 and line.get_linestyle() != "None"
    ]
    assert {line.get_linestyle() for line in lines} == {"-", "--"}
    assert len({line.get_color() for line in lines}) == 2
    drawn = {(line.get_linestyle(), *np.round(line.get_ydata(), 9)) for line in lines}
    for name in SPEEDS:
        for dashes, quantity in (("--", "p50 TTFT"), ("-", "p99 TTFT")):
            means = [rows.loc[(name, rate, quantity), "mean"] for rate in (10.0, 20.0, 30.0)]
            assert (dashes, *np.round(means, 9)) in drawn
    assert "Each point is one cell (6 runs)" in drawing.caption


def test_a_finding_names_both_ends_at_the_highest_rate(data: FigureData) -> None:
    drawing = FIGURE.draw(data)
    assert [sentence.partition(" is from ")[0] for sentence in drawing.findings] == [
        f"At 30.0 requests/s, p99 {latency}" for latency in ("TTFT", "TPOT", "E2E")
    ]
    low, high = drawing.findings[0].split(" to ")
    assert "1x4-local" in low
    assert "1x4-fabric" in high
    medians = FIGURE.draw(figure_data(SPEEDS, percentiles=(50,)))
    assert medians.findings[0].startswith("At 30.0 requests/s, p50 TTFT is from ")


def test_without_a_rate_or_a_latency_there_is_no_figure(data: FigureData) -> None:
    closed = replace(data, cells=data.cells.drop(columns=comparable_cells.REQUEST_RATE_COLUMN))
    assert "no service was measured at a fixed request rate" in FIGURE.draw(closed).empty_reason
    assert "no valid run has a median" in FIGURE.draw(figure_data(SPEEDS, percentiles=(90,))).empty_reason
    assert "no valid run has a median" in FIGURE.draw(figure_data(SPEEDS, status="crashed")).empty_reason


def test_latencies_that_differ_tenfold_have_a_logarithmic_axis() -> None:
    _, pictures = with_pictures(FIGURE, figure_data({"1x4-local": 1.0}, rates=(10.0, 49.0)))
    assert {axes.get_yscale() for axes in pictures[0].axes} == {"log"}


def test_one_composition_has_an_interval_over_runs() -> None:
    drawing = FIGURE.draw(figure_data(SPEEDS, compositions=1))
    assert np.isfinite(drawing.data[["ci_low", "ci_high"]]).all(axis=None)
    assert drawing.svg


def test_requests_at_given_rates_have_no_scaling(data: FigureData) -> None:
    scaling = load_figure("scaling")
    assert "fixed rates" in scaling.draw(data).empty_reason
    metric = {"name": "ttft_ms_p50", "unit": "ms", "better": "lower"}
    led = replace(data, context={"campaign": {"metric": metric}})
    assert "request latency does not scale" in scaling.draw(led).empty_reason
