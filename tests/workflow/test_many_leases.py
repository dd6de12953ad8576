"""Campaigns with more leases than can be under way at once: what ends them starts no further lease, and ends within seconds."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

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
        self.slurm.put(hosts=[f"host{number}|IDLE|gpu:1|none" for number in range(1, HOSTS + 1)])
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
    jobs = 6
    site = SlurmProject(project, 90)
    since_s = time.monotonic()
    process = site.start("--jobs", str(jobs))
    until(lambda: len(site.slurm.jobs()) >= jobs, TIME_OUT_S, project.said)
    end(project, process, signal.SIGINT)
    # Each lease submits its own job. Slurm is queried once for its hosts, once for the limits of its partitions, and once for a
    # free host that looks at the results directory. All leases share one query of the queue per interval.
    calls, looks = site.calls(), 2 + (time.monotonic() - since_s) / POLL_S
    assert calls["sbatch"] == jobs, calls
    assert (calls["scontrol"], calls["squeue"] <= looks, calls["sinfo"]) == (0, True, 3), (calls, looks)
    submitted = len(site.slurm.jobs())
    assert (submitted, site.states()) == (jobs, {"PENDING"})

    # The same command again finds them, by one look an interval for all of them.
    before, since_s = site.calls(), time.monotonic()
    process = site.start("--jobs", str(jobs))
    until(lambda: project.said().count("continuing with the existing driver") == jobs, TIME_OUT_S, project.said)
    asked = site.calls() - before
    assert asked.pop("squeue", 0) <= 2 + (time.monotonic() - since_s) / POLL_S
    assert asked == {"sinfo": 2}  # its hosts, and a free one that looks at the results directory
    end(project, process, signal.SIGINT, signal.SIGINT)
    assert (len(site.slurm.jobs()), site.states()) == (submitted, {"CANCELLED"})
    assert len(site.slurm.calls("scancel")) == jobs

    # Of 64 jobs that Snakemake selects at once, those beyond its threads are not started after Ctrl-C.
    process = site.start("--cores", str(jobs))
    until(lambda: len(site.slurm.jobs()) >= submitted + jobs, TIME_OUT_S, project.said)
    end(project, process, signal.SIGINT)
    assert len(site.slurm.jobs()) < submitted + 2 * jobs
