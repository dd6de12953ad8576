"""A campaign over parallel strategies and precisions, with links and telemetry, from its YAML to its report, by a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from campaign.documents.record import Record, Store
from campaign.launch.emulation.cluster_spec import Cluster
from tests.cluster.cluster_project import ClusterProject

pytestmark = pytest.mark.usefixtures("slurm_installed")


@pytest.fixture(scope="module")
def project(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProject]:
    """Two devices on one host and on two; every strategy on one host, autocast and fp16 weights with DDP."""
    project = ClusterProject(tmp_path_factory.mktemp("training"), cluster)
    project.system(links={"network": {"gb_per_s": 1e-6}})
    project.write(
        "workloads/nano.yaml",
        {
            "name": "nano",
            "kind": "train",
            "model": "bert-nano",
            "precisions": ["fp32", "bf16", "fp16-o2"],
            "options": {"seq_len": 8, "emulation": "allow"},
        },
    )
    shapes = [{"devices_per_host": 4, "devices_used": 2}, {"hosts": 2, "devices_per_host": 2, "devices_used": 1}]
    exclude = [
        {"when": "hosts > 1 and (parallel not in ['ddp', 'dp'] or precision != 'fp32')", "why": "one host shows it"},
        {"when": "parallel != 'ddp' and precision != 'fp32'", "why": "one strategy shows it"},
    ]
    axes = {"workload": "nano", "batch": 4, "precision": ["fp32", "bf16", "fp16-o2"]}
    axes["options"] = {"parallel": ["ddp", "dp", "zero1", "fsdp"]}  # type: ignore[assignment]
    links = {"sizes_bytes": [8, 65536], "repeats": 3, "warmup": 1}
    protocol = {"repetitions": 1, "warmup_steps": 2, "measured_steps": 40, "telemetry_s": 0.1, "links": links}
    project.write(
        "c.yaml",
        {
            "name": "c",
            "system": "bench",
            "configurations": shapes,
            "axes": axes,
            "exclude": exclude,
            "protocol": protocol,
        },
    )
    try:
        project.run(time_out_s=400)
        yield project
    finally:
        project.kill()


@pytest.fixture(scope="module")
def records(project: ClusterProject) -> dict[tuple[int, str, str], Record]:
    """By hosts, strategy and precision."""
    return {(r.cell.hosts, str(r.cell.options["parallel"]), r.cell.precision): r for r in project.records()}


def test_every_strategy_and_precision_is_measured(records: dict[tuple[int, str, str], Record]) -> None:
    assert len(records) == 6 + 2
    refused = records.pop((2, "dp", "fp32"))
    assert refused.status == "unsupported"
    assert refused.failure is not None
    assert "one process" in refused.failure.reason
    assert {record.status for record in records.values()} == {"ok"}, [r.failure for r in records.values() if r.failure]
    full, half = records[1, "ddp", "fp32"], records[1, "ddp", "fp16-o2"]
    assert records[1, "ddp", "bf16"].metrics["allreduce_bytes_per_step"] == full.metrics["allreduce_bytes_per_step"]
    assert half.metrics["allreduce_bytes_per_step"] < 0.6 * full.metrics["allreduce_bytes_per_step"]
    losses = [records[1, strategy, "fp32"].metrics["loss_first"] for strategy in ("ddp", "dp", "zero1", "fsdp")]
    assert losses == pytest.approx([losses[0]] * 4, rel=0.05)
    assert all(record.metrics["flops_per_step"] > 0 for record in records.values())


def test_links_of_every_composition_are_measured_and_judged(
    project: ClusterProject, records: dict[tuple[int, str, str], Record]
) -> None:
    store = Store(project.results().directory)
    for hosts in (1, 2):
        document = store.shared_document(records[hosts, "ddp", "fp32"].links)
        assert len(document["devices"]) == 4
        rates = document["matrices"]["unidirectional_gb_per_s"]
        assert all((rates[a][b] is None) == (a == b) for a in range(4) for b in range(4))
        assert len(document["allreduce"]["size_bytes"]) == 2
    said = json.loads((project.results().tables / "links.json").read_text())
    assert {each["configuration"] for each in said} == {"1x2of4-local", "2x1of2-local"}
    page = project.results().report.read_text()
    assert 'id="link-matrices"' in page
    assert 'id="allreduce"' in page


def test_hosts_are_watched_beside_every_run(
    project: ClusterProject, records: dict[tuple[int, str, str], Record]
) -> None:
    shares = []
    for (hosts, *_), record in records.items():
        if record.status != "ok":
            continue
        if (share := record.metrics.get("cpu_utilisation_mean_pct")) is not None:
            shares.append(share)
        samples = pd.read_parquet(project.results().directory / record.telemetry)
        assert samples["host"].nunique() == hosts
        assert set(samples["host"]) == set(record.hosts)
        assert samples["time"].between(record.started - 1, record.ended + 1).all()
        # No GPU is here, so nothing is said of one.
        assert not [name for name in record.metrics if name.startswith(("device_utilisation", "energy"))]
    # A window in which the sampler got no turn has no mean: not every run of a busy machine has one.
    assert shares
    assert all(0 < share <= 100 for share in shares)


def test_nothing_is_left_behind(project: ClusterProject) -> None:
    assert project.queue() == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(project.results_root).encode() in _read(p)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # ended meanwhile
