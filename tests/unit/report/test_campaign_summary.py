"""The screen at the end of a campaign: how often configurations were composed, and what to build with its ties."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import RecordError
from campaign.common.paths import Results
from campaign.report import campaign_summary

BUILD = "bert: build local-4 (4 devices), batch 8: 410\u202fsamples/s, measured on 3 compositions."
TIE = "Tied within 5\u202f%: fabric-4 409\u202fsamples/s (405 to 413)."


def results(
    directory: Path,
    leases: dict[str, int],
    value: str = "1.5",
    workloads: tuple[str, ...] = ("bert",),
    lease_per_workload: bool = False,
    metrics: dict[str, str] | None = None,
    **answer: Any,
) -> Path:
    """The files that the summary reads, of configurations composed so often, a run of each workload on each, and one answer."""
    for name in ("tables", "figures", "recommendation"):
        (directory / name).mkdir(parents=True)
    cells = {"n_planned": 3, "n_ok": 3, "n_failed": 0, "n_implied": 0, "n_missing": 0}
    runs = [
        {
            "configuration": name,
            "cell_id": f"{name}.{workload}",
            "lease_id": f"{name}.c{n}.{workload if lease_per_workload else ''}",
            "status": "ok",
            "value": value,
        }
        for name, k in leases.items()
        for n in range(k)
        for workload in workloads
    ]
    runs = [row | (metrics or {}) for row in runs]
    for name, rows in (("cells", [cells] * len(leases)), ("runs", runs)):
        with (directory / "tables" / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    given = {"sentences": [BUILD], **answer}
    (directory / "recommendation" / "recommendation.json").write_text(json.dumps({"answers": [given]}))
    return directory


@pytest.mark.parametrize(
    ("leases", "words"),
    [
        ({"a": 3, "b": 3}, "2 configurations measured, 6 compositions, 3 per cell\n"),
        ({"a": 3, "b": 1}, "2 configurations measured, 4 compositions, 1 to 3 per cell\n"),
        ({"a": 1, "b": 1}, f"2 configurations measured, each composed once. {campaign_summary.UNTESTED_NOTE}\n"),
        ({"a": 1}, "1 configuration measured, each composed once\n"),
    ],
)
def test_the_first_lines_say_how_often_configurations_were_composed(
    tmp_path: Path, leases: dict[str, int], words: str
) -> None:
    said = campaign_summary.summarize_campaign(results(tmp_path / "r", leases))
    assert words in said
    assert said.index(words) < said.index("What to build")


@pytest.mark.parametrize(("per_workload", "total"), [(False, 9), (True, 27)])
def test_compositions_are_those_of_a_cell_however_workloads_share_leases(
    tmp_path: Path, per_workload: bool, total: int
) -> None:
    shared = results(tmp_path / "r", {"a": 3, "b": 3, "c": 3}, "1", ("bert", "lm", "resnet"), per_workload)
    said = campaign_summary.summarize_campaign(shared)
    assert f"3 configurations measured, {total} compositions, 3 per cell\n" in said


def test_ties_are_part_of_what_to_build(tmp_path: Path) -> None:
    said = campaign_summary.summarize_campaign(results(tmp_path / "a", {"a": 3}, sentences=[BUILD, TIE]))
    assert f"  {BUILD} {TIE}" in said


def test_markdown_has_the_same_lines_as_the_text(tmp_path: Path) -> None:
    directory = results(tmp_path / "r|1", {"a": 3, "b": 1})
    drawing = {"shown": True, "title": "Scaling", "findings": ["<b> is *fast*, [see](x)."]}
    (directory / "figures" / "scaling.json").write_text(json.dumps(drawing))
    said = campaign_summary.summarize_campaign_as_markdown(directory)
    assert said.startswith("## r\\|1\n\n- ")
    assert "\n\n### Scaling\n\n- \\<b> is \\*fast\\*, [see]\\(x).\n\n### What to build\n\n- bert" in said
    plain = said.replace("\\", "").replace("\u202f", " ")
    for line in campaign_summary.summarize_campaign(directory).splitlines():
        assert line.strip().replace("\u202f", " ") in plain


def test_valid_runs_without_the_primary_metric_are_counted(tmp_path: Path) -> None:
    assert "the primary metric" not in campaign_summary.summarize_campaign(results(tmp_path / "a", {"a": 3}))
    said = campaign_summary.summarize_campaign(results(tmp_path / "b", {"a": 3}, value=""))
    assert "3 measured runs lack the primary metric and are not in its figures\n" in said


def test_runs_without_the_primary_metric_say_which_metrics_they_have(tmp_path: Path) -> None:
    others = {"busbw_peak_gb_per_s": "230.1", "device_power_w": "300"}
    said = campaign_summary.summarize_campaign(results(tmp_path / "r", {"a": 3}, value="", metrics=others))
    assert "; they have busbw_peak_gb_per_s, which the campaign file can name as `metric`\n" in said


@pytest.mark.parametrize("name", ["cells", "runs"])
@pytest.mark.parametrize("content", ["a\n1\n", "x" * 200_000])
def test_damaged_tables_are_one_message(tmp_path: Path, name: str, content: str) -> None:
    directory = results(tmp_path / "results", {"a": 3})
    (directory / "tables" / f"{name}.csv").write_text(content)
    with pytest.raises(RecordError, match=r"cannot be read .*delete it and run again"):
        campaign_summary.summarize_campaign(directory)


@pytest.mark.parametrize(("records", "why"), [(False, "not measured yet"), (True, "unknown, because there is no plan")])
def test_without_a_plan_missing_runs_are_of_nothing_measured_or_of_merged_parts(
    tmp_path: Path, *, records: bool, why: str
) -> None:
    paths = Results.from_directory(tmp_path / "results" / "first")
    paths.tables.mkdir(parents=True)
    (paths.tables / "cells.csv").write_text("cell_id,n_missing\na,2.0\nb,1.0\n")
    if records:
        paths.records.mkdir()
    assert campaign_summary.list_missing_reasons(paths.directory) == [f"3 runs: {why}"]
