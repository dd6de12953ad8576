"""Training on one host and over two, from its YAML file to the report, measured by a real Slurm on emulated hosts.

Each rank of a step of Slurm's imports torch by itself, so that every further one costs seconds. How each strategy and precision
trains, and how links slow it, is tested where ranks are forked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml

from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.spec_from_system import build_cluster_spec
from campaign.plan.campaign.load import read_system
from campaign.spec.record import Record, RecordStore
from tests.cluster.cluster_project import SLURM, ClusterProject
from tests.workflow.checkout_twin import ROOT

pytestmark = pytest.mark.usefixtures("slurm_installed")

HOSTS = {"1x2-local": 1, "2x1of2-local": 2}
EXCLUDE = {
    "parallel == 'ddp' and precision != 'fp32' or parallel == 'dp' and precision != 'fp16-o2'": "one precision of each shows it",
}


@pytest.fixture(scope="module")
def demo(slurm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProject]:
    """Kinds of the default campaign's configurations, on the hosts of its own system file."""
    directory = tmp_path_factory.mktemp("demo")
    document = yaml.safe_load((ROOT / "config" / "campaign.yaml").read_text())
    document["configurations"] = [
        {"devices_per_host": 2},
        {"hosts": 2, "devices_per_host": 2, "devices_used": 1},
    ]
    document["baseline"] = "1x2-local"
    document["axes"] = {
        "workload": "bert-nano",
        "batch": 4,
        "precision": ["fp32", "fp16-o2"],
        "options": {"parallel": ["ddp", "dp"]},
    }
    document["exclude"] = [{"when": when, "why": why} for when, why in EXCLUDE.items()]
    # Many steps where the fastest is looked at: beside other tests, most of them wait for a processor.
    document["overrides"] = [{"when": "precision == 'fp32'", "measured_steps": 30}]
    links = {"sizes_bytes": [8, 65536], "repeats": 3, "warmup": 1}
    document["protocol"] |= {
        "repetitions": 1,
        "compositions": 1,
        "telemetry_s": 0.1,
        "links": links,
        "isolation": "machine",
    }
    try:
        cluster = start_cluster(
            directory / "cluster", build_cluster_spec(read_system("falcon-demo", ROOT / "config" / "campaign.yaml"))
        )
        project = ClusterProject(directory / "project", cluster)
        # The emulated cluster answers at once; patience is for real ones.
        system = yaml.safe_load((ROOT / "config" / "systems" / "falcon-demo.yaml").read_text())
        del system["emulation"]["pace"]  # other tests take the cores
        project.write("systems/falcon-demo.yaml", system | {"slurm": SLURM | {"latency_s": 30}})
        project.write("c.yaml", document | {"name": "c"})
        try:
            project.run("tables", time_out_s=600)
            yield project
        finally:
            project.kill()
    finally:
        stop_cluster(directory / "cluster")


@pytest.fixture(scope="module")
def records(demo: ClusterProject) -> dict[tuple[str, str], Record]:
    """By configuration and strategy."""
    return {(record.cell.configuration, str(record.cell.options["parallel"])): record for record in demo.records()}


def test_the_demo_is_measured_on_emulated_hosts(demo: ClusterProject, records: dict[tuple[str, str], Record]) -> None:
    assert len(records) == len(demo.records()) == len(HOSTS) + 2
    refused = records["2x1of2-local", "dp"]
    assert refused.status == "unsupported"
    assert refused.failure is not None
    assert "supports one host only" in refused.failure.reason
    measured = [record for record in records.values() if record is not refused]
    assert {record.status for record in measured} == {"ok"}, [record.failure for record in measured if record.failure]
    store = RecordStore(demo.results().directory)
    compositions = {name: store.read_shared_document(record.composition) for (name, _), record in records.items()}
    assert {document["links"]["emulated"] for document in compositions.values()} == {"root"}
    assert {name: len(document["hosts"]) for name, document in compositions.items()} == HOSTS
    assert not [flag for record in measured for flag in record.flags if flag.startswith("composition")]


