"""A lease document on its own: copied elsewhere, without the campaign's files, one command measures it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workflow.checkout_twin import TIME_OUT_S, Project


def planned(project: Project) -> Path:
    """The document of the campaign's only lease."""
    project.run_campaign("plan", "campaigns/c.yaml", "--write")
    (path,) = (project.directory / "results" / "c" / "plan" / "leases").iterdir()
    return path


def test_one_that_was_mailed_is_measured_without_the_campaigns_files(
    project: Project, make_project: Callable[..., Project]
) -> None:
    project.campaign(batch=[1, 2], attach=["fabric"])
    mailed = planned(project)
    assert not project.starts()
    elsewhere = make_project("elsewhere")
    shutil.rmtree(elsewhere.campaigns)
    copy = elsewhere.directory / "a lease.json"
    shutil.copy(mailed, copy)

    said = elsewhere.run_campaign("measure", str(copy))
    assert "[2/2 runs]" in said
    assert {record.status for record in elsewhere.records()} == {"ok"}
    assert len(elsewhere.records()) == 2
    (manifest,) = elsewhere.results().manifests.rglob("*.json")
    document = json.loads(manifest.read_text())
    assert (document["missing"], document["run_set"], manifest.name) == (
        [],
        json.loads(mailed.read_text())["run_set"],
        "1x1-fabric.c1.json",
    )
    assert elsewhere.held() == {}

    # The same command again finds nothing to measure.
    elsewhere.run_campaign("measure", str(copy))
    assert set(elsewhere.started().values()) == {1}


def test_in_a_copied_results_directory_it_measures_there_and_only_what_is_missing(
    project: Project, make_project: Callable[..., Project]
) -> None:
    project.campaign(batch=[1, 2])
    project.run_campaign("measure", str(planned(project)))
    elsewhere = make_project("elsewhere")
    shutil.rmtree(elsewhere.campaigns)
    shutil.copytree(project.results_root, elsewhere.results_root)
    gone = sorted(elsewhere.record_files())[0]
    gone.unlink()
    (lease,) = elsewhere.results().lease_plans.iterdir()
    elsewhere.run_campaign("measure", str(lease))
    assert [start.run for start in elsewhere.starts()] == [gone.stem]
    assert len(project.record_files()) == len(elsewhere.record_files()) == 2


def test_a_program_that_other_leases_need_may_be_missing(project: Project) -> None:
    project.workload("other")
    absent = project.campaigns / "workloads" / "other.yaml"
    absent.write_text(absent.read_text().replace("- sh\n", "- no-such-program\n", 1))
    project.campaign(workload=["logged", "other"], lease_per="workload")
    project.run_campaign("plan", "campaigns/c.yaml", "--write")
    mine, others = (next(project.results().lease_plans.glob(f"*.{name}.*")) for name in ("logged", "other"))
    project.run_campaign("measure", str(mine))
    assert len(project.records()) == 1
    said = project.run_campaign("measure", str(others), expect=1)
    assert "error: 1 of 1 runs have no record: workload other: command: 'no-such-program' was not found" in said
    manifest = json.loads(project.results().manifest_file(others.stem).read_text())
    assert "'no-such-program' was not found on this machine" in manifest["reason"]
    assert len(manifest["missing"]) == 1
    assert len(project.leases()) == 1, "nothing was composed for it"


def test_snakemake_goes_on_where_a_lease_was_measured_by_hand(project: Project) -> None:
    project.campaign(batch=[1, 2])
    project.run_campaign("measure", str(planned(project)))
    said = project.run("-n", "-p", "--until", "measure")
    assert "measure" not in said.partition("Job stats:")[2].partition("total")[0]
    project.run("tables")
    assert set(project.started().values()) == {1}


def test_planning_without_write_writes_nothing(project: Project) -> None:
    project.campaign()
    for command in ("plan", "campaigns/c.yaml"), ("plan", "campaigns/c.yaml", "--format", "json"):
        project.run_campaign(*command)
    project.run("-n")
    assert not project.results_root.exists()


def test_an_edited_one_is_refused(project: Project) -> None:
    project.campaign()
    path = planned(project)
    path.write_text(path.read_text().replace('"batch":1', '"batch":2'))
    assert "was edited or is incomplete" in project.run_campaign("measure", str(path), expect=1)
    assert project.starts() == []


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_closed_standard_files_change_nothing(closed: str, project: Project) -> None:
    """As daemons and `ssh host command <&-` start programs."""
    project.campaign(batch=[1, 2])
    command = f"exec {sys.executable} -P -m campaign.cli measure {planned(project)} {closed}"
    ended = subprocess.run(command, shell=True, cwd=project.directory, env=project.environment, timeout=TIME_OUT_S)
    assert ended.returncode == 0
    assert [record.status for record in project.records()] == ["ok", "ok"]
    assert set(project.started().values()) == {1}
    (lease,) = project.leases()
    assert lease["faults"] == []


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0"}, id="ASCII"),
        # As with LC_ALL=en_US, which is ISO-8859-1 where it is installed.
        pytest.param({"PYTHONIOENCODING": "iso-8859-1"}, id="ISO-8859-1"),
    ],
)
def test_a_locale_that_is_not_utf8_changes_nothing(environment: dict[str, str], project: Project) -> None:
    project.campaign(batch=[1, 2], compositions=2, repetitions=4)
    project.run_campaign("plan", "campaigns/c.yaml", "--write")
    leases = sorted((project.directory / "results" / "c" / "plan" / "leases").iterdir())
    printed = ""
    for command in [
        *(("measure", str(lease)) for lease in leases),
        ("summary", "results/c"),
        ("recommend", "results/c"),
    ]:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "campaign.cli", *command],
            cwd=project.directory,
            env={**project.environment, **environment},
            capture_output=True,
            timeout=TIME_OUT_S,
        )
        assert ended.returncode == 0, ended.stderr.decode()
        printed += ended.stdout.decode()
    assert {"·", "\u202f"} <= set(printed), printed
    assert [record.status for record in project.records()] == ["ok"] * 8
