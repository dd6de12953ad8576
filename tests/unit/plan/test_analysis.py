"""The analysis as it was written before the first run: what replaces it, what stands beside it, and what a reader is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.analysis.tables.collect import build_tables, read_campaign_results
from campaign.common.paths import Results
from campaign.plan import analysis
from campaign.plan.campaign.resolve import Campaign, campaign_from_document
from campaign.plan.dag import read_plan
from campaign.plan.matrix import expand_matrix
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.report.context_schema import AnalysisVersion
from campaign.report.page import describe_analysis_versions, render_report_page
from tests import campaign_files


def changed(directory: Path, **changes: Any) -> Campaign:
    return campaign_files.load(
        directory, {f"campaign.{name.replace('__', '.')}": value for name, value in changes.items()}
    )


@pytest.fixture
def results(tmp_path: Path) -> Results:
    made = Results(tmp_path, "small")
    made.plan.mkdir(parents=True)
    return made


def record(results: Results) -> None:
    path = results.records / "00" / "0.1.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def sentences(results: Results, campaign: Campaign) -> list[str]:
    found = analysis.describe_versions(analysis.read_versions(results.analysis_file), campaign)
    return describe_analysis_versions([AnalysisVersion.model_validate(each) for each in found])


def test_a_change_before_the_first_run_replaces_and_a_later_one_is_told(tmp_path: Path, results: Results) -> None:
    analysis.record_analysis(results, changed(tmp_path / "a"))
    first = changed(tmp_path / "b", axes__batch=[1])
    analysis.record_analysis(results, first)
    assert [each.hash for each in analysis.read_versions(results.analysis_file)] == [
        analysis.current_version(first).hash
    ]
    told = sentences(results, first)
    assert "recorded before the first run" in told[0]
    assert told[1:] == ["Nothing has changed since."]
    record(results)
    analysis.record_analysis(results, first)
    assert sentences(results, first) == told
    later = changed(
        tmp_path / "c", axes__batch=[1], exclude=[{"when": "batch == 2", "why": "slow"}], protocol__repetitions=4
    )
    assert "exclude, protocol.repetitions changed since the last plan" in sentences(results, later)[1]
    analysis.record_analysis(results, later)
    told = sentences(results, later)
    assert len(told) == 2
    assert "exclude, protocol.repetitions changed on" in told[1]
    assert "with 1 run measured" in told[1]
    assert len(sentences(results, first)) == 3, "the way back is a change as well"


def test_what_was_measured_and_moved_aside_does_not_make_a_change_early(tmp_path: Path, results: Results) -> None:
    analysis.record_analysis(results, changed(tmp_path / "a"))
    aside = results.superseded_records / "20260101T0000" / "records" / "00" / "0.1.json"
    aside.parent.mkdir(parents=True)
    aside.write_text("{}")
    analysis.record_analysis(results, changed(tmp_path / "b", axes__batch=[1]))
    assert len(analysis.read_versions(results.analysis_file)) == 2


def test_what_was_first_written_after_runs_says_so(tmp_path: Path, results: Results) -> None:
    record(results)
    campaign = changed(tmp_path / "a")
    assert sentences(results, campaign) == []
    analysis.record_analysis(results, campaign)
    assert "recorded after 1 run," in sentences(results, campaign)[0]


@pytest.mark.parametrize(
    "changes",
    [{"title": "another"}, {"protocol__time_limit_s": 5}, {"protocol__telemetry_s": 2}, {"protocol__attempts": 2}],
)
def test_words_and_operations_are_no_part_of_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    one, two = changed(tmp_path / "a"), changed(tmp_path / "b", **changes)
    assert analysis.current_version(one).hash == analysis.current_version(two).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"report": {"hide": ["scaling"]}}, {"metric": {"name": "step_median_s"}}, {"baseline": "1x2-local"},
        {"references": ["falcon"]}, {"protocol__compositions": 2}, {"protocol__seed": 9},
    ],
)  # fmt: skip
def test_choices_are_part_of_it_and_of_no_cell(tmp_path: Path, changes: dict[str, Any]) -> None:
    one, two = changed(tmp_path / "a"), changed(tmp_path / "b", **changes)
    assert analysis.current_version(one).hash != analysis.current_version(two).hash
    if "protocol__seed" not in changes:
        assert {cell.id for cell in expand_matrix(one).cells} == {cell.id for cell in expand_matrix(two).cells}


def test_it_is_the_same_of_the_campaign_as_used(tmp_path: Path) -> None:
    campaign = changed(tmp_path, references=["falcon"], report={"open": ["scaling"]})
    stored = campaign_from_document(json.loads(json.dumps(campaign.to_document())))
    assert analysis.current_version(stored) == analysis.current_version(campaign)


def test_the_plan_writes_it_and_the_page_shows_it(tmp_path: Path) -> None:
    path = campaign_files.write_files(tmp_path / "config")
    plan = read_plan(PlanRequest(path, tmp_path / "results"))
    results = Results(tmp_path / "results", "small")
    write_plan(plan, results)
    (only,) = analysis.read_versions(results.analysis_file)
    assert (only.hash, only.runs) == (analysis.current_version(plan.campaign).hash, 0)
    tables = build_tables(read_campaign_results(plan.campaign, results.directory))
    assert [each["hash"] for each in tables.context["campaign"]["analysis"]] == [only.hash]
    page = render_report_page(tables.runs, tables.cells, tables.leases, tables.context, {})
    provenance = page.partition('id="provenance"')[2]
    assert "<dt>Analysis</dt><dd>Figures, claims" in provenance
    assert f"(hash {only.hash}). Nothing has changed since." in provenance
    assert "Change of the <a" not in page

    # The campaign is changed once something is measured: the first screen says so, and provenance.
    record(results)
    changes = {"campaign.report": {"hide": ["precision"]}, "campaign.references": ["falcon"],
               "campaign.exclude": [{"when": "batch == 2", "why": "slow"}]}  # fmt: skip
    later = read_plan(PlanRequest(campaign_files.write_files(tmp_path / "later", changes), tmp_path / "results"))
    write_plan(later, results)
    (results.records / "00" / "0.1.json").unlink()  # it is none
    tables = build_tables(read_campaign_results(later.campaign, results.directory))
    page = render_report_page(tables.runs, tables.cells, tables.leases, tables.context, {})
    told = "with 1 run measured (hash "
    for part in ('class="basis"', 'id="provenance"'):
        section = page.partition(part)[2].partition("</details>")[0]
        assert told in section
        assert "claims.falcon, exclude, report.hide changed on" in section
