"""The configuration files, without Slurm: what an administrator would read in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.emulators.hosts.cluster_spec import Cluster, ClusterHost, ClusterSpec, build_slurm_environment
from campaign.emulators.hosts.network import HeldNamespaces
from campaign.emulators.slurm import cluster as cluster_module
from campaign.emulators.slurm.cluster import stop_cluster
from campaign.emulators.slurm.cluster_directory import (
    SLURM_PROGRAM_DIRECTORY,
    check_path_length,
    lock_directory,
    render_files,
    write_owner,
)

HOSTS = (
    ClusterHost(name="host1", devices=4),
    ClusterHost(name="host2"),
    ClusterHost(name="moving1", devices=2, devices_max=8, registration="dynamic", fabric_ports=1),
    ClusterHost(name="cloud1", devices=1, registration="cloud"),
)


def cluster(spec: ClusterSpec) -> Cluster:
    names = ["host1", "host2", "moving1", "moving1-fabric0", "cloud1"]
    held = HeldNamespaces(
        pid=42, user=False, isolated=True, descriptors={name: {"net": 5 + i} for i, name in enumerate(names)}
    )
    addresses = {name: f"198.18.0.{1 + i}" for i, name in enumerate(names)}
    return Cluster(
        directory=Path("/srv/slurm"),
        spec=spec,
        held=held,
        control_address="198.18.0.254",
        addresses=addresses,
        interface="campaign0",
    )


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_hosts_are_registered_in_their_own_way() -> None:
    conf = lines(render_files(cluster(ClusterSpec(hosts=HOSTS, device="a100")))["etc/slurm.conf"])
    nodes = [line.split() for line in conf if line.startswith("NodeName=")]
    assert [(words[0], words[2], words[5:]) for words in nodes] == [
        ("NodeName=host1", "NodeAddr=198.18.0.1", ["Gres=gpu:a100:4"]),
        ("NodeName=host2", "NodeAddr=198.18.0.2", []),
        ("NodeName=cloud1", "NodeAddr=198.18.0.5", ["Gres=gpu:a100:1", "State=CLOUD"]),
    ]
    assert "NodeSet=composed Feature=composed" in conf
    assert any(line.endswith("Nodes=host1,host2,cloud1,composed") for line in conf)


def test_static_hosts_alone_need_no_node_set() -> None:
    conf = render_files(cluster(ClusterSpec(hosts=HOSTS[:1])))["etc/slurm.conf"]
    assert "NodeSet" not in conf
    assert "MaxNodeCount" not in conf


def test_device_files_are_all_that_a_host_can_ever_have() -> None:
    gres = lines(render_files(cluster(ClusterSpec(hosts=HOSTS)))["etc/gres.conf"])
    assert gres == [
        "AutoDetect=off",
        "NodeName=host1 Name=gpu File=/srv/slurm/devices/host1/gpu[0-3]",
        "NodeName=moving1 Name=gpu File=/srv/slurm/devices/moving1/gpu[0-7]",
        "NodeName=cloud1 Name=gpu File=/srv/slurm/devices/cloud1/gpu0",
    ]


@pytest.mark.parametrize("accounting", [True, False])
def test_accounting_is_on_or_off(accounting: bool) -> None:
    conf = lines(render_files(cluster(ClusterSpec(hosts=HOSTS, accounting=accounting)))["etc/slurm.conf"])
    assert ("AccountingStorageHost=198.18.0.254" in conf) is accounting
    assert ("AccountingStorageType=accounting_storage/none" in conf) is not accounting


def test_lines_of_ones_own_come_last() -> None:
    conf = lines(render_files(cluster(ClusterSpec(hosts=HOSTS, slurm_conf=("MaxArraySize=10",))))["etc/slurm.conf"])
    assert conf[-1] == "MaxArraySize=10"


def test_slurm_has_hosts_composed_where_they_are_down_until_needed() -> None:
    files = render_files(cluster(ClusterSpec(hosts=HOSTS)))
    assert "ResumeProgram=/srv/slurm/bin/resume" in lines(files["etc/slurm.conf"])
    assert "STATE=/srv/slurm/state/compositions" in lines(files["bin/settings"])
    assert "ResumeProgram" not in render_files(cluster(ClusterSpec(hosts=HOSTS[:3])))["etc/slurm.conf"]


def test_settings_of_the_cluster_and_of_a_site_say_the_same_things() -> None:
    def names(text: str) -> list[str]:
        return [re.split(r"[=(]", line)[0] for line in lines(text)]

    site = (SLURM_PROGRAM_DIRECTORY / "settings").read_text()
    assert names(render_files(cluster(ClusterSpec(hosts=HOSTS)))["bin/settings"]) == names(site)


def test_names_resolve_inside_and_no_file_leaves_the_directory() -> None:
    files = render_files(cluster(ClusterSpec(hosts=HOSTS)))
    assert "198.18.0.3 moving1" in files["etc/hosts"].splitlines()
    assert 'moving1) exec nsenter --net=/proc/1/fd/7 -- "$@"' in files["bin/on-host"]
    assert build_slurm_environment(cluster(ClusterSpec(hosts=HOSTS))) == {"SLURM_CONF": "/srv/slurm/etc/slurm.conf"}


def test_a_directory_is_too_long_when_slurmds_sockets_would_not_fit() -> None:
    """The kernel takes paths of 107 characters; Slurm then fails to launch any batch job."""
    room = 107 - len("/spool/host1/host1_999999.4294967291")
    check_path_length(Path("/" + "d" * (room - 1)), ["host1"])
    with pytest.raises(LaunchError, match="1 characters too long"):
        check_path_length(Path("/" + "d" * room), ["host1"])


def test_a_cluster_belongs_to_the_checkout_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkout").write_text("/home/ann/campaign")
    # As its keeper does; the number is of a process that has ended at once.
    ended = subprocess.Popen(["true"])
    ended.wait()
    with files.hold_lock(tmp_path / "keeper.lock", holder=f"{ended.pid}"):
        with pytest.raises(LaunchError, match="a cluster of another checkout, /home/ann/campaign, is running here"):
            lock_directory(tmp_path)
        with pytest.raises(LaunchError, match=rf"another checkout, .*campaign cluster down --directory {tmp_path}"):
            stop_cluster(tmp_path, any_owner=False)
        write_owner(tmp_path)
        with pytest.raises(LaunchError, match="is already running here; stop it with"):
            lock_directory(tmp_path)
        with pytest.raises(LaunchError, match="started in another container"):  # it is tried
            stop_cluster(tmp_path, any_owner=False)


def test_why_no_database_could_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "FATAL ERROR: Could not find my_print_defaults\n" + "Some general advice.\n" * 100
    program = tmp_path / "mariadb-install-db"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(cluster_module, "find_program", lambda name: str(tmp_path / name))
    (tmp_path / "log").mkdir()
    made = cluster(ClusterSpec(hosts=HOSTS)).model_copy(update={"directory": tmp_path})
    with pytest.raises(
        LaunchError, match=r"could not be created: FATAL ERROR: Could not find my_print_defaults \| .* \(log: "
    ):
        cluster_module._create_database(made)
    assert made.get_log_path("mariadb-install-db").read_text() == said
