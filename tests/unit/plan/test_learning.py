from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.documents.cell import Cell, Configuration
from campaign.documents.earlier_spread import EarlierSpread, kept
from campaign.errors import ConfigError
from campaign.paths import ROOT, Results
from campaign.plan.cost.costs import (
    CellCost,
    Costs,
    LeaseCost,
    Span,
    cell_cost,
    costs_of,
    from_documents,
    lease_cost,
    parts_s,
)
from campaign.plan.cost.history import COSTS, begin, end, measured_forecasts, merged, read_costs
from campaign.plan.dag import read_plan
from campaign.plan.matrix import expand
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.report.context_schema import ForecastSaid
from campaign.tables.collect import collect, gather
from tests.campaign_files import load, write_files
from tests.campaign_records import fill

SHAPE = {
    "hosts": 1, "devices_per_host": 2, "local_devices_per_host": 0, "devices_used": 2, "device": "cpu-rank",
    "attach": "fabric", "storage": "local",
}  # fmt: skip


def some(campaign: str = "a", system: str = "bench", runs: int = 2, cell_id: str = "c1") -> Costs:
    spans = [Span(cell_id, 10.0 * n, 10.0 * n + 2.0, True) for n in range(runs)]
    shape = Configuration("", **SHAPE)  # type: ignore[arg-type]
    cell = cell_cost(
        cell_id, shape, Cell(cell_id, shape, "steps", 4, "fp32", {"size": 8}), {"measured_steps": 4}
    ).of_runs(spans)
    return Costs(campaign, system, (cell,), (LeaseCost("l.1", SHAPE, runs, 3.0, 1.0, 8.0, 0.5),))


def test_costs_survive_being_written_down() -> None:
    assert from_documents(json.loads(json.dumps(some().document()))) == [some()]


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "costs/0"},
        {"cells": [{}]},
        {"leases": 3},
        {"cells": [{**some().document()["cells"][0], "mean_log_s": None}]},
        {"cells": [{**some().document()["cells"][0], "batch": 0}]},
        {"leases": [{**some().document()["leases"][0], "compose_s": "x"}]},
    ],
)
def test_damaged_costs_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    document = {**some().document(), **change}
    assert from_documents(document) == []
    results = Results(tmp_path, "small")
    for path in (results.tables / "costs.json", results.manifests / "l" / "x.1.json"):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"lease": "l", "costs": document}))
    assert read_costs(results) == []


def test_a_lease_costs_what_is_not_a_run() -> None:
    document = {
        "lease_id": "l.1", "requested": {"name": "x", **SHAPE}, "requested_s": 100.0, "ready_s": 107.0, "released_s": 140.0,
    }  # fmt: skip
    spans = [Span("a", 110.0, 115.0, True), Span("b", 117.0, 127.0, False), Span("a", 131.0, 138.0, True)]
    assert lease_cost(document, spans) == LeaseCost("l.1", SHAPE, 3, 7.0, 3.0, 3.0, 2.0)
    queued = lease_cost({**document, "driver_began_s": 109.0}, spans)
    assert queued is not None
    assert (queued.queue_s, queued.start_s) == (2.0, 1.0)
    # Slurm put the job back into the queue after the first run.
    again = lease_cost({**document, "driver_began_s": 125.0}, spans)
    assert again is not None
    assert (again.queue_s, again.start_s) == (3.0, 0.0)
    assert lease_cost({**document, "ready_s": None}, spans) is None
    assert lease_cost(document, []) is None


def test_what_was_just_measured_is_told_apart_by_use_of_the_lease(tmp_path: Path) -> None:
    cell = expand(load(tmp_path)).cells[0]
    cells = {cell.id: cell_cost(cell.id, cell.configuration, cell, {})}
    uses = [
        {"lease_id": f"l.{n}", "requested": SHAPE, "requested_s": t, "ready_s": t + 1, "released_s": t + 50}
        for n, t in ((1, 0.0), (2, 100.0))
    ]
    spans = [Span(cell.id, 2.0, 4.0, True), Span(cell.id, 103.0, 105.0, True), Span("unknown", 106.0, 107.0, True)]
    found = costs_of(Costs("small", "bench"), cells, spans, uses)
    assert [(each.cell_id, each.runs, each.believed) for each in found.cells] == [(cell.id, 2, True)]
    assert [(each.lease_id, each.runs, each.start_s) for each in found.leases] == [("l.1", 1, 1.0), ("l.2", 2, 2.0)]


