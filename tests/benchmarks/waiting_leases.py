"""Memory of leases that wait in a queue of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from campaign.common.processes.marked import list_pids, measure_memory_mib, read_process_words
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.fake_slurm import FakeSlurm

_LEASES = 64
_TIMEOUT_S = 300.0
_MARK = "CAMPAIGN_BENCHMARK"


def waiting(project: Project) -> Iterable[Figure]:
    """Memory (PSS) of 64 leases whose jobs wait: an emulated Slurm accepts jobs and starts none."""
    slurm = FakeSlurm(project.directory / "fake")
    slurm.put(hosts=[f"host{number}|IDLE|gpu:1|none" for number in range(1, _LEASES + 1)])
    devices = [{"model": "cpu-rank", "count": 1}]
    project.system(
        "queue",
        launcher="slurm",
        fabric={"kind": "static"},
        hosts=[{"name": f"host[1-{_LEASES}]", "cores": 8, "memory_gib": 64, "devices": devices}],
        slurm={"poll_s": 30, "latency_s": 5},
    )
    path = project.campaign("waiting", _LEASES, configurations=1, lease_per="cell", system="queue")
    environment = {**project.environment, _MARK: str(project.directory)}
    environment["PATH"] = f"{slurm.bin}{os.pathsep}{environment['PATH']}"
    command = ["snakemake", "--profile", "slurm", "--config", f"campaign={path}", "--", "measured"]
    log = project.directory / "output.txt"
    with log.open("wb") as output:
        snakemake = subprocess.Popen(
            command, cwd=project.directory, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until(lambda: len(slurm.jobs()) >= _LEASES or snakemake.poll() is not None)
        if len(slurm.jobs()) < _LEASES:
            raise RuntimeError(log.read_text(errors="replace")[-3000:])
        time.sleep(1.0)
        mark = f"{_MARK}={project.directory}".encode()
        pids = [pid for pid in list_pids() if mark in read_process_words(pid, "environ") and pid != snakemake.pid]
        memory_mib = measure_memory_mib(pids)
    finally:
        for _ in range(2):  # The second signal cancels the jobs.
            if snakemake.poll() is None:
                os.killpg(snakemake.pid, signal.SIGINT)
                time.sleep(2.0)
        snakemake.wait(_TIMEOUT_S)
    yield Figure(
        f"{_LEASES} waiting leases, memory", memory_mib, "MiB", _measure_interpreters_mib(), "as many interpreters"
    )


def _measure_interpreters_mib() -> float:
    """Memory of as many interpreters that have imported nothing, where shared pages count once."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    interpreters = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(_LEASES)
    ]
    try:
        for interpreter in interpreters:
            assert interpreter.stdout
            interpreter.stdout.readline()
        return measure_memory_mib([interpreter.pid for interpreter in interpreters])
    finally:
        for interpreter in interpreters:
            interpreter.communicate()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
