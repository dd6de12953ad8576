"""What a budget pays for: whole compositions, in the order of the plan, and never more than it has."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.config.resolve import Campaign
from campaign.documents.run_numbers import runs_of
from campaign.errors import ConfigError
from campaign.paths import Results
from campaign.plan.cost.assumption import NOTHING_ASSUMED, parse_assumption
from campaign.plan.cost.budget import Budget, kept_choice, parse_budget
from campaign.plan.dag import Dag, read_plan
from campaign.plan.plan import Plan
from campaign.plan.request import PlanRequest, request_of
from campaign.plan.write import write_plan
from campaign.tables.collect import gather, gather_planned, tables_of
from tests.campaign_files import load, write_files
from tests.campaign_records import fill


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500 device-hours", Budget(500, "device-hours")),
        ("0.5device-hour", Budget(0.5, "device-hours")),
        (" 8 h ", Budget(8, "h")),
        ("2.5 hours", Budget(2.5, "h")),
    ],
)
def test_a_budget_has_an_amount_and_a_unit(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget
    assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize("text", ["", "5", "h", "-1 h", "0 h", "5 days", "1e3 h", "nan h"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match="is no budget; write a positive number and its unit: '500 device-hours', or '8 h'"
    ):
        parse_budget(text)


# --- on a results directory ------------------------------------------------------------------------------------------------


ASSUMED = parse_assumption("10 s a run, 5 s to compose")
THREE = {"campaign.protocol.compositions": 3, "campaign.protocol.repetitions": 6}


def asked(path: Path, budget: str) -> PlanRequest:
    return PlanRequest(path, path.parent / "results", budget=parse_budget(budget), assumed=ASSUMED)


def test_a_budget_is_refused_where_costs_are_unknown(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"32 runs of unknown duration .* 2 leases of unknown .*--assume '10 min a run, 1 min to compose'",
    ):
        read_plan(replace(asked(path, "1 device-hours"), assumed=NOTHING_ASSUMED))
    with pytest.raises(ConfigError, match=r"2 leases of unknown composition time, so .*--assume '1 min to compose'"):
        read_plan(replace(asked(path, "1 device-hours"), assumed=parse_assumption("1 s a run")))


def spent(plan: Plan, unit: str) -> float:
    return (plan.device_hours if unit == "device-hours" else (plan.wall_s or 0.0) / 3600) or 0.0


def recorded(campaign: Campaign, results: Results, runs: set[tuple[str, int]]) -> None:
    store = fill(campaign, results.directory)
    for key in store.index() - runs:
        store.path(*key).unlink()


@pytest.mark.parametrize("isolation", ["machine", "host"])
def test_a_budget_pays_for_whole_compositions_in_order(tmp_path: Path, isolation: str) -> None:
    path = write_files(tmp_path, {**THREE, "campaign.protocol.isolation": isolation})
    whole = read_plan(PlanRequest(path, tmp_path / "results", assumed=ASSUMED))
    one_third = [lease.name for lease in whole.leases if lease.composition == 1]
    for unit in ("device-hours", "h"):
        for share, blocks in ((0.5, 1), (0.9, 2), (1.0, 3), (5.0, 3)):
            plan = read_plan(asked(path, f"{spent(whole, unit) * share + 1e-6:.7f} {unit}"))
            assert plan.budget is not None
            assert plan.budget.compositions == blocks
            assert [lease.name for lease in plan.leases] == [
                lease.name for lease in whole.leases if lease.composition <= blocks
            ]
            assert plan.missing == plan.budget.runs == whole.missing - plan.budget.runs_left_out
            assert spent(plan, unit) == pytest.approx(plan.budget.cost, rel=1e-4)
            assert plan.budget.cost <= spent(whole, unit) * share + 1e-6
            assert (plan.budget.next_cost is None) == (blocks == 3)
            if plan.budget.next_cost is not None:
                assert plan.budget.cost + plan.budget.next_cost > spent(whole, unit) * share
    assert len(one_third) * 3 == len(whole.leases)
    assert not (tmp_path / "results").exists()


def test_a_budget_for_no_composition_is_refused_with_what_one_costs(tmp_path: Path) -> None:
    path = write_files(tmp_path, THREE)
    whole = read_plan(PlanRequest(path, tmp_path / "results", assumed=ASSUMED))
    words = (
        f"pays for no composition of all configurations; composition 1 of 3 costs {spent(whole, 'h') / 3:.3g} h. Raise"
    )
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_plan(asked(path, f"{spent(whole, 'h') / 4:.6f} h"))


def test_what_is_paid_is_kept_from_the_first_run_on(tmp_path: Path) -> None:
    path = write_files(tmp_path, THREE)
    whole = spent(read_plan(PlanRequest(path, tmp_path / "results", assumed=ASSUMED)), "h")
    half = asked(path, f"{whole / 2:.6f} h")
    first = Dag(half, read_plan(half))
    write_plan(first.plan, first.results)
    chosen = first.plan.budget
    assert chosen is not None
    assert kept_choice(first.results.budget) == chosen
    # What was measured meanwhile costs nothing any more, and changes nothing of what is left to do.
    recorded(first.campaign, first.results, {(cell.id, 1) for _, cell in first.plan.cells})
    again = read_plan(half)
    assert again.budget == chosen
    assert [lease.name for lease in again.leases] == [lease.name for lease in first.plan.leases]
    assert again.missing < first.plan.missing
    other = read_plan(asked(path, f"{whole:.6f} h"))
    assert other.budget != chosen
    write_plan(read_plan(PlanRequest(path, tmp_path / "results")), first.results)
    assert kept_choice(first.results.budget) is None
    write_plan(first.plan, first.results)
    changed = replace(half, campaign=write_files(tmp_path, {**THREE, "campaign.axes.batch": [1]}))
    assert read_plan(changed).budget != chosen


def test_runs_with_a_record_are_free_and_stay(tmp_path: Path) -> None:
    path = write_files(tmp_path, THREE)
    whole = read_plan(PlanRequest(path, tmp_path / "results", assumed=ASSUMED))
    last = {(cell.id, run) for lease, cell in whole.cells if lease.composition == 3 for run in runs_of(cell.settings)}
    recorded(load(tmp_path, THREE), Results(tmp_path / "results", "small"), last)
    plan = read_plan(replace(asked(path, f"{spent(whole, 'h') / 2:.6f} h"), assumed=ASSUMED))
    assert plan.budget is not None
    assert plan.budget.compositions == 1
    assert {lease.composition for lease in plan.leases} == {1, 3}
    assert plan.missing == plan.budget.runs


def test_the_report_says_what_the_budget_left_out(tmp_path: Path) -> None:
    path = write_files(tmp_path, THREE)
    half = asked(path, f"{spent(read_plan(PlanRequest(path, tmp_path / 'results', assumed=ASSUMED)), 'h') / 2:.6f} h")
    dag = Dag(half, read_plan(half))
    write_plan(dag.plan, dag.results)
    assert dag.plan.budget is not None
    tables = tables_of(gather(dag.campaign, dag.results.directory))
    assert set(tables.cells["missing_reasons"]) == {f"not measured yet x2, {dag.plan.budget.why} x4"}
    # The plan's documents say the same, without the campaign and what else was kept beside them.
    dag.results.budget.unlink()
    planned = tables_of(gather_planned(dag.results.plan_document))
    pd.testing.assert_frame_equal(planned.cells, tables.cells)
    assert planned.context["excluded"] == tables.context["excluded"]
    told = CliRunner().invoke(main, ["plan", *half.arguments()])
    assert told.exit_code == 0, told.output
    words = " ".join(told.output.split())
    assert f"{half.budget} pay for 1 composition of each configuration: {dag.plan.budget.runs} runs for" in words
    assert f"runs left out by the budget of {half.budget}; one composition more would cost" in words


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"schema_version": "budget/1", "limits": {}}', b'{"schema_version": "budget/2"}']
)
def test_a_damaged_choice_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "budget.json").write_bytes(content)
    assert kept_choice(tmp_path / "budget.json") is None


def test_snakemake_is_asked_for_a_budget(tmp_path: Path) -> None:
    found = request_of(
        {"budget": "5 device-hours", "learn_from": "a.zip,b", "assume": {"bert": "1 h a run, 5 s to compose"}}
    )
    assert found.assumed == parse_assumption("bert: 1 h a run, 5 s to compose")
    assert "--assume=bert: 1 h a run, 5 s to compose" in found.arguments()
    assert found.budget == Budget(5, "device-hours")
    assert found.learn_from == (Path("a.zip"), Path("b"))
    assert "--budget=5 device-hours" in found.arguments()
    assert request_of({}).budget is None
