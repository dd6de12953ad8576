"""Foreign programs whose ranks mpirun and torchrun start, as steps of a real job over two hosts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.hosts.cluster_spec import Cluster
from campaign.spec.cell import Cell, Configuration, Settings
from campaign.spec.system_file import SystemFile
from campaign.workloads.command import CommandWorkload
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Run as MeasuredRun
from campaign.workloads.protocol import Step, StepEnd
from tests.cluster.in_job import Job, Run, Work, composition, submitted

pytestmark = pytest.mark.usefixtures("slurm_installed")
HOSTS = composition(["host1", "host2"], 2)
SITE = {"name": "site", "launcher": "slurm", "fabric": {"kind": "static"}, "hosts": [{"name": "host[1-4]"}]}
# What a rank says of itself, and that it is a process of the run.
RANK = """
import os
v = os.environ
rank, world = v.get('OMPI_COMM_WORLD_RANK') or v['RANK'], v.get('OMPI_COMM_WORLD_SIZE') or v['WORLD_SIZE']
name = v['CAMPAIGN_RUN'].rpartition('/')[2]
# One write: ranks share the log, and Python may have been told not to buffer.
print(f"rank {rank} of {world} on {os.uname().nodename} {v['A']} {name}\\n", end='', flush=True)
"""
NAMES = {"mpirun": "mpirun", "torchrun": "torchrun", "srun": "sh"}


def step(directory: Path, **keys: Any) -> Step:
    document = {"name": "p", "kind": "command", "precisions": ["fp32"], "environment": {"A": "{batch}"}, **keys}
    # mpirun refuses to be root's unless it is told twice.
    document["environment"] |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    configuration = Configuration("c", 2, 2, 2, 2, "core", "local", "local")
    cell = Cell("0" * 20, configuration, "p", 7, "fp32", settings=Settings())
    run = MeasuredRun(cell, 1, HOSTS, directory, "cpu", launcher="slurm")
    return CommandWorkload.model_validate(document).step(run)


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = tmp_path_factory.mktemp("foreign")
    program = directory / "rank.py"
    program.write_text(RANK)
    plain = [sys.executable, "-S", str(program)]
    wanted = {
        "mpirun": {"launch": "mpirun", "command": plain},
        "torchrun": {"launch": "torchrun", "command": [str(program)]},
        "srun": {"launch": "srun", "mpi": "none", "command": plain},
    }
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{before}"
    runs = tuple(
        Run(name, step(directory, **keys), StepLimits(60.0))
        for name, keys in wanted.items()
        if shutil.which(NAMES[name])
    )
    try:
        job = submitted(cluster, Work(SystemFile.model_validate(SITE), HOSTS, directory, runs), 2)
        job.done(120)
        yield job
    finally:
        os.environ["PATH"] = before
        job.end()


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_run_on_their_hosts_and_are_of_the_run(name: str, job: Job) -> None:
    if name not in job.done().results:
        pytest.skip(f"{NAMES[name]} is not installed")
    ended = job.done().results[name]
    said = sorted(line for line in job.log(name).splitlines() if line.startswith("rank "))
    assert isinstance(ended, StepEnd), job.log(name)
    assert set(ended.codes) == {0}, job.log(name)
    assert said == [f"rank {rank} of 4 on host{1 + rank // 2} 7 {name}" for rank in range(4)]
