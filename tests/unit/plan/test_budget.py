"""What a budget pays for: never more than it has, and the more the better."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.cli.main import main
from campaign.documents.cell import Cell, Configuration
from campaign.errors import ConfigError
from campaign.plan.cost.assumption import NOTHING_ASSUMED, parse_assumption
from campaign.plan.cost.budget import (
    Budget,
    Choice,
    choose,
    from_document,
    kept_choice,
    limited,
    parse_budget,
)
from campaign.plan.cost.estimates import Prices, Work
from campaign.plan.cost.ranking import Design, Offer
from campaign.plan.dag import Dag, Request, read_plan, request
from campaign.plan.matrix import expand
from campaign.plan.write import write_plan
from campaign.tables.collect import gather, gather_planned, tables_of
from tests.campaign_files import load, write_files
from tests.campaign_records import fill

AXES = ("workload", "batch", "precision", "devices_per_host", "attach", "configuration")


@cache
def offer(unit: str = "device-hours") -> Offer:
    """24 cells in four leases; a run costs 10 s a device, bert ten times that, composing a lease 60 s."""
    shapes = [
        Configuration(f"{n}-{a}", 1, n, n if a == "local" else 0, n, "gpu", a, "local")  # type: ignore[arg-type]
        for n in (1, 4)
        for a in ("local", "fabric")
    ]
    cells = [
        Cell(f"{s.name}.{w}.{b}.{p}", s, w, b, p)
        for s in shapes
        for w, b, p in (("bert", 1, "fp32"), ("bert", 8, "fp32"), ("bert", 8, "fp16"), ("yolo", 1, "fp32"), ("yolo", 8, "fp32"),
                        ("yolo", 1, "fp16"))
    ]  # fmt: skip
    works = [Work(s.name, s, [(c, 3) for c in cells if c.configuration is s], s.attach == "fabric") for s in shapes]
    prices = Prices(
        tuple(60.0 for _ in works),
        tuple(tuple(100.0 if cell.workload == "bert" else 10.0 for cell, _ in work.runs) for work in works),
    )
    weights = [(shape.devices if unit == "device-hours" else 1) / 3600 for shape in shapes]
    missing = {cell.id: [1, 2, 3] for cell in cells}

    def value(seconds: Any) -> float:
        return sum(w * s for w, s in zip(weights, seconds, strict=True))

    return Offer(cells, AXES, {}, missing, works, prices, value, weights)


def test_runs_on_several_compositions_tell_more_than_runs_on_one() -> None:
    def bits(compositions: int, runs: int) -> float:
        cells = [replace(c, settings=replace(c.settings, compositions=compositions)) for c in offer().cells]
        return Design(replace(offer(), cells=cells)).bits({cell.id: runs for cell in cells})

    assert bits(3, 1) == bits(1, 1)
    assert bits(1, 3) < bits(2, 3) < bits(3, 3)
    # A fourth run has no composition of its own.
    assert bits(3, 4) - bits(3, 3) < bits(3, 3) - bits(3, 2)


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


@given(st.floats(0.05, 12.0), st.floats(1.0, 3.0), st.sampled_from(["device-hours", "h"]))
@settings(max_examples=25, deadline=None)
def test_a_budget_is_kept_and_more_tells_more(amount: float, more: float, unit: Any) -> None:
    there = offer(unit)
    small, large = (choose(Budget(a, unit), there) for a in (amount, amount * more))
    assert small.cost <= amount
    assert large.cost <= amount * more
    assert small.limits.items() <= {name: small.limits[name] for name in large.limits if name in small.limits}.items()
    assert all(large.limits[name] >= count for name, count in small.limits.items())
    assert small.bits_before <= small.bits <= large.bits <= large.bits_of_all
    assert small.runs + small.runs_left_out == 72
    assert (small.next_cost is None) == (small.runs_left_out == 0)
    if small.next_cost is not None:
        assert small.cost + small.next_cost > amount


def test_every_level_is_covered_before_anything_is_repeated() -> None:
    everything = choose(Budget(1000, "device-hours"), offer())
    assert everything.runs_left_out == everything.cells_left_out == 0
    assert everything.limits == {cell.id: 3 for cell in offer().cells}
    assert everything.bits == everything.bits_of_all
    for amount in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        few = choose(Budget(amount, "device-hours"), offer())
        covered = all(axis.covered == axis.levels for axis in few.axes)
        assert covered or set(few.limits.values()) == {1}
    assert covered
    # bert runs cost ten times as much as those of yolo, which tell as much.
    count = {w: sum(w in name for name in few.limits) for w in ("bert", "yolo")}
    assert count["yolo"] > count["bert"] > 0


def test_errors_shrink_as_more_is_measured() -> None:
    few, many = (choose(Budget(amount, "device-hours"), offer()) for amount in (0.6, 3))
    for before, after in zip(few.axes, many.axes, strict=True):
        assert before.error_pct is not None
        assert after.error_pct is not None
        assert after.error_pct <= before.error_pct + 1e-9


def test_a_budget_for_no_run_is_refused_with_what_one_costs() -> None:
    with pytest.raises(ConfigError, match=r"pays for no run; the first one to measure needs 0\.0194 device-hours"):
        choose(Budget(0.01, "device-hours"), offer())


def test_limits_leave_cells_with_fewer_repetitions(tmp_path: Path) -> None:
    cells = expand(load(tmp_path)).cells
    kept = limited(cells, {cells[0].id: 1, cells[1].id: 9, "unknown": 1})
    assert [(cell.id, cell.settings.repetitions) for cell in kept] == [(cells[0].id, 1), (cells[1].id, 2)]


# --- on a results directory ------------------------------------------------------------------------------------------------


ASSUMED = parse_assumption("10 s a run, 5 s to compose")


def asked(path: Path, budget: str) -> Request:
    return Request(path, path.parent / "results", budget=parse_budget(budget), assumed=ASSUMED)


def test_a_budget_is_refused_where_costs_are_unknown(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"32 runs of unknown duration .* 2 leases of unknown .*--assume '10 min a run, 1 min to compose'",
    ):
        read_plan(replace(asked(path, "1 device-hours"), assumed=NOTHING_ASSUMED))
    with pytest.raises(ConfigError, match=r"2 leases of unknown composition time, so .*--assume '1 min to compose'"):
        read_plan(replace(asked(path, "1 device-hours"), assumed=parse_assumption("1 s a run")))


def test_the_plan_is_what_the_budget_pays_for(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    whole = read_plan(Request(path, tmp_path / "results", assumed=ASSUMED))
    assert whole.device_hours is not None
    assert whole.wall_s is not None
    for share in (0.2, 0.5, 0.8):
        for unit, amount in (("device-hours", whole.device_hours * share), ("h", whole.wall_s / 3600 * share)):
            plan = read_plan(asked(path, f"{amount:.6f} {unit}"))
            assert plan.budget is not None
            assert plan.wall_s is not None
            spent = plan.device_hours if unit == "device-hours" else plan.wall_s / 3600
            assert spent == pytest.approx(plan.budget.cost)
            assert spent <= amount
            assert plan.missing == plan.budget.runs < whole.missing
    assert not (tmp_path / "results").exists()


def test_a_part_is_not_charged_as_if_all_were_composed(tmp_path: Path) -> None:
    """Devices stay attached from lease to lease; a lease that is left out leaves none for the next one."""
    changes = {
        "system.fabric.times": "h3",
        "campaign.configurations": [{"devices_per_host": [1, 2, 3, 4], "attach": "fabric"}],
        "campaign.protocol.compositions": 3,
        "campaign.protocol.repetitions": 6,
    }
    path, assumed = write_files(tmp_path, changes), parse_assumption("1 s a run")
    whole = read_plan(Request(path, tmp_path / "results", assumed=assumed))
    assert whole.device_hours
    assert whole.wall_s
    for share in (0.1, 0.4, 0.5, 0.7):
        for unit, amount in (("device-hours", whole.device_hours * share), ("h", whole.wall_s / 3600 * share)):
            plan = read_plan(replace(asked(path, f"{amount:.6f} {unit}"), assumed=assumed))
            assert plan.budget
            assert plan.budget.runs == plan.missing > 0
            spent = plan.device_hours if unit == "device-hours" else (plan.wall_s or 0) / 3600
            assert spent == pytest.approx(plan.budget.cost)
            assert plan.budget.cost <= amount * 1.00001


def test_a_choice_is_kept_from_the_first_run_on(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    first = Dag(asked(path, "0.05 device-hours"), read_plan(asked(path, "0.05 device-hours")))
    write_plan(first.plan, first.results)
    chosen = first.plan.budget
    assert chosen is not None
    assert kept_choice(first.results.budget) == chosen
    # What was measured meanwhile costs nothing any more, and changes nothing of what is left to do.
    fill(first.campaign, first.results.directory, share=0.3)
    again = read_plan(asked(path, "0.05 device-hours"))
    assert again.budget == chosen
    assert {cell.id for _, cell in again.cells} == {cell.id for _, cell in first.plan.cells}
    other = read_plan(asked(path, "0.1 device-hours"))
    assert other.budget != chosen
    everything = Request(path, tmp_path / "results")
    write_plan(read_plan(everything), first.results)
    assert kept_choice(first.results.budget) is None
    write_plan(first.plan, first.results)
    changed = write_files(tmp_path, {"campaign.axes.batch": [1, 2, 3]})
    assert read_plan(asked(changed, "0.05 device-hours")).budget != chosen


def test_runs_with_a_record_are_free_and_stay(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    fill(load(tmp_path), tmp_path / "results" / "small", share=0.5)
    whole, plan = read_plan(Request(path, tmp_path / "results")), read_plan(asked(path, "0.01 device-hours"))
    assert plan.budget is not None
    assert 0 < plan.missing < whole.missing
    recorded = {cell.id for lease in whole.leases for cell in lease.cells if not lease.missing}
    assert recorded <= {cell.id for _, cell in plan.cells}
    assert plan.budget.bits > plan.budget.bits_before > 0


def test_the_report_says_what_the_budget_left_out(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    dag = Dag(asked(path, "0.05 device-hours"), read_plan(asked(path, "0.05 device-hours")))
    write_plan(dag.plan, dag.results)
    assert dag.plan.budget is not None
    tables = tables_of(gather(dag.campaign, dag.results.directory))
    reasons = dict(zip(tables.cells["cell_id"], tables.cells["missing_reasons"], strict=True))
    left = {name for name, why in reasons.items() if why == "left out by the budget of 0.05 device-hours x2"}
    assert left == set(reasons) - set(dag.plan.budget.limits)
    assert len(left) == dag.plan.budget.cells_left_out > 0
    # The plan's documents say the same, without the campaign and what else was kept beside them.
    dag.results.budget.unlink()
    planned = tables_of(gather_planned(dag.results.plan_document))
    pd.testing.assert_frame_equal(planned.cells, tables.cells)
    assert planned.context["excluded"] == tables.context["excluded"]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"schema_version": "budget/1"}', b'{"schema_version": "budget/2"}'])
def test_a_damaged_choice_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "budget.json").write_bytes(content)
    assert kept_choice(tmp_path / "budget.json") is None


def test_a_choice_survives_being_written_down() -> None:
    chosen = choose(Budget(1, "device-hours"), offer())
    assert isinstance(chosen, Choice)
    assert from_document(json.loads(json.dumps(chosen.document()))) == chosen


def test_snakemake_is_asked_for_a_budget(tmp_path: Path) -> None:
    found = request(
        {"budget": "5 device-hours", "learn_from": "a.zip,b", "assume": {"bert": "1 h a run, 5 s to compose"}}
    )
    assert found.assumed == parse_assumption("bert: 1 h a run, 5 s to compose")
    assert "--assume=bert: 1 h a run, 5 s to compose" in found.arguments()
    assert found.budget == Budget(5, "device-hours")
    assert found.learn_from == (Path("a.zip"), Path("b"))
    assert "--budget=5 device-hours" in found.arguments()
    assert request({}).budget is None


def test_the_plan_shows_what_is_learned_and_left_out(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    told = CliRunner().invoke(
        main,
        ["plan", str(path), f"--results={tmp_path / 'results'}", "--budget=0.05 device-hours", f"--assume={ASSUMED}"],
    )
    assert told.exit_code == 0, told.output
    words = " ".join(told.output.split())
    assert "What 0.05 device-hours pay for" in words
    assert "left out by the budget of 0.05 device-hours" in words
    assert "of what the whole matrix would tell" in words
