"""`campaign cluster`: what a person types, and what of a system file the cluster is made of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.common.errors import ConfigError, LaunchError
from campaign.emulators.hosts import cluster_spec
from campaign.emulators.hosts.cluster_spec import Cluster, build_slurm_environment
from campaign.emulators.hosts.topology import list_namespaces
from campaign.emulators.slurm.cluster import stop_cluster
from campaign.emulators.slurm.cluster_directory import list_granted_devices
from campaign.emulators.slurm.spec_from_system import build_cluster_spec
from campaign.plan.campaign.load import read_system
from campaign.spec.system_file import SystemFile
from tests import campaign_files

DYNAMIC = {
    "system.hosts": [
        {"name": "host[1-2]", "cores": 4, "memory_gib": 4, "devices": [{"model": "cpu-rank", "count": 2}]}
    ],
    "system.slurm": {"strategy": "dynamic"},
}


def system(directory: Path, **changes: object) -> SystemFile:
    named = {f"system.{name}": value for name, value in changes.items()}
    return read_system("bench", campaign_files.write_files(directory, named))


def campaign(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "campaign.cli.main", *argv],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=90,
        check=False,
    )


@pytest.fixture(scope="module")
def up(slurm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A cluster of two dynamic hosts, brought up as a person does; its directory, and what was said."""
    file = campaign_files.write_files(tmp_path_factory.mktemp("config"), DYNAMIC).parent / "systems" / "bench.yaml"
    directory = tmp_path_factory.mktemp("commands")
    line = ["--slurm-conf", "MaxArraySize=7"]
    try:
        done = campaign("cluster", "up", str(file), "--directory", str(directory), "--no-accounting", *line)
        assert done.returncode == 0, done.stderr
        yield directory, done.stdout
    finally:
        stop_cluster(directory)


@pytest.fixture
def shell(up: tuple[Path, str]) -> dict[str, str]:
    """The environment that `up` told the person to have."""
    line = next(line for line in up[1].splitlines() if line.startswith("export "))
    name, _, value = line.removeprefix("export ").partition("=")
    return {name: value}


def slurm(shell: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **shell}, timeout=60, check=False)


def test_what_up_says_is_all_that_slurm_needs(up: tuple[Path, str], shell: dict[str, str]) -> None:
    assert f"campaign cluster down --directory {up[0]}" in up[1]
    assert slurm(shell, "srun", "-N2", "hostname").stdout.split() in (["host1", "host2"], ["host2", "host1"])
    assert "MaxArraySize            = 7" in slurm(shell, "scontrol", "show", "config").stdout


def test_status_shows_daemons_hosts_and_jobs(up: tuple[Path, str], shell: dict[str, str]) -> None:
    job = slurm(shell, "sbatch", "--parsable", "--hold", "-J", "small/1x2 | held", "--wrap", "true").stdout.strip()
    try:
        shown = campaign("cluster", "status", **shell)
    finally:
        slurm(shell, "scancel", job)
    assert shown.returncode == 0
    for text in (
        "link network: not shaped",
        "daemon slurmctld: process ",
        "daemon slurmd of host2: process ",
        "host host1: idle, gpu:2",
        f"job {job}: small/1x2 | held, PENDING, (JobHeldUser)",
    ):
        assert text in shown.stdout


def test_a_host_comes_back_with_other_devices(up: tuple[Path, str], shell: dict[str, str]) -> None:
    """The commands of slurm.slurmd in a system file, as the dynamic strategy calls them."""
    for count in (4, 2):
        for _ in range(2):
            assert campaign("cluster", "slurmd", "stop", "host2", **shell).returncode == 0
        missing = campaign("cluster", "status", **shell)
        assert missing.returncode == 1
        assert "slurmd of host2: missing" in missing.stdout
        assert slurm(shell, "scontrol", "delete", "nodename=host2").returncode == 0
        for _ in range(2):
            started = campaign("cluster", "slurmd", "start", "host2", "--devices", str(count), **shell)
            assert started.returncode == 0, started.stderr
        asked = [
            "srun",
            "-w",
            "host2",
            f"--gres=gpu:{count}",
            sys.executable,
            "-m",
            "campaign.cli.main",
            "cluster",
            "devices",
        ]
        # The controller takes a moment to know the host.
        for _ in range(100):
            seen = slurm(shell, *asked)
            if seen.returncode == 0:
                break
        assert seen.stdout.splitlines() == [f"host2/gpu{index}, cpu-rank" for index in range(count)]


def test_slurmd_is_stopped_and_started_from_inside_too(up: tuple[Path, str], shell: dict[str, str]) -> None:
    """As a ResumeProgram does, which slurmctld starts among the cluster's own process ids."""
    inside = f"{sys.executable} -m campaign.cli.main cluster slurmd"
    asked = ["srun", "-w", "host1", "sh", "-c", f"{inside} stop host2 && {inside} start host2"]
    done = slurm(shell, *asked)
    assert done.returncode == 0, done.stderr
    assert "host2: slurmd is stopped" in done.stdout
    assert campaign("cluster", "status", **shell).returncode == 0


def test_a_host_that_is_not_there(up: tuple[Path, str], shell: dict[str, str]) -> None:
    refused = campaign("cluster", "slurmd", "stop", "host9", **shell)
    assert refused.returncode == 1
    assert "no host host9; its hosts are: host1, host2" in refused.stderr


def test_devices_outside_of_a_job(up: tuple[Path, str], shell: dict[str, str]) -> None:
    refused = campaign("cluster", "devices", **shell)
    assert refused.returncode == 1
    assert "not a job of the cluster" in refused.stderr


