"""Scaling of campaigns that metrics of each kind lead: planted numbers at three numbers of devices, with three repetitions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from campaign.analysis.tables import io
from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.report import figure
from campaign.report.paper.numbers import compare_cells, format_numbers
from campaign.report.write import draw_figures, render_report
from campaign.spec.metric import MEASURED_BY_CAMPAIGN, Metric, Scaling, find_metric
from tests.unit.report import report_data as synthetic

ROOT = Path(__file__).resolve().parents[3]
DOCS = "".join(path.read_text() for path in sorted((ROOT / "docs" / "how-to").glob("*.md")))
NAMED = sorted({*re.findall(r"\{(?:metric|name): ([a-z]\w*_\w+)\b", DOCS), *MEASURED_BY_CAMPAIGN, "score"})
NOISE = (1.0, 1.004, 0.996)


def measure(leading: Metric, values: dict[int, float]) -> Tables:
    """A campaign whose runs gave `values` by number of devices, in steps that take as long whatever the number."""
    plan = [
        CellPlan(synthetic.cell(at, "snap"), len(NOISE), f"lease-{at.name}")
        for at in (synthetic.configuration(each=count) for count in values)
    ]
    records = [
        synthetic.record(
            entry.cell,
            repetition,
            10.0 * ranks / noise,
            metrics={leading.name: values[ranks] * noise},
            started=1.7e9 + 100.0 * repetition,
            ended=1.7e9 + 100.0 * repetition + 20.0,
        )
        for entry in plan
        for ranks in (entry.cell.configuration.ranks,)
        for repetition, noise in enumerate(NOISE, 1)
    ]
    runs = build_runs_table(records, metric=leading)
    context = synthetic.context_document()
    context["campaign"] |= {"metric": leading.document()}
    return Tables(runs, build_cells_table(plan, runs, leading), [], [], context)


@pytest.mark.parametrize(
    ("name", "scaling", "values", "speedup", "efficiency_pct"),
    [
        ("grind_s", "time_per_device_work", {1: 43.0, 2: 52.0, 8: 65.0}, 8 * 43 / 65, 66),
        ("step_median_s", None, {1: 0.8, 2: 0.8, 4: 0.8}, 4, 100),
        ("busbw_peak_gb_per_s", None, {2: 230.0, 4: 231.0, 8: 232.0}, 4 * 232 / 230, 101),
        ("tokens_per_device_per_s", None, {1: 100.0, 2: 90.0, 4: 80.0}, 3.2, 80),
        ("solve_s", "time_of_fixed_work", {1: 40.0, 2: 21.0, 4: 12.5}, 3.2, 80),
        ("hpl_gflops", None, {1: 100.0, 2: 190.0, 4: 320.0}, 3.2, 80),
    ],
)
def test_efficiency_is_that_of_the_work_of_all_devices(
    name: str, scaling: Scaling | None, values: dict[int, float], speedup: float, efficiency_pct: float
) -> None:
    leading = find_metric(name, scaling=scaling)
    assert leading is not None
    drawing = figure.load_figure("scaling").draw(figure.build_figure_data(measure(leading, values)))
    last = drawing.data.sort_values("ranks").iloc[-1]
    assert last["ratio"] == pytest.approx(speedup, rel=0.01)
    assert last["efficiency_pct"] == pytest.approx(efficiency_pct, abs=1)
    assert last["ratio_low"] < last["ratio"] < last["ratio_high"]
    assert f"an efficiency of {efficiency_pct}\u202f%" in drawing.findings[0]
    assert (drawing.data["fit"] != "").all() == (leading.scaling == "total_rate")


@pytest.mark.parametrize(
    ("name", "values"),
    [("latency_us", {1: 2.0, 2: 3.0, 4: 4.4}), ("pairs_per_s", {1: 10.0, 2: 12.0, 4: 15.0})],
)
def test_nothing_is_said_of_the_efficiency_of_what_has_none(name: str, values: dict[int, float]) -> None:
    leading = find_metric(name)
    assert leading is not None
    assert not leading.has_efficiency
    tables = measure(leading, values)
    data = figure.build_figure_data(tables)
    drawing = figure.load_figure("scaling").draw(data)
    assert drawing.svg
    rows = drawing.data.sort_values("ranks")
    assert rows["efficiency_pct"].isna().all()
    assert rows["ideal"].isna().all()
    assert (rows["fit"] == "").all()
    assert "There is no ideal line" in drawing.caption
    assert not re.search("efficien|Amdahl|serial", " ".join(drawing.findings), re.IGNORECASE)
    assert ("reach 0.45×" if name == "latency_us" else "reach 1.50×") in drawing.findings[0].replace("\u202f", "")
    assert figure.load_figure("speedup_by_batch").draw(data).svg is None
    assert "ideal speed-up" not in format_numbers(tables, compare_cells(tables))


@pytest.mark.parametrize(("number", "name"), [pytest.param(*each, id=each[1]) for each in enumerate(NAMED)])
def test_a_campaign_of_every_metric_that_the_docs_name_has_a_report(
    number: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a quarter of the figures, which rotate over the metrics; all with CAMPAIGN_EXPLORE=1."""
    if "CAMPAIGN_EXPLORE" not in os.environ:
        shown = sorted({"scaling", *figure.list_figure_names()[number % 4 :: 4]})
        monkeypatch.setattr(figure, "list_figure_names", lambda *_: shown)
    leading = find_metric(name) or find_metric(name, better="higher")
    assert leading is not None
    results = tmp_path / "tables", tmp_path / "figures", tmp_path / "report.html"
    results[0].mkdir()
    io.write_all_tables(measure(leading, {1: 10.0, 2: 19.0, 4: 36.0}), results[0])
    draw_figures(results[0], results[1], ROOT / "scripts")
    render_report(*results, ROOT / "scripts")
    drawn = json.loads((results[1] / "scaling.json").read_text())
    assert ("and efficiency (bottom)" in drawn["caption"]) == leading.has_efficiency
