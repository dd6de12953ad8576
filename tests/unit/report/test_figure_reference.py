"""The figure of the reference: drift is said first on the page and in the summary; adjusted comparisons are called so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics import comparisons, verdict
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.leases import build_leases_table
from campaign.analysis.tables.runs import build_reference_table, build_runs_table
from campaign.report.campaign_summary import summarize_campaign
from campaign.report.figure import Drawing, FigureData, build_page_document, load_all_figures, load_figure
from campaign.report.page import build_context
from tests.unit.report import report_data
from tests.unit.report.figure_columns import check
from tests.unit.report.test_campaign_summary import results

FIGURE = load_figure("reference")
ASKED = {"workload": "bert", "batch": 8, "precision": "fp32", "repetitions": 2, "adjust": False}


def data(
    change: float = 0.0, leases: int = 12, order: str = "blocks", adjust: bool = False, noise: float = 0.005
) -> Any:
    """A campaign whose reference ran twice in each lease: equally fast configurations, and a drift over all leases."""
    random = np.random.default_rng(4)
    cells = [report_data.cell(report_data.configuration(each=each, used=1), "bert", 8) for each in (1, 2, 3)]
    runs, reference = [], []
    for place in range(leases):
        at, k = (
            (cells[place % 3], place // 3) if order == "blocks" else (cells[place * 3 // leases], place % (leases // 3))
        )
        slower = np.exp(change * place / max(1, leases - 1))
        for n in (1, 2):
            start = 1_700_000_000.0 + 3600 * place + 600 * n
            changes = {"lease_id": f"lease{place}", "started": start, "ended": start + 60}
            rates = 100 / slower * np.exp(random.normal(0, noise, 2))
            runs.append(report_data.record(at, 1000 * k + n, float(rates[0]), **changes))
            of_reference = replace(at, id=f"{place:020x}")
            reference.append(report_data.record(of_reference, 1000 * k + n, float(rates[1]), **changes))
    protocol = {
        "order": "blocks",
        "lease_order": order,
        "compositions": leases // 3,
        "reference": {**ASKED, "adjust": adjust},
    }
    table = build_reference_table(reference)
    return FigureData(
        build_runs_table(runs),
        pd.DataFrame(columns=["cell_id", "window"]),
        build_leases_table([]),
        "",
        protocol,
        reference=table,
    )


def drawn(**planted: Any) -> Drawing:
    return FIGURE.draw(data(**planted))


def test_drift_is_an_alarm_with_its_size_and_what_it_means() -> None:
    drawing = drawn(change=0.05)
    (finding,) = drawing.findings
    assert finding.startswith(
        "The system drifted: the speed of the reference changed by −5.3\u202f% [−6.1\u202f% to −4.5\u202f%]"
    )
    assert "over 12 compositions in 11.0\u202fh, while its noise between compositions is 0.4\u202f%." in finding
    assert "over 12 compositions in 11" in finding
    assert verdict.FIXED_LEASE_ORDER_CAVEAT in drawn(change=0.05, order="least-recomposition").findings[0]
    adjusted = drawn(change=0.05, order="least-recomposition", adjust=True).findings[0]
    assert adjusted.endswith("Comparisons between compositions are adjusted for it.")
    assert drawing.alarm
    assert drawing.svg.count("trend") >= 1
    assert "24 runs in 12 compositions" in drawing.caption
    assert len(drawing.rows) == len(drawing.data) == 12
    check(FIGURE, drawing)


def test_no_drift_is_no_alarm_and_says_what_would_have_been_found() -> None:
    drawing = drawn()
    assert not drawing.alarm
    assert drawing.findings[0].startswith("No significant drift: the speed of the reference changed by ")
    assert "would be detected in 80 of 100 such campaigns" in drawing.findings[0]
    assert drawn(leases=2).findings[0].startswith("Whether the system drifted is unknown: too few compositions")


def test_without_a_reference_the_figure_is_left_out() -> None:
    none = data()
    assert FIGURE.draw(replace(none, protocol={})).empty_reason.startswith("the campaign measures no reference")
    assert (
        FIGURE.draw(replace(none, reference=none.reference.iloc[:0])).empty_reason == "no run of the reference is valid"
    )


@pytest.mark.parametrize(("change", "first"), [(0.05, True), (0.0, False)])
def test_drift_comes_first_on_the_page_and_in_the_summary(tmp_path: Path, change: float, first: bool) -> None:
    drawing, scaling = drawn(change=change), load_all_figures()["scaling"]
    documents = {
        "scaling": build_page_document(scaling, replace(drawing, findings=("Something scales.",), alarm=False)),
        "reference": build_page_document(FIGURE, drawing),
    }
    directory = results(tmp_path / "r", {"a": 3})
    for name, document in documents.items():
        (directory / "figures" / f"{name}.json").write_text(json.dumps(document))
    said = summarize_campaign(directory)
    assert (
        said.index("The system drifted" if first else "No significant drift") < said.index("Something scales")
    ) == first
    plan = report_data.planned()
    runs = build_runs_table(report_data.records(plan))
    shown = {name: {**document, "svg": "<svg></svg>", "csv": "", "pdf": ""} for name, document in documents.items()}
    context = build_context(runs, build_cells_table(plan, runs), [], report_data.context_document(), shown)
    assert [each["anchor"] for each in context["alarms"]] == (["reference"] if first else [])


def test_adjusted_comparisons_say_so_in_captions_and_sentences() -> None:
    raw, saved = (data(0.05, order="least-recomposition", adjust=adjust) for adjust in (False, True))
    a, b = (pd.Series([raw.design.cells[place]]) for place in (0, 1))
    for campaign, word in ((raw, "the order is not random or unknown"), (saved, "adjusted by the reference")):
        found = comparisons.compute_ratios(a, b, campaign.design)
        value, low, high = (float(each[0]) for each in found.estimate.compute_bounds())
        row = {name: values[0] for name, values in found.build_basis_columns(pd.RangeIndex(1)).items()}
        row |= {"ratio": value, "p": float(found.compute_p_values()[0])}
        assert word in verdict.format_estimate(row, (value, low, high), str)
        assert (
            verdict.DRIFT_ADJUSTMENT_NOTE in verdict.describe_order_effects(campaign.protocol)
        ) == campaign.protocol["reference"]["adjust"]
    assert verdict.FIXED_LEASE_ORDER_CAVEAT in verdict.describe_order_effects(raw.protocol)
    assert verdict.FIXED_LEASE_ORDER_CAVEAT not in verdict.describe_order_effects(saved.protocol)
