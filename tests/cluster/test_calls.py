"""What a campaign asks of Slurm from its first to its last run, on a real one: few calls, and for known reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.hosts.cluster_spec import Cluster
from tests.cluster.cluster_project import SLURM, ClusterProject

pytestmark = pytest.mark.usefixtures("slurm_installed")


@pytest.fixture
def project(tmp_path: Path, cluster: Cluster) -> ClusterProject:
    return ClusterProject(tmp_path, cluster)


def test_a_campaign_asks_once_a_look_and_once_a_composition(project: ClusterProject) -> None:
    project.workload("slow", sleep_s=3)
    project.campaign(workload="slow", devices=(1, 2, 3, 4), repetitions=2)
    project.measure()
    assert len(project.records()) == 8
    calls = project.calls()
    assert calls.pop("sbatch") == 4
    looks_s = [line["time_s"] for line in called(project) if line["argv"][0] == "squeue"]
    # Four processes wait, and share their looks.
    assert calls.pop("squeue") <= 2 + (max(looks_s) - min(looks_s)) / SLURM["poll_s"]
    # Before the first lease, the system file is compared with what Slurm lists, and a free host looks at the results directory. At
    # the first submission, limits are compared with partitions.
    assert (calls.pop("sinfo"), calls.pop("srun")) == (3, 1)
    assert calls == {}


def test_each_of_many_small_leases_is_submitted_once(project: ClusterProject) -> None:
    project.workload("short", sleep_s=0.05)
    project.campaign(workload="short", batch=[1, 2, 4, 8], lease_per="cell")
    project.measure()
    assert len(project.leases()) == 4
    assert project.calls()["sbatch"] == 4


def called(project: ClusterProject) -> list[dict[str, Any]]:
    """The log of Slurm's commands."""
    return [json.loads(line) for line in (project.results().slurm_state / "commands.jsonl").read_text().splitlines()]
