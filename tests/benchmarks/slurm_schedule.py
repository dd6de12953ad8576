"""A campaign of many short leases through Slurm, compared with an ideal schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from campaign.common.errors import LaunchError
from campaign.emulators.hosts.cluster_spec import ClusterSpec
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.daemons import check_requirements
from tests.benchmarks.figure import Figure, Skipped
from tests.benchmarks.project import Project
from tests.benchmarks.timing import run_timed
from tests.cluster.cluster_project import ClusterProject, equal_hosts

_HOSTS, _DEVICES = 4, 5
_LEASE_HOSTS, _LEASE_DEVICES = (1, 2), (1, 2, 4)
_LEASES = 300
_RUN_S = 1.0


def schedule(project: Project) -> Iterable[Figure]:
    """Wall time of 300 leases of 1 s through a real Slurm on four emulated hosts (root)."""
    shapes = list(product(_LEASE_HOSTS, _LEASE_DEVICES))
    batches = _LEASES // len(shapes)
    with _start_cluster_project(project) as cluster:
        parsers = [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}]
        command = ["sh", "-c", f"sleep {_RUN_S:g}; echo rate: 12.5"]
        workload = {"name": "brief", "kind": "command", "command": command, "precisions": ["fp32"], "parsers": parsers}
        cluster.write("workloads/brief.yaml", {**workload, "launch": "per_rank"})
        configuration = {"hosts": list(_LEASE_HOSTS), "devices_per_host": list(_LEASE_DEVICES)}
        campaign = {
            "name": "brief",
            "system": "bench",
            "configurations": [configuration],
            "axes": {"workload": "brief", "batch": list(range(1, batches + 1))},
            "protocol": {"repetitions": 1, "compositions": 1, "lease_per": "cell"},
        }
        cluster.write("brief.yaml", campaign)
        arguments = cluster.command("--until", "measure", campaign="brief")
        took = run_timed(arguments, cluster.directory, cluster.environment)
        records = cluster.records("brief")
        if [record.status for record in records] != ["ok"] * len(shapes) * batches:
            raise RuntimeError(f"not all of {len(shapes) * batches} runs were measured")
    ideal_s = _RUN_S * count_rounds([shape for shape in shapes for _ in range(batches)], _HOSTS, _DEVICES)
    yield Figure(f"{len(records)} leases of 1 s through Slurm", took.wall_s, "s", ideal_s, "list schedule")


def count_rounds(leases: Iterable[tuple[int, int]], hosts: int, devices: int) -> int:
    """Count the rounds that a list schedule needs for leases of equal duration, the largest first.

    Args:
        leases: hosts, and devices per host, of each lease
        hosts: hosts of the cluster
        devices: devices of each host
    """
    rounds: list[list[int]] = []
    for lease_hosts, lease_devices in sorted(leases, key=lambda lease: lease[0] * lease[1], reverse=True):
        free = next((free for free in rounds if len(_list_fitting(free, lease_devices)) >= lease_hosts), None)
        if free is None:
            free = [devices] * hosts
            rounds.append(free)
        for host in _list_fitting(free, lease_devices)[:lease_hosts]:
            free[host] -= lease_devices
    return len(rounds)


def _list_fitting(free: Sequence[int], devices: int) -> list[int]:
    """List the hosts with enough free devices, the fullest first."""
    return sorted((host for host, number in enumerate(free) if number >= devices), key=lambda host: free[host])


@contextmanager
def _start_cluster_project(project: Project) -> Iterator[ClusterProject]:
    """Yield a project on a practice cluster. Raises Skipped if the cluster cannot be started."""
    try:
        check_requirements()
    except LaunchError as error:
        raise Skipped(str(error)) from error
    directory = project.directory / "slurmd"
    try:
        spec = ClusterSpec(hosts=equal_hosts(_HOSTS, _DEVICES))
        cluster_project = ClusterProject(project.directory / "through-slurm", start_cluster(directory, spec))
        cluster_project.system(hosts=_HOSTS, devices=_DEVICES)
        yield cluster_project
    finally:
        stop_cluster(directory)
