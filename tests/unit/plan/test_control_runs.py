"""The reference: one cell measured in every lease, counted apart from the matrix, and never with another's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.tables.collect import build_tables, read_campaign_results, read_planned_results
from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.control_runs import collect_references, hash_hardware
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import build_lease_plans
from campaign.plan.matrix import build_specification, expand_matrix, hash_specification
from campaign.plan.missing_runs import RecordedRuns, list_missing_runs
from campaign.plan.order import order_runs
from campaign.plan.plan import Plan, build_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import build_plan_document, format_plan_rows, write_plan
from campaign.run.redo import find_matching_runs
from campaign.spec.record import RecordedCell, RecordStore
from campaign.spec.run_numbers import get_composition_number, get_number_in_composition, list_run_numbers
from tests.campaign_files import load, write_files
from tests.campaign_records import fill

K, N = "campaign.protocol.compositions", "campaign.protocol.repetitions"
REFERENCE = {"campaign.protocol.reference": {"workload": "steps"}}
SHAPES = {"campaign.configurations": [{"hosts": [1, 2], "devices_per_host": [1, 2], "attach": ["local", "fabric"]}]}


def without_reference(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key not in REFERENCE}


def planned(campaign: Campaign, measured: Any = ()) -> Plan:
    return build_plan(campaign, expand_matrix(campaign), RecordedRuns(measured))


def reference_runs(plan: Plan) -> list[tuple[str, int]]:
    cells = [cell for lease in plan.leases for cell in lease.cells if cell.reference]
    return [(cell.id, run) for cell in cells for run in list_run_numbers(cell.settings)]


def test_a_reference_that_trains_lasts_as_long_as_cells_do(tmp_path: Path) -> None:
    changes = {"campaign.protocol.reference": {"workload": "nano"}, "campaign.axes.workload": ["nano"]}
    for kind, least_s in (("cpu", 0.0), ("cuda", 5.0)):
        campaign = load(tmp_path / kind, {**changes, "system.devices.cpu-rank.runs_on": kind})
        cells = expand_matrix(campaign).cells
        both = [*cells, *collect_references(campaign, cells).values()]
        assert {(cell.settings.warmup_min_s, cell.settings.measured_min_s) for cell in both} == {(least_s, least_s)}


@pytest.mark.parametrize("lease_per", ["configuration", "workload", "cell"])
@pytest.mark.parametrize("k", [1, 3])
def test_every_lease_has_the_reference_under_keys_of_its_own(tmp_path: Path, lease_per: str, k: int) -> None:
    changes = {**SHAPES, **REFERENCE, K: k, N: 3, "campaign.protocol.lease_per": lease_per}
    plan, without = planned(load(tmp_path, changes)), planned(load(tmp_path, without_reference(changes)))
    assert [lease.name for lease in plan.leases] == [lease.name for lease in without.leases]
    runs = reference_runs(plan)
    assert len(set(runs)) == len(runs) == 2 * len(plan.leases)
    matrix = {cell.id for cell in expand_matrix(plan.campaign).cells}
    assert matrix == {cell.id for cell in expand_matrix(without.campaign).cells}
    assert not matrix & {name for name, _ in runs}
    assert set(collect_references(plan.campaign, expand_matrix(plan.campaign).cells)) == {name for name, _ in runs}
    for lease in plan.leases:
        *_, cell = lease.cells
        assert {get_composition_number(run) for run in list_run_numbers(cell.settings)} == {lease.composition}


def test_plans_count_its_runs_and_not_its_cell(tmp_path: Path) -> None:
    plan, without = (
        planned(load(tmp_path / "a", {K: 3, N: 3, **REFERENCE})),
        planned(load(tmp_path / "b", {K: 3, N: 3})),
    )
    assert plan.unknown.run_count == plan.missing
    assert plan.cell_count == without.cell_count
    assert (plan.runs, plan.missing) == (without.runs + 24, without.missing + 24)
    said, before = build_plan_document(plan), build_plan_document(without)
    assert (said["axes"], said["cells"]) == (before["axes"], before["cells"])
    assert said["leases"][0]["cells"] == before["leases"][0]["cells"]
    assert said["leases"][0]["runs"] == before["leases"][0]["runs"] + 2
    assert [row[4:] for row in format_plan_rows(plan)] == [row[4:] for row in format_plan_rows(without)]


def test_equal_work_on_an_equal_device_is_one_reference_over_the_campaign(tmp_path: Path) -> None:
    campaign = load(tmp_path, {**SHAPES, **REFERENCE})
    found: dict[str, set[str]] = {}
    for cell in collect_references(campaign, expand_matrix(campaign).cells).values():
        document = build_specification(campaign, cell)
        assert hash_specification(document) == cell.id
        assert cell.configuration.ranks == 1
        found.setdefault(hash_hardware(document), set()).add(cell.configuration.name)
    assert sorted(map(sorted, found.values())) == [
        ["1x1-fabric", "1x2-fabric", "2x1-fabric", "2x2-fabric"],
        ["1x1-local", "1x2-local", "2x1-local", "2x2-local"],
    ]


@pytest.mark.parametrize(("count", "places"), [(1, [0]), (2, [0, -1]), (3, [0, 5, -1])])
def test_its_runs_are_spread_over_a_lease_from_the_first_to_the_last(
    tmp_path: Path, count: int, places: list[int]
) -> None:
    plan = planned(load(tmp_path, {"campaign.protocol.reference": {"workload": "steps", "repetitions": count}}))
    for document in build_lease_plans(plan):
        todo = order_runs(list_missing_runs(document.work_cells, ()), plan.campaign.protocol, document.lease)
        at = [place for place, (cell, _) in enumerate(todo) if cell.reference]
        assert at == [place % len(todo) for place in places]
        assert [get_number_in_composition(run) for cell, run in todo if cell.reference] == list(range(1, count + 1))
        others = [run for run in todo if not run[0].reference]
        assert others == order_runs(others, plan.campaign.protocol, document.lease)
        left = order_runs(todo[3:], plan.campaign.protocol, document.lease)
        assert bool(left[-1][0].reference) == (count > 1)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_nothing_of_it_is_measured_again_when_the_campaign_grows(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, count: int, more: int
) -> None:
    def plan(k: int, n: int) -> Plan:
        reference = {"campaign.protocol.reference": {"workload": "steps", "repetitions": n}}
        return planned(load(tmp_path_factory.mktemp("c"), {K: k, N: 5, **reference}))

    old, new = reference_runs(plan(before, count)), reference_runs(plan(before + after, count + more))
    assert set(old) < set(new)


def filled(campaign: Campaign, results: Path) -> RecordStore:
    """Records of the matrix and of the reference."""
    store = fill(campaign, results)
    one = next(iter(store))
    for cell in collect_references(campaign, expand_matrix(campaign).cells).values():
        for run in list_run_numbers(cell.settings):
            suffix = f".c{get_composition_number(run)}"
            changes = {
                "cell_id": cell.id,
                "repetition": run,
                "cell": RecordedCell.from_cell(cell),
                "specification": build_specification(campaign, cell),
                "lease_id": f"{cell.configuration.name}{suffix}.1",
            }
            store.write(one.model_copy(update=changes))
    return store


def test_tables_have_it_apart_from_the_matrix(tmp_path: Path) -> None:
    changes = {K: 2, N: 2, **REFERENCE}
    campaign = load(tmp_path, changes)
    directory = Results(tmp_path / "results", campaign.name).directory
    filled(campaign, directory)
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results"))
    assert plan.missing == 0
    write_plan(plan, Results(tmp_path / "results", campaign.name))
    for collected in (
        read_campaign_results(campaign, directory),
        read_planned_results(directory / "plan" / "plan.json"),
    ):
        tables = build_tables(collected)
        matrix = {cell.id for cell in expand_matrix(campaign).cells}
        assert set(tables.runs["cell_id"]) == set(tables.cells["cell_id"]) == matrix
        assert len(tables.reference) == 2 * 8
        assert not set(tables.reference["cell_id"]) & matrix
        assert tables.reference["hardware"].nunique() == 2
        assert set(tables.reference["lease_id"]) == set(tables.runs["lease_id"])
    without = read_campaign_results(load(tmp_path, without_reference(changes)), directory)
    assert len(build_tables(without).reference) == 0


def test_redo_measures_it_again_where_nothing_else_stays(tmp_path: Path) -> None:
    campaign = load(tmp_path, {K: 2, N: 2, **REFERENCE})
    results = Results(tmp_path / "results", campaign.name)
    filled(campaign, results.directory)
    references = collect_references(campaign, expand_matrix(campaign).cells)
    assert not {name for name, _ in find_matching_runs(campaign, results, "batch == 2")} & set(references)
    again = find_matching_runs(campaign, results, "configuration == '1x2-fabric'")
    moved = [(name, run) for name, run in again if name in references]
    assert [run for _, run in moved] == [1, 2, 1001, 1002]
    assert {references[name].configuration.name for name, _ in moved} == {"1x2-fabric"}


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ({"workload": "step"}, "'step' is not a workload of this campaign; did you mean 'steps'?"),
        ({"workload": "steps", "precision": "fp16"}, "workload 'steps' does not support 'fp16'; supported: fp32, bf16"),
        ({"workload": "steps", "options": {"sise": 1}}, "workload 'steps' has no such option; did you mean 'size'?"),
    ],
)
def test_a_reference_that_cannot_be_run_is_refused(tmp_path: Path, reference: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=r"protocol\.reference") as caught:
        load(tmp_path, {"campaign.protocol.reference": reference})
    assert problem in str(caught.value)
