"""Comparison, gates and advice of a campaign that another metric than throughput leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from campaign.analysis.compare import compare
from campaign.analysis.compare.gate import parse_rule
from campaign.analysis.published.quantities import _build_throughput_design
from campaign.analysis.published.selection import NotMeasuredError
from campaign.analysis.recommend.advise import build_recommendation
from campaign.analysis.recommend.objectives import parse_request
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.common.errors import ConfigError
from campaign.report import figure
from campaign.spec.metric import Metric
from tests.unit.report import report_data as synthetic

LATENCY = Metric("latency_us", "µs", "lower")


def tables(name: str, seed: int, factor: float = 1.0, metric: Metric = LATENCY) -> Tables:
    """The synthetic campaign, whose runs print a latency only: the inverse of what its throughput was, times `factor`."""
    plan = synthetic.planned()
    records = [
        record.model_copy(
            update={
                "lease_id": f"{name}-{record.lease_id}",
                "throughput_per_s": None,
                "metrics": {"latency_us": factor * 1e6 / rate} if (rate := record.throughput_per_s) else {},
            }
        )
        for record in synthetic.records(plan, seed)
    ]
    runs = build_runs_table(records, metric=metric)
    context = synthetic.context_document()
    context["campaign"] |= {"name": name, "metric": metric.document()}
    return Tables(runs, build_cells_table(plan, runs, metric), [], [], context)


@pytest.fixture(scope="module")
def before() -> Tables:
    return tables("before", 1)


def test_a_run_with_the_primary_metric_alone_is_measured(before: Tables) -> None:
    runs = before.runs[before.runs["status"] == "ok"]
    pd.testing.assert_series_equal(runs["value"], runs["latency_us"], check_names=False)
    assert before.cells["n_ok"].sum() == runs["latency_us"].notna().sum() > 0


def test_more_latency_is_slower_and_breaks_its_rule(before: Tables) -> None:
    rules = [parse_rule(text) for text in ("latency_us > 5%", "latency > 5%", "latency_us < -5%")]
    found = compare(before, tables("after", 2, 1.3), rules)
    assert found.metric == LATENCY
    assert found.rows["ratio"].dropna().between(0.7, 0.85).all()
    broken = {each.rule for each in (*found.violations, *found.untested_violations)}
    assert broken == {"latency_us > 5%", "latency > 5%"}


def test_a_gate_on_what_no_run_has_is_refused(before: Tables) -> None:
    with pytest.raises(ConfigError, match="at least one of the campaigns lacks the quantity 'throughput_per_s'"):
        compare(before, before, [parse_rule("throughput < -5%")])


def test_different_metrics_are_not_compared_in_silence(before: Tables) -> None:
    with pytest.raises(
        ConfigError, match="metric of campaign before is latency_us, and that of after is throughput_per_s"
    ):
        compare(before, replace(before, context={"campaign": {"name": "after"}}))


def test_advice_is_about_the_lowest_latency(before: Tables) -> None:
    document = build_recommendation(before, parse_request([], [], [], [], []))
    assert {(answer.objective, answer.meaning) for answer in document.answers} == {("latency_us", "the lowest latency")}
    measured = before.cells[before.cells["n_ok"] > 0]
    for answer in document.answers:
        assert "µs" in answer.choice.said
        assert measured["mean"].min() * 0.99 < answer.choice.value < measured["mean"].max() * 1.01
    workloads = sorted(measured["workload"].unique())
    with pytest.raises(ConfigError, match="needs throughput, but the primary metric of the campaign is latency_us"):
        build_recommendation(before, parse_request(["time"], [], [], workloads, []))


def test_a_claim_of_throughput_is_not_judged_by_another_metric(before: Tables) -> None:
    with pytest.raises(
        NotMeasuredError, match="the campaign measures latency_us; use 'metric_ratio' to compare this metric"
    ):
        _build_throughput_design(before)
    rates = before.runs.assign(throughput_per_s=1e6 / before.runs["latency_us"])
    assert _build_throughput_design(replace(before, runs=rates)).higher_is_better


@pytest.mark.parametrize("name", ["step_median_s", "step_p95_s", "wall_s", "throughput_per_device_per_s"])
def test_every_figure_is_drawn_of_a_campaign_that_a_measured_column_leads(name: str, tmp_path: Path) -> None:
    """Three numbers of devices, several repetitions; a time has no efficiency model, which ended in an error."""
    metric = Metric(
        name, "s" if name.endswith("_s") and "per" not in name else "1/s", "higher" if "per" in name else "lower"
    )
    plan = [entry for entry in synthetic.planned() if (entry.cell.workload, entry.cell.batch) == ("bert", 8)]
    runs = build_runs_table(list(synthetic.records(plan)), metric=metric)
    context = synthetic.context_document()
    context["campaign"] |= {"metric": metric.document()}
    data = figure.build_figure_data(Tables(runs, build_cells_table(plan, runs, metric), [], [], context))
    # One time and one rate are enough for figures without an efficiency model.
    others = (
        ("node_spread", "precision", "overhead", "pareto") if name in ("wall_s", "throughput_per_device_per_s") else ()
    )
    for drawn in ("scaling", *others):
        figure.write_figure(figure.load_figure(drawn), data, tmp_path)
        assert (tmp_path / f"{drawn}.json").is_file()
    assert (tmp_path / "scaling.svg").is_file()
