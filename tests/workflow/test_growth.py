"""What grows is measured, what is there stays, and what is only drawn is only drawn: the second invocation of a campaign."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable

import pandas as pd
import pytest
import yaml

from campaign.plan.dag import open_dag
from campaign.plan.request import request_from_config
from tests.workflow.checkout_twin import Project


def jobs(said: str) -> dict[str, int]:
    """Job counts by rule, from the table that Snakemake prints; empty when there is nothing to do."""
    table = said.partition("Job stats:")[2].partition("total")[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", table, re.MULTILINE)}


def shape(project: Project) -> dict[str, int]:
    """Start counts must all be one; gives records and starts."""
    assert set(project.started().values()) <= {1}
    return {"records": len(project.record_files()), "starts": len(project.starts())}


def test_growing_measures_exactly_the_new_runs(project: Project) -> None:
    """Axes, attachments, repetitions n, compositions k, both of these, and back."""
    project.campaign(batch=[1, 2], repetitions=1)
    project.measure()
    first = project.record_files()
    assert shape(project) == {"records": 2, "starts": 2}

    project.campaign(batch=[1, 2, 4], attach=["local", "fabric"], repetitions=2)
    said = project.measure()
    assert shape(project) == {"records": 12, "starts": 12}
    assert "1x1-local, composition 1 of 1: 3 cells, 4 runs of 6, " in said
    assert "1x1-fabric, composition 1 of 1: 3 cells, 6 runs, " in said
    assert first.items() <= project.record_files().items()

    def measured(compositions: int, repetitions: int) -> set[int]:
        project.campaign(attach=["fabric"], repetitions=repetitions, compositions=compositions)
        before = project.record_files()
        project.measure()
        after = project.record_files()
        assert before.items() <= after.items()
        assert shape(project)["starts"] == len(after)
        return {int(path.name.split(".")[1]) for path in after.keys() - before.keys()}

    # Repetitions 1 and 2 of the first composition are there.
    assert measured(2, 2) == {1001}
    assert measured(2, 4) == {1002}
    assert measured(3, 5) == {2001}
    assert measured(1, 2) == set()
    before = project.record_files()
    project.campaign(attach=["fabric"], repetitions=5, compositions=3)
    project.run("tables")
    assert project.record_files() == before
    leases = {document["lease"] for document in project.leases()}
    assert leases == {"1x1-local.c1", "1x1-fabric.c1", "1x1-fabric.c2", "1x1-fabric.c3"}
    of_first = {r.cell_id for r in project.records() if r.repetition > 1000}
    assert len({record.lease_id for record in project.records() if record.cell_id in of_first}) == 4
    assert list(pd.read_csv(project.results().tables / "runs.csv")["composition"]) == [1, 1, 2, 2, 3]


def test_a_later_invocation_does_what_has_changed_and_measures_nothing_twice(project: Project) -> None:
    path = project.campaign(batch=[1, 2])
    project.run("tables")
    before = project.record_files()
    runs = project.results().tables / "runs.csv"
    assert len(runs.read_text().splitlines()) == 3
    assert "Nothing to be done" in project.run("tables")

    # An axis value that goes and comes back, then with another title.
    project.campaign(batch=[1])
    project.run("tables")
    assert len(runs.read_text().splitlines()) == 2
    project.campaign(batch=[1, 2])
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"title": "Another title"}))
    assert jobs(project.run("tables")) == {"measured": 1, "tables": 1}
    assert len(runs.read_text().splitlines()) == 3
    assert "Another title" in (project.results().tables / "context.json").read_text()
    assert project.record_files() == before
    assert shape(project) == {"records": 2, "starts": 2}

    # Documents that are gone are written again; a plan that is another, also where Snakemake remembers nothing.
    shutil.rmtree(project.results().lease_plans)
    assert "Nothing to be done" in project.run("tables")
    shutil.rmtree(project.directory / ".snakemake")
    project.campaign(batch=[1, 2, 4])
    assert jobs(project.run("-n", "-p", "tables")) == {"measure": 1, "measured": 1, "tables": 1}


def test_operations_are_not_identity_and_records_alone_are_enough(
    project: Project, make_project: Callable[..., Project]
) -> None:
    project.system(slurm={"partition": "short"})
    project.campaign(batch=[1, 2])
    project.measure()
    before = project.record_files()

    project.system(slurm={"partition": "long", "qos": "high"}, attach_s=0.01)
    project.campaign(
        batch=[1, 2], time_limit_s=33, memory_limit_mib=4000, isolation="none", attempts=5, compose_wait_s=7
    )
    assert jobs(project.measure()) == {}
    assert project.record_files() == before
    assert len(project.starts()) == 2

    # Copied elsewhere, without Snakemake's memory and with other times, records are still not measured again.
    other = make_project("other")
    other.campaign(batch=[1, 2])
    for path in before:
        copy = other.results_root / path.relative_to(project.results_root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        os.utime(copy, (1, 1))
    other.measure()
    assert len(other.record_files()) == 2
    assert other.starts() == []


def test_a_subset_is_measured_first_and_not_again(project: Project) -> None:
    project.campaign(batch=[1, 2, 4], repetitions=2)
    project.measure(where="batch >= 2 and batch < 4")
    assert {record.cell.batch for record in project.records()} == {2}
    assert shape(project) == {"records": 2, "starts": 2}
    project.measure()
    assert shape(project) == {"records": 6, "starts": 6}


@pytest.mark.parametrize(("lease_per", "leases"), [("configuration", 2), ("workload", 4), ("cell", 8)])
def test_lease_per_says_how_many_leases_there_are(project: Project, lease_per: str, leases: int) -> None:
    project.workload("other")
    path = project.campaign(attach=["local", "fabric"], workload=["logged", "other"], batch=[1, 2], lease_per=lease_per)
    dag = open_dag(request_from_config({"campaign": str(path), "results": str(project.results_root)}))
    assert len(set(dag.manifests)) == leases


def test_the_slurm_profile_resolves(project: Project) -> None:
    project.campaign(attach=["local", "fabric"], batch=[1, 2])
    said = project.run("-n", "-p", profile="slurm")
    assert jobs(said)["measure"] == 2
    assert re.search(r"^1x1-fabric +1 +2 +1 ", said, re.MULTILINE)
    assert project.starts() == []
    assert not project.results().directory.exists()


def test_a_permanent_fault_is_named_the_campaign_completes_once_it_is_gone_and_an_edited_figure_is_drawn_again(
    make_project: Callable[..., Project],
) -> None:
    """Each by the same command; nothing is written to home."""
    project = make_project(copied=("workflow", "scripts", "reports"))
    for figure in (project.directory / "scripts" / "figures").glob("[a-z]*.py"):
        if figure.stem not in ("scaling", "overhead"):
            figure.unlink()  # two are enough to see which are drawn
    project.synthetic("failing", failures=[{"when": "batch == 1", "status": "crashed"}])
    project.campaign(attach=["local", "fabric"], workload=["logged", "failing"], batch=[1, 2], attempts=2)
    project.system(faults=[{"kind": "partial_attach", "times": 1000}])
    said = project.run("--retries", "2", expect=1)
    assert re.search(r"error: some runs have no record.*\n1x1-fabric.c1: 4 of 4 runs: .*could not be attached", said)
    *_, heading, reason = said.splitlines()
    assert heading == "planned runs without a record: 4; run the same command again to measure them. Reasons:"
    assert reason.startswith("  1x1-fabric.c1: "), said
    assert said.count("attempt 2 of 2 failed") == 1, "it is the apparatus that failed, no process"
    assert not (project.results().directory / "summary.txt").exists()
    assert {record.cell.attach for record in project.records()} == {"local"}
    page = project.results().report_file.read_text()
    assert "could not be attached" in page, "the report does not say why runs are missing"
    assert "ended with an uncaught ValueError" in page, "the report does not show a failed run"
    assert any(document["faults"] for document in project.leases())
    assert project.held() == {}

    project.system()
    project.run()
    assert len(project.records()) == 8
    assert set(project.started().values()) == {1}
    assert "could not be attached" not in (project.results().tables / "cells.csv").read_text()
    assert project.results().report_file.stat().st_size > 10_000
    assert list(project.home.rglob("*")) == []
    assert "Nothing to be done" in project.run()

    # Figures were drawn again when the tables changed; what would be done is enough to know of changed files.
    figure = project.directory / "scripts" / "figures" / "scaling.py"
    text = figure.read_text()
    figure.write_text(f"{text}\n# a changed figure\n")
    assert jobs(project.run("-n", "-p")) == {"figures": 1, "report": 1, "summary": 1, "all": 1}
    figure.write_text(text)

    style = project.directory / "reports" / "report.css"
    style.write_text(style.read_text() + "\n/* a changed style */\n")
    assert jobs(project.run("-n", "-p")) == {"report": 1, "summary": 1, "all": 1}

    room = project.directory / "workflow" / "campaign" / "report" / "plot.py"
    room.write_text(room.read_text() + "\n# code that a figure calls\n")
    assert jobs(project.run("-n", "-p")) == {
        "tables": 1,
        "figures": 1,
        "recommend": 1,
        "report": 1,
        "summary": 1,
        "all": 1,
    }
    assert list(project.home.rglob("*")) == []
    assert len(project.starts()) == 4
