"""What a campaign knows beforehand is not run: batches beyond the memory, and repetitions beyond what is precise enough.

In this process, because Snakemake's part in it is to pass an option on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables
from campaign.plan.dag import read_plan
from campaign.plan.repetitions import StopFiles
from campaign.plan.request import PlanRequest, request_from_config
from tests.planned_leases import measured_here
from tests.workflow.checkout_twin import Project

LEASE = "1x1-local.c1"


@pytest.fixture
def measure_here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The measure job of the one lease, as Snakemake would start it for the same `--config`; gives what it said."""
    monkeypatch.setenv("STARTS", project.environment["STARTS"])

    def run(**config: str) -> list[str]:
        asked = asked_of(project, **config)
        said: list[str] = []
        assert measured_here(asked, LEASE, said.append)["missing"] == []
        return said

    return run


def asked_of(project: Project, **config: str) -> PlanRequest:
    return request_from_config({"campaign": project.campaigns / "c.yaml", "results": project.results_root, **config})


def statuses(project: Project) -> dict[int, list[str]]:
    """Statuses of all records in the order of repetitions, by batch."""
    found: dict[int, list[str]] = defaultdict(list)
    for record in sorted(project.records(), key=lambda record: record.key[1]):
        found[record.cell.batch].append(record.status)
    return dict(found)


def test_what_is_implied_is_recorded_without_a_start_and_run_when_asked_for(
    project: Project, measure_here: Callable[..., list[str]]
) -> None:
    rule = {"when": "batch >= 4", "status": "oom_host"}
    project.synthetic("steps", failures=[rule], real_time=False)
    changes: dict[str, Any] = {"workload": "steps", "repetitions": 2, "telemetry_s": None}
    project.campaign(batch=[16, 2, 8, 4], **changes)
    measure_here()
    known = {2: ["ok"] * 2, 4: ["oom_host"] * 2, 8: ["implied"] * 2, 16: ["implied"] * 2}
    assert statuses(project) == known
    logs = project.results().logs / LEASE
    assert len(list(logs.glob("[0-9a-f]*.[12].log"))) == 4

    # A larger batch that comes later is known before anything is composed for it.
    uses = project.leases()
    project.campaign(batch=[16, 2, 8, 4, 32], **changes)
    (lease,) = read_plan(asked_of(project)).leases
    assert (lease.missing, lease.implied, lease.expected_s) == (2, 2, 0.0)
    assert "; 2 skipped, because" in lease.describe(1)
    (words,) = (line for line in measure_here() if " skipped, because" in line)
    assert words.endswith("ran out of memory ('--config skip_implied=no' starts such runs)")
    assert statuses(project) == {**known, 32: ["implied"] * 2}
    assert project.leases() == uses
    assert read_plan(asked_of(project)).missing == 0

    # Who asks for the runs themselves gets them, once.
    anyway = asked_of(project, skip_implied="no")
    assert anyway.to_arguments()[-1] == "--run-implied"
    assert read_plan(anyway).missing == 6
    measure_here(skip_implied="no")
    assert statuses(project) == {2: ["ok"] * 2, **{batch: ["oom_host"] * 2 for batch in (4, 8, 16, 32)}}
    assert read_plan(anyway).missing == read_plan(asked_of(project)).missing == 0


def test_repetitions_end_where_the_target_is_reached(
    project: Project, measure_here: Callable[..., list[str]], tmp_path: Path
) -> None:
    # Repetition 2 is an outlier; those after it agree.
    project.workload("logged", body='case "$CAMPAIGN_RUN" in *.2) echo rate: 103;; *) echo rate: 100;; esac')
    asked = {"repetitions": 9, "target_half_width_pct": 1.5, "telemetry_s": None}
    project.campaign(**asked)
    plan = read_plan(asked_of(project))
    assert (plan.runs, plan.missing, plan.min_missing_runs) == (9, 9, 3)
    assert "1 cell, 3 to 9 runs" in plan.leases[0].describe(1)
    measure_here()
    *before, last = sorted(project.records(), key=lambda record: record.repetition)
    assert last.repetition == len(project.started()) == 6
    assert last.stopped.endswith("of the mean, the target is ±1.5 %")
    assert {record.stopped for record in before} == {""}
    plan = read_plan(asked_of(project))
    assert (plan.runs, plan.missing) == (6, 0)
    assert "all 6 runs have a record" in plan.leases[0].describe(1)
    write_campaign_tables(
        read_campaign_results(asked_of(project).load_campaign(), project.results().directory), tmp_path / "tables"
    )
    notes = json.loads((tmp_path / "tables" / "context.json").read_text())["notes"]
    assert any(note.startswith("Cells with 3 to 9 repetitions ended once the 95 % interval") for note in notes)
    cell = pd.read_csv(tmp_path / "tables" / "cells.csv").loc[0]
    assert (cell["n_planned"], cell["n_ok"], cell["n_missing"]) == (6, 6, 0)
    (line,) = [
        line for line in map(json.loads, project.results().progress_file.read_text().splitlines()) if line["cell_done"]
    ]
    assert (line["repetition"], line["left_out"]) == (6, 3)

    # What was noted is lost with a crash: the same records say the same, and nothing is started for it.
    (noted,) = StopFiles(project.results().directory).directory.rglob("*.json")
    noted.unlink()
    assert read_plan(asked_of(project)).missing == 3
    measure_here()
    assert noted.exists()
    assert len(project.started()) == 6

    # A smaller target goes on with it.
    project.campaign(**{**asked, "target_half_width_pct": 0.1})
    measure_here()
    assert len(project.records()) == 9
    assert project.records()[-1].stopped.startswith("the maximum of 9 repetitions is reached; the 95 % interval is ±")
