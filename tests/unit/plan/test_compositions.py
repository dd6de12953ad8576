"""A configuration that is composed several times: leases, their runs and their order; what grows measures nothing again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.lease_plans import build_lease_plans
from campaign.plan.matrix import expand_matrix
from campaign.plan.missing_runs import RecordedRuns
from campaign.plan.plan import Plan, build_plan
from campaign.plan.write import build_plan_document
from campaign.spec.run_numbers import get_composition_number, list_run_numbers
from tests.campaign_files import load

K, N = "campaign.protocol.compositions", "campaign.protocol.repetitions"


def planned(campaign: Campaign, measured: Any = ()) -> Plan:
    return build_plan(campaign, expand_matrix(campaign), RecordedRuns(measured))


def runs(plan: Plan) -> set[tuple[str, int]]:
    return {(cell.id, run) for _, cell in plan.cells for run in list_run_numbers(cell.settings)}


def test_every_composition_is_a_lease_with_its_own_runs(tmp_path: Path) -> None:
    campaign = load(tmp_path, {K: 3, N: 5})
    plan = planned(campaign)
    names = [lease.name for lease in plan.leases]
    assert set(names) >= {"1x1-local.c1", "1x1-local.c2", "1x1-local.c3"}
    assert Counter(lease.configuration.name for lease in plan.leases) == dict.fromkeys(
        ("1x1-local", "1x2-local", "1x1-fabric", "1x2-fabric"), 3
    )
    assert (plan.cell_count, plan.runs) == (16, 80)
    for document in build_lease_plans(plan):
        count = {1: 2, 2: 2, 3: 1}[document.composition]
        for cell, work in zip(document.cells, document.work_cells, strict=True):
            assert cell.runs == list_run_numbers(work.settings)
            assert len(cell.runs) == count
            assert {get_composition_number(run) for run in cell.runs} == {document.composition}
    said = build_plan_document(plan)
    assert (said["totals"]["cells"], said["totals"]["cells_without_record"], said["totals"]["runs"]) == (16, 16, 80)
    assert said["axes"]["batch"]["1"] == {"cells": 8, "runs": 40}
    assert said["totals"]["recompositions"] == said["totals"]["recompositions_least"] == 6


def test_leases_are_blocks_over_the_campaign_in_random_order(tmp_path: Path) -> None:
    plan = planned(load(tmp_path, {K: 4, N: 4}))
    blocks = [[lease for lease in plan.leases if lease.composition == block] for block in range(1, 5)]
    assert list(plan.leases) == [lease for block in blocks for lease in block]
    orders = [tuple(lease.configuration.name for lease in block) for block in blocks]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len(set(orders)) > 1
    assert [lease.name for lease in planned(load(tmp_path, {K: 4, N: 4})).leases] == [
        lease.name for lease in plan.leases
    ]
    other = planned(load(tmp_path, {K: 4, N: 4, "campaign.protocol.seed": 1}))
    assert [lease.name for lease in other.leases] != [lease.name for lease in plan.leases]


def test_what_is_added_leaves_the_order_of_the_rest(tmp_path: Path) -> None:
    few = [lease.name for lease in planned(load(tmp_path, {K: 2})).leases]
    changes = {
        K: 3,
        N: 3,
        "campaign.configurations": [{"devices_per_host": [1, 2, 3], "attach": ["local", "fabric"]}],
    }
    changes["system.hosts"] = [{"name": "host[1-2]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 4}]}]
    many = [lease.name for lease in planned(load(tmp_path, changes)).leases]
    assert [name for name in many if name in few] == few
    changes["campaign.protocol.lease_order"] = "random-blocks"  # another name of the same
    assert [lease.name for lease in planned(load(tmp_path, changes)).leases] == many


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 5), st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_nothing_that_has_a_record_is_missing_after_a_change(
    tmp_path_factory: pytest.TempPathFactory, k: int, n: int, later_k: int, later_n: int
) -> None:
    directory = tmp_path_factory.mktemp("grow")
    before = runs(planned(load(directory, {K: k, N: n})))
    campaign = load(directory, {K: later_k, N: later_n})
    after = planned(campaign, before)
    assert after.missing == len(runs(after) - before)
    if later_k == k and later_n >= n:
        assert before <= runs(after)
    assert planned(load(directory, {K: k, N: n}), before | runs(after)).missing == 0


def test_an_override_says_how_often_some_cells_are_composed(tmp_path: Path) -> None:
    campaign = load(tmp_path, {K: 3, N: 3, "campaign.overrides": [{"when": "batch == 2", "compositions": 1}]})
    leases = {lease.name: lease for lease in planned(campaign).leases}
    assert {cell.batch for cell in leases["1x1-local.c1"].cells} == {1, 2}
    assert {cell.batch for cell in leases["1x1-local.c2"].cells} == {1}
    assert leases["1x1-local.c1"].runs == 2 * 1 + 2 * 3


def test_fewer_repetitions_than_compositions_compose_less_often(tmp_path: Path) -> None:
    assert {lease.composition for lease in planned(load(tmp_path, {K: 3, N: 2})).leases} == {1, 2}


def test_a_composition_has_no_more_runs_than_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at most 999 runs of a cell; lower repetitions, or raise compositions"):
        planned(load(tmp_path, {K: 1, N: 1000}))
    assert planned(load(tmp_path, {K: 2, N: 1000})).runs == 16 * 1000
