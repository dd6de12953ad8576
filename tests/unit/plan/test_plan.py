from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from campaign.common.errors import ConfigError
from campaign.plan.campaign.json_schemas import build_schema
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.cost import CostModel
from campaign.plan.dag import Dag, count_unplanned, read_plan
from campaign.plan.lease_plans import build_lease_plans
from campaign.plan.matrix import expand_matrix
from campaign.plan.missing_runs import RecordedRuns, list_missing_runs
from campaign.plan.past_costs import CampaignCosts, CellCost, LeaseCost
from campaign.plan.plan import build_plan
from campaign.plan.repetitions import CellProgress
from campaign.plan.request import PlanRequest
from campaign.plan.write import build_plan_document, format_plan_rows
from tests.campaign_files import load, write_files
from tests.campaign_records import fill


def plan_of(
    directory: Path, changes: dict[str, Any] | None = None, measured: Any = (), costs: CostModel | None = None
) -> Any:
    campaign = load(directory, changes)
    return build_plan(campaign, expand_matrix(campaign), RecordedRuns(measured), costs)


def costs_of(cells: Any, seconds: Any, compose_s: Any = None) -> CampaignCosts:
    """Each cell ran three times, and took as long as a function of it says; so did composing each configuration."""
    known = [CellCost(c.id, c.configuration.shape(), c.workload, 3, True, (seconds(c),) * 3) for c in cells]
    shapes = {c.configuration.name: c.configuration for c in cells} if compose_s else {}
    leases = [LeaseCost(n, shape.shape(), 3, compose_s(shape), 1.0, 0.5, 0.25) for n, shape in shapes.items()]
    return CampaignCosts("earlier", "bench", tuple(known), tuple(leases), fabric="simulated")


def knowing(costs: CampaignCosts, fabric: str = "simulated") -> CostModel:
    return CostModel({"bench": fabric}, [costs])


def test_missing_runs_are_those_without_a_record(tmp_path: Path) -> None:
    cells = expand_matrix(load(tmp_path)).cells
    everything = list_missing_runs(cells, set())
    assert len(everything) == len({(cell.id, repetition) for cell, repetition in everything}) == 2 * len(cells)
    measured = {(cell.id, repetition) for cell, repetition in everything[::3]}
    left = list_missing_runs(cells, measured)
    assert {(cell.id, repetition) for cell, repetition in left} | measured == {(c.id, r) for c, r in everything}
    assert not {(cell.id, repetition) for cell, repetition in left} & measured


def test_records_of_other_cells_and_of_more_repetitions_count_for_nothing(tmp_path: Path) -> None:
    cells = expand_matrix(load(tmp_path)).cells
    assert len(list_missing_runs(cells, {("f" * 20, 1), (cells[0].id, 3)})) == 2 * len(cells)


