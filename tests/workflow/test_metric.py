"""A campaign of another metric than throughput, from its files to its report."""

from __future__ import annotations

import html
import json

import yaml

from tests.workflow.checkout_twin import Project


def test_a_campaign_of_step_times_has_a_report_of_its_scaling(project: Project) -> None:
    """Steps of equal batches take as long on any number of devices of a host, so that nothing is lost on more of them."""
    project.synthetic("steps", sample_ms=5.0, noise_pct=1.0)
    path = project.campaign(workload="steps", devices=(1, 2), hosts=(1, 2), attach=("local",), repetitions=3)
    metric = {"name": "step_median_s", "better": "lower"}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "metric": metric}))
    project.write_tables()
    page = project.page("scaling")
    drawn = json.loads((project.results().figures / "scaling.json").read_text())
    assert {record.requested_configuration.ranks for record in project.records()} == {1, 2, 4}
    assert "4 devices reach 4" in drawn["findings"][0]
    assert "the work per second of 1 device" in drawn["findings"][0]
    assert "an efficiency of 100" in drawn["findings"][0]
    assert drawn["findings"][0] in html.unescape(page)
