"""Tables of a campaign on two systems, and of its parts, which were measured on each system's own machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd

from campaign.analysis.recommend.advise import build_recommendation
from campaign.analysis.recommend.objectives import REPORT_REQUEST
from campaign.analysis.tables.collect import build_tables, read_campaign_results, write_campaign_tables
from campaign.plan.past_costs import parse_costs
from tests import two_systems
from tests.unit.archive import archive_data

CHANGES = {
    "campaign.axes.batch": [1, 2, 4, 8],
    "campaign.baseline": {"plain": "plain-1x2-local", "bench": "bench-1x2-fabric"},
}


def test_devices_of_two_systems_are_told_apart(tmp_path: Path) -> None:
    campaign = two_systems.load(tmp_path / "config", CHANGES)
    results = archive_data.fill(campaign, tmp_path / "results")
    tables = build_tables(read_campaign_results(campaign, results))
    for table in (tables.runs, tables.cells):
        assert set(table["system"]) == {"plain", "bench"}
        assert (table["device"] == "cpu-rank on " + table["system"]).all()
    context = tables.context
    assert context["campaign"]["system"] == context["system"]["name"] == "plain, bench"
    assert context["system"]["fabric"] == "plain: static, bench: simulated"
    assert context["campaign"]["baseline"] == "plain-1x2-local, bench-1x2-fabric"
    advice = build_recommendation(tables, REPORT_REQUEST)
    assert advice.unmeasured == ()
    assert any("the hosts and the pool of the system are unknown" in each for each in advice.basis)
    # One note for what holds for both.
    assert sum("is emulated by one process" in note for note in context["notes"]) == 1
    assert context["launchers"] == {"local": len(tables.runs)}
    write_campaign_tables(read_campaign_results(campaign, results), tmp_path / "tables")
    found = parse_costs(json.loads((tmp_path / "tables" / "costs.json").read_text()))
    assert [each.system for each in found] == ["plain", "bench"]
    assert (
        sum(cell.runs for each in found for cell in each.cells)
        == len(tables.runs) - (tables.runs["status"] == "implied").sum()
    )


def test_parts_that_were_measured_on_two_machines_are_copied_together(tmp_path: Path) -> None:
    campaign = two_systems.load(tmp_path / "config", CHANGES)
    results = archive_data.fill(campaign, tmp_path / "results")
    every = {path.relative_to(results): path.read_bytes() for path in results.rglob("*") if path.is_file()}
    whole = build_tables(read_campaign_results(campaign, results))
    for name in campaign.systems:
        own = Path(shutil.copytree(results, tmp_path / name / "results"))
        for path in own.glob("records/*/*.json"):
            if json.loads(path.read_text())["specification"]["system"]["name"] != name:
                path.unlink()
    together, other = (tmp_path / name / "results" for name in campaign.systems)
    subprocess.run(["cp", "-rn", f"{other}/.", f"{together}/"], check=True)
    assert {path.relative_to(together): path.read_bytes() for path in together.rglob("*") if path.is_file()} == every
    tables = build_tables(read_campaign_results(campaign, together))
    pd.testing.assert_frame_equal(tables.runs, whole.runs)
    pd.testing.assert_frame_equal(tables.cells, whole.cells)
