"""Figures of services say what was planted: the rate that holds, its ratio to the baseline, and what is not known."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from campaign.report import plot
from campaign.report.figure import Drawing, Figure, FigureData, data_of, load_figure
from campaign.report.service_requests import service_requests
from campaign.statistics import serving
from campaign.tables.io import Tables
from campaign.tables.report_context import objectives_of
from tests.planted_services import SERVED_PER_S, Service, figure_data, true_percentile
from tests.unit.report import report_data
from tests.unit.report.figure_columns import UNPAINTED, check, with_pictures

NAMES = ("highest_rate", "latencies", "goodput")
FIGURES: dict[str, Figure] = {name: load_figure(name) for name in NAMES}
HOLDS = 37.0
OBJECTIVE = {"ttft_ms": {"p90": 1e3 * true_percentile(90, HOLDS, SERVED_PER_S)}, "tpot_ms": {"p99": 40.0}}
SERVICE = Service(
    {"1x4-local": 1.0, "1x4-fabric": 0.7, "1x8-local": 2.0}, rates=(15.0, 25.0, 33.0, 45.0), requests=800, errors=0.001
)


@pytest.fixture(scope="module")
def data() -> FigureData:
    return figure_data(SERVICE, OBJECTIVE)


def unpainted(name: str, data: FigureData) -> Drawing:
    with mock.patch.object(plot, "to_svg", return_value=UNPAINTED):
        return FIGURES[name].draw(data)


def test_a_latency_at_a_given_rate_has_no_efficiency(data: FigureData) -> None:
    metric = {"name": "ttft_ms_p50", "unit": "ms", "better": "lower"}
    context = {**data.context, "campaign": {**data.context.get("campaign", {}), "metric": metric}}
    drawing = load_figure("scaling").draw(replace(data, context=context))
    assert drawing.svg is None
    assert "highest rate that holds" in drawing.empty_reason


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_of_services_is_a_picture_with_words_and_a_table(name: str, data: FigureData) -> None:
    drawing, pictures = with_pictures(FIGURES[name], data)
    assert drawing.svg
    assert len(drawing.rows) == len(drawing.data)
    check(FIGURES[name], drawing, pictures)
    assert "95 % interval" in drawing.caption
    assert "Failed requests count as infinitely late" in drawing.caption


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_without_services_has_none_of_these_figures(name: str, data: FigureData) -> None:
    assert unpainted(name, replace(data, requests=pd.DataFrame())).empty_reason
    if name in ("highest_rate", "goodput"):
        assert "objective" in unpainted(name, replace(data, context={})).empty_reason


def test_the_highest_rate_is_what_was_planted_and_its_ratio_is_tested(data: FigureData) -> None:
    drawing = unpainted("highest_rate", data)
    rows = drawing.data.set_index("configuration")
    spare = SERVED_PER_S - HOLDS
    for name, speed in (("1x4-local", 1.0), ("1x4-fabric", 0.7)):
        row = rows.loc[name]
        assert row["found"] == "crossed"
        assert row["rate_low"] < SERVED_PER_S * speed - spare < row["rate_high"]
    slower = rows.loc["1x4-fabric"]
    assert slower["ratio_low"] < (0.7 * SERVED_PER_S - spare) / HOLDS < slower["ratio_high"] < 1
    assert slower["ratio"] == pytest.approx(slower["rate"] / rows.loc["1x4-local", "rate"])
    assert slower["p_holm"] < 0.05
    assert (slower["compositions"], slower["decides"]) == (3, "p90 ttft_ms")
    each = unpainted("highest_rate", replace(data, baseline="1x4-local, of-another-system")).data
    assert each.set_index("configuration").loc["1x4-fabric", "ratio"] == slower["ratio"]
    fast = rows.loc["1x8-local"]
    assert (fast["found"], fast["rate_low"]) == ("none fails", 45.0)
    assert np.isnan([fast["rate"], fast["ratio"]]).all()
    first, last = drawing.findings
    assert first == (
        "1x8-local holds every objective at all measured rates: at least 45.0 requests/s (3 compositions)."
    )
    assert last.startswith("1x4-fabric holds p90 TTFT at most 177 ms up to ")
    assert "the rate of 1x4-local" in last


def test_goodput_counts_requests_that_meet_every_limit(data: FigureData) -> None:
    rows = unpainted("goodput", data).data.set_index(["configuration", "rate_per_s"])
    at = rows.loc[("1x4-local", 33.0)]
    met = 1 - np.exp(-(SERVED_PER_S - 33.0) * OBJECTIVE["ttft_ms"]["p90"] / 1e3)
    assert at["share_low"] < met * (1 - SERVICE.errors) < at["share_high"]
    assert at["goodput"] == pytest.approx(33.0 * at["share"])
    assert at["n_errors"] > 0
    strict = replace(data, context={"objectives": {"gpt-service": {**OBJECTIVE, "tpot_ms": {"p99": 0.001}}}})
    assert (unpainted("goodput", strict).data["goodput"] == 0).all()


def test_percentiles_are_in_the_table_with_intervals_or_without(data: FigureData) -> None:
    drawing = unpainted("latencies", data)
    rows = drawing.data.set_index(["configuration", "option_rate_per_s", "latency", "percent"])
    row = rows.loc[("1x8-local", 15.0, "ttft_ms", 90.0)]
    assert row["low"] < 1e3 * true_percentile(90, 15.0, 2 * SERVED_PER_S) < row["high"]
    few = replace(data, requests=data.requests.groupby(["cell_id", "repetition"]).head(30))
    said = {row[2]: row[3] for row in unpainted("latencies", few).rows}
    assert said["p99 TTFT (ms)"].startswith(("at least", "not known from 180 requests", "infinite: too many"))
    failing = data.requests.assign(error=data.requests["error"].mask(data.requests.index % 10 == 0, "refused"))
    of_figure = unpainted("latencies", replace(data, requests=failing)).findings
    assert of_figure[0].endswith("p99 TTFT of 1x8-local is infinite: too many requests failed.")


@pytest.mark.parametrize(
    ("found", "row", "words"),
    [
        ("crossed", (38, 35, 41), "500 ms up to 38.0 requests/s [35.0 requests/s to 41.0"),
        ("crossed", (38, np.nan, 41), "up to about 38.0 requests/s, at most 41.0, no measured rate is certain to hold ("),
        ("crossed", (38, 30, np.nan), "up to about 38.0 requests/s, perhaps even 45.0, certain up to 30.0 ("),
        ("none fails", (np.nan, 45, np.nan), "a holds every objective at all measured rates: at least 45.0 requests/s ("),
        ("none fails", (np.nan, 33, np.nan), "at least 45.0 requests/s, certain up to 33.0 ("),
        ("none holds", (np.nan, np.nan, 5), "a holds p99 TTFT at most 500 ms at no measured rate: below 5.00 requests/s ("),
        ("none holds", (np.nan, np.nan, np.nan), "below 5.00 requests/s, which is not certain ("),
        ("not known", (np.nan, np.nan, np.nan), "Highest rate at which a holds p99 TTFT at most 500 ms: not known from 71 "),
    ],
)  # fmt: skip
def test_a_highest_rate_is_said_in_a_sentence(found: str, row: tuple[float, float, float], words: str) -> None:
    series = {"configuration": "a", "found": found, "lowest": 5, "largest": 45, "n_requests": 71, "n_compositions": 3}
    series |= dict(zip(("rate", "rate_low", "rate_high"), row, strict=True))
    series |= {
        "decides": "p99 ttft_ms",
        "limit": 500,
        "ratio": np.nan,
        "workload": "s",
        "batch": 1,
        "precision": "bf16",
    }
    rows = pd.DataFrame([series])
    assert words in FIGURES["highest_rate"].drawn_by.__globals__["_sentence"](series, rows, "b")


def test_a_rate_at_which_every_run_failed_does_not_hold(data: FigureData) -> None:
    fastest = data.cells[(data.cells["configuration"] == "1x8-local") & (data.cells[serving.RATE] == 45.0)][
        "cell_id"
    ].item()
    failed = replace(
        data,
        runs=data.runs.assign(status=data.runs["status"].where(data.runs["cell_id"] != fastest, "crashed")),
        cells=data.cells.assign(
            n_ok=data.cells["n_ok"].where(data.cells["cell_id"] != fastest, 0),
            n_failed=data.cells["n_failed"].where(data.cells["cell_id"] != fastest, 6),
        ),
        requests=data.requests[data.requests["cell_id"] != fastest],
    )
    row = unpainted("highest_rate", failed).data.set_index("configuration").loc["1x8-local"]
    assert (row["found"], row["rate"], row["rate_low"]) == ("crossed", 33.0, 33.0)


def test_failed_runs_that_no_percentile_holds_are_said(data: FigureData) -> None:
    one = (data.requests["cell_id"] == data.requests["cell_id"].iloc[0]) & (data.requests["repetition"] == 1)
    of = (data.runs["cell_id"] == data.requests["cell_id"].iloc[0]) & (data.runs["repetition"] == 1)
    lost = replace(
        data, requests=data.requests[~one], runs=data.runs.assign(status=data.runs["status"].mask(of, "crashed"))
    )
    said = "1x4-local: 1 run failed before the end of the load, and percentiles are of the others."
    assert said in unpainted("highest_rate", lost).findings
    assert said not in unpainted("highest_rate", data).findings


def test_a_late_generator_is_said_first(data: FigureData) -> None:
    late = replace(data, requests=data.requests.assign(sent_s=data.requests["intended_s"] + 0.02))
    assert unpainted("latencies", late).findings[0].startswith("The load generator was late in 12 cells: ")
    assert not unpainted("latencies", data).findings[0].startswith("The load generator")


def test_figures_read_requests_and_objectives_from_the_tables(data: FigureData) -> None:
    context = {**report_data.context_document(), **data.context}
    tables = Tables(data.runs, data.cells, [], [], context, requests=data.requests)
    given = data_of(tables)
    assert len(given.requests) == len(data.requests)
    assert service_requests(given).objectives["gpt-service"][0].percent == 90.0


def test_objectives_of_workload_files_are_in_the_context_without_empty_ones() -> None:
    workloads = {
        "a": {"objective": {"ttft_ms": {"p99": 500.0}, "e2e_ms": {}}},
        "b": {"objective": {"ttft_ms": {}}},
        "c": {},
    }
    assert objectives_of(workloads) == {"a": {"ttft_ms": {"p99": 500.0}}}


def test_requests_outside_of_the_window_do_not_count(data: FigureData) -> None:
    warm = data.requests.assign(in_window=data.requests.groupby(["cell_id", "repetition"]).cumcount() >= 100)
    found = serving.latencies(warm, data.runs)
    assert len(found) == warm["in_window"].sum() < len(data.requests)


def test_without_a_rate_latencies_have_percentiles_and_no_highest_rate(data: FigureData) -> None:
    closed = replace(data, cells=data.cells.assign(**{serving.RATE: 0.0}))
    assert "rate" in unpainted("highest_rate", closed).empty_reason
    assert len(unpainted("latencies", closed).data) == len(data.cells) * 12


def test_one_composition_speaks_for_itself_only() -> None:
    alone = replace(SERVICE, compositions=1, runs=3, lease_sd=0.0)
    drawing = unpainted("highest_rate", figure_data(alone, OBJECTIVE))
    assert "within one composition" in " ".join(drawing.findings)
    row = drawing.data.set_index("configuration").loc["1x4-fabric"]
    assert np.isfinite(row["ratio"])
    assert np.isnan(row["p"])
