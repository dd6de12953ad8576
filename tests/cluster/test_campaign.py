"""A campaign from one YAML file to its tables through a real Slurm, whatever way Slurm learns of composed devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.spec_from_system import build_cluster_spec
from campaign.plan.campaign.load import read_system
from tests.cluster.cluster_project import SLURM, ClusterProject

pytestmark = pytest.mark.usefixtures("slurm_installed")


def system_file(strategy: str, directory: Path) -> dict[str, Any]:
    """Four hosts with two devices each, and four more behind a fabric."""
    # Patient: on a busy machine hosts that were just reserved or registered take a while to be usable.
    slurm: dict[str, Any] = {**SLURM, "strategy": strategy, "latency_s": 30}
    if strategy == "dynamic":
        change = ["campaign", "cluster", "slurmd", "{}", "{{host}}", "--directory", str(directory)]
        stop, start = ([word.format(verb).replace("{{", "{") for word in change] for verb in ("stop", "start"))
        slurm["slurmd"] = {"stop": stop, "start": [*start, "--devices", "{devices}"]}
    return {
        "name": "bench",
        "launcher": "slurm",
        "fabric": {"kind": "simulated"},
        "hosts": [
            {"name": "host[1-4]", "cores": 4, "memory_gib": 4, "devices": [{"model": "cpu-rank", "count": 2}]},
        ],
        "pool": [{"model": "cpu-rank", "count": 4}],
        "devices": {"cpu-rank": {"runs_on": "cpu"}},
        "slurm": slurm,
    }


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """A cluster as the system file of a strategy describes it, and that file."""
    # Short: it holds local sockets, whose paths have little room.
    directory = tmp_path_factory.mktemp("site")
    document = system_file(request.param, directory)
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "bench.yaml").write_text(yaml.safe_dump(document))
    try:
        yield start_cluster(directory, build_cluster_spec(read_system("bench", tmp_path / "campaign.yaml"))), document
    finally:
        stop_cluster(directory)


@pytest.mark.parametrize("site", ["reservation", "dynamic", "resume"], indirect=True)
def test_what_is_composed_is_what_slurm_gives(site: tuple[Cluster, dict[str, Any]], tmp_path: Path) -> None:
    cluster, document = site
    project = ClusterProject(tmp_path / "project", cluster)
    project.write("systems/bench.yaml", document)
    # Each run says on which host it is, and how many devices it was given there.
    project.workload("logged", body='echo "rate: 10"; echo "$(hostname) $CUDA_VISIBLE_DEVICES" >> "$STARTS.devices"')
    file = project.campaign(repetitions=2)
    # All hosts at once, and one with devices of the fabric.
    shapes: list[dict[str, Any]] = [{"hosts": 4, "devices_per_host": 2}, {"devices_per_host": 2, "attach": "fabric"}]
    project.write(file.name, yaml.safe_load(file.read_text()) | {"configurations": shapes})
    try:
        project.run("tables", time_out_s=300)
    finally:
        project.kill()
    records = project.records()
    assert [record.status for record in records] == ["ok"] * 4
    assert {lease["state"] for lease in project.leases()} == {"RELEASED"}
    # A composition that a busy machine had to make again has a lease without records.
    assert {record.lease_id for record in records} <= {lease["lease_id"] for lease in project.leases()}
    assert len({record.lease_id for record in records}) == 2
    given = [line.split() for line in Path(f"{project.environment['STARTS']}.devices").read_text().splitlines()]
    assert {host for host, _ in given} <= {host for record in records for host in record.hosts}
    assert {len(devices.split(",")) for _, devices in given} <= {2, 4}
    assert json.loads((project.results().tables / "context.json").read_text())["launchers"] == {"slurm": len(records)}
    assert project.queue() == []
    assert project.held() == {}
    assert "ReservationName" not in project.slurm("scontrol", "show", "reservation")
    states = set(project.slurm("sinfo", "--noheader", "--Node", "--format=%T").split())
    assert all(state.startswith("idle") for state in states), states
    if document["slurm"]["strategy"] == "dynamic":
        assert set(project.slurm("sinfo", "--noheader", "--Node", "--format=%G").split()) == {"gpu:2"}
