"""A project on a cluster on which faults are tried: what is seen of it from outside, and what must be true in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from campaign.emulators.hosts.cluster_spec import Cluster, ClusterSpec
from campaign.emulators.slurm import daemons
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.daemons import Daemon
from campaign.lease.journal import Journal, list_journaled_leases
from tests.cluster.cluster_project import ClusterProject, equal_hosts
from tests.warm_start import Started

HOSTS, DEVICES = 5, 2
PATIENCE_S = 100.0
"""As long as a condition may take on a machine that has other things to do."""
SNAKEMAKE = ("--until", "measure")
"""Arguments of what goes through Snakemake."""
GATED = 'echo rate: 10; until [ -e "$STARTS.open" ]; do sleep 0.05; done'
"""A run that lasts until the test has seen what it waits for."""


IMPATIENT = ("SlurmdTimeout=6", "KillWait=2")
"""So that Slurm itself is soon done with what tests do to it."""


@contextmanager
def impatient_cluster(directory: Path, *, accounting: bool, more: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """more: further lines of slurm.conf."""
    spec = ClusterSpec(hosts=equal_hosts(HOSTS, DEVICES), accounting=accounting, slurm_conf=(*IMPATIENT, *more))
    try:
        yield start_cluster(directory, spec, print)
    finally:
        stop_cluster(directory)


class FaultSite(ClusterProject):
    """See `ClusterProject`; its one system has all hosts of the cluster."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        super().__init__(directory, cluster)
        self.system(hosts=HOSTS, devices=DEVICES)

    def change_system(self, **keys: Mapping[str, Any]) -> None:
        """Put further values into mappings of the system file."""
        path = self.campaigns / "systems" / "bench.yaml"
        document = yaml.safe_load(path.read_text())
        self.write("systems/bench.yaml", document | {name: document[name] | value for name, value in keys.items()})

    # -- going on ----------------------------------------------------------------------------------------------------------

    def gated(self, **campaign: Any) -> None:
        """A campaign whose runs last until `open`."""
        self.workload("logged", body=GATED)
        self.campaign(**campaign)

    def open(self) -> None:
        (self.directory / "starts.log.open").touch()

    def command(self, *arguments: str, **keys: str) -> list[str]:
        """Snakemake, up to what is measured."""
        return super().command(*(arguments or SNAKEMAKE), **keys)

    def measure(self, *arguments: str, **keys: Any) -> str:
        return self.run(*arguments, **keys)

    def begin(self, *arguments: str, runs: int = 1) -> Started:
        """The campaign in the background, as soon as so many runs were started."""
        process = self.start(*arguments)
        self.until(lambda: len(self.starts()) >= runs or process.poll() is not None)
        assert process.poll() is None, self.said()
        return process

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline_s, (
                f"{self.said()}\n{self.slurm('squeue')}{self.slurm('sinfo', '-N', '-l')}"
            )
            time.sleep(0.25)  # a condition may ask Slurm

    def until_said(self, words: str, times: int = 1) -> None:
        self.until(lambda: self.said().count(words) >= times)

    def ends(self, process: Started, code: int = 0) -> None:
        self.until(lambda: process.poll() is not None)
        assert (process.returncode == 0) == (code == 0), self.said()

    def finish(self, process: Started, *, runs: int, accepted: int | None = None, again: int = 0) -> None:
        """Open the gate and wait for the end; see `assert_whole`. accepted: how often Slurm took a job, where that is certain."""
        self.open()
        self.ends(process)
        assert accepted in (None, self.accepted())
        self.assert_whole(runs=runs, again=again)

    def kill_all(self) -> None:
        """SIGKILL of whatever waits on the login node."""
        while self.kill("snakemake", "measure"):
            pass

    # -- Slurm -------------------------------------------------------------------------------------------------------------

    def accepted(self, campaign: str = "c") -> int:
        """How often Slurm took a job of the campaign."""
        path = self.results(campaign).slurm_state / "commands.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()]
        return sum(call["argv"][0] == "sbatch" and call["code"] == 0 for call in calls)

    def run_log(self, repetition: str, campaign: str = "c") -> str:
        """What a repetition of the campaign's runs, or srun about it, has said."""
        return "".join(path.read_text() for path in self.results(campaign).logs.glob(f"*/*.{repetition}.log"))

    def jobs(self, campaign: str = "c") -> dict[str, str]:
        """States of the campaign's jobs that have not ended, by id."""
        return {job_id: state for job_id, name, state in self.queue() if name.startswith(f"{campaign}/")}

    def job(self, lease: str, campaign: str = "c") -> str:
        document = json.loads((self.results(campaign).work_directory(lease) / "job.json").read_text())
        return str(document["job_id"])

    def log_of(self, job_id: str, campaign: str = "c") -> str:
        """What the driver said."""
        return "".join(path.read_text() for path in self.results(campaign).slurm_state.glob(f"jobs/*/{job_id}_0_log.*"))

    def host_of(self, job_id: str) -> str:
        return self.slurm("squeue", "--noheader", f"--jobs={job_id}", "--format=%N").strip()

    def occupy(self, hosts: str) -> str:
        """Somebody else's job, on whole hosts."""
        number = len(hosts.split(","))
        asked = ["--exclusive", f"--nodes={number}", f"--nodelist={hosts}", "--output=/dev/null", "--job-name=other"]
        job_id = self.slurm("sbatch", "--parsable", *asked, "--wrap", "sleep 600").strip()
        self.until(lambda: (job_id, "other", "RUNNING") in self.queue())
        return job_id

    def at_once(self, job_id: str) -> None:
        """Slurm starts what it has put back into the queue after two minutes only."""
        self.until(lambda: self.jobs().get(job_id) == "PENDING")
        # Not in the second in which it was revoked what the job was allowed before.
        pending_s = time.monotonic()
        self.until(lambda: time.monotonic() > pending_s + 1)
        self.slurm("scontrol", "update", f"jobid={job_id}", "starttime=now")

    def power_off(self, host: str) -> None:
        """The end of everything that runs on a host, from one moment to the next."""
        space = Path(f"/proc/{daemons.find_processes(self.cluster, 'slurmd', host)[0].pid}/ns/net").stat().st_ino
        while inhabitants := _inhabitants(space):
            for pid in inhabitants:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self, daemon: Daemon, number: int = signal.SIGTERM) -> None:
        daemons.stop_daemon(self.cluster, daemon, signal_number=number)

    def repair(self) -> None:
        """Whatever a test has left: no jobs, all daemons, all hosts in order."""
        self.kill()
        for daemon in ("slurmdbd", "slurmctld") if self.cluster.spec.accounting else ("slurmctld",):
            if not daemons.find_processes(self.cluster, daemon):
                daemons.start_daemon(self.cluster, daemon)
        for host in self.cluster.spec.hosts:
            if not daemons.find_processes(self.cluster, "slurmd", host.name):
                daemons.start_daemon(self.cluster, "slurmd", host.name)
        names = ",".join(host.name for host in self.cluster.spec.hosts)
        self.until(lambda: self._cleared(names))

    def _cleared(self, names: str) -> bool:
        try:
            if jobs := [job_id for job_id, _, _ in self.queue()]:
                self.slurm("scancel", *jobs)
                return False
            states = set(self.slurm("sinfo", "--noheader", "--Node", "--format=%T").split())
            if any("drain" in state for state in states):
                self.slurm("scontrol", "update", f"nodename={names}", "state=resume")
        except AssertionError:
            return False  # the controller is just starting
        return states == {"idle"}

    # -- what must be true -------------------------------------------------------------------------------------------------

    def assert_whole(self, runs: int, campaign: str = "c", again: int = 0) -> None:
        """Every run has one record, of its last start; at most `again` were started twice; nothing is left anywhere."""
        records, started = self.records(campaign), self.started()
        assert len(records) == runs, self.said()
        names = {f"{record.cell_id}.{record.repetition}" for record in records}
        twice = {name: count for name, count in started.items() if count > 1 and name in names}
        assert sum(twice.values()) - len(twice) <= again, f"started again: {twice}\n{self.said()}"
        last = {start.run: start.time_s for start in self.starts()}
        for record in records:
            assert record.started - 1 < last[f"{record.cell_id}.{record.repetition}"] < record.ended
        for host in {host for record in records for host in record.hosts}:
            mine = sorted((r for r in records if host in r.hosts), key=lambda record: record.started)
            assert all(one.ended <= other.started for one, other in pairwise(mine)), f"two runs at once on {host}"
        documents = {document["lease_id"] for document in self.leases(campaign)}
        assert {record.lease_id for record in records} <= documents, "a record's lease has no document"
        self.assert_clean(campaign)

    def assert_clean(self, campaign: str = "c") -> None:
        """Nothing of the campaign runs, waits, or is held."""
        self.until(lambda: not self.jobs(campaign))
        self.await_quiet()
        directories = list(self.results_root.glob(".systems/*/leases"))
        states = {name: Journal(place, name).state for place in directories for name in list_journaled_leases(place)}
        assert set(states.values()) == {"RELEASED"}, states
        assert not list((self.results(campaign).slurm_state / "changed").glob("*"))

    def status(self) -> str:
        """What `campaign status` prints."""
        return subprocess.run(
            ["campaign", "status", "campaigns/c.yaml", "--results", str(self.results_root)],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        ).stdout  # fmt: skip


def _inhabitants(space: int) -> list[int]:
    """Processes in a network namespace."""
    found = []
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdigit() and Path(entry.path, "ns", "net").stat().st_ino == space:
                found.append(int(entry.name))
    return found
