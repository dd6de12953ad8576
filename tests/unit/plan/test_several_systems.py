"""A campaign on several systems: what is measured where, in which order, and at what cost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import campaign_from_document, load_campaign
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import build_lease_plans, campaign_part_from_lease_plan
from campaign.plan.matrix import expand_matrix
from campaign.plan.past_costs import CampaignCosts, dump_costs, parse_costs
from campaign.plan.request import PlanRequest
from campaign.plan.write import build_plan_document, write_plan
from tests import campaign_files, two_systems


def test_each_shape_is_measured_on_every_system_that_can_hold_it(tmp_path: Path) -> None:
    campaign = two_systems.load(tmp_path)
    assert [(c.name, c.system) for c in campaign.configurations] == [
        ("plain-1x1-local", "plain"), ("plain-1x2-local", "plain"), ("plain-2x2-local", "plain"),
        ("bench-1x1-local", "bench"), ("bench-1x2-local", "bench"), ("bench-2x2-local", "bench"),
        ("bench-1x2-fabric", "bench"), ("bench-1x4-fabric", "bench"),
    ]  # fmt: skip


FOUR = {"name": "host1", "cores": 4, "devices": [{"model": "cpu-rank", "count": 4}]}
DRIVE = {
    "name": "host1",
    "cores": 4,
    "devices": [{"model": "cpu-rank", "count": 1}, {"kind": "nvme", "model": "ssd", "count": 1}],
}


@pytest.mark.parametrize(
    ("shape", "hosts", "why"),
    [
        ({"hosts": [1, 3]}, None, "bench-3x1-local: it has only 2 hosts"),
        ({"devices_per_host": [1, 4]}, [FOUR], "plain-1x4-local: none of its 4 hosts has 4 cpu-rank"),
        ({"attach": ["local", "fabric"]}, None, "plain-1x1-fabric: its pool has 0 cpu-rank, but 1 are needed"),
        ({"storage": ["local", "nvme"]}, [DRIVE], "none of its 4 hosts has 1 cpu-rank and an NVMe drive"),
    ],
)
def test_what_a_system_cannot_hold_is_left_out_with_the_reason(
    tmp_path: Path, shape: dict[str, Any], hosts: list[Any] | None, why: str
) -> None:
    changes: dict[str, Any] = {"campaign.configurations": [shape], **({"system.hosts": hosts} if hosts else {})}
    campaign = two_systems.load(tmp_path, changes)
    assert next(f"{each.shape}: {each.why}" for each in campaign.impossible).endswith(why)
    assert len(campaign.configurations) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"campaign.configurations": [{"devices_per_host": 1}, {"hosts": 9}]}, "no system has this hardware: plain-9x1-local"),
        ({"campaign.configurations": [{"system": "bench"}]}, "no configuration is possible on system 'plain': no shape"),
        ({"campaign.configurations": [{"system": "bensh"}]}, "'bensh' is not a system of the campaign; did you mean 'bench'"),
        ({"campaign.configurations": [{"device": "a100"}]}, "the systems have no device 'a100'"),
        ({"campaign.system": "bench"}, "'system' and 'systems' exclude each other"),
        ({"campaign.systems": ["bench", "bench"]}, "'systems' has a system twice"),
        ({"campaign.systems": []}, "'systems' is empty"),
        ({"campaign.baseline": "bench-1x1-local"}, "name one baseline per system, such as {bench: bench-1x1-local}"),
        ({"campaign.baseline": {"plain": "bench-1x1-local"}}, "is a configuration of system 'bench'; name one of 'plain'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        two_systems.load(tmp_path, changes)


def test_a_name_keeps_where_it_is_of_one_system(tmp_path: Path) -> None:
    shapes = [{"name": "both"}, {"name": "mine", "devices_per_host": 2, "system": "bench"}]
    campaign = two_systems.load(tmp_path, {"campaign.configurations": shapes})
    assert [c.name for c in campaign.configurations] == ["plain-both", "bench-both", "mine"]
    assert [campaign.find_shape(c.name) for c in campaign.configurations] == [0, 0, 1]


def test_the_campaign_as_used_is_the_same_campaign_and_a_lease_is_of_its_part(tmp_path: Path) -> None:
    path = two_systems.write_files(tmp_path)
    campaign = load_campaign(path)
    again = campaign_from_document(json.loads(json.dumps(campaign.to_document(), sort_keys=True)))
    assert list(again.systems) == ["plain", "bench"]
    assert (again.configurations, again.systems, again.to_document()) == (
        campaign.configurations, campaign.systems, campaign.to_document(),
    )  # fmt: skip
    with pytest.raises(ValueError, match="has several systems: plain, bench"):
        _ = campaign.system
    for document in build_lease_plans(read_plan(PlanRequest(path, tmp_path / "results"))):
        part = campaign_part_from_lease_plan(document)
        assert part.system.name == document.configuration.system
        assert {c.system for c in part.configurations} == {part.part}
        assert part.to_document() == campaign.to_document()


def test_cells_are_those_of_campaigns_on_each_system_alone(tmp_path: Path) -> None:
    """So that what was measured for one of them is measured for both."""
    both = {(cell.configuration.system, cell.id) for cell in expand_matrix(two_systems.load(tmp_path / "two")).cells}
    shapes = two_systems.TWO["campaign.configurations"]
    changes = {"campaign.axes.precision": ["fp32"], "campaign.configurations": [*shapes[:1], *shapes[1:]]}
    changes["campaign.configurations"] = [
        {"devices_per_host": [1, 2]}, shapes[1], {"devices_per_host": [2, 4], "attach": "fabric"},
    ]  # fmt: skip
    alone = {("bench", cell_id) for cell_id in campaign_files.ids(tmp_path / "one", changes)}
    assert {each for each in both if each[0] == "bench"} == alone


def test_cells_of_one_system_keep_their_identity(tmp_path: Path) -> None:
    assert sorted(campaign_files.ids(tmp_path))[0] == "0f98fffc140c337fd785"


def test_where_selects_a_system_and_opens_no_other(tmp_path: Path) -> None:
    path = two_systems.write_files(tmp_path)
    system = tmp_path / "systems" / "plain.yaml"
    system.write_text(f"{system.read_text()}pool: [{{model: cpu-rank, count: 1}}]\n")
    with pytest.raises(ConfigError, match="fabric 'static' cannot attach a pool"):
        read_plan(PlanRequest(path, tmp_path / "results"))
    plan = read_plan(PlanRequest(path, tmp_path / "results", "system == 'bench'"))
    assert {lease.configuration.system for lease in plan.leases} == {"bench"}


def test_leases_of_both_systems_take_turns_in_every_block(tmp_path: Path) -> None:
    changes = {"campaign.protocol.compositions": 4, "campaign.protocol.repetitions": 4}
    path = two_systems.write_files(tmp_path, changes)
    results = Results(tmp_path / "results", "small")
    plan = read_plan(PlanRequest(path, results.root))
    assert [lease.composition for lease in plan.leases] == sorted(lease.composition for lease in plan.leases)
    orders = []
    for block in range(1, 5):
        here = [lease.configuration for lease in plan.leases if lease.composition == block]
        assert len({c.name for c in here}) == len(here) == 8
        orders.append([c.system for c in here])
    assert len({tuple(order) for order in orders}) > 1
    assert any(order != sorted(order) and order != sorted(order, reverse=True) for order in orders)
    assert plan.attached_devices
    write_plan(plan, results)
    again = read_plan(PlanRequest(path, results.root))
    assert [lease.name for lease in again.leases] == [lease.name for lease in plan.leases]
    document = build_plan_document(plan)
    assert document["system"] == "plain, bench"
    assert document["axes"]["system"]["plain"]["cells"] == 6


def test_costs_of_both_systems_are_one_file() -> None:
    found = [CampaignCosts("small", "plain", fabric="static"), CampaignCosts("small", "bench", fabric="simulated")]
    assert parse_costs(json.loads(json.dumps(dump_costs(found)))) == found
    assert parse_costs(json.loads(json.dumps(dump_costs(found[:1])))) == found[:1]
