"""Hosts that Slurm has composed: its ResumeProgram and its fellows, called by a real slurmctld."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from campaign.emulators.hosts.cluster_spec import Cluster, build_slurm_environment
from campaign.emulators.slurm.cluster import query_status, start_cluster, stop_cluster
from campaign.emulators.slurm.spec_from_system import build_cluster_spec
from campaign.lease.manual import verify_compositions
from campaign.plan.campaign.load import read_system
from tests import campaign_files

pytestmark = [pytest.mark.usefixtures("slurm_installed"), pytest.mark.slow]
_START_S = 60.0
"""slurmctld looks every 30 s whether the hosts of a job are up."""
IMPATIENT = (
    "ResumeTimeout=15",
    "SuspendTime=5",
    "SlurmctldParameters=idle_on_node_suspend,power_save_interval=1",
)
"""So that Slurm itself is soon done with hosts that are idle or do not come."""
CHANGES = {
    "system.slurm": {"strategy": "resume"},
    "system.hosts": [
        {"name": "host[1-4]", "cores": 4, "memory_gib": 4, "devices": [{"model": "cpu-rank", "count": 2}]}
    ],
    "campaign.configurations": [{"hosts": [1, 2], "devices_per_host": [2], "attach": ["local", "fabric"]}],
}


class Site:
    """A cluster whose hosts are composed on demand, and a campaign for it, at a path that a shell would split."""

    def __init__(self, cluster: Cluster, campaign: Path, results: Path) -> None:
        self.cluster = cluster
        self.campaign = campaign
        self.results = results
        self.work = results.parent

    def slurm(self, *argv: str) -> str:
        surroundings = {**os.environ, **build_slurm_environment(self.cluster)}
        done = subprocess.run(argv, capture_output=True, text=True, env=surroundings, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, configuration: str, hosts: int, *options: str) -> str:
        """Id of a job that says what it wants composed, writes `<id>.hosts`, and waits for a file `<id>.end`."""
        comment = (
            f"campaign={self.campaign} results={self.results} configuration={configuration} python={sys.executable}"
        )
        # There at once with all hosts, which say their names one after the other.
        told = 'srun hostname > "$SLURM_JOB_ID.part"; mv "$SLURM_JOB_ID.part" "$SLURM_JOB_ID.hosts"'
        script = told + '; until [ -e "$SLURM_JOB_ID.end" ]; do sleep 0.1; done'
        asked = ["--comment", f"{comment} token=0123", "--exclusive", f"-N{hosts}", "--gres=gpu:2", *options]
        return self.slurm("sbatch", "--parsable", "--chdir", str(self.work), *asked, "--wrap", script)

    def state(self, job: str) -> str:
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        shown = self.slurm("scontrol", "show", "job", job)
        return next((line.partition(f"{name}=")[2] for line in shown.splitlines() if f"{name}=" in line), "").split(
            " "
        )[0]

    def hosts(self, job: str) -> set[str]:
        """Hosts that a job runs on; waits for it to run."""
        file = self.work / f"{job}.hosts"
        until(lambda: file.exists() and file.read_text(), f"job {job} did not run")
        return set(file.read_text().split())

    def end(self, job: str) -> None:
        (self.work / f"{job}.end").touch()

    def composed(self) -> dict[str, set[str]]:
        """Hosts of every composition that the fabric has, by what it is kept as."""
        found = verify_compositions(self.campaign, self.results)
        return {lease["lease"].split(".")[1]: {device["host"] for device in lease["devices"]} for lease in found}

    def down(self) -> set[str]:
        """Hosts that are powered down, and can be had."""
        return {host.name for host in query_status(self.cluster.directory).hosts if host.state == "idle~"}

    def log(self) -> str:
        log = self.cluster.get_log_path("power")
        return log.read_text() if log.exists() else ""


def until(true: Callable[[], object], complaint: str, patience_s: float = _START_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline_s, complaint
        time.sleep(0.2)


@pytest.fixture(scope="module")
def site(slurm_installed: None) -> Iterator[Site]:
    # Not a directory of pytest's, which is shut to others: somebody else submits a job, too.
    directory = Path(tempfile.mkdtemp(prefix="power-"))
    directory.chmod(0o755)
    work = Path(tempfile.mkdtemp(prefix="a site "))
    work.chmod(0o755)
    campaign = campaign_files.write_files(work / "config", CHANGES)
    spec = build_cluster_spec(read_system("bench", campaign), accounting=False, slurm_conf=IMPATIENT)
    try:
        yield Site(start_cluster(directory, spec, print), campaign, work / "results")
    finally:
        stop_cluster(directory)
        for left in (directory, work):
            shutil.rmtree(left)


def test_hosts_are_composed_for_a_job_and_released_after_it(site: Site) -> None:
    first = site.submit("2x2-fabric", 2)
    mine = site.hosts(first)
    assert len(mine) == 2
    assert site.composed() == {f"kept-job-{first}": mine}
    # A job that would like the same hosts does not find them as this one leaves them.
    second = site.submit("1x2-fabric", 1, "-w", min(mine))
    time.sleep(3)
    assert site.state(second) == "PENDING"
    site.end(first)
    until(lambda: site.composed() == {f"kept-job-{second}": {min(mine)}}, "the second job was not composed for")
    site.slurm("scancel", second)
    until(lambda: site.down() == {"host1", "host2", "host3", "host4"}, "hosts did not go down")
    until(lambda: not site.composed(), "the composition was not released")
    assert "could not" not in site.log()


def test_a_host_for_another_job_is_started_as_it_is(site: Site) -> None:
    before = site.composed()
    assert site.slurm("srun", "-N1", "--gres=gpu:2", "hostname").startswith("host")
    assert site.composed() == before
    site.slurm("scontrol", "update", "nodename=host[1-4]", "state=power_down")
    until(lambda: len(site.down()) == 4, "hosts did not go down")


def test_a_job_that_cannot_be_composed_for_ends_and_says_why(site: Site) -> None:
    job = site.submit("2x9-fabric", 2)
    until(lambda: site.state(job) == "CANCELLED", "it was not given up")
    assert site.field(job, "Restarts") == "2"
    assert "no configuration '2x9-fabric'" in site.slurm("scontrol", "show", "job", job)
    until(lambda: len(site.down()) == 4, "its hosts cannot be had again")
    assert site.composed() == {}
    assert list((site.cluster.directory / "state/compositions/jobs").glob("[0-9]*")) == []


def test_a_job_cancelled_while_it_is_composed_for_keeps_nothing(site: Site) -> None:
    job = site.submit("2x2-fabric", 2)
    until(lambda: f"job {job}: composing" in site.log(), "nothing was composed")
    site.slurm("scancel", job)
    until(lambda: len(site.down()) == 4, "its hosts cannot be had again")
    until(lambda: not site.composed(), "the composition was not released")


def test_hosts_that_do_not_come_up_are_tried_again(site: Site) -> None:
    settings = site.cluster.directory / "bin" / "settings"
    kept = settings.read_text()
    try:
        settings.write_text(kept + "start_slurmd() { :; }\n")
        job = site.submit("2x2-fabric", 2)
        until(lambda: "did not come up in time" in site.log(), "nobody noticed")
    finally:
        settings.write_text(kept)
    until(lambda: site.composed() and site.field(job, "Restarts") == "1", "it was not tried again")
    assert set(site.composed()) == {f"kept-job-{job}"}
    site.slurm("scancel", job)
    until(lambda: len(site.down()) == 4 and not site.composed(), "hosts did not go down")


def test_what_a_job_says_of_itself_runs_as_its_owner(site: Site) -> None:
    """A comment is anybody's to write, and slurmctld is not anybody's to be."""
    before = site.log()
    told = Path(tempfile.mkdtemp(prefix="whoami", dir=site.work))
    told.chmod(0o777)
    program = told / "python"
    program.write_text(f"#!/bin/sh\nid -un > {told}/owner; exit 1\n".replace(str(told), f"'{told}'"))
    program.chmod(0o755)
    comment = f"campaign=c results=r configuration=1x2-fabric python={program}"
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    job = site.slurm(
        *become, "sbatch", "--parsable", "--chdir=/", "--output=/dev/null", "--comment", comment, "--wrap", "true"
    )
    until(lambda: (told / "owner").exists(), site.log().removeprefix(before))
    assert (told / "owner").read_text().strip() == "nobody"
    site.slurm("scancel", job)
    until(lambda: len(site.down()) == 4, "its hosts cannot be had again")
