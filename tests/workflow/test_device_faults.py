"""Devices that fail, or are not there, from the command line: a stand-in of nvidia-smi lists the devices of a simulated pool."""

from __future__ import annotations

import json
import os

import pytest

from campaign.fabrics.simulated import make_host_id
from campaign.spec.host_load import FOREIGN_LOAD_FLAG
from tests.workflow.checkout_twin import Project

SLOTS = [f"falcon1/drawer1/slot{number}" for number in (1, 2, 3)]
UUIDS = [make_host_id("gpu", slot) for slot in SLOTS]
BAD = UUIDS[0]
ECC = "CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
ON_BAD = f'case "$CUDA_VISIBLE_DEVICES" in *{BAD}*) echo "{{}}"; exit 1;; esac; echo rate: 10'


@pytest.fixture
def gpus(project: Project) -> Project:
    """Three pooled GPUs, as the campaign of these tests has one of them."""
    program = project.temporary / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{uuid}, NVIDIA A100'\n" for uuid in UUIDS))
    program.chmod(0o755)
    project.environment["PATH"] = f"{program.parent}{os.pathsep}{project.environment['PATH']}"
    system(project)
    return project


def system(project: Project, count: int = 3) -> None:
    document = {
        "name": "bench",
        "launcher": "local",
        "fabric": {"kind": "simulated"},
        "hosts": [{"name": "host1"}],
        "pool": [{"model": "a100", "count": count, "drawer": "falcon1/drawer1"}],
        "devices": {"a100": {"runs_on": "cuda"}},
    }
    project.write("systems/bench.yaml", document)


def measured(project: Project, body: str, expect: int = 0, **campaign: object) -> str:
    project.workload("logged", body=body)
    project.campaign(attach=["fabric"], **campaign)  # type: ignore[arg-type]
    project.run_campaign("plan", "campaigns/c.yaml", "--write")
    (lease,) = project.results().lease_plans.iterdir()
    return project.run_campaign("measure", str(lease), expect=expect)


def manifest(project: Project) -> dict[str, object]:
    (path,) = project.results().manifests.glob("*.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_device_that_fails_is_fenced_and_its_runs_are_repeated_on_another(gpus: Project) -> None:
    said = measured(gpus, ON_BAD.format(ECC), repetitions=2)
    assert f"{SLOTS[0]} (a100, {BAD}) failed on host1: {ECC}; the device is fenced" in said
    records = gpus.records()
    assert [(record.status, record.devices) for record in records] == [("ok", (SLOTS[1],))] * 2
    assert manifest(gpus)["missing"] == []
    assert ECC in str(manifest(gpus)["problems"])
    assert ECC in str(gpus.leases()[0]["faults"]), "which the report shows"
    for command in (("status", "campaigns/c.yaml"), ("fabric", "fences", "campaigns/systems/bench.yaml")):
        assert f"{SLOTS[0]} (a100, {BAD}) failed on host1" in gpus.run_campaign(*command)
    assert "failed" in gpus.run_campaign("inventory", "campaigns/systems/bench.yaml")
    lifted = gpus.run_campaign("fabric", "fences", "campaigns/systems/bench.yaml", "--lift", BAD)
    assert "no longer fenced" in lifted
    assert "no device is fenced" in gpus.run_campaign("fabric", "fences", "campaigns/systems/bench.yaml")


def test_without_another_device_the_lease_fails_with_the_reason(gpus: Project) -> None:
    system(gpus, count=1)
    said = measured(gpus, ON_BAD.format(ECC), expect=1)
    assert gpus.records() == []
    assert "error: 1 of 1 runs have no record" in said
    assert ECC in str(manifest(gpus)["reason"])
    assert "fenced for a day" in str(manifest(gpus)["reason"])


def test_a_program_that_is_wrong_fails_on_two_devices_and_is_recorded(gpus: Project) -> None:
    said = measured(gpus, f'echo "{ILLEGAL}"; exit 1', repetitions=3)
    assert "suspected of a fault" in said
    records = gpus.records()
    assert {record.status for record in records} == {"crashed"}
    assert len(records) == 3
    assert sum("failed alike on" in str(record.flags) for record in records) == 1
    # One attempt was lost, and the first device is used again.
    assert len(gpus.leases()) == 2
    assert "no device is fenced" in gpus.run_campaign("fabric", "fences", "campaigns/systems/bench.yaml")


def test_a_program_that_is_wrong_is_recorded_where_there_is_one_device(gpus: Project) -> None:
    system(gpus, count=1)
    measured(gpus, f'echo "{ILLEGAL}"; exit 1')
    (record,) = gpus.records()
    assert (record.status, {*record.flags} - {FOREIGN_LOAD_FLAG}) == ("crashed", set())


def test_a_machine_without_the_devices_measures_nothing_and_says_why(project: Project) -> None:
    system(project)
    listing = project.temporary / "nvidia-smi"
    project.environment["PATH"] = f"{project.temporary}{os.pathsep}{project.environment['PATH']}"
    said = measured(project, "echo rate: 10", expect=1)
    assert "'nvidia-smi', which lists the devices of `runs_on: cuda`, was not found on this machine" in str(
        manifest(project)["reason"]
    )
    assert project.leases() == [], "nothing was composed"

    # The tool is there, and no device is.
    listing.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    listing.chmod(0o755)
    said = measured(project, "echo rate: 10", expect=1)
    assert "error: 1 of 1 runs have no record" in said
    assert "No devices were found" in str(manifest(project)["reason"])
    assert project.records() == []
    assert project.starts() == []
    assert project.held() == {}