def test_costs_beside_a_campaign_file_count_until_a_cell_is_measured_here(tmp_path: Path) -> None:
    campaign = tmp_path / "small.yaml"
    shipped = replace(some(), campaign="small, as shipped", leases=(), spread=())
    campaign.with_suffix(".costs.json").write_text(json.dumps(shipped.document()))
    results = Results(tmp_path / "results", "small")
    assert read_costs(results, campaign=campaign) == [shipped]
    here = replace(some(), leases=(), spread=())
    (results.tables / COSTS).parent.mkdir(parents=True)
    (results.tables / COSTS).write_text(json.dumps(here.document()))
    assert read_costs(results, campaign=campaign) == [here]


def test_the_default_campaign_ships_what_its_runs_take(tmp_path: Path) -> None:
    plan = read_plan(PlanRequest(ROOT / "config" / "campaign.yaml", tmp_path))
    assert not plan.forecast.unknown
    assert plan.wall_s is not None
    # Three minutes on two cores; a machine with more measures more leases at a time.
    assert 30 < plan.wall_s < 200
    assert {lease.expected.basis for lease in plan.leases} == {"earlier runs of these cells"}, "ship those of its cells"


def test_what_leases_took_by_part() -> None:
    spans = [Span("a", 0.0, 5.0, True), Span("b", 6.0, 16.0, False)]
    uses = [LeaseCost("l.1", SHAPE, 3, 7.0, 3.0, 2.0, 1.0), LeaseCost("l.2", SHAPE, 1, 1.0, 1.0, None, None)]
    assert parts_s(uses, spans) == {
        "composing": 8.0,
        "queue": None,
        "start": 4.0,
        "runs": 15.0,
        "between": 4.0,
        "release": None,
    }
    assert set(parts_s([], []).values()) == {None}


def test_what_was_held_without_a_run_is_charged_to_the_lease(tmp_path: Path) -> None:
    """Two uses whose jobs waited in the queue until their devices were given back, and one that began to run after 30 s there."""
    cell = expand(load(tmp_path)).cells[0]
    cells = {cell.id: cell_cost(cell.id, cell.configuration, cell, {})}
    uses = [
        {"lease_id": f"l.{n}", "requested": SHAPE, "requested_s": t, "ready_s": t + 1, "released_s": t + 301}
        for n, t in ((1, 0.0), (2, 1000.0), (3, 5000.0))
    ]
    spans = [Span(cell.id, 5031.0, 5033.0, True)]
    found = costs_of(Costs("small", "bench"), cells, spans, uses)
    assert [(each.lease_id, each.start_s) for each in found.leases] == [("l.3", 300.0 + 300.0 + 30.0)]
    uses = [{**use, "driver_began_s": 5030.0} for use in uses]
    (told,) = costs_of(Costs("small", "bench"), cells, spans, uses).leases
    assert (told.queue_s, told.start_s) == (300.0 + 300.0 + 29.0, 1.0)


def test_every_cell_and_every_use_counts_once() -> None:
    told = merged([some(runs=2), some(runs=5), some("b", cell_id="c2")])
    assert [(costs.campaign, [cell.runs for cell in costs.cells], len(costs.leases)) for costs in told] == [
        ("a", [], 1),
        ("a", [5], 0),
        ("b", [2], 1),
    ]


def test_what_other_campaigns_on_the_system_tell_of_compositions_is_kept_with_the_plan(tmp_path: Path) -> None:
    told = EarlierSpread("pilot", "steps", "throughput_per_s", 1e-4, 8.0, 0.5)
    for name, system in (("pilot", "bench"), ("copy-of-pilot", "bench"), ("small", "bench"), ("elsewhere", "other")):
        costs = replace(some(name, system), spread=(replace(told, campaign=name.removeprefix("copy-of-")),))
        Results(tmp_path, name).tables.mkdir(parents=True)
        (Results(tmp_path, name).tables / COSTS).write_text(json.dumps(costs.document()))
    plan = read_plan(PlanRequest(write_files(tmp_path / "files"), tmp_path))
    assert plan.earlier == (told,)
    results = Results(tmp_path, "small")
    write_plan(plan, results)
    assert kept(results.earlier_spread) == (told,)
    write_plan(replace(plan, earlier=()), results)
    assert not results.earlier_spread.exists()
    results.earlier_spread.write_text('{"schema_version": "earlier-spread/1", "spreads": [{"campaign": 3}]}')
    assert kept(results.earlier_spread) == ()


