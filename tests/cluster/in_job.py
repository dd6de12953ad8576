"""What a test does inside a job: `python -m tests.cluster.in_job FILE.pickle` does the work in the file, and leaves FILE.done.

It stands for the driver, which is the batch script's only process. `submitted` starts it as a job.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from campaign.common.errors import CampaignError
from campaign.emulators.hosts.cluster_spec import Cluster, build_slurm_environment
from campaign.observe.telemetry.run_telemetry import Telemetry, TelemetrySummary
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """One step to launch, with a name of its own."""

    name: str
    step: Step
    limits: StepLimits


@dataclass(frozen=True)
class Work:
    """Steps to launch one after the other in one job; verify: look at the devices first; sampled_s: between samples of the
    telemetry beside all of them."""

    system: SystemFile
    composition: Composition
    directory: Path
    runs: tuple[Run, ...] = ()
    verify: bool = False
    sampled_s: float | None = None


@dataclass(frozen=True)
class Done:
    """results: of each run what it gave or the error that it raised; links: the launcher's; kept: by telemetry, of each run."""

    results: Mapping[str, StepEnd | CampaignError]
    verified: Any = None
    links: Mapping[str, Any] | None = None
    mark: str = ""
    kept: Mapping[str, TelemetrySummary] = field(default_factory=dict)


@dataclass
class Job:
    """A job that does some work."""

    cluster: Cluster
    id: str
    work: Work
    file: Path

    def done(self, patience_s: float = 60.0) -> Done:
        until(lambda: self._done_file.exists(), patience_s, lambda: f"job {self.id} is not done:\n{self.output()}")
        done: Done = pickle.loads(self._done_file.read_bytes())
        return done

    @property
    def _done_file(self) -> Path:
        return self.file.with_suffix(".done")

    def output(self) -> str:
        return self.file.with_suffix(".out").read_text() if self.file.with_suffix(".out").exists() else ""

    def log(self, name: str) -> str:
        path = self.work.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def step(self, name: str, rank: int = 0) -> str:
        """The id of the step that a run is, as soon as it runs."""

        def started() -> list[str]:
            path = self.work.directory / name / f"rank.{rank}"
            return path.read_text().split() if path.exists() else []

        until(lambda: len(started()) >= 3, 30.0, lambda: f"{name} does not start:\n{self.output()}")
        return started()[1]

    def end(self) -> None:
        slurm(self.cluster, "scancel", "--signal=KILL", "--full", self.id)
        slurm(self.cluster, "scancel", self.id)
        until(lambda: not self.runs(), 40.0, lambda: f"{self.id} stays")

    def runs(self) -> bool:
        return bool(slurm(self.cluster, "squeue", "-h", "-j", self.id).strip())


def until(ready: Callable[[], bool], patience_s: float, complaint: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + patience_s
    while not ready():
        assert time.monotonic() < deadline_s, complaint()
        time.sleep(0.05)


def slurm(cluster: Cluster, *argv: str) -> str:
    surroundings = {**os.environ, **build_slurm_environment(cluster)}
    return subprocess.run(argv, capture_output=True, text=True, env=surroundings, timeout=60, check=False).stdout


def submitted(cluster: Cluster, work: Work, devices: int, *options: str) -> Job:
    """The work as a job on the hosts of its composition, with so many devices of each."""
    file = work.directory / "work.pickle"
    work.directory.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(work))
    hosts = [host.name for host in work.composition.hosts]
    command = f"exec {sys.executable} -m tests.cluster.in_job {file}"
    told = slurm(
        cluster,
        "sbatch",
        "--parsable",
        "--exclusive",
        f"--nodes={len(hosts)}",
        f"--nodelist={','.join(hosts)}",
        f"--ntasks-per-node={devices}",
        f"--gres=gpu:{devices}",
        "--mem=0",
        f"--chdir={_REPOSITORY}",
        f"--output={file.with_suffix('.out')}",
        *options,
        f"--wrap={command}",
    )
    assert told.strip(), "sbatch refused the job"
    return Job(cluster, told.strip(), work, file)


def composition(hosts: Sequence[str], local: int, fabric: int = 0, model: str = "core") -> Composition:
    def devices(host: str) -> tuple[Device, ...]:
        own = [Device(f"{host}/gpu{i}", "gpu", model, None, f"{host}/gpu{i}", True, host) for i in range(local)]
        pooled = [Device(f"{host}-pool{i}", "gpu", model, None, "drawer1", False, host) for i in range(fabric)]
        return (*own, *pooled)

    return Composition(tuple(ComposedHost(host, 4, 8.0, devices(host)) for host in hosts))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _kept(telemetry: Telemetry, ended: StepEnd, log: Path) -> TelemetrySummary:
    """Of the window that the program names in its last line, where it does."""
    try:
        window = json.loads(log.read_text(errors="replace").splitlines()[-1])["window"]
    except (IndexError, ValueError, TypeError, KeyError):
        return TelemetrySummary()
    return telemetry.store_run(ended.started, ended.ended, tuple(window), None, log.with_suffix(".parquet"))


def main(file: Path) -> None:
    """Do the work. USR1 interrupts the run under way, as a driver is told to stop; the next one follows."""
    from campaign.run.launchers import open_launcher
    from campaign.slurm.verify_devices import verify_devices_of_hosts

    work: Work = pickle.loads(file.read_bytes())
    results: dict[str, StepEnd | CampaignError] = {}
    verified = None
    signal.signal(signal.SIGUSR1, _interrupt)
    mark = file.parent.name
    if work.verify:
        try:
            verified = verify_devices_of_hosts(work.system, work.composition, work.directory / "verified")
        except CampaignError as error:
            verified = error
    launcher = open_launcher("slurm", work.system, work.composition)
    kept = {}
    with Telemetry(launcher, work.composition, work.sampled_s, work.directory / "telemetry", f"{mark}/") as telemetry:
        for run in work.runs:
            directory = work.directory / run.name
            directory.mkdir()
            step = replace(run.step, environment={**run.step.environment, **telemetry.environment})
            with suppress(KeyboardInterrupt):
                try:
                    log = work.directory / f"{run.name}.log"
                    ended = launcher.run(step, f"{mark}/{run.name}", log, directory, run.limits)
                except CampaignError as error:
                    results[run.name] = error
                else:
                    results[run.name] = ended
                    kept[run.name] = _kept(telemetry, ended, log)
    launcher.close()
    partial = file.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(Done(results, verified, launcher.links, mark, kept)))
    partial.rename(file.with_suffix(".done"))


if __name__ == "__main__":
    # Pickled by the name under which tests import it.
    from tests.cluster import in_job

    in_job.main(Path(sys.argv[1]))
