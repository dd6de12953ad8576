"""Nothing is measured on a composition that does not reach what the campaign requires of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.checkout_twin import Project


def measured(project: Project, *where: str, expect: int = 0) -> str:
    project.run_campaign("plan", "campaigns/c.yaml", "--write", *where)
    (lease,) = project.results().lease_plans.iterdir()
    return project.run_campaign("measure", str(lease), expect=expect)


@pytest.fixture
def gated(project: Project) -> Project:
    """A campaign that requires a rate of 10 of the workload `gate`, whose rate stands in a file."""
    project.workload("gate", body=f"echo rate: $(cat {project.temporary}/rate)")
    required: Any = [{"workload": "gate", "at_least": 10}]
    project.campaign(workload=["logged", "gate"], repetitions=2, attempts=2, require=required)
    rate(project, 10)
    return project


def rate(project: Project, value: int) -> None:
    (project.temporary / "rate").write_text(f"{value}\n")


def names(project: Project) -> list[tuple[str, int]]:
    return sorted((record.cell.workload, record.repetition) for record in project.records())


def order(project: Project) -> list[str]:
    gates = {record.cell_id for record in project.records() if record.cell.workload == "gate"}
    return ["gate" if start.run.split(".")[0] in gates else "logged" for start in project.starts()]


def test_where_it_is_reached_the_gate_is_measured_first_and_once(gated: Project) -> None:
    measured(gated)
    assert names(gated) == [("gate", 1), ("gate", 2), ("logged", 1), ("logged", 2)]
    assert order(gated)[0] == "gate"
    assert len(gated.starts()) == 4


def test_where_it_is_not_reached_nothing_is_measured_and_the_manifest_says_why(gated: Project) -> None:
    rate(gated, 9)
    said = measured(gated, expect=1)
    why = "protocol.require: 1x1-local · gate · batch 1 · fp32: throughput_per_s is 9, but at least 10 is required"
    assert why in said
    (path,) = gated.results().manifests.glob("*.json")
    manifest = json.loads(path.read_text())
    assert why in manifest["reason"]
    assert "nothing was measured on host1 (log: " in manifest["reason"]
    assert len(manifest["missing"]) == 4
    assert gated.records() == []
    assert len(gated.starts()) == 2, "the gate alone, once in each of two compositions"
    assert len(gated.leases()) == 2

    # Put right, the same command measures all.
    rate(gated, 11)
    measured(gated)
    assert len(gated.records()) == 4


def test_each_composition_is_tried_whatever_part_is_measured_and_recorded_before(gated: Project) -> None:
    measured(gated, "--where", "workload == 'logged'")
    assert names(gated) == [("logged", 1), ("logged", 2)]
    assert len(gated.starts()) == 3, "the gate was tried, and not recorded"
    measured(gated)
    assert names(gated) == [("gate", 1), ("gate", 2), ("logged", 1), ("logged", 2)]

    # Another composition of the same lease does not pass by what the first one did.
    before = {path: path.read_bytes() for path in gated.results().records.rglob("*.json")}
    gone = next(path for path in before if json.loads(before[path])["cell"]["workload"] == "logged")
    gone.unlink()
    rate(gated, 1)
    measured(gated, expect=1)
    after: dict[Path, bytes] = {path: path.read_bytes() for path in gated.results().records.rglob("*.json")}
    assert after == {path: content for path, content in before.items() if path != gone}
