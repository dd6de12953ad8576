"""The table of all cells: its data are the cells, and its efficiencies and ratios are those of the figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.leases import build_leases_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.report import figure
from campaign.report.cells_table import ROWS_PER_PAGE, build_cells_section
from campaign.report.figure import FigureData
from campaign.report.page import render_report_page
from campaign.spec.record import Record
from tests.unit.report import report_data as synthetic


def build_data(plan: Sequence[CellPlan], records: Iterable[Record]) -> FigureData:
    runs = build_runs_table(records)
    cells = build_cells_table(plan, runs)
    protocol = synthetic.context_document()["campaign"]["protocol"]
    return FigureData(runs, cells, build_leases_table(synthetic.leases()), synthetic.BASELINE, protocol)


def read_columns(section: dict[str, Any]) -> dict[str, list[Any]]:
    """Values of each column of the JSON, by name."""
    return {
        column["name"]: [column["texts"][number] for number in column["values"]]
        if column["kind"] == "text"
        else column["values"]
        for column in json.loads(section["json"])["columns"]
    }


def test_its_values_are_those_of_the_cells_and_of_the_figures() -> None:
    plan = [entry for entry in synthetic.planned() if entry.cell.batch != 16 and entry.cell.workload == "bert"]
    data = build_data(plan, synthetic.records(plan))
    cells = data.cells
    section = build_cells_section(cells, data.metric, data.baseline, data.design)
    columns = read_columns(section)
    for name in ("configuration", "workload", "batch", "precision"):
        assert columns[name] == cells[name].tolist()
    ratios = {
        "efficiency_pct": figure.load_figure("scaling").draw(data).data.set_index("cell_id")["efficiency_pct"],
        "ratio_to_baseline": figure.load_figure("overhead").draw(data).data.set_index("cell_id")["ratio"],
    }
    expected = {
        **{name: cells[name] for name in ("mean", "ci_low", "ci_high")},
        **{name: cells["cell_id"].map(values) for name, values in ratios.items()},
    }
    for name, values in expected.items():
        assert values.notna().sum() > 5
        np.testing.assert_allclose(np.array(columns[name], dtype=float), values, rtol=1e-5)
    assert [bool(text) for text in columns["failures"]] == (cells["n_failed"] + cells["n_missing"] > 0).tolist()
    assert any("out of memory" in text for text in columns["failures"])
    assert any(columns["flags"])
    assert len(section["rows"]) == ROWS_PER_PAGE < section["total"] == len(cells)


def test_a_name_cannot_end_the_script_and_comes_back_as_it_was() -> None:
    plan = synthetic.hostile_plan()
    data = build_data(plan, synthetic.hostile_records())
    section = build_cells_section(data.cells, data.metric, data.baseline, data.design)
    assert "<" not in section["json"]
    assert read_columns(section)["option_note"] == [synthetic.HOSTILE] * len(plan)
    page = render_report_page(data.runs, data.cells, [], synthetic.context_document(), {})
    assert synthetic.HOSTILE not in page


def test_a_campaign_without_cells_has_no_table() -> None:
    data = build_data([], [])
    assert build_cells_section(data.cells, data.metric, data.baseline, data.design)["total"] == 0
    page = render_report_page(data.runs, data.cells, [], synthetic.context_document(), {})
    assert 'id="cells' not in page
    assert '"#cells"' not in page.split("<script>")[0]
