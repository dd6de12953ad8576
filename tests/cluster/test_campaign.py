"""A campaign from one YAML file to its report through a real Slurm, whatever way Slurm learns of composed devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.config.load import read_system
from campaign.documents.record import Store
from campaign.launch.emulation.cluster_spec import Cluster
from campaign.testbed.slurm.cluster import down, up
from campaign.testbed.slurm.spec_from_system import cluster_of
from tests.cluster.cluster_project import SLURM, ClusterProject
from tests.workflow.checkout_twin import ROOT

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
        yield up(directory, cluster_of(read_system("bench", tmp_path / "campaign.yaml"))), document
    finally:
        down(directory)


UNEQUAL = {"hosts": [{"devices": [{"count": 1}, {"count": 1, "attach": "fabric"}]}, {"devices": [{"count": 1}]}]}


@pytest.mark.parametrize("site", ["reservation", "dynamic", "resume"], indirect=True)
def test_what_is_composed_is_what_slurm_gives(site: tuple[Cluster, dict[str, Any]], tmp_path: Path) -> None:
    cluster, document = site
    project = ClusterProject(tmp_path / "project", cluster)
    project.write("systems/bench.yaml", document)
    # Each run says on which host it is, and how many devices it was given there.
    project.workload("logged", body='echo "rate: 10"; echo "$(hostname) $CUDA_VISIBLE_DEVICES" >> "$STARTS.devices"')
    file = project.campaign(devices=[2], attach=["local", "fabric"], repetitions=2)
    unequal = document["slurm"]["strategy"] != "resume"  # which composes equal hosts only
    if unequal:
        campaign = yaml.safe_load(file.read_text())
        campaign["configurations"].append({"name": "unequal", **UNEQUAL})
        file.write_text(yaml.safe_dump(campaign))
    try:
        project.run("tables", time_out_s=300)
    finally:
        project.kill()
    found = project.records()
    parts = [record for record in found if record.cell.configuration == "unequal"]
    assert [record.status for record in parts] == ["ok"] * 2 * unequal
    for record in parts:  # the larger part of the first host, one local device of the second
        assert len(set(record.hosts)) == 2
        assert [name.startswith("host") for name in record.devices] == [True, False, True]
        assert not any("differ" in flag for flag in record.flags)
    records = [record for record in found if record not in parts]
    assert [record.status for record in records] == ["ok"] * 4
    assert {lease["state"] for lease in project.leases()} == {"RELEASED"}
    # A composition that a busy machine had to make again has a lease without records.
    assert {record.lease_id for record in records} <= {lease["lease_id"] for lease in project.leases()}
    assert len({record.lease_id for record in records}) == 2
    given = [line.split() for line in Path(f"{project.environment['STARTS']}.devices").read_text().splitlines()]
    assert {host for host, _ in given} <= {host for record in found for host in record.hosts}
    assert {len(devices.split(",")) for _, devices in given} <= {2, 4}
    assert json.loads((project.results().tables / "context.json").read_text())["launchers"] == {"slurm": len(found)}
    assert project.queue() == []
    assert project.held() == {}
    assert "ReservationName" not in project.slurm("scontrol", "show", "reservation")
    states = set(project.slurm("sinfo", "--noheader", "--Node", "--format=%T").split())
    assert all(state.startswith("idle") for state in states), states
    if document["slurm"]["strategy"] == "dynamic":
        assert set(project.slurm("sinfo", "--noheader", "--Node", "--format=%G").split()) == {"gpu:2"}


@pytest.fixture(scope="module")
def demo(slurm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProject]:
    """Kinds of the default campaign's configurations, measured through Slurm on the hosts of its own system file.

    One run of each workload: a command everywhere, and training on two devices of every attachment. Each rank of a step of Slurm's
    imports torch by itself, so that more of them would cost minutes.
    """
    directory = tmp_path_factory.mktemp("demo")
    document = yaml.safe_load((ROOT / "config" / "campaign.yaml").read_text())
    document["configurations"] = [
        {"hosts": [1, 2], "devices_per_host": [2, 1], "zip": [["hosts", "devices_per_host"]]},
        {"devices_per_host": 2, "attach": ["hybrid", "fabric"]},
        {"hosts": 4, "devices_per_host": 1},
    ]
    document["baseline"] = "1x2-local"
    document["axes"] = {"workload": ["bert-nano", "logged"], "batch": 8, "precision": "fp32"}
    # Links and telemetry: see test_training_campaign.
    document["protocol"] |= {"repetitions": 1, "compositions": 1, "links": {"when": []}, "telemetry_s": None}
    document["exclude"] = [{"when": "workload == 'bert-nano' and hosts == 4", "why": "two hosts show it"}]
    # Many steps where the fastest is looked at: beside other tests, most of them wait for a processor.
    looked_at = "workload == 'bert-nano' and configuration != '1x2-hybrid'"
    document["overrides"] = [{"when": looked_at, "measured_steps": 40}]
    try:
        cluster = up(directory / "cluster", cluster_of(read_system("falcon-demo", ROOT / "config" / "campaign.yaml")))
        project = ClusterProject(directory / "project", cluster)
        # The emulated cluster answers at once; patience is for real ones.
        system = yaml.safe_load((ROOT / "config" / "systems" / "falcon-demo.yaml").read_text())
        project.write("systems/falcon-demo.yaml", system | {"slurm": SLURM | {"latency_s": 30}})
        project.write("c.yaml", document | {"name": "c"})
        try:
            project.run("tables", time_out_s=600)
            yield project
        finally:
            project.kill()
    finally:
        down(directory / "cluster")


def test_the_demo_is_measured_on_emulated_hosts(demo: ClusterProject) -> None:
    records = demo.records()
    assert len(records) == 5 + 4
    assert {record.status for record in records} == {"ok"}, [record.failure for record in records if record.failure]
    store = Store(demo.results().directory)
    compositions = {record.cell.configuration: store.shared_document(record.composition) for record in records}
    assert {document["links"]["emulated"] for document in compositions.values()} == {"root"}
    assert {len(document["hosts"]) for document in compositions.values()} == {1, 2, 4}
    trained = [record for record in records if record.cell.workload == "bert-nano"]
    assert not [flag for record in trained for flag in record.flags if flag.startswith(("composition", "links"))]


def test_links_cost_what_they_cost_in_the_local_demo_too(demo: ClusterProject) -> None:
    # The fastest step: what else the machine does only makes steps longer.
    fastest_s = {
        record.cell.configuration: min(min(steps) for steps in record.step_times_s)
        for record in demo.records()
        if record.cell.workload == "bert-nano"
    }
    assert fastest_s["1x2-local"] < fastest_s["2x1-local"]
    assert fastest_s["1x2-local"] < fastest_s["1x2-fabric"]


def test_jobs_have_names_that_a_person_understands(demo: ClusterProject) -> None:
    names = demo.slurm("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobName").split()
    assert {"c/1x2-local", "c/2x1-local", "c/1x2-fabric"} <= set(names)
    assert all(name.startswith("c/") for name in names)


def test_the_report_is_made_without_slurm_and_says_who_measured_and_what_was_emulated(demo: ClusterProject) -> None:
    before = demo.calls()
    demo.run()
    assert demo.calls() == before
    page = demo.results().report.read_text()
    assert "every allocation was a Slurm job" in page
    assert "Links are emulated" in page
    assert "Idle between runs" in page
