"""A campaign of many short leases through Slurm, compared with Snakemake jobs that call srun."""

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
from tests.benchmarks.timing import Took, run_timed
from tests.cluster.cluster_project import ClusterProject, equal_hosts

_HOSTS, _DEVICES = 4, 5
_LEASE_HOSTS, _LEASE_DEVICES = (1, 2), (1, 2, 4)
_LEASES = 60
_RUN_S = 1.0
_SNAKEFILE = """
shapes = {shapes}
rule all:
    input: expand("done/{{number}}", number=range(len(shapes)))
rule job:
    output: "done/{{number}}"
    resources: hosts=lambda wildcards: shapes[int(wildcards.number)][0]
    params: devices=lambda wildcards: shapes[int(wildcards.number)][1]
    shell:
        "srun --exclusive --mem=0 --nodes={{resources.hosts}} --ntasks-per-node={{params.devices}} --gres=gpu:{{params.devices}}"
        " sleep {run_s:g} && touch {{output}}"
"""


def schedule(project: Project) -> Iterable[Figure]:
    """Wall time of 60 leases of 1 s through a real Slurm on four emulated hosts (root)."""
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
        floor = run_bare_jobs(cluster, shapes * batches)
    name = f"{len(records)} leases of 1 s through Slurm"
    yield Figure(name, took.wall_s, "s", floor.wall_s, "as many Snakemake jobs that call srun")


def run_bare_jobs(cluster: ClusterProject, shapes: Sequence[tuple[int, int]]) -> Took:
    """Run Snakemake jobs on whole hosts, each of which only sleeps in Slurm.

    Args:
        cluster: project on a practice cluster.
        shapes: hosts, and devices per host, of each job.
    """
    directory = cluster.directory / "bare"
    directory.mkdir()
    (directory / "Snakefile").write_text(_SNAKEFILE.format(shapes=shapes, run_s=_RUN_S))
    limits = ["--jobs", str(_HOSTS), "--resources", f"hosts={_HOSTS}"]
    return run_timed(["snakemake", *limits, "--scheduler", "greedy"], directory, cluster.environment)


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