def test_status_and_down_where_nothing_is_up(tmp_path: Path) -> None:
    runner = CliRunner()
    asked = runner.invoke(main, ["cluster", "status", "--directory", str(tmp_path)])
    assert asked.exit_code == 1
    assert "no cluster is running here" in asked.output
    again = runner.invoke(main, ["cluster", "down", "--directory", str(tmp_path)])
    assert again.exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_is_not_there() -> None:
    asked = CliRunner().invoke(main, ["cluster", "up", "falcon-dem"])
    assert asked.exit_code == 1
    assert "did you mean 'falcon-demo'?" in asked.output


def test_the_environment_finds_a_cluster_and_no_other_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert cluster_spec.find_cluster_in_environment() is None
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "etc" / "slurm.conf"))
    assert cluster_spec.find_cluster_in_environment() is None


def test_the_environment_finds_the_cluster(
    up: tuple[Path, str], shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", shell["SLURM_CONF"])
    found = cluster_spec.find_cluster_in_environment()
    assert found is not None
    assert found.directory == up[0]
    assert build_slurm_environment(found) == shell


# What of a system file the cluster is made of --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "registration", "devices"),
    [("static", "static", 6), ("reservation", "static", 6), ("resume", "cloud", 6), ("dynamic", "dynamic", 2)],
)
def test_hosts_offer_what_slurm_is_to_know(tmp_path: Path, strategy: str, registration: str, devices: int) -> None:
    spec = build_cluster_spec(system(tmp_path, slurm={"strategy": strategy}))
    assert [(host.name, host.registration, host.devices, host.slots, host.fabric_ports) for host in spec.hosts] == [
        (name, registration, devices, 6, 4) for name in ("host1", "host2")
    ]
    assert spec.cpus >= 6


def test_a_port_for_every_device_that_the_chassis_lets_a_host_have(tmp_path: Path) -> None:
    chassis = [{"name": "falcon1", "drawers": [{"name": "drawer1", "mode": "standard_two_hosts"}]}]
    pool = [{"model": "cpu-rank", "count": 6, "drawer": "falcon1/drawer1"}, {"kind": "nvme", "model": "n", "count": 1}]
    spec = build_cluster_spec(system(tmp_path, fabric={"kind": "simulated", "chassis": chassis}, pool=pool))
    assert [host.fabric_ports for host in spec.hosts] == [4, 2]


def test_links_are_as_slow_as_the_system_file_says(tmp_path: Path) -> None:
    links = {"fabric": {"gb_per_s": 12.0}, "network": {"gb_per_s": 25.0}}
    emulated = build_cluster_spec(system(tmp_path, links=links, emulation={"scale": 0.01})).rates
    assert emulated.compute_gbit_per_s("fabric") == pytest.approx(0.96)
    assert emulated.compute_gbit_per_s("network") == pytest.approx(2.0)
    assert build_cluster_spec(system(tmp_path, links=links)).rates.compute_gbit_per_s("network") is None


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_devices_of_a_host_have_ports_where_local_links_are_emulated(tmp_path: Path, strategy: str) -> None:
    links = {name: {"gb_per_s": 12.0} for name in ("local", "fabric", "network")}
    emulated = {"emulation": {"scale": 0.01}, "slurm": {"strategy": strategy}}
    spec = build_cluster_spec(system(tmp_path, links=links, **emulated))
    assert [name for name in list_namespaces(spec.to_emulation_spec()) if name.startswith("host1")] == [
        "host1", "host1-local0", "host1-local1", *(f"host1-fabric{n}" for n in range(4)),
    ]  # fmt: skip
    links.pop("local")
    without = build_cluster_spec(system(tmp_path, links=links, **emulated))
    assert [host.local_ports for host in without.hosts] == [0, 0]


def test_partitions_and_gres_are_the_systems(tmp_path: Path) -> None:
    slurm = {"gres": "gpu:a100", "partition": "short", "overrides": [{"when": "hosts > 1", "partition": "wide"}]}
    spec = build_cluster_spec(system(tmp_path, slurm=slurm), slurm_conf=("MaxArraySize=7",))
    assert spec.partition == "short"
    assert spec.format_gres(2) == "gpu:a100:2"
    assert spec.slurm_conf == ("PartitionName=wide MaxTime=INFINITE State=UP Nodes=ALL", "MaxArraySize=7")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slurm": {"gres": "tpu"}}, "supports only 'gpu'"),
        ({"pool": [{"model": "other", "count": 1}]}, "have 2 models"),
        ({"hosts": [{"name": "h[1-64]", "devices": [{"model": "cpu-rank", "count": 1}]}]}, "at most 32"),
    ],
)
def test_a_system_that_one_machine_cannot_stand_for(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_cluster_spec(system(tmp_path, **changes))


def test_devices_that_slurm_was_only_told_of_are_no_devices(up: tuple[Path, str], shell: dict[str, str]) -> None:
    cluster = Cluster.model_validate_json((up[0] / "cluster.json").read_text())
    step = {"SLURMD_NODENAME": "host1", "CUDA_VISIBLE_DEVICES": "0,3"}
    assert [device.identity for device in list_granted_devices(cluster, step)] == ["host1/gpu0", "host1/gpu3"]
    assert list_granted_devices(cluster, step | {"CUDA_VISIBLE_DEVICES": ""}) == ()
    with pytest.raises(LaunchError, match="device 9"):
        list_granted_devices(cluster, step | {"CUDA_VISIBLE_DEVICES": "0,9"})
    with pytest.raises(LaunchError, match="not a job"):
        list_granted_devices(cluster, step | {"SLURMD_NODENAME": "elsewhere"})
