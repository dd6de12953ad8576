"""The figures of Slurm: what a campaign costs beside a hand-written script, and what it costs the controller and the login node.

On a cluster of this machine's own, which is gone afterwards.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from campaign.common.errors import LaunchError
from campaign.common.processes.marked import measure_memory_mib
from campaign.emulators.hosts.cluster_spec import ClusterSpec
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.daemons import check_requirements
from campaign.spec.record import Record
from tests.benchmarks import floors
from tests.benchmarks.figure import Figure, Skipped
from tests.benchmarks.project import Project
from tests.benchmarks.timing import least, timed
from tests.cluster.cluster_project import ClusterProject, equal_hosts

_HOSTS = 4
_DEVICES = 5
_TIMES = 3
_RUNS = 64
_RUN = ("sh", "-c", "sleep 0.2; echo rate: 12.5")
_OVERHEAD = 1.25
_MINUTE_S = 60.0
_WAITS_S = 80  # more than a minute, and more than two looks at the queue
_WATCHED_S = 30.0
_PATIENCE_S = 120.0
_DEFAULTS = {"poll_s": 30, "latency_s": 60}  # those of a system file that says nothing
_COMPOSITIONS, _BATCHES = _HOSTS * _DEVICES, 50


def slurm(project: Project) -> Iterable[Figure]:
    """Campaigns through a real Slurm on four emulated hosts (root)."""
    with _project(project) as here:
        yield from _runs(project, here)
        yield from _waiting(project, here)
        yield from _thousand(here)


def calls_in_a_minute(times_s: Iterable[float]) -> int:
    """The most calls that any 60 s saw."""
    ordered = sorted(times_s)
    return max((sum(start <= time_s < start + _MINUTE_S for time_s in ordered) for start in ordered), default=0)


@contextmanager
def _project(project: Project) -> Iterator[ClusterProject]:
    """A project on a cluster; Skipped: there can be none here."""
    try:
        check_requirements()
    except LaunchError as error:
        raise Skipped(str(error)) from error
    directory = project.directory / "slurmd"
    try:
        cluster = start_cluster(directory, ClusterSpec(hosts=equal_hosts(_HOSTS, _DEVICES)))
        here = ClusterProject(project.directory / "through-slurm", cluster)
        here.system(hosts=_HOSTS, devices=_DEVICES, slurm=_DEFAULTS)
        yield here
    finally:
        stop_cluster(directory)


# -- runs ------------------------------------------------------------------------------------------------------------------


def _runs(project: Project, here: ClusterProject) -> Iterator[Figure]:
    """Against the same steps in a script of one's own, one after the other, so that both see the same machine."""
    _command(here, "short", _RUN)
    measured, looped = [], []
    for number in range(_TIMES):
        looped.append(_looped(here, number))
        measured.append(_measured(here, f"runs-{number}"))
    span_s, whole_s, cpu_s = (min(values) for values in zip(*measured, strict=True))
    loop_span_s, loop_whole_s = (min(values) for values in zip(*looped, strict=True))
    what, loop = f"{_RUNS} runs of 0.2 s on {_HOSTS} hosts", "srun in a loop of a batch script"
    yield Figure(f"{what}, first start to last end", span_s, "s", _OVERHEAD * loop_span_s, loop_span_s, loop)
    floor = loop_whole_s + floors.snakemake_s(project)
    yield Figure(
        f"{what}, whole command", whole_s, "s", _OVERHEAD * floor, floor, f"{loop}, snakemake --version", cpu_s
    )
    idle_s = [idle for number in range(_TIMES) for idle in _idle_s(here.records(f"runs-{number}"))]
    yield Figure("idle between two runs, median", statistics.median(idle_s) * 1e3, "ms", 2_000)
    yield Figure("idle between two runs, longest", max(idle_s) * 1e3, "ms", 2_000)


def _measured(here: ClusterProject, name: str) -> tuple[float, float, float]:
    """From the first run's start to the last one's end; the whole command; its processor time, without that of the daemons."""
    _campaign(here, name, "short", hosts=_HOSTS, devices=1, repetitions=_RUNS)
    took = timed(here.command("--until", "measure", campaign=name), here.directory, here.environment)
    records = here.records(name)
    if [record.status for record in records] != ["ok"] * _RUNS:
        raise RuntimeError(f"{name}: not all of {_RUNS} runs were measured")
    return (
        max(record.ended for record in records) - min(record.started for record in records),
        took.wall_s,
        took.cpu_s,
    )


def _looped(here: ClusterProject, number: int) -> tuple[float, float]:
    """From the first step's start to the last one's end, and from sbatch to the end of the script."""
    directory = here.directory / f"loop-{number}"
    directory.mkdir()
    script = directory / "loop.sh"
    options = f"--nodes={_HOSTS} --ntasks-per-node=1 --gres=gpu:1 --exclusive --mem=0 --output=loop.out"
    step = f"srun sh -c '{_RUN[-1]}'"
    script.write_text(
        f"#!/bin/sh\n#SBATCH {options}\ndate +%s.%N > begun\n"
        f"for run in $(seq {_RUNS}); do\n  {step} > run.$run || exit\ndone\ndate +%s.%N > ending\nmv ending ended\n"
    )
    started = time.perf_counter()
    here.slurm("sbatch", f"--chdir={directory}", str(script))
    _until(lambda: (directory / "ended").exists(), f"{script} ends")
    whole_s = time.perf_counter() - started
    return float((directory / "ended").read_text()) - float((directory / "begun").read_text()), whole_s


