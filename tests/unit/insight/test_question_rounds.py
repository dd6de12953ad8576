"""Rounds of a question: chosen by what is known, written once, the same for everybody, and nothing measured twice."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from campaign.archive import check, report_from_archive
from campaign.archive.write import write_archive
from campaign.cli.main import main
from campaign.documents.plan import parse_plan, plan_json
from campaign.documents.record import Store
from campaign.documents.rounds import RoundDocument, Rounds, all_rounds, keep_rounds, kept_rounds
from campaign.errors import ConfigError, RecordError
from campaign.insight import question_rounds
from campaign.insight.question_rounds import next_rounds
from campaign.paths import Results
from campaign.plan.cost.assumption import NOTHING_ASSUMED
from campaign.plan.cost.budget import parse_budget
from campaign.plan.dag import Dag, read_plan
from campaign.plan.lease_plans import plan_digest
from campaign.plan.request import PlanRequest, request_of
from campaign.plan.write import write_plan
from campaign.report import figure
from campaign.report.campaign_summary import summary
from campaign.report.write import draw_figures, render_report, write_recommendation
from campaign.tables.collect import collect, gather, gather_planned, tables_of
from campaign.workloads.synthetic import SyntheticWorkload
from tests.campaign_files import write_files
from tests.measured_rounds import ASSUMED, BEST, CHANGES, asked, measure, open_rounds, two_configurations


@pytest.fixture(autouse=True)
def chooser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_rounds, "decide", two_configurations)


def measured_to_the_end(request: PlanRequest) -> tuple[Dag, list[list[tuple[str, int]]]]:
    """The last DAG of a question, and the runs that each round measured."""
    measured = []
    while True:
        dag = open_rounds(request)
        write_plan(dag.plan, dag.results)
        if dag.plan.rounds[-1].end:
            return dag, measured
        assert dag.plan.is_mid_round
        measured.append(measure(dag))


def test_each_round_measures_what_it_chose_and_the_last_one_says_what_is_known(tmp_path: Path) -> None:
    request = asked(tmp_path)
    dag, measured = measured_to_the_end(request)
    # Two configurations, batch 2, two runs in each composition.
    assert [len(runs) for runs in measured] == [4, 4]
    assert len({*measured[0], *measured[1]}) == 8
    last = dag.plan.rounds[-1]
    assert (last.number, last.end, last.leases, last.seed) == (3, "answered", (), 77)
    assert last.statement == "1x1-fabric is the best, by 8 runs."
    assert {lease.name for lease in dag.plan.leases} == {
        f"1x1-{a}{c}" for a in ("fabric", "local") for c in (".c1", ".c2")
    }
    assert dag.plan.missing == 0
    # What was answered stays so, and is not written again.
    before = {path: path.stat().st_mtime_ns for path in dag.results.questions.rglob("*.json")}
    again = open_rounds(request)
    write_plan(again.plan, again.results)
    assert plan_digest(again.plan) == plan_digest(dag.plan)
    assert {path: path.stat().st_mtime_ns for path in dag.results.questions.rglob("*.json")} == before


def test_nothing_is_written_by_who_only_looks_and_everybody_chooses_the_same(tmp_path: Path) -> None:
    request = asked(tmp_path)
    assert next_rounds(request) == next_rounds(request)
    assert not (tmp_path / "results").exists()
    dag = open_rounds(request)
    write_plan(dag.plan, dag.results)
    # In the middle of a round, whatever was measured of it, the round is the one that was begun.
    half = [path for run in measure(dag)[:2] for path in [Store(dag.results.directory).path(*run)]]
    assert read_plan(request).is_mid_round is False
    for path in half:
        path.unlink()
    assert read_plan(request).is_mid_round
    assert next_rounds(request) == dag.plan.rounds
    assert {str(path) for path in half} == {
        str(Store(dag.results.directory).path(*run)) for run in measure(open_rounds(request))
    }


def test_a_question_is_the_same_however_it_is_spaced(tmp_path: Path) -> None:
    request = asked(tmp_path)
    keep_rounds(Results(request.results, "small"), next_rounds(request))
    for words in ("the best   configuration is known within 5%", " the best configuration is known within 5 % "):
        assert read_plan(replace(request, until=words)).is_mid_round


def test_tables_name_the_question_as_the_reason_of_what_is_not_measured(tmp_path: Path) -> None:
    dag, _ = measured_to_the_end(asked(tmp_path))
    tables = tables_of(gather(dag.campaign, dag.results.directory))
    assert len(tables.cells) == 8
    reasons = tables.cells.set_index(["configuration", "batch"])["missing_reasons"]
    assert reasons["1x2-local", 2] == f"not needed so far to know: {BEST} x6"
    assert reasons["1x1-local", 2] == f"not needed so far to know: {BEST} x2"
    assert [each[-1]["statement"] for each in tables.context["questions"]] == ["1x1-fabric is the best, by 8 runs."]
    planned = tables_of(gather_planned(dag.results.plan_document))
    pd.testing.assert_frame_equal(planned.cells, tables.cells)
    assert planned.context == tables.context
    document = parse_plan(dag.results.plan_document, plan_json(dag.results.plan_document))
    assert len(document.question.left_out) == 6


def test_another_question_starts_from_what_is_measured_and_the_whole_matrix_keeps_everything(tmp_path: Path) -> None:
    request = asked(tmp_path)
    first, _ = measured_to_the_end(request)
    other = replace(request, until="1x1-fabric against 1x1-local is decided within 3 %")
    second, measured = measured_to_the_end(other)
    assert measured == [], "runs of the first question were measured again"
    assert second.plan.rounds[-1].statement == "1x1-fabric is the best, by 8 runs."
    whole = open_rounds(replace(request, until=None))
    write_plan(whole.plan, whole.results)
    assert whole.plan.missing == 48 - 8
    measure(whole)
    tables = tables_of(gather(whole.campaign, whole.results.directory))
    assert (tables.cells["missing_reasons"] == "").all()
    assert [each[0]["question"] for each in tables.context["questions"]] == [BEST, other.until]
    # Measurements were added since, so the statement is made anew.
    assert next_rounds(request)[: len(first.plan.rounds)] == first.plan.rounds
    assert next_rounds(request)[-1].statement == "1x1-fabric is the best, by 48 runs."


def test_another_matrix_is_another_question(tmp_path: Path) -> None:
    measured_to_the_end(asked(tmp_path))
    changed = asked(tmp_path, {"campaign.axes.batch": [1, 2, 4]})
    assert [each.number for each in next_rounds(changed)] == [1]
    part = asked(tmp_path, where="batch == 2")
    assert [each.number for each in next_rounds(part)] == [1]


def test_a_budget_ends_the_rounds_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    whole = next_rounds(asked(tmp_path))[0]
    assert whole.round_device_hours
    assert whole.round_hours
    assert len(whole.leases) == 2
    for unit, cost in (("device-hours", whole.round_device_hours), ("h", whole.round_hours)):
        small = replace(asked(tmp_path / unit), budget=parse_budget(f"{0.7 * cost:.6f} {unit}"))
        dag, measured = measured_to_the_end(small)
        assert [len(runs) for runs in measured] == [2]
        last = dag.plan.rounds[-1]
        assert last.end == "budget"
        assert f"{small.budget} pays for no further lease" in last.statement
        assert next_rounds(small) == dag.plan.rounds
        more = replace(small, budget=parse_budget(f"{3 * cost:.6f} {unit}"))
        assert [each.end for each in next_rounds(more)] == ["", "budget", ""]
    with pytest.raises(ConfigError, match="--budget 1 h: 4 runs of unknown duration"):
        next_rounds(replace(asked(tmp_path), budget=parse_budget("1 h"), assumed=NOTHING_ASSUMED))


@pytest.mark.parametrize(
    ("keys", "changes", "message"),
    [
        (
            {"until": "what is best?"},
            {},
            "1x1-local against 1x2-fabric is decided within 3 %.*workload == .steps. and batch == 1",
        ),
        ({"where": "batch == 1", "until": f"{BEST} for batch == 2"}, {}, "leaves no cell that"),
        ({"where": "host == 'host1'"}, {}, "selects cells by their axes"),
        ({}, {"campaign.protocol.compositions": 1}, r"campaign.yaml:\d+: protocol.*composed once.*`compositions: 3`"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    tmp_path: Path, keys: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        next_rounds(asked(tmp_path, changes, **keys))


def test_a_statement_on_predictions_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyntheticWorkload, "predicts", True)
    dag, _ = measured_to_the_end(asked(tmp_path))
    assert dag.plan.rounds[-1].statement == "Predicted, not measured: 1x1-fabric is the best, by 8 runs."


def test_rounds_survive_being_written_and_those_of_other_histories_are_not_read(tmp_path: Path) -> None:
    dag, _ = measured_to_the_end(asked(tmp_path))
    results, rounds = dag.results, dag.plan.rounds
    last = rounds[-1]
    assert kept_rounds(results, BEST, None, last.matrix) == rounds
    assert list(all_rounds(results)) == [rounds]
    assert isinstance(rounds, Rounds)
    path = next(results.questions.rglob("round-02.json"))
    second = RoundDocument.model_validate_json(path.read_bytes())
    path.write_text(second.model_copy(update={"after": "0" * 20}).model_dump_json())
    assert kept_rounds(results, BEST, None, last.matrix) == rounds[:1]
    path.write_text("{}")
    with pytest.raises(RecordError, match=r"round-02.json: .*remove its directory to ask the question anew"):
        kept_rounds(results, BEST, None, last.matrix)


def test_the_archive_holds_the_rounds_and_its_page_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "figure_names", lambda *arguments: ["memory_frontier"])
    dag, _ = measured_to_the_end(asked(tmp_path))
    results = dag.results
    collect(gather_planned(results.plan_document), results.tables)
    draw_figures(results.tables, results.figures)
    write_recommendation(results.tables, results.recommendation)
    render_report(results.tables, results.figures, results.report)
    page = results.report.read_text()
    assert "1x1-fabric is the best, by 8 runs." in page
    assert "composition 2 of the two candidates" in page
    said = summary(results.directory)
    assert (
        f"Until {BEST}: answered\n  1x1-fabric is the best, by 8 runs.\n  Either may be.\n  Two compositions of each.\n"
        "  4 of 12 leases" in said
    )
    written = write_archive(dag.campaign, results.directory, tmp_path / "a.zip")
    assert check(written.path)[1] == []
    report_from_archive(written.path, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page
    # Made anew from what an older archive has beside these results, its tables say the same.
    cells = (results.tables / "cells.csv").read_bytes()
    next(results.records.glob("*/*.json")).unlink()
    again = write_archive(dag.campaign, results.directory, written.path)
    assert len(again.kept) == 1
    with zipfile.ZipFile(again.path) as archive:
        assert archive.read("tables/cells.csv") == cells


def test_snakemake_is_asked_a_question() -> None:
    found = request_of({"question": BEST})
    assert found.until == BEST
    assert f"--until={BEST}" in found.arguments()
    assert request_of({}).until is None


def test_the_plan_and_the_status_show_what_is_known_and_chosen(tmp_path: Path) -> None:
    asked_for = asked(tmp_path)
    given = [str(asked_for.campaign), f"--results={asked_for.results}"]

    def said(*arguments: str) -> str:
        told = CliRunner().invoke(main, [arguments[0], *given, *arguments[1:]])
        assert told.exit_code == 0, told.output
        return " ".join(told.output.split())

    assumed = f"--assume={ASSUMED.text}"
    words = said("plan", "--until", BEST, assumed)
    assert "round 1: 2 leases (" in words
    assert "composition 1 of the two candidates" in words
    assert "later rounds depend on its results" in words
    assert "all cells that it is about: 0." in words
    assert not asked_for.results.exists()
    said("plan", "--until", BEST, assumed, "--write")
    words = said("status")
    assert f"0 of 4 runs of the part that was asked for last (until {BEST}; --all" in words
    assert f"until {BEST}: not answered yet, in round 1; 0 of 12 leases measured" in words
    dag, _ = measured_to_the_end(asked_for)
    words = said("status")
    assert "answered; 4 of 12 leases measured" in words
    assert "1x1-fabric is the best, by 8 runs. Either may be. Two compositions of each." in words
    assert json.loads(dag.results.plan_document.read_text())["question"]["end"] == "answered"
    # A campaign that was changed since has other cells: its status is that of all of them.
    write_files(tmp_path, {**CHANGES, "campaign.axes.batch": [1, 2, 4]})
    assert "of 72 runs" in said("status")