def test_costs_are_gathered_below_the_root_and_from_what_is_named(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    results = Results(tmp_path / "results", "small")
    fill(campaign, results.directory)
    collect(gather(campaign, results.directory), results.tables)
    (own,) = read_costs(results)
    assert own.runs == 32
    assert {cell.steps for cell in own.cells} == {4}
    # Of another campaign, whose tables were never made, the manifests tell.
    other = Results(tmp_path / "results", "other")
    (other.manifests / "l").mkdir(parents=True)
    manifest = {"lease": "l", "costs": some("other", runs=3, cell_id="c9").document()}
    (other.manifests / "l" / "x.1.json").write_text(json.dumps(manifest))
    assert [costs.campaign for costs in read_costs(results)] == ["small", "other"]
    elsewhere = Results(tmp_path / "elsewhere", "new")
    assert read_costs(elsewhere) == []
    for place in (results.directory, results.root):
        assert sum(costs.runs for costs in read_costs(elsewhere, [place])) >= 32


def test_an_archive_can_be_learned_from(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    directory = tmp_path / "results" / "small"
    fill(campaign, directory)
    collect(gather(campaign, directory), directory / "tables")
    path = tmp_path / "small.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for member in sorted(directory.rglob("*")):
            if member.is_file():
                archive.write(member, member.relative_to(directory).as_posix())
    (costs,) = read_costs(Results(tmp_path / "new", "new"), [path])
    assert (costs.campaign, costs.system, costs.runs) == ("small", "bench", 32)


def test_a_place_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="empty: holds no runs to learn from; give an archive"):
        read_costs(Results(tmp_path / "new", "new"), [tmp_path / "empty"])
    with pytest.raises(ConfigError, match=r"torn\.zip: is no archive that can be read"):
        read_costs(Results(tmp_path / "new", "new"), [tmp_path / "torn.zip"])


def test_logs_that_do_not_say_how_long_they_took_cost_nothing(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    results = Results(tmp_path / "results", "small")
    collected = gather(campaign, fill(campaign, results.directory).results)
    records = tuple(record.model_copy(update={"ended": record.started}) for record in collected.records)
    collect(replace(collected, records=records), results.tables)
    (costs,) = from_documents(json.loads((results.tables / COSTS).read_text()))
    assert costs.cells == ()


def test_the_forecast_of_a_lease_outlives_the_process_that_began_it(tmp_path: Path) -> None:
    results = Results(tmp_path, "small")
    forecast = {"runs": 4, "expected_s": 50.0, "low_s": 40.0, "high_s": 60.0, "runs_s": 45.0, "basis": "b"}
    assert begin(results, "l", None) is None
    assert begin(results, "l", forecast) == {**forecast, "resumed": False}
    assert begin(results, "l", {**forecast, "runs": 1}) == {**forecast, "resumed": True}
    end(results, "l")
    assert begin(results, "l", None) is None


def test_a_manifest_tells_forecast_and_actual(tmp_path: Path) -> None:
    results = Results(tmp_path, "small")
    forecast = {
        "runs": 4,
        "expected_s": 50.0,
        "low_s": 40.0,
        "high_s": 60.0,
        "runs_s": 45.0,
        "basis": "b",
        "resumed": False,
        "parts": [{"part": "runs", "expected_s": 40.0, "low_s": 30.0, "high_s": 50.0, "devices": 2.0, "hosts": 1.0}],
    }
    manifests = {
        "a": {
            "lease": "a",
            "configuration": "c",
            "forecast": forecast,
            "actual": {"runs": 4, "uses": 1, "wall_s": 55.0, "parts_s": {"runs": 44.0}},
        },
        "never": {"lease": "never", "forecast": forecast, "actual": {"runs": 0, "uses": 0, "wall_s": None}},
        "older": {"lease": "older"},
    }
    for name, document in manifests.items():
        (results.manifests / name).mkdir(parents=True)
        (results.manifests / name / "x.1.json").write_text(json.dumps(document))
    (row,) = measured_forecasts(results.directory)
    assert (row["lease"], row["expected_s"], row["actual_s"], row["runs"]) == ("a", 50.0, 55.0, 4)
    assert ForecastSaid.model_validate(row).parts[0].actual_s == 44.0


@pytest.mark.parametrize("odd", [{}, [], None, 5, "x"])
@pytest.mark.parametrize(
    "place", [("leases", "lease_id"), ("cells", "cell_id"), ("cells", "shape"), ("leases", "timed")]
)
def test_costs_of_another_form_are_none(place: tuple[str, str], odd: object) -> None:
    cell = CellCost("c", {"hosts": 1}, "w", 1, "fp32", {}, 1, 1, True, 0.0, 0.1)
    whole = Costs("a", "s", (cell,), (LeaseCost("l", {"hosts": 1}, 1, 1.0, 1.0, 1.0, 1.0),)).document()
    assert from_documents(json.loads(json.dumps(whole)))
    many, key = place
    whole[many][0][key] = odd
    found = from_documents(json.loads(json.dumps(whole)))
    assert not found or merged(found * 2)
