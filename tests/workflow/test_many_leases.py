"""Campaigns with more leases than can be under way at once: what ends them starts no further lease, and ends within seconds."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import yaml

from tests.fake_slurm import FakeSlurm
from tests.warm_start import Started
from tests.workflow.checkout_twin import TIME_OUT_S, Project, until

HOSTS = 100
POLL_S = 5
SECONDS = 60.0  # only spent where it does not end; Ctrl-C once takes five


class SlurmProject:
    """A project whose Slurm starts no job; every lease is one job on one host."""

    def __init__(self, project: Project, leases: int) -> None:
        self.project = project
        self.slurm = FakeSlurm(project.directory / "fake")
        project.environment["PATH"] = f"{self.slurm.bin}{os.pathsep}{project.environment['PATH']}"
        path = project.system(hosts=HOSTS, slurm={"poll_s": POLL_S, "latency_s": 5})
        system = {**yaml.safe_load(path.read_text()), "launcher": "slurm", "fabric": {"kind": "static"}, "pool": []}
        path.write_text(yaml.safe_dump(system))
        project.campaign(batch=list(range(1, leases + 1)), lease_per="cell")

    def start(self, *arguments: str) -> Started:
        return self.project.start("--until", "measure", *arguments, profile="slurm")

    def states(self) -> set[str]:
        return {job["state"] for job in self.slurm.jobs().values()}

    def calls(self) -> Counter[str]:
        return Counter(
            {name: len(self.slurm.calls(name)) for name in ("sbatch", "squeue", "sacct", "scontrol", "sinfo")}
        )


def end(project: Project, process: Started, *numbers: int, pause_s: float = 1.0) -> None:
    """Signals to the process group, as a terminal sends them; the command ends, and so does all that it started."""
    for number in numbers:
        os.killpg(process.pid, number)
        time.sleep(pause_s)
    process.wait(SECONDS)
    project.await_quiet(SECONDS)
    assert process.returncode != 0
    assert "Traceback" not in project.said()


def test_ctrl_c_once_submits_nothing_more_and_twice_cancels_all(project: Project) -> None:
    cores = 12
    site = SlurmProject(project, 90)
    process = site.start("--cores", str(cores))
    until(lambda: len(site.slurm.jobs()) >= cores, TIME_OUT_S, project.said)
    end(project, process, signal.SIGINT)
    # Leases that ask while others come share an array; Slurm is asked for its limits, and looked at once an interval.
    calls = site.calls()
    assert (calls["sbatch"] <= 4, calls["scontrol"] <= 1, calls["squeue"] <= 4, calls["sinfo"]) == (True, True, True, 0)
    submitted = len(site.slurm.jobs())
    assert (submitted, site.states()) == (cores, {"PENDING"})

    # The same command again finds them, by one look an interval for all of them.
    before, since_s = site.calls(), time.monotonic()
    process = site.start("--cores", str(cores))
    until(lambda: project.said().count("found its driver still there") == cores, TIME_OUT_S, project.said)
    asked = site.calls() - before
    assert asked.pop("squeue", 0) <= 2 + (time.monotonic() - since_s) / POLL_S
    assert asked == {}
    end(project, process, signal.SIGINT, signal.SIGINT)
    assert (len(site.slurm.jobs()), site.states()) == (submitted, {"CANCELLED"})
    assert len(site.slurm.calls("scancel")) <= 3


ENDS: dict[str, Callable[[Started], None]] = {
    "SIGTERM to Snakemake": lambda process: process.send_signal(signal.SIGTERM),
    "kill -9 of Snakemake": lambda process: process.kill(),
    "Ctrl-C": lambda process: os.killpg(process.pid, signal.SIGINT),
    "the terminal is closed": lambda process: os.killpg(process.pid, signal.SIGHUP),
}


def test_what_ends_snakemake_starts_no_further_lease_here(project: Project) -> None:
    project.workload("logged", sleep_s=0.5)
    project.campaign(batch=list(range(1, 31)), lease_per="cell")
    for name, tell in ENDS.items():
        before = len(project.starts())
        process = project.start("--until", "measure")
        until(lambda before=before: len(project.starts()) >= before + 2, TIME_OUT_S, project.said)  # type: ignore[misc]
        tell(process)
        process.wait(SECONDS)
        project.await_quiet(SECONDS)
        # One more may have been started in that moment.
        assert len(project.starts()) - before <= 4, name
        assert project.held() == {}
        assert "Traceback" not in project.said()
