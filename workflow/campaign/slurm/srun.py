"""Launcher that runs each step of a run in the Slurm job of this process. `srun` starts one task per rank.

If Slurm cancelled a step, could not start it, or lost one of its hosts, a LaunchError is raised and nothing is measured. The end
of each rank is read from the file that its script writes (`srun_step`), because the messages of srun differ between releases.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from campaign.common.accelerators.nvidia import DEVICE_ORDER_ENVIRONMENT
from campaign.common.errors import ConfigError, HostFailed, LaunchError
from campaign.common.files import make_directory
from campaign.common.processes.disturbances import DISTURBANCE_POLL_INTERVAL_S, DisturbanceMonitor
from campaign.emulators.hosts.cluster_spec import find_cluster_in_environment
from campaign.slurm.rank_placement import SlurmPlacement
from campaign.slurm.run_on_hosts import (
    HostAnswers,
    RetryBudget,
    parse_launch_failures,
    run_script_on_hosts,
    run_slurm_command,
    step_environment,
)
from campaign.slurm.sidecar import run_slurm_sidecar
from campaign.slurm.srun_step import (
    RankEnd,
    build_rank_script,
    build_step_argv,
    build_sweep_script,
    find_launch_error,
    has_failed_rank,
    list_exit_codes,
    parse_host_memory_mib,
    read_rank_ends,
)
from campaign.spec.hardware import Composition
from campaign.spec.system_file import SystemFile
from campaign.workloads.command_template import resolve_variables
from campaign.workloads.failures import MEMORY_LIMIT_REPORT
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd
from campaign.workloads.rank_launchers import find_free_port

_PEER_TIMEOUT_S = 10.0  # from the first failed rank to the end of the others, which wait for it in a collective
_START_TIMEOUT_S = 600.0  # covers a restart of the controller, and hosts that still clean up after an earlier step
_END_TIMEOUT_S = 15.0  # from the end of all ranks to that of srun
_DEAD_HOST_TIMEOUT_S = 2.0
_SWEEP_TIMEOUT_S = 30.0  # for a controller that does not answer while a run is being ended
_RETRY_INTERVAL_S, _FIRST_POLL_INTERVAL_S = 1.0, 0.1
_TAIL_BYTES = 256 * 1024  # Slurm prints its messages on the end of a step last.

_REAPER = (sys.executable, "-I", "-m", "campaign.common.processes.subreaper")

_EndCause = Literal["time limit", "failed rank", "no start", "disturbance"]


class SrunLauncher:
    """Launcher for the hosts of one job; each step takes all devices that it uses on a host."""

    def __init__(self, system: SystemFile, composition: Composition) -> None:
        if "SLURM_JOB_ID" not in os.environ:
            raise ConfigError("`launcher: slurm` starts runs inside a Slurm job, but this process does not run in one")
        self._settings = system.slurm
        self._hosts = SlurmPlacement(system, composition, find_cluster_in_environment() if system.emulation else None)
        self._reaper = () if _tracks_every_process() else _REAPER

    @cached_property
    def _host_memory_mib(self) -> float:
        return parse_host_memory_mib(
            run_slurm_command(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"], "--oneliner"], 60.0)[1]
        )

    @property
    def links(self) -> Mapping[str, Any] | None:
        return self._hosts.links

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: StepLimits) -> StepEnd:
        if limits.memory_limit_mib and limits.memory_limit_mib > self._host_memory_mib:
            # Newer versions of Slurm would let the step wait for ever.
            raise LaunchError(
                f"memory_limit_mib is {limits.memory_limit_mib:,}, but the job has only {self._host_memory_mib:,.0f} MiB per host; "
                "lower the limit, or request more memory from Slurm"
            )
        placement = self._hosts.place_step(step, find_free_port())
        script, job_cpus = directory / "rank.sh", os.environ.get("SLURM_CPUS_PER_TASK", "")
        argv = build_step_argv(
            step,
            limits,
            script,
            log,
            name=marker.rpartition("/")[2],
            # Slurm does not manage remote devices, and it counts parts of devices differently. Each rank gets its own devices by
            # environment variables instead.
            gres=None if placement.devices or placement.device_environments else self._settings.gres or None,
            # The value of the submitted job takes precedence, because it includes the overrides for the configuration.
            cpus_per_task=int(job_cpus) if job_cpus.isdigit() else self._settings.cpus_per_device,
        )
        program = ", ".join(placement.list_programs(step))
        one_thread = {"OMP_NUM_THREADS": "1"} if step.per_rank and self._hosts.on_cpu else {}
        environment = {**self._build_environment(one_thread), **step.environment}
        running = _RunningStep(step, program, argv, environment, marker, log, directory, limits)
        try:
            make_directory(log.parent)
            script.write_text(
                build_rank_script(step, placement, marker, directory, reaper=self._reaper), encoding="utf-8"
            )
            return running.run_to_end(self._hosts.record_flags(step))
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise LaunchError(f"{program}: could not be started: {error}") from error

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        looks = bool(self._settings.gres) and not self._hosts.on_cpu
        return run_slurm_sidecar(argv, self._hosts.host_names, self._build_environment(), directory, sees_devices=looks)

    def _build_environment(self, additions: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            **step_environment(os.environ),
            **DEVICE_ORDER_ENVIRONMENT,
            **(additions or {}),
            **resolve_variables(self._settings.environment, "slurm.environment"),
        }

    def close(self) -> None:
        """Do nothing, because no process outlives a step."""


@dataclass
class _RunningStep:
    """One step, from the start of srun to the end of every process that it started."""

    step: Step
    program: str
    argv: list[str]
    environment: dict[str, str]
    marker: str
    log: Path
    directory: Path
    limits: StepLimits
    messages: str = ""
    disturbances: DisturbanceMonitor = field(default_factory=DisturbanceMonitor)
    log_start: int = 0

    def run_to_end(self, flags: tuple[str, ...]) -> StepEnd:
        """Run the step until it ends by itself or at its limits, and return how it ended."""
        for rank in range(self.step.process_count):
            # A shared file system may cache that a file is missing, but it checks an existing file again on each open.
            (self.directory / f"rank.{rank}").write_text("", encoding="utf-8")
        self.log.touch()
        self.log_start = self.log.stat().st_size
        retries = RetryBudget()
        while True:
            with self.disturbances:
                code, cause = self._run_srun()
                self.disturbances.check_clocks()
            if self._has_begun() or not retries.allows_retry(self.messages, _RETRY_INTERVAL_S):
                break
            time.sleep(_RETRY_INTERVAL_S)
            self.disturbances, self.messages = DisturbanceMonitor(), ""
        return self._build_result(code, cause, flags)

    def _run_srun(self) -> tuple[int, _EndCause | None]:
        """Run srun once, and return its exit code and the reason why the step was ended (None if it ended by itself)."""
        srun = subprocess.Popen(
            self.argv,
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # srun gets its own process group, because it would end the step in its own way on a signal for the driver.
            process_group=0,
        )
        is_swept = False
        try:
            cause = self._wait_for_end(srun)
            if cause is not None or (self._has_begun() and (srun.wait() != 0 or not self._has_ended())):
                # The sweep also follows a failure, because it detects a dead host, which is not a failure of the workload.
                is_swept = True
                self._end_processes(srun)
            return srun.wait(), cause
        finally:
            if not is_swept and srun.poll() is None:
                # Slurm may be ending the whole job at the same time, which ends these processes as well.
                with suppress(LaunchError):
                    self._end_processes(srun)
            if srun.poll() is None:
                srun.kill()
                srun.wait()
            if srun.stderr:
                srun.stderr.close()
            with self.log.open("a", encoding="utf-8") as log:
                log.write(self.messages)

    def _wait_for_end(self, srun: subprocess.Popen[bytes]) -> _EndCause | None:
        """Wait until srun ends and return None, or return the reason why the step must be ended first."""
        started_at_s: float | None = None
        failed_at_s: float | None = None
        poll_interval_s = _FIRST_POLL_INTERVAL_S
        while True:
            now_s = self.disturbances.elapsed_s
            if started_at_s is None and self._has_begun():
                started_at_s = now_s
            self.disturbances.check_processes([srun.pid])
            if started_at_s is not None and self.disturbances.first_disturbance:
                return "disturbance"
            if started_at_s is None and now_s > _START_TIMEOUT_S:
                return "no start"
            if started_at_s is not None and now_s >= started_at_s + self.limits.time_limit_s:
                return "time limit"
            if failed_at_s is not None and now_s >= failed_at_s + _PEER_TIMEOUT_S:
                return "failed rank"
            wait_s = (
                poll_interval_s
                if started_at_s is None
                else min(DISTURBANCE_POLL_INTERVAL_S, started_at_s + self.limits.time_limit_s - now_s)
            )
            if failed_at_s is not None:
                wait_s = min(wait_s, failed_at_s + _PEER_TIMEOUT_S - now_s)
            if self.disturbances.call_with_timeout(lambda seconds: self._read_messages(srun, seconds), wait_s):
                return None
            poll_interval_s = min(DISTURBANCE_POLL_INTERVAL_S, 2 * poll_interval_s)
            if failed_at_s is None and has_failed_rank(self.messages):
                failed_at_s = self.disturbances.elapsed_s

    def _read_messages(self, srun: subprocess.Popen[bytes], wait_s: float) -> bool:
        """Read the next messages of srun, and return True when it has closed its output.

        Args:
            srun: running srun process.
            wait_s: longest wait in seconds.
        """
        assert srun.stderr is not None
        if not select.select([srun.stderr], [], [], max(0.0, wait_s))[0]:
            return False
        chunk = os.read(srun.stderr.fileno(), 65536)
        self.messages += chunk.decode(errors="replace")
        return not chunk

    def _end_processes(self, srun: subprocess.Popen[bytes]) -> None:
        """End every process of the run on all hosts, and wait until every host has confirmed it.

        Raises HostFailed if a host does not answer, and LaunchError if the hosts cannot be queried.
        """
        dead_hosts = parse_launch_failures(self.messages)
        hosts = [host for host in self.step.ranks_by_host if host not in dead_hosts]
        answers = (
            run_script_on_hosts(hosts, build_sweep_script(self.marker), max_retry_s=_SWEEP_TIMEOUT_S)
            if hosts
            else HostAnswers({})
        )
        # srun waits for ever for a dead host.
        timeout_s = _DEAD_HOST_TIMEOUT_S if answers.problem else _END_TIMEOUT_S
        if not self._wait_for_srun(srun, timeout_s):
            step = next((end.step for end in read_rank_ends(self.directory, self.step.process_count) if end.step), None)
            if step is not None:
                run_slurm_command(["scancel", "--signal=KILL", step], timeout_s)
            if step is None or not self._wait_for_srun(srun, timeout_s):
                srun.kill()
                answers = answers if answers.problem else HostAnswers({}, f"the step {step or ''} does not end")
        if answers.failed:
            failure_text = "; ".join(f"{host}: {reason}" for host, reason in answers.failed.items())
            raise HostFailed(f"a host does not answer after a failed run: {failure_text}", answers.failed)
        if answers.problem:
            raise LaunchError(f"the hosts of a failed run could not be queried: {answers.problem}")

    def _wait_for_srun(self, srun: subprocess.Popen[bytes], timeout_s: float) -> bool:
        """Wait for the end of srun and return whether it has ended within the time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._read_messages(srun, deadline - time.monotonic()):
                srun.wait()
                return True
        return False

    def _has_begun(self) -> bool:
        return any(end.host for end in read_rank_ends(self.directory, self.step.process_count))

    def _has_ended(self) -> bool:
        return all(end.code is not None for end in read_rank_ends(self.directory, self.step.process_count))

    def _build_result(self, code: int, cause: _EndCause | None, flags: tuple[str, ...]) -> StepEnd:
        ends = read_rank_ends(self.directory, self.step.process_count)
        tail = self._read_log_tail()
        disturbance = self.disturbances.first_disturbance or _describe_disturbances(ends)
        error = find_launch_error(code, self.messages, tail, ends, ended_by_us=cause is not None, program=self.program)
        if error is not None and (not disturbance or isinstance(error, HostFailed)):
            raise error
        codes = list_exit_codes(ends, ended_by_us=cause is not None)
        return StepEnd(
            codes,
            self.disturbances.started_s,
            self.disturbances.ended_s,
            # All ranks may have ended by themselves just before they were to be ended.
            timed_out=cause == "time limit" and None in codes,
            memory_limit_hit=any(code != 0 for code in codes) and bool(MEMORY_LIMIT_REPORT.search(tail)),
            flags=flags,
            memory_kills=sum(end.memory_kills for end in ends),
            disturbance=disturbance,
        )

    def _read_log_tail(self) -> str:
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")


def _describe_disturbances(ends: Sequence[RankEnd]) -> str:
    """Describe the disturbances that the rank files record, or return an empty string if there are none."""
    messages = [f"rank {rank} was stopped on {end.host}" for rank, end in enumerate(ends) if end.stopped]
    set_s = {end.host: end.clock_set_s for end in ends if end.clock_set_s}
    return "; ".join([*messages, *(f"the clock of {host} was set by {by_s:+.1f} s" for host, by_s in set_s.items())])


def _tracks_every_process() -> bool:
    """Return whether Slurm kills every process that a task leaves behind.

    It does so with control groups; tracking by parent processes loses some.
    """
    code, out, _ = run_slurm_command(["scontrol", "show", "config"], 60.0)
    return code == 0 and any(line.startswith("ProctrackType") and "cgroup" in line for line in out.splitlines())