def test_what_is_asked_of_training_reaches_its_ranks(records: dict[tuple[str, str], Record]) -> None:
    whole, alone = records["1x2-local", "ddp"], records["1x2-local", "dp"]
    assert (len(whole.step_times_s), len(alone.step_times_s)) == (2, 1)
    assert alone.cell.precision == "fp16-o2"
    assert alone.metrics["gradient_bytes"] < 0.6 * whole.metrics["gradient_bytes"]
    assert "allreduce_bytes_per_step" not in alone.metrics
    losses = [record.metrics["loss_first"] for record in records.values() if record.status == "ok"]
    assert losses == pytest.approx([losses[0]] * 3, rel=0.05)
    assert whole.metrics["allreduce_bytes_per_step"] > 0
    assert alone.metrics["communication_bytes_per_step"] > 0
    assert all(record.metrics["flops_per_step"] > 0 for record in records.values() if record.status == "ok")


def test_links_cost_what_they_cost_in_the_local_demo_too(records: dict[tuple[str, str], Record]) -> None:
    # The fastest step: what else the machine does only makes steps longer.
    fastest_s = {name: min(map(min, records[name, "ddp"].step_times_s)) for name in HOSTS}
    assert fastest_s["1x2-local"] < fastest_s["2x1of2-local"]


def test_links_of_every_composition_are_measured_and_judged(
    demo: ClusterProject, records: dict[tuple[str, str], Record]
) -> None:
    store = RecordStore(demo.results().directory)
    for configuration in HOSTS:
        document = store.read_shared_document(records[configuration, "ddp"].links)
        count = 2 * HOSTS[configuration]  # also those that no rank uses
        assert len(document["devices"]) == count
        rates = document["matrices"]["unidirectional_gb_per_s"]
        assert all((rates[a][b] is None) == (a == b) for a in range(count) for b in range(count))
        assert len(document["allreduce"]["size_bytes"]) == 2
    said = json.loads((demo.results().tables / "links.json").read_text())
    assert {each["configuration"] for each in said} == set(HOSTS)


def test_hosts_are_watched_beside_every_run(demo: ClusterProject, records: dict[tuple[str, str], Record]) -> None:
    shares = []
    for (configuration, _), record in records.items():
        if record.status != "ok":
            continue
        if (share := record.metrics.get("cpu_utilisation_mean_pct")) is not None:
            shares.append(share)
        samples = pd.read_parquet(demo.results().directory / record.telemetry)
        assert samples["host"].nunique() == HOSTS[configuration]
        assert set(samples["host"]) == set(record.hosts)
        assert samples["time"].between(record.started - 1, record.ended + 1).all()
        # No GPU is here, so nothing is said of one.
        assert not [name for name in record.metrics if name.startswith(("device_utilisation", "energy"))]
    # A window in which the sampler got no turn has no mean: not every run of a busy machine has one.
    assert shares
    assert all(0 < share <= 100 for share in shares)


def test_jobs_have_names_that_a_person_understands(demo: ClusterProject) -> None:
    names = demo.slurm("sacct", "--noheader", "--allocations", "--parsable2", "--format=JobName").split()
    assert {"c/1x2-local", "c/2x1of2-local"} <= set(names)
    # One short job looks from a host at the results directory.
    assert all(name.startswith(("c/", "check-results-")) for name in names)


def test_the_report_says_who_measured_and_what_was_emulated(demo: ClusterProject) -> None:
    page = demo.page("link_matrices", "allreduce")
    assert "Slurm started the runs: every allocation was a job" in page
    assert "Links are emulated" in page
    assert "Leases were idle between runs" in page
    assert 'id="link-matrices"' in page
    assert 'id="allreduce"' in page


def test_nothing_is_left_behind(demo: ClusterProject) -> None:
    assert demo.queue() == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(demo.results_root).encode() in _read(p)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # ended meanwhile
