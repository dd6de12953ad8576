"""A lease plan that somebody left where a driver would read it, such as in the results of an archive."""

from __future__ import annotations

from pathlib import Path

from campaign.common.paths import Results
from campaign.run.measure_lease import _LeaseMeasurement
from tests.campaign_files import load
from tests.planned_leases import plans_of


def test_a_driver_reads_the_plan_that_is_measured_whatever_lies_in_its_place(tmp_path: Path) -> None:
    campaign = load(tmp_path / "files")
    results = Results(tmp_path / "results", campaign.name)
    plan = next(iter(plans_of(campaign).values()))
    path = results.work_directory(plan.lease) / f"plan.{plan.digest}.json"
    path.parent.mkdir(parents=True)
    path.write_text("planted")
    _LeaseMeasurement(plan, results, print, "")
    assert path.read_text() == plan.format_text()
