"""What composing each lease of a plan takes, and how long that is expected to take."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.config.open_fabric import fabric_of
from campaign.documents.operation_times import published_times
from campaign.plan.cost.costs import Costs, LeaseCost
from campaign.plan.cost.recorded_operations import composing_of
from campaign.plan.dag import Request, read_plan
from campaign.plan.planned_operations import counting
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


def operations_of(directory: Path, *leases: tuple[str, int]) -> list[tuple[int, int]]:
    """(detaches, attaches) of leases on configurations by name and composition."""
    directory.mkdir(exist_ok=True)
    campaign = load(directory, CHANGES)
    by_name = {each.name: each for each in campaign.configurations}
    with fabric_of(campaign.system, directory / "state") as fabric:
        found = counting(fabric, campaign)([(by_name[name], composition) for name, composition in leases])
    return [(each.of("detach"), each.of("attach")) for each in found if each is not None]


def test_devices_that_stay_are_not_attached_again(tmp_path: Path) -> None:
    leases = [("none", 1), ("two", 1), ("four", 1), ("two", 1)]
    assert operations_of(tmp_path, *leases) == [(0, 0), (0, 2), (0, 2), (2, 0)]


def test_a_new_block_attaches_everything_anew(tmp_path: Path) -> None:
    assert operations_of(tmp_path, ("two", 1), ("none", 1), ("two", 2)) == [(0, 2), (0, 0), (2, 2)]
    # The last lease of a block leaves nothing attached.
    assert operations_of(tmp_path, ("two", 1), ("two", 1), ("two", 2)) == [(0, 2), (0, 0), (0, 2)]
    # What others left on other hosts is detached when it is in the way.
    both = [("two", 1), ("everywhere", 1), ("two", 2)]
    assert operations_of(tmp_path / "both", *both) == [(0, 2), (2, 0), (0, 2)]


def test_a_plan_forecasts_composing_from_recordings(tmp_path: Path) -> None:
    plan = read_plan(Request(write_files(tmp_path, CHANGES), tmp_path / "results"))
    composing = {lease.configuration.name: lease.expected.parts["composing"] for lease in plan.leases}
    assert composing["none"].expected_s >= 0
    attached = sum(each.expected_s for each in composing.values())
    assert plan.moving is not None
    assert plan.moving.attached == 4
    assert plan.moving.seconds == pytest.approx(attached)
    detached = sum(lease.work.operations.of("detach") for lease in plan.leases if lease.work.operations)
    assert attached == pytest.approx(0.1 * (4 * 15 + detached * 6.7 + 2 * 3.4), rel=0.05)
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
        (operations,) = counting(fabric, campaign)([(campaign.configurations[1], 1)])
    published = published_times("h3").quantile(0.5, "attach") / 10
    here = composing_of(campaign, [costs(campaign.name)])
    assert here.time(operations).expected_s == pytest.approx(2.5, rel=0.15)
    assert here.basis.startswith("this campaign and ")
    assert "1 earlier campaign on" in composing_of(campaign, [costs("c0")] * 5).basis
    others = composing_of(campaign, [costs(f"c{n}") for n in range(5)])
    assert others.time(operations).expected_s == pytest.approx(2.5, rel=0.02)
    assert others.basis == f"5 earlier campaigns on {campaign.system.name}"
    elsewhere = composing_of(campaign, [costs("x", "elsewhere")])
    assert elsewhere.time(operations).expected_s == pytest.approx(2 * published + 0.34, rel=0.1)


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