def test_the_plan_counts_cells_with_records_that_the_campaign_does_not_have(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    matrix = expand_matrix(campaign)
    records = {("f" * 20, 1), ("f" * 20, 2), (matrix.cells[0].id, 3)}
    assert count_unplanned(campaign, matrix, RecordedRuns(records)) == 1
    assert build_plan(campaign, expand_matrix(campaign, "batch == 1"), RecordedRuns(records)).unplanned == 0


ADAPTIVE = {
    "campaign.protocol.repetitions": 10,
    "campaign.protocol.target_half_width_pct": 2.0,
    "campaign.overrides": [
        {"when": "batch == 2", "repetitions_min": 4, "repetitions": 5, "target_half_width_pct": 9.0}
    ],
}


def test_a_target_makes_a_range_of_runs(tmp_path: Path) -> None:
    campaign = load(tmp_path, ADAPTIVE)
    cells = [cell for cell in expand_matrix(campaign).cells if cell.configuration.name == "1x1-local"]
    small, large = ([cell for cell in cells if cell.batch == batch] for batch in (1, 2))

    prior = CostModel({"bench": "simulated"}, priors={"steps": 10.0})

    def lease(measured: Any = (), stops: Any = None, implied: Any = ()) -> Any:
        plan = build_plan(campaign, expand_matrix(campaign), RecordedRuns(measured, stops or {}, implied), prior)
        document = build_plan_document(plan)
        found = next(lease for lease in plan.leases if lease.name == "1x1-local.c1")
        (told,) = (lease for lease in document["leases"] if lease["lease"] == "1x1-local.c1")
        assert told["runs_without_record_least"] == found.min_missing_runs
        assert sum(value["runs"] for value in document["axes"]["batch"].values()) == document["totals"]["runs"]
        return found

    untouched = lease()
    assert (untouched.runs, untouched.missing, untouched.min_missing_runs) == (30, 30, 2 * 3 + 2 * 4)
    assert (untouched.expected_s, untouched.expected_least_s) == (300.0, 140.0)
    assert (
        untouched.describe(1)
        == "1x1-local, composition 1 of 1: 4 cells, 14 to 30 runs, about 5 min 0 s (2 min 30 s to 10 min 0 s)"
    )

    ends = {
        (small[0].id, 1): CellProgress(3, 0, 15_000),
        (small[1].id, 1): CellProgress(3, 0, 25_000),
        (large[0].id, 1): CellProgress(3, 0, 25_000),
    }
    measured = {(id, n) for id, _ in ends for n in (1, 2, 3)}
    begun = lease(measured, ends)
    # One has reached 2 %; one has not; one has reached 9 %, and is to be run four times.
    assert begun.runs == 3 + 10 + 5 + 5
    assert begun.missing == 0 + 7 + 2 + 5
    assert begun.min_missing_runs == 0 + 1 + 1 + 4
    assert begun.basis.endswith("3 repetitions per cell, as measured so far")
    assert begun.expected_s == 10 * (1 + 1 + 4)
    # A stop says nothing once one of its runs is to be measured again.
    assert lease(measured - {(small[0].id, 2)}, ends).missing == begun.missing + 8
    known = lease(measured, ends, {small[1].id})
    assert (known.missing, known.implied, known.expected_s) == (begun.missing, 7, 50)


def test_the_most_repetitions_are_no_fewer_than_the_least(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"repetitions_min is 3, but repetitions is only 2; lower repetitions_min, or raise",
    ):
        plan_of(tmp_path, {"campaign.protocol.target_half_width_pct": 2.0})


@pytest.mark.parametrize(("lease_per", "leases"), [("configuration", 4), ("workload", 8), ("cell", 32)])
def test_leases_partition_the_matrix(tmp_path: Path, lease_per: str, leases: int) -> None:
    changes = {"campaign.protocol.lease_per": lease_per, "campaign.axes.workload": ["steps", "program"]}
    plan = plan_of(tmp_path, changes)
    assert len(plan.leases) == leases
    assert Counter(cell.id for _, cell in plan.cells) == Counter(c.id for c in expand_matrix(plan.campaign).cells)
    assert all({cell.configuration for cell in lease.cells} == {lease.configuration} for lease in plan.leases)


def test_with_least_recomposition_leases_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    changes = {"campaign.protocol.lease_per": "cell", "campaign.protocol.lease_order": "least-recomposition"}
    plan = plan_of(tmp_path, changes)
    order = [lease.configuration.name for lease in plan.leases]
    assert list(dict.fromkeys(order)) == ["1x1-local", "1x1-fabric", "1x2-local", "1x2-fabric"]
    assert order == sorted(order, key=list(dict.fromkeys(order)).index)


def test_costs_rest_on_what_is_known(tmp_path: Path) -> None:
    cells = expand_matrix(load(tmp_path)).cells
    local = [cell for cell in cells if cell.configuration.attach == "local"]
    costs = costs_of(local, lambda cell: 2.0 * cell.configuration.devices, lambda shape: 7.0)
    leases = {lease.name: lease for lease in plan_of(tmp_path, costs=knowing(costs)).leases}
    assert leases["1x1-local.c1"].expected_s == 8 * 2.0 + 7 * 0.5 + 7.0 + 1.0 + 0.25
    assert leases["1x1-local.c1"].basis == "earlier runs of these cells"
    assert leases["1x2-fabric.c1"].expected.parts["runs"] == 8 * 4.0 + 7 * 0.5
    assert leases["1x2-fabric.c1"].basis == "earlier runs of the workload on the same number of devices"
    assert leases["1x2-fabric.c1"].expected_s is None, "nothing is known of composing"
    plan = plan_of(tmp_path, costs=knowing(costs_of(cells, lambda _: 2.0, lambda _: 7.0)))
    totals = build_plan_document(plan)["totals"]
    assert totals["learned_from"] == "48 runs and 4 leases of the campaign earlier"
    assert [totals["wall_low_s"], totals["wall_high_s"]] == pytest.approx(
        [totals["wall_s"] / 2, 2 * totals["wall_s"]], abs=0.1
    )


def test_without_history_costs_are_unknown(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert {lease.expected_s for lease in plan.leases} == {None}
    assert (plan.device_hours, plan.wall_s, plan.estimate_interval(plan.wall_s)) == (None, None, (None, None))
    assert (dict(plan.unknown.runs), plan.unknown.leases) == ({("steps", "cpu-rank"): 32}, 2)
    assert plan.leases[0].describe(1).endswith(", 8 runs, unknown duration")
    document = json.loads(json.dumps(build_plan_document(plan)))
    jsonschema.Draft202012Validator(build_schema("plan")).validate(document)
    assert (document["totals"]["device_hours"], document["totals"]["runs_unknown"]) == (None, 32)
    for written in build_lease_plans(plan):
        assert written.forecast is not None
        assert (written.forecast.expected_s, written.forecast.runs_s) == (None, None)


def test_a_workload_file_says_what_a_run_takes_while_nothing_else_does(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"workloads.steps.run_s": 10.0, "campaign.configurations": [{"devices_per_host": 1}]}
    path = write_files(tmp_path, changes)
    (lease,) = read_plan(PlanRequest(path, tmp_path / "results")).leases
    assert (lease.expected_s, lease.basis) == (8 * 10.0, "the workload file")
    del changes["workloads.steps.run_s"]
    plain = read_plan(PlanRequest(write_files(tmp_path / "plain", changes), tmp_path / "results"))
    assert plain.leases[0].expected_s is None
    assert plain.leases[0].digest == lease.digest, "what is expected of a run is no part of what is measured"


def test_a_toy_campaign_tells_nothing_of_other_workloads_devices_and_fabrics(tmp_path: Path) -> None:
    changes = {"campaign.axes.workload": ["steps", "program"]}
    cells = expand_matrix(load(tmp_path, changes)).cells
    toy = costs_of([cell for cell in cells if cell.workload == "program"], lambda _: 0.1, lambda _: 1.0)
    plan = plan_of(tmp_path, changes, costs=knowing(toy))
    assert {lease.expected_s for lease in plan.leases} == {None}
    assert plan.unknown.runs == {("steps", "cpu-rank"): 32}
    here = costs_of(cells, lambda _: 0.1, lambda _: 1.0)
    strange = tuple(replace(cell, cell_id=f"x{cell.cell_id}") for cell in here.cells)
    assert plan_of(tmp_path, costs=knowing(replace(here, cells=strange))).device_hours is not None
    other = tuple(replace(cell, shape={**cell.shape, "device": "a100"}) for cell in strange)
    assert plan_of(tmp_path, costs=knowing(replace(here, cells=other))).device_hours is None
    assert plan_of(tmp_path, costs=knowing(replace(here, cells=strange), fabric="static")).device_hours is None


def test_what_is_measured_costs_nothing(tmp_path: Path) -> None:
    cells = expand_matrix(load(tmp_path)).cells
    measured = {(c.id, r) for c in cells if c.configuration.name == "1x1-fabric" for r in (1, 2)}
    plan = plan_of(tmp_path, measured=measured)
    done = next(lease for lease in plan.leases if lease.name == "1x1-fabric.c1")
    assert (done.missing, done.expected_s, done.basis) == (0, 0.0, "nothing to do")
    assert done.describe(1).startswith("1x1-fabric, composition 1 of 1: 4 cells, all 8 runs have a record")
    assert (plan.runs, plan.missing, plan.recompositions) == (32, 24, 1)


def test_recompositions_are_at_least_one_per_composition(tmp_path: Path) -> None:
    shared, apart = plan_of(tmp_path / "a"), plan_of(tmp_path / "b", {"campaign.protocol.lease_per": "cell"})
    assert (shared.recompositions, shared.min_recompositions) == (2, 2)
    assert (apart.recompositions, apart.min_recompositions) == (8, 2)


class _Counted(dict[Any, Any]):
    """Counts how often it is asked or gone through."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)

    def items(self) -> Any:
        self.asked += len(self)
        return super().items()

    def values(self) -> Any:
        self.asked += len(self)
        return super().values()

    def __iter__(self) -> Iterator[Any]:
        self.asked += len(self)
        return super().__iter__()


def test_the_cost_of_planning_is_linear_in_cells(tmp_path: Path) -> None:
    def cost(batches: int) -> tuple[int, int]:
        changes = {"campaign.axes.batch": list(range(1, batches + 1)), "campaign.protocol.lease_per": "cell"}
        campaign = load(tmp_path, changes)
        matrix = expand_matrix(campaign)
        measured: Any = _Counted({(cell.id, 1): None for cell in matrix.cells})
        build_plan(campaign, matrix, RecordedRuns(measured), knowing(costs_of(matrix.cells, lambda _: 1.0)))
        return len(matrix.cells), measured.asked

    (few, small), (many, large) = cost(5), cost(50)
    assert many == 10 * few
    assert 0 < large <= 12 * small


def test_the_document_is_what_its_schema_says(tmp_path: Path) -> None:
    changes = {
        "campaign.exclude": [{"when": "batch == 2 and precision == 'bf16'", "why": "a reason"}],
        "campaign.configurations": [{"devices_per_host": [1, 2], "attach": ["local", "hybrid"]}],
    }
    document = json.loads(json.dumps(build_plan_document(plan_of(tmp_path, changes))))
    jsonschema.Draft202012Validator(build_schema("plan")).validate(document)
    assert document["totals"]["runs"] == sum(lease["runs"] for lease in document["leases"]) == 18
    assert [row["cells"] for row in document["removed"]] == [3]
    assert document["impossible"][0]["shape"] == "1x1-hybrid0"
    for axis in document["axes"].values():
        assert sum(row["cells"] for row in axis.values()) == document["totals"]["cells"]
    assert [lease["order"] for lease in document["leases"]] == [1, 2, 3]


def test_rows_hold_every_cell_under_a_header(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"campaign.axes.options": {"size": [8, 9]}})
    header, *rows = format_plan_rows(plan)
    assert {len(row) for row in rows} == {len(header)}
    assert len({row[header.index("cell_id")] for row in rows}) == 32
    assert {row[header.index("size")] for row in rows} == {"8", "9"}


# --- against a results directory --------------------------------------------------------------------------------------


def test_a_configuration_larger_than_the_pool_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"campaign.configurations": [{"devices_per_host": [2, 6], "attach": "fabric"}]})
    asked = PlanRequest(path, tmp_path / "results")
    with pytest.raises(ConfigError, match=r"configuration 1x6-fabric does not fit: .*; remove it, or correct"):
        read_plan(asked)
    planned = read_plan(asked, allow_unfit=True)
    assert list(planned.unfit) == ["1x6-fabric"]
    assert {lease.configuration.name for lease in planned.leases if lease.charge} == {"1x2-fabric"}
    assert not (tmp_path / "results").exists()


def test_peer_to_peer_is_refused_where_no_control_plane_sets_it(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"campaign.configurations": [{"devices_per_host": 2, "attach": "fabric-p2p"}]})
    why = r"a fabric of kind simulated cannot set peer-to-peer; use attach: fabric, or a fabric of kind liqid"
    with pytest.raises(ConfigError, match=f"configurations.0.*: configuration 1x2-fabric-p2p does not fit: {why}"):
        read_plan(PlanRequest(path, tmp_path / "results"))


def test_a_manifest_that_misses_runs_or_is_damaged_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    asked = PlanRequest(write_files(tmp_path), tmp_path / "results")
    lease = read_plan(asked).leases[0]
    fill(load_campaign(asked.campaign), asked.results / load_campaign(asked.campaign).name)

    def is_whole() -> bool:
        dag = Dag(asked, read_plan(asked))
        return dag.is_measured(dag.leases[lease.name])

    path = Path(Dag(asked, read_plan(asked)).manifest_path(lease))
    assert not is_whole()  # not there
    path.parent.mkdir(parents=True)
    for text, whole in (
        ("{torn", False),
        ('{"lease": "a", "missing": [["c", 1]]}', False),
        ('{"lease": "a", "missing": []}', True),
    ):
        path.write_text(text)
        assert is_whole() == whole