# -- waiting ---------------------------------------------------------------------------------------------------------------


def _waiting(project: Project, here: ClusterProject) -> Iterator[Figure]:
    """A lease a host, all running at once, for longer than a minute."""
    _command(here, "long", ("sh", "-c", f"sleep {_WAITS_S}; echo rate: 1"))
    _campaign(here, "waiting", "long", hosts=1, devices=list(range(1, _HOSTS + 1)), repetitions=1)
    running = here.start("--until", "measure", campaign="waiting")
    try:
        _until(lambda: len(here.pids("run")) >= _HOSTS, f"{_HOSTS} allocations run")
        pids = here.pids("measure")
        if len(pids) != _HOSTS + 1:  # and the one that started them
            raise RuntimeError(f"{len(pids)} processes measure {_HOSTS} leases: {here.said()}")
        before_s = {pid: _cpu_s(pid) for pid in pids}
        time.sleep(_WATCHED_S)
        cpu_s = [(_cpu_s(pid) - before_s[pid]) * _MINUTE_S / _WATCHED_S for pid in pids]
        own_mib = measure_memory_mib(pids) / _HOSTS
        if running.wait(_PATIENCE_S):
            raise RuntimeError(here.said())
    finally:
        if running.poll() is None:
            here.kill()
            running.wait()
    program = (sys.executable, "-c", "import campaign.run.measure_lease, campaign.slurm.slurm_submitter")
    imports = least(lambda: project.run(*program), _TIMES)
    floor = floors.import_pydantic_s(project)
    yield Figure("a waiting `measure`: start with its imports", imports.wall_s, "s", 1.0, floor, "import pydantic")
    yield Figure("a waiting lease: memory, what processes share counted once", own_mib, "MiB", 30)
    yield Figure("a waiting `measure`: processor time a minute", statistics.median(cpu_s), "s", 1.0)
    yield from _calls(here, "waiting", f"{_HOSTS} leases running")


def _calls(here: ClusterProject, name: str, what: str) -> Iterator[Figure]:
    """Of Slurm's commands but sbatch; those of drivers for their steps are not of the login node, and not in this log."""
    lines = map(json.loads, (here.results(name).slurm_state / "commands.jsonl").read_text().splitlines())
    times_s = [line["time_s"] for line in lines if line["argv"][0] != "sbatch"]
    yield Figure(f"calls of Slurm's commands in the worst minute, {what}", calls_in_a_minute(times_s), "", 6)


# -- many cells ------------------------------------------------------------------------------------------------------------


def _thousand(here: ClusterProject) -> Iterator[Figure]:
    """1,000 cells in 20 compositions, from the first to the last."""
    _command(here, "nothing", ("echo", "rate: 12.5"))
    _campaign(
        here,
        "thousand",
        "nothing",
        hosts=list(range(1, _HOSTS + 1)),
        devices=list(range(1, _DEVICES + 1)),
        batch=list(range(1, _BATCHES + 1)),
        repetitions=1,
    )
    took = timed(here.command("--until", "measure", campaign="thousand"), here.directory, here.environment)
    records = here.records("thousand")
    if len(records) != _COMPOSITIONS * _BATCHES:
        raise RuntimeError(f"{len(records)} of {_COMPOSITIONS * _BATCHES} runs were measured")
    what = f"{len(records):,} cells in {_COMPOSITIONS} compositions"
    yield Figure(f"{what}: calls of sbatch", here.calls("thousand")["sbatch"], "", 20)
    yield from _calls(here, "thousand", what)
    yield Figure(f"{what}: longest idle between two runs", max(_idle_s(records)) * 1e3, "ms", 2_000)
    yield Figure(f"{what}: wall time a run", took.wall_s / len(records) * 1e3, "ms", 500)


# -- what all of them need -------------------------------------------------------------------------------------------------


def _command(here: ClusterProject, name: str, command: Iterable[str]) -> None:
    parsers = [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}]
    document = {"name": name, "kind": "command", "launch": "per_rank", "command": list(command), "precisions": ["fp32"]}
    here.write(f"workloads/{name}.yaml", {**document, "parsers": parsers})


def _campaign(
    here: ClusterProject,
    name: str,
    workload: str,
    *,
    hosts: int | list[int],
    devices: int | list[int],
    repetitions: int,
    batch: int | list[int] = 1,
) -> None:
    document: Mapping[str, object] = {
        "name": name,
        "system": "bench",
        "configurations": [{"hosts": hosts, "devices_per_host": devices}],
        "axes": {"workload": workload, "batch": batch},
        "protocol": {"repetitions": repetitions, "compositions": 1},
    }
    here.write(f"{name}.yaml", document)


def _idle_s(records: Iterable[Record]) -> list[float]:
    """From the end of a run to the start of the next one on the same lease."""
    by_lease: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.started):
        by_lease.setdefault(record.lease_id, []).append(record)
    return [later.started - earlier.ended for lease in by_lease.values() for earlier, later in pairwise(lease)]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {_PATIENCE_S:g} s until {what}")
        time.sleep(0.05)
