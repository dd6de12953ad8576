"""Tables of a campaign on two systems, and archives of its parts, which were measured on each system's own machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from campaign.archive.merge_archives import merge
from campaign.archive.read import opened
from campaign.archive.write import write_archive
from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.objectives import DEFAULT, RecommendationRequest
from campaign.plan.past_costs import parse_costs
from campaign.tables.collect import collect, gather, tables_of
from tests import two_systems
from tests.unit.archive import archive_data

CHANGES = {
    "campaign.axes.batch": [1, 2, 4, 8],
    "campaign.baseline": {"plain": "plain-1x2-local", "bench": "bench-1x2-fabric"},
}


def test_devices_of_two_systems_are_told_apart(tmp_path: Path) -> None:
    campaign = two_systems.load(tmp_path / "config", CHANGES)
    results = archive_data.fill(campaign, tmp_path / "results")
    tables = tables_of(gather(campaign, results))
    for table in (tables.runs, tables.cells):
        assert set(table["system"]) == {"plain", "bench"}
        assert (table["device"] == "cpu-rank on " + table["system"]).all()
    context = tables.context
    assert context["campaign"]["system"] == context["system"]["name"] == "plain, bench"
    assert context["system"]["fabric"] == "plain: static, bench: simulated"
    assert context["campaign"]["baseline"] == "plain-1x2-local, bench-1x2-fabric"
    advice = advise(tables, RecommendationRequest(DEFAULT)).document
    assert "The campaign is on several systems, so only measured configurations are compared." in advice.basis
    # One note for what holds for both.
    assert sum("is emulated by one process" in note for note in context["notes"]) == 1
    assert context["launchers"] == {"local": len(tables.runs)}
    collect(gather(campaign, results), tmp_path / "tables")
    found = parse_costs(json.loads((tmp_path / "tables" / "costs.json").read_text()))
    assert [each.system for each in found] == ["plain", "bench"]
    assert (
        sum(cell.runs for each in found for cell in each.cells)
        == len(tables.runs) - (tables.runs["status"] == "implied").sum()
    )


def test_parts_that_were_measured_on_two_machines_are_merged(tmp_path: Path) -> None:
    campaign = two_systems.load(tmp_path / "config", CHANGES)
    results = archive_data.fill(campaign, tmp_path / "results")
    every = {path.name for path in results.glob("records/*/*.json")}
    parts = []
    for name in campaign.systems:
        own = Path(shutil.copytree(results, tmp_path / name / "results"))
        for path in own.glob("records/*/*.json"):
            if json.loads(path.read_text())["specification"]["system"]["name"] != name:
                path.unlink()
        parts.append(tmp_path / f"{name}.zip")
        write_archive(campaign, own, parts[-1], where=f"system == '{name}'")
    merge(tmp_path / "both.zip", parts)
    with opened(tmp_path / "both.zip") as both:
        assert {path.name for path in both.directory.glob("records/*/*.json")} == every
        assert both.campaign.document() == campaign.document()
