"""What composing each lease of a plan takes, and how long that is expected to take."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.config.open_fabric import fabric_of, placing
from campaign.documents.operation_times import published_times
from campaign.plan.cost.composing import composing_of
from campaign.plan.cost.costs import Costs, LeaseCost
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import plan_document
from tests.campaign_files import load, write_files

POOL = [{"kind": "gpu", "model": "cpu-rank", "count": 8, "drawer": "falcon1/drawer1"}]
CHANGES = {
    "system.fabric": {"kind": "simulated", "times": "h3", "times_factor": 0.1},
    "system.pool": POOL,
    "campaign.configurations": [
        {"name": "none", "hosts": 1, "devices_per_host": 2, "attach": "local"},
        {"name": "two", "hosts": 1, "devices_per_host": 2, "attach": "fabric"},
        {"name": "everywhere", "hosts": 2, "devices_per_host": 1, "attach": "local"},
        {"name": "four", "hosts": 1, "devices_per_host": 4, "attach": "fabric"},
    ],
    "campaign.protocol.compositions": 1,
}


def test_a_plan_forecasts_composing_from_recordings(tmp_path: Path) -> None:
    plan = read_plan(PlanRequest(write_files(tmp_path, CHANGES), tmp_path / "results"))
    composing = {lease.configuration.name: lease.expected.parts["composing"] for lease in plan.leases}
    assert composing["none"].expected_s >= 0
    attached = sum(each.expected_s for each in composing.values())
    assert plan.attached == 6
    document = plan_document(plan)
    assert document["totals"]["attached"] == sum(each["attached"] for each in document["leases"]) == 6
    assert attached == pytest.approx(0.1 * (6 * 15 + 2 * 3.4), rel=0.05)
    assert all(
        each.low_s < each.expected_s < each.high_s for name, each in composing.items() if name in ("two", "four")
    )


def test_own_times_come_before_those_of_others(tmp_path: Path) -> None:
    campaign = load(tmp_path, CHANGES)
    rows = [["inventory", "", "", "", 0.4], *[["attach", "gpu", "falcon1/drawer1", "", 1.0]] * 2]
    entry = {"of": "composing", "seconds": 2.5, "rows": rows}

    def costs(name: str, system: str = campaign.system.name) -> Costs:
        lease = LeaseCost("l", {}, 1, 2.5, 0.0, 0.0, 0.0, (entry,) * 3)
        return Costs(name, system, (), (lease,))

    with fabric_of(campaign.system, tmp_path / "state") as fabric:
        operations = placing(fabric, campaign)(campaign.configurations[1]).operations
    assert operations
    published = published_times("h3").quantile(0.5, "attach") / 10
    here = composing_of(campaign, [costs(campaign.name)])
    assert here.time(operations)[0] == pytest.approx(2.5, rel=0.15)
    assert here.basis.startswith("this campaign and ")
    assert "1 earlier campaign on" in composing_of(campaign, [costs("c0")] * 5).basis
    others = composing_of(campaign, [costs(f"c{n}") for n in range(5)])
    assert others.time(operations)[0] == pytest.approx(2.5, rel=0.02)
    assert others.basis == f"5 earlier campaigns on {campaign.system.name}"
    elsewhere = composing_of(campaign, [costs("x", "elsewhere")])
    assert elsewhere.time(operations)[0] == pytest.approx(2 * published + 0.34, rel=0.1)


def test_a_system_file_names_a_file_of_times(tmp_path: Path) -> None:
    campaign = load(tmp_path, CHANGES)
    source = replace(campaign.system_source, path=tmp_path / "system.yaml")
    (tmp_path / "own.json").write_text(json.dumps(published_times("h3").scaled(3).document()))
    named = replace(
        campaign,
        systems={campaign.part: campaign.system.model_copy(update={"times": "own.json", "times_factor": 2.0})},
        sources=replace(campaign.sources, systems={campaign.part: source}),
    )
    assert composing_of(named, []).basis.endswith("times 3, times 2")
