"""The figures of many leases: what a lease costs beside a loop in the shell, while it waits in a queue, and in a plan of thousands.

Limits are of processor time where they are the program's own: other work on the machine changes wall times, but hardly that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from campaign.common.processes.marked import list_pids, measure_memory_mib, read_process_words
from tests.benchmarks import floors
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.benchmarks.timing import Took, least
from tests.fake_slurm import FakeSlurm

_RUN_S = 3.0
_LEASES = 20
_WAITING = 64
_PATIENCE_S = 300.0
_MARK = "CAMPAIGN_BENCHMARK"
_POOL = [{"kind": "gpu", "model": model, "count": 4} for model in ("a", "b", "c")]
_SIX = [*_POOL, {"kind": "nvme", "model": "drive", "count": 4}]
"""With hosts and their own devices, six resources."""


def leases(project: Project) -> Iterable[Figure]:
    """Leases of one run against the same runs in a loop; what waits in a queue; dry runs of 1,000 and 10,000 leases."""
    start_s = floors.snakemake_s(project)
    run = ("sh", "-c", f"sleep {_RUN_S}; echo rate: 12.5")
    project.command("brief", run)
    took = _measured(project, _LEASES, "brief")
    floor_s = floors.shell_loop_s(project, _LEASES, run) + start_s
    name = f"{_LEASES} leases of {_RUN_S:g} s"
    yield Figure(name, took.wall_s, "s", 1.5 * floor_s, floor_s, "shell loop, snakemake --version", took.cpu_s)
    yield Figure(f"{name}: processor time of one", took.cpu_s / _LEASES, "s", 1.5)
    files = sum(path.is_file() for path in (project.directory / "results").rglob("*")) / _LEASES
    yield Figure(f"{name}: files of one", files, "", 13)
    yield from _waiting(project)
    for count, limit_s, limit_mib in ((1_000, 5, None), (10_000, 25, 400)):
        project.system("six", pool=_SIX)
        path = project.campaign(f"many-{count}", count, lease_per="cell", system="six")
        dry = least(lambda path=path: project.dry_run(path), 1)  # type: ignore[misc]
        yield Figure(f"snakemake -n, {count:,} leases: processor time", dry.cpu_s, "s", limit_s)
        if limit_mib:
            yield Figure(f"snakemake -n, {count:,} leases: memory", dry.peak_mib, "MiB", limit_mib)


def _measured(project: Project, count: int, workload: str) -> Took:
    shutil.rmtree(project.directory / "results", ignore_errors=True)
    path = project.campaign(f"leases-{count}", count, configurations=1, lease_per="cell", workload=workload)
    return project.snakemake(path, "measured")


def _waiting(project: Project) -> Iterator[Figure]:
    """Leases whose jobs wait in a queue that never gets shorter: a Slurm that takes jobs and starts none."""
    slurm = FakeSlurm(project.directory / "fake")
    slurm.put(hosts=[f"host{number}|IDLE|gpu:1|none" for number in range(1, _WAITING + 1)])
    hosts = [
        {"name": f"host[1-{_WAITING}]", "cores": 8, "memory_gib": 64, "devices": [{"model": "cpu-rank", "count": 1}]}
    ]
    project.system(
        "queue", launcher="slurm", fabric={"kind": "static"}, hosts=hosts, slurm={"poll_s": 30, "latency_s": 5}
    )
    path = project.campaign("waiting", _WAITING, configurations=1, lease_per="cell", system="queue")
    environment = {**project.environment, _MARK: str(project.directory)}
    environment["PATH"] = f"{slurm.bin}{os.pathsep}{environment['PATH']}"
    command = ["snakemake", "--profile", "slurm", "--config", f"campaign={path}", "--", "measured"]
    with (project.directory / "output.txt").open("wb") as output:
        snakemake = subprocess.Popen(
            command, cwd=project.directory, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + _PATIENCE_S
        while len(slurm.jobs()) < _WAITING and snakemake.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        if len(slurm.jobs()) < _WAITING:
            raise RuntimeError((project.directory / "output.txt").read_text(errors="replace")[-3000:])
        time.sleep(1.0)
        pids = [
            pid for pid in list_pids() if f"{_MARK}={project.directory}".encode() in read_process_words(pid, "environ")
        ]
        pids.remove(snakemake.pid)
        calls = {name: len(slurm.calls(name)) for name in ("sbatch", "squeue")}
        yield Figure(
            f"{_WAITING} waiting leases: memory, what processes share counted once",
            measure_memory_mib(pids),
            "MiB",
            3000,
        )
        # With bash and Slurm's commands.
        yield Figure(f"{_WAITING} waiting leases: processor time of one", sum(map(_cpu_s, pids)) / _WAITING, "s", 0.8)
        yield Figure(f"{_WAITING} waiting leases: calls of sbatch", calls["sbatch"], "", _WAITING)
        yield Figure(f"{_WAITING} waiting leases: calls of squeue", calls["squeue"], "", 3)
    finally:
        for _ in range(2):  # the second one cancels
            if snakemake.poll() is None:
                os.killpg(snakemake.pid, signal.SIGINT)
                time.sleep(2.0)
        snakemake.wait(_PATIENCE_S)


def _cpu_s(pid: int) -> float:
    """Of a process and what it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
