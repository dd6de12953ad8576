"""Numbers of replayed workloads are marked as predictions wherever a reader meets them, and those beside them are not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from campaign import wording
from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.objectives import RecommendationObjective, RecommendationRequest
from campaign.report import page, plot, prediction
from campaign.report.figure import FigureData, all_figures, data_of, page_document
from campaign.tables.cells import CellPlan, cells_table, shown_states
from campaign.tables.io import Tables, read, write
from campaign.tables.runs import runs_table, step_times_table
from tests.unit.observe.links import links_data
from tests.unit.report import report_data
from tests.unit.report.figure_columns import with_pictures

FIGURES = all_figures()
# Of the machine itself: its links, its control plane, its own time.
OBSERVED = (
    "link_matrices",
    "allreduce",
    "composition_times",
    "operation_times",
    "forecast",
    "software_stack",
)
BANNER = "bert was replayed 125 times slower than on the system: waiting stood for computation."


@cache
def tables(*predicting: str) -> Tables:
    """Two workloads on a few configurations, of which some are replayed."""
    names = ("local-1", "local-4", "fabric-4", "fabric-2x2")
    plan = [
        CellPlan(each.cell, each.repetitions, each.lease)
        for each in report_data.planned()
        if each.cell.configuration.name in names and each.cell.batch in (8, 16) and each.cell.precision == "fp32"
    ]
    records = [
        # Nothing samples a replay, and it needs no memory.
        each.model_copy(update={"metrics": {}}) if each.cell.workload in predicting else each
        for each in report_data.records(plan)
    ]
    runs = runs_table(records, predicting=predicting)
    cells = cells_table(plan, runs, predicting=predicting)
    context = {**report_data.context_document(), "prediction": BANNER if predicting else ""}
    return Tables(runs, cells, report_data.leases(), links_data.links(), context, steps=step_times_table(records))


def data(*predicting: str) -> FigureData:
    return data_of(tables(*predicting))


def labels(pictures: list[Any]) -> str:
    """Of the picture that was drawn last, which is the one that is shown."""
    pictures = pictures[-1:]
    both = "; ".join(f"{axes.get_xlabel()}; {axes.get_ylabel()}" for picture in pictures for axes in picture.axes)
    return both.replace("\n", " ")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_of_a_replayed_campaign_says_so_in_title_axes_caption_and_findings(name: str) -> None:
    drawing, pictures = with_pictures(FIGURES[name], data("bert", "resnet"))
    words = page_document(FIGURES[name], drawing)
    if not words["shown"]:
        return
    everything = f"{words['title']} {words['caption']} {labels(pictures)} {' '.join(words['findings'])}"
    if name in OBSERVED:
        assert wording.PREDICTED not in everything.lower()
        return
    assert words["title"].endswith(", predicted")
    assert words["caption"].startswith("Predicted, no device was measured: ")
    assert all(sentence.startswith("Predicted: ") for sentence in words["findings"])
    assert drawing.svg is None or ", predicted" in labels(pictures)


@pytest.mark.parametrize("name", ["scaling", "pareto", "variance"])
def test_no_figure_of_a_measured_campaign_says_anything_of_it(name: str) -> None:
    drawing, pictures = with_pictures(FIGURES[name], data())
    said = f"{page_document(FIGURES[name], drawing)} {labels(pictures)}".lower()
    assert "predicted" not in said
    assert "replay" not in said
    assert "predicted" not in drawing.data or not drawing.data["predicted"].any()


def test_a_figure_of_both_tells_them_apart_by_panel_sentence_and_row() -> None:
    drawing, pictures = with_pictures(FIGURES["overhead"], data("bert"))
    words = page_document(FIGURES["overhead"], drawing)
    assert words["title"] == f"{FIGURES['overhead'].title}, partly predicted"
    assert words["caption"].startswith("Predicted, no device was measured: bert. Measured: resnet. ")
    # The last two are the picture and the small one.
    ticks = {label.get_text() for axes in pictures[-2].axes for label in axes.get_yticklabels()}
    assert {tick.startswith("bert (predicted)") for tick in ticks if "bert" in tick} == {True}
    assert {"predicted" in tick for tick in ticks if "resnet" in tick} == {False}
    assert "overhead (%), partly predicted" in labels(pictures[:-1])
    assert any("bert (predicted)" in sentence for sentence in words["findings"])
    assert {"(predicted)" in row[0] for row in drawing.rows if row[0].startswith("bert")} == {True}
    assert {"predicted" in row[0] for row in drawing.rows if row[0].startswith("resnet")} == {False}
    about = prediction.of_cells(tables("bert").cells)
    assert about.finding("bert slows down.") == "Predicted: bert slows down."
    assert about.finding("resnet does not.") == "resnet does not."
    assert about.finding("bert and resnet differ.") == "Partly predicted: bert and resnet differ."
    assert about.finding("All slow down.") == "Partly predicted: All slow down."
    assert "measured or predicted" in words["coverage"]


def test_telemetry_and_memory_of_replays_are_not_shown() -> None:
    both, replayed = data("bert"), data("bert", "resnet")
    for name in ("utilisation", "energy", "transfer_rates", "time_series", "memory_frontier"):
        assert FIGURES[name].draw(replayed).svg is None, name
    assert set(FIGURES["energy"].draw(both).data["workload"]) == {"resnet"}
    assert page_document(FIGURES["energy"], FIGURES["energy"].draw(both))["title"] == FIGURES["energy"].title


def test_the_page_begins_with_what_was_replayed_and_counts_predicted_cells() -> None:
    def of(*predicting: str) -> dict[str, Any]:
        given = tables(*predicting)
        return page.build_context(given.runs, given.cells, given.leases, given.context, {})

    mixed = of("bert")
    counts = dict(mixed["counts"])
    assert counts["measured"] == counts["predicted"] == str(len(tables().cells) // 2)
    said = page.render(mixed)
    assert f"<strong>Predicted.</strong> {BANNER}" in said
    assert "<dt>cells predicted</dt>" in said
    assert "measured" not in dict(of("bert", "resnet")["counts"])
    plain = of()
    assert "predicted" not in dict(plain["counts"])
    assert "<strong>Predicted.</strong>" not in page.render(plain)


def test_a_recommendation_calls_replayed_cells_predicted_and_knows_nothing_of_their_memory() -> None:
    document = advise(tables("bert"), RecommendationRequest((RecommendationObjective("throughput"),))).document
    assert document.basis[0].startswith("No device was measured for bert:")
    for answer in document.answers:
        assert answer.choice is not None
        replayed = answer.about.startswith("bert")
        assert answer.choice.replayed == replayed
        assert (", predicted" in answer.sentences[0]) == replayed
        assert (answer.choice.memory == "unknown") == replayed
    assert not [
        each
        for each in advise(tables(), RecommendationRequest((RecommendationObjective("throughput"),))).document.basis
        if "replayed" in each
    ]


def test_tables_have_the_column_and_those_of_before_are_measured(tmp_path: Any) -> None:
    mixed = tables("bert")
    for table in (mixed.runs, mixed.cells):
        assert table["predicted"].dtype == bool
        assert set(table.loc[table["predicted"], "workload"]) == {"bert"}
    old = replace(mixed, runs=mixed.runs.drop(columns="predicted"), cells=mixed.cells.drop(columns="predicted"))
    write(old, tmp_path)
    assert not read(tmp_path).cells["predicted"].any()
    assert set(shown_states(mixed.cells)) == {"measured", "predicted"}
    assert prediction.of_cells(old.cells) == prediction.Prediction()
    assert plot.prediction.drawn() == prediction.Prediction()
