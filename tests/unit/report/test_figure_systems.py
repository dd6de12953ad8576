"""The figure of several systems: each composition against that of the first system with as many devices."""

from __future__ import annotations

from pathlib import Path

from campaign.analysis.tables.collect import build_tables, read_campaign_results
from campaign.report.figure import build_figure_data, load_all_figures
from tests import two_systems
from tests.unit.archive import archive_data
from tests.unit.report.figure_columns import check


def test_compositions_of_two_systems_are_matched_by_devices(tmp_path: Path) -> None:
    changes = {"campaign.baseline": {"plain": "plain-1x2-local", "bench": "bench-1x2-fabric"}}
    campaign = two_systems.load(tmp_path / "config", changes)
    figure = load_all_figures()["systems"]
    drawing = figure.draw(
        build_figure_data(
            build_tables(read_campaign_results(campaign, archive_data.fill(campaign, tmp_path / "results")))
        )
    )
    assert drawing.svg is not None
    check(figure, drawing)
    assert "plain" in drawing.caption
    assert "bench" in drawing.alt
