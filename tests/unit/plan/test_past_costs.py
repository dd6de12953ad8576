"""What earlier runs and leases took: measured, written down, and found again."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.analysis.tables.collect import read_campaign_results, read_planned_results, write_campaign_tables
from campaign.common.errors import ConfigError
from campaign.common.paths import ROOT, Results
from campaign.plan.dag import read_plan
from campaign.plan.past_costs import (
    COSTS,
    CampaignCosts,
    CellCost,
    LeaseCost,
    RunSpan,
    begin_forecast,
    compute_forecast_ratios,
    end_forecast,
    measure_costs,
    merge_costs,
    parse_costs,
    read_costs,
    read_measured_forecasts,
)
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.report.context_schema import ForecastOutcome
from campaign.spec.cell import Configuration
from campaign.spec.earlier_spread import EarlierSpread, read_spreads
from tests.campaign_files import load, write_files
from tests.campaign_records import fill

SHAPE = {
    "hosts": 1, "devices_per_host": 2, "local_devices_per_host": 0, "devices_used": 2, "device": "cpu-rank",
    "attach": "fabric", "storage": "local",
}  # fmt: skip
CONFIGURATION = Configuration("", **SHAPE)  # type: ignore[arg-type]
EMPTY = CampaignCosts("small", "bench", fabric="simulated")
FORECAST = {"runs": 4, "expected_s": 50.0, "low_s": 40.0, "high_s": 60.0, "runs_s": 45.0, "basis": "b"}


def some(campaign: str = "a", system: str = "bench", runs: int = 2, cell_id: str = "c1") -> CampaignCosts:
    cell = CellCost(cell_id, SHAPE, "steps", runs, True, (2.0,) * runs)
    return CampaignCosts(campaign, system, (cell,), (LeaseCost("l.1", SHAPE, runs, 3.0, 1.0, 8.0, 0.5, off=1.5),))


def test_costs_survive_being_written_down() -> None:
    assert parse_costs(json.loads(json.dumps(some().to_document()))) == [some()]


def test_costs_of_earlier_versions_tell_the_mean_of_the_logarithm() -> None:
    cell = {
        "cell_id": "c1", "shape": SHAPE, "workload": "steps", "batch": 4, "precision": "fp32", "options": {}, "steps": 4,
        "runs": 2, "believed": True, "mean_log_s": 0.6931471805599453, "sd_log_s": 0.1, "flops": 1.0,
    }  # fmt: skip
    use = {**some().to_document()["leases"][0], "timed": [{"of": "composing", "seconds": 1.0, "rows": []}]}
    (costs,) = parse_costs(
        {"campaign": "a", "system": "s", "cells": [cell], "leases": [use], "schema_version": "costs/1"}
    )
    assert costs.cells[0].seconds == pytest.approx((2.0, 2.0))
    assert costs.leases[0].compose_s == 3.0


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "costs/0"},
        {"cells": [{}]},
        {"leases": 3},
        {"cells": [{**some().to_document()["cells"][0], "run_s": [0.0]}]},
        {"cells": [{**some().to_document()["cells"][0], "mean_log_s": None}]},
        {"leases": [{**some().to_document()["leases"][0], "compose_s": "x"}]},
        {"leases": [{**some().to_document()["leases"][0], "off": -1}]},
    ],
)
def test_damaged_costs_are_left_out(change: dict[str, Any], tmp_path: Path) -> None:
    document = {**some().to_document(), **change}
    assert parse_costs(document) == []
    results = Results(tmp_path, "small")
    for path in (results.tables / COSTS, results.manifests / "l" / "x.1.json"):
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"lease": "l", "costs": document}))
    assert read_costs(results) == []


@pytest.mark.parametrize("odd", [{}, [], None, 5, "x"])
@pytest.mark.parametrize("place", [("leases", "lease_id"), ("cells", "cell_id"), ("cells", "shape")])
def test_costs_of_another_form_are_left_out(place: tuple[str, str], odd: object) -> None:
    document = json.loads(json.dumps(some().to_document()))
    assert parse_costs(document)
    many, key = place
    document[many][0][key] = odd
    found = parse_costs(document)
    assert not found or merge_costs(found * 2)


USE = {
    "lease_id": "l.1", "requested": {"name": "x", **SHAPE}, "requested_s": 100.0, "ready_s": 107.0, "released_s": 140.0,
}  # fmt: skip
SPANS = [RunSpan("a", 110.0, 115.0, True), RunSpan("b", 117.0, 127.0, False), RunSpan("a", 131.0, 138.0, True)]
CELLS = {"a": ("steps", CONFIGURATION), "b": ("other", CONFIGURATION), "never": ("steps", CONFIGURATION)}


def test_a_lease_costs_what_is_not_a_run() -> None:
    costs = measure_costs(EMPTY, CELLS, SPANS, [USE], {"l.1": 1.25})
    assert costs.leases == (LeaseCost("l.1", SHAPE, 3, 7.0, 3.0, 3.0, 2.0, off=1.25),)
    assert [(each.cell_id, each.workload, each.run_s, each.believed) for each in costs.cells] == [
        ("a", "steps", (5.0, 7.0), True), ("b", "other", (10.0,), False),
    ]  # fmt: skip
    (queued,) = measure_costs(EMPTY, CELLS, SPANS, [{**USE, "driver_began_s": 109.0}]).leases
    assert (queued.queue_s, queued.start_s) == (2.0, 1.0)
    # Slurm put the job back into the queue after the first run.
    (again,) = measure_costs(EMPTY, CELLS, SPANS, [{**USE, "driver_began_s": 125.0}]).leases
    assert (again.queue_s, again.start_s) == (3.0, 0.0)
    assert measure_costs(EMPTY, CELLS, SPANS, [{**USE, "ready_s": None}]).leases == ()
    assert measure_costs(EMPTY, CELLS, [], [USE]).leases == ()


def test_what_was_just_measured_is_told_apart_by_use_of_the_lease() -> None:
    uses = [
        {"lease_id": f"l.{n}", "requested": SHAPE, "requested_s": t, "ready_s": t + 1, "released_s": t + 50}
        for n, t in ((1, 0.0), (2, 100.0))
    ]
    spans = [RunSpan("a", 2.0, 4.0, True), RunSpan("a", 103.0, 105.0, True), RunSpan("unknown", 106.0, 107.0, True)]
    found = measure_costs(EMPTY, CELLS, spans, uses)
    assert [(each.lease_id, each.runs, each.start_s) for each in found.leases] == [("l.1", 1, 1.0), ("l.2", 2, 2.0)]


def test_costs_beside_a_campaign_file_count_until_a_cell_is_measured_here(tmp_path: Path) -> None:
    campaign = tmp_path / "small.yaml"
    shipped = replace(some(), campaign="small, as shipped", leases=())
    campaign.with_suffix(".costs.json").write_text(json.dumps(shipped.to_document()))
    results = Results(tmp_path / "results", "small")
    assert read_costs(results, campaign=campaign) == [shipped]
    here = replace(some(), leases=())
    (results.tables / COSTS).parent.mkdir(parents=True)
    (results.tables / COSTS).write_text(json.dumps(here.to_document()))
    assert read_costs(results, campaign=campaign) == [here]


def test_the_default_campaign_ships_what_its_runs_take(tmp_path: Path) -> None:
    plan = read_plan(PlanRequest(ROOT / "config" / "campaign.yaml", tmp_path))
    assert not plan.unknown
    assert plan.wall_s is not None
    # Three minutes on two cores; a machine with more measures more leases at a time.
    assert 30 < plan.wall_s < 200
    assert {lease.expected.basis for lease in plan.leases} == {"earlier runs of these cells"}, "ship those of its cells"


def test_every_cell_and_every_use_counts_once() -> None:
    told = merge_costs([some(runs=2), some(runs=5), some("b", cell_id="c2")])
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
        (Results(tmp_path, name).tables / COSTS).write_text(json.dumps(costs.to_document()))
    plan = read_plan(PlanRequest(write_files(tmp_path / "files"), tmp_path))
    assert plan.earlier == (told,)
    results = Results(tmp_path, "small")
    write_plan(plan, results)
    assert read_spreads(results.earlier_spread_file) == (told,)
    write_plan(replace(plan, earlier=()), results)
    assert not results.earlier_spread_file.exists()
    results.earlier_spread_file.write_text('{"schema_version": "earlier-spread/1", "spreads": [{"campaign": 3}]}')
    assert read_spreads(results.earlier_spread_file) == ()


def test_costs_are_gathered_below_the_root_and_from_what_is_named(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    results = Results(tmp_path / "results", "small")
    fill(campaign, results.directory)
    write_campaign_tables(read_campaign_results(campaign, results.directory), results.tables)
    (own,) = read_costs(results)
    assert sum(cell.runs for cell in own.cells) == 32
    # Of another campaign, whose tables were never made, the manifests tell.
    other = Results(tmp_path / "results", "other")
    (other.manifests / "l").mkdir(parents=True)
    manifest = {"lease": "l", "costs": some("other", runs=3, cell_id="c9").to_document()}
    (other.manifests / "l" / "x.1.json").write_text(json.dumps(manifest))
    assert [costs.campaign for costs in read_costs(results)] == ["small", "other"]
    elsewhere = Results(tmp_path / "elsewhere", "new")
    assert read_costs(elsewhere) == []
    archive = tmp_path / "small.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(results.tables / COSTS, "tables/costs.json")
    for place in (results.directory, results.root, archive):
        assert sum(cell.runs for costs in read_costs(elsewhere, [place]) for cell in costs.cells) >= 32


def test_a_place_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="empty: there are no runs to learn from; name an archive"):
        read_costs(Results(tmp_path / "new", "new"), [tmp_path / "empty"])
    with pytest.raises(ConfigError, match=r"torn\.zip: this archive cannot be read"):
        read_costs(Results(tmp_path / "new", "new"), [tmp_path / "torn.zip"])


def test_logs_that_do_not_say_how_long_they_took_cost_nothing(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    results = Results(tmp_path / "results", "small")
    collected = read_campaign_results(campaign, fill(campaign, results.directory).results)
    records = tuple(record.model_copy(update={"ended": record.started}) for record in collected.records)
    write_campaign_tables(replace(collected, records=records), results.tables)
    (costs,) = parse_costs(json.loads((results.tables / COSTS).read_text()))
    assert costs.cells == ()


def test_the_forecast_of_a_lease_outlives_the_process_that_began_it(tmp_path: Path) -> None:
    results = Results(tmp_path, "small")
    assert begin_forecast(results, "l", None) is None
    assert begin_forecast(results, "l", FORECAST) == {**FORECAST, "resumed": False}
    assert begin_forecast(results, "l", {**FORECAST, "runs": 1}) == {**FORECAST, "resumed": True}
    end_forecast(results, "l")
    assert begin_forecast(results, "l", None) is None


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "lease": "a", "configuration": "c", "uses": ["l.1"], "forecast": {**FORECAST, "resumed": False},
        "actual": {"runs": 4, "uses": 1, "wall_s": 55.0}, **changes,
    }  # fmt: skip


def test_a_manifest_tells_forecast_and_actual(tmp_path: Path) -> None:
    results = Results(tmp_path, "small")
    never = manifest(lease="never", actual={"runs": 0, "uses": 0, "wall_s": None})
    for name, document in {
        "a": manifest(costs=some().to_document()),
        "never": never,
        "older": {"lease": "older"},
    }.items():
        (results.manifests / name).mkdir(parents=True)
        (results.manifests / name / "x.1.json").write_text(json.dumps(document))
    (row,) = read_measured_forecasts(results.directory)
    assert (row["lease"], row["expected_s"], row["actual_s"], row["runs"]) == ("a", 50.0, 55.0, 4)
    assert ForecastOutcome.model_validate({**row, "parts": []}).actual_s == 55.0
    (costs,) = read_costs(results)
    assert costs.leases[0].off == 1.1


@pytest.mark.parametrize(
    "change",
    [
        {"actual": {"runs": 3, "uses": 1, "wall_s": 55.0}},
        {"actual": {"runs": 4, "uses": 1, "wall_s": None}},
        {"uses": ["l.1", "l.2"]},
        {"forecast": {**FORECAST, "resumed": True}},
        {"forecast": {**FORECAST, "expected_s": None, "resumed": False}},
        {"forecast": {**FORECAST, "resumed": False, "parts": []}},  # by an earlier version
        {"forecast": None},
    ],
)
def test_only_what_was_forecast_by_medians_and_measured_in_one_go_tells_how_far_forecasts_are_off(change: Any) -> None:
    assert compute_forecast_ratios([manifest()]) == {"l.1": 1.1}
    assert compute_forecast_ratios([manifest(**change)]) == {}


def test_results_of_versions_with_questions_and_budgets_still_open(tmp_path: Path) -> None:
    """Their plan leaves out leases that nobody chose, though it lists their cells."""
    campaign = load(tmp_path)
    results = Results(tmp_path / "results", campaign.name)
    fill(campaign, results.directory)
    write_plan(read_plan(PlanRequest(tmp_path / "campaign.yaml", results.root)), results)
    whole = json.loads(results.plan_file.read_text())
    chosen = {"budget": None, "question": {"key": "1", "left_out": []}, "leases": whole["leases"][1:]}
    totals = {**whole["totals"], "parts": [], "assumed": ""}
    results.plan_file.write_text(json.dumps({**whole, **chosen, "totals": totals}))
    assert (
        read_planned_results(results.plan_file).matrix.cells
        == read_campaign_results(campaign, results.directory).matrix.cells
    )
    read_plan(PlanRequest(tmp_path / "campaign.yaml", results.root))
