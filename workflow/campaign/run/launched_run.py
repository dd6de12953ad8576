"""Execution of one run on its launcher: preparation, the measured step, and cleanup.

A run that was disturbed from outside is repeated, so that a fault of the apparatus is not attributed to the workload.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from campaign.common.credentials import collect_secrets, mask_secrets
from campaign.common.errors import LaunchError
from campaign.common.files import open_regular
from campaign.observe.telemetry.run_telemetry import TelemetrySummary
from campaign.spec.record import Failure
from campaign.workloads.failures import DISTURBANCES, REPEATED
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Run, Step, StepEnd, Workload
from campaign.workloads.rank_marks import correct_step_end, mark_ranks


@dataclass(frozen=True)
class LaunchedRun:
    """One run on its launcher.

    Args:
        launcher: launcher of the system.
        workload: workload of the run.
        run: run to execute.
        mark: mark of its processes.
        log: log of the measured step; other steps have separate logs in the same directory.
        limits: time and memory limits of each step.
    """

    launcher: Launcher
    workload: Workload
    run: Run
    mark: str
    log: Path
    limits: StepLimits

    def execute(self, step: Step) -> StepEnd:
        """Execute the run with its preparation and cleanup, and return how the measured step ended.

        Raises LaunchError if the step could not be started, or if a preparation failed.
        """
        flags: list[str] = []
        try:
            for number, preparation in enumerate(self.workload.preparation_steps(self.run)):
                log = self._log_path("prepare", number)
                if problem := self._run_auxiliary_step(preparation, f"prepare{number}", log):
                    error = LaunchError(f"{self.run.cell.workload}: prepare: {problem}; the run has no record")
                    raise error.with_log(log) if log.exists() else error
            ended = self._launch_step(step, self.mark, self.log)
            flags += _append_result_file(self.workload.result_file(self.run), self.run.directory, self.log)
        finally:
            flags += self._clean_up()
        return replace(ended, flags=(*ended.flags, *flags))

    def _launch_step(self, step: Step, mark: str, log: Path) -> StepEnd:
        """Run a step to its end. The marks of its ranks take precedence over the exit code of a wrapper around them."""
        directory = self.run.directory
        ended = self.launcher.run(mark_ranks(step, directory), mark, log, directory, self.limits)
        return correct_step_end(step, directory, ended, log)

    def _clean_up(self) -> Iterator[str]:
        """Run the cleanup steps, however the run ended, and yield a flag for each failed step."""
        for number, cleanup in enumerate(self.workload.cleanup_steps(self.run)):
            try:
                problem = self._run_auxiliary_step(cleanup, f"cleanup{number}", self._log_path("cleanup", number))
            except LaunchError as error:
                problem = str(error)
            if problem:
                yield f"cleanup: {problem}"

    def _log_path(self, stage: str, number: int) -> Path:
        """Return the log path of an auxiliary step."""
        return self.log.with_name(f"{self.log.stem}.{stage}{number or ''}{self.log.suffix}")

    def _run_auxiliary_step(self, step: Step, name: str, log: Path) -> str:
        """Run a preparation or cleanup step and return the reason for its failure, or an empty string if it succeeded.

        The log is kept if the step printed something.
        """
        log.unlink(missing_ok=True)
        ended = self._launch_step(step, f"{self.mark}.{name}", log)
        if log.exists() and not log.stat().st_size:
            log.unlink()
        if not ended.timed_out and all(code == 0 for code in ended.codes):
            return ""
        timeout_reason = f"was stopped after {self.limits.time_limit_s:g} s"
        reason = timeout_reason if ended.timed_out else f"ended with exit code {ended.codes[0]}"
        last_line = (
            mask_secrets(Log(log).read_tail(200).rpartition("\n")[2], collect_secrets(os.environ))
            if log.exists()
            else ""
        )
        return f"'{mask_secrets(' '.join(step.argv))[:120]}' {reason}{f' ({last_line})' if last_line else ''}"


def _append_result_file(name: str | None, directory: Path, log: Path) -> list[str]:
    """Append the workload's result file to the log, and return flags if there is no file or more than one."""
    if name is None:
        return []
    paths = sorted(path for path in directory.glob(name) if path.is_file())
    if not paths:
        return [f"the program wrote no file '{name}'"]
    with log.open("ab") as target:
        target.write(b"\n")
        for path in paths[-1:]:
            with open_regular(path) as source:
                shutil.copyfileobj(source, target)
        target.write(b"\n")
    return [f"{len(paths)} files '{name}': the last by name counts"] if len(paths) > 1 else []


class RunLaunch(NamedTuple):
    """One launch of a run: how it ended, its outcome and its telemetry."""

    step_end: StepEnd
    outcome: Outcome
    telemetry: TelemetrySummary = TelemetrySummary()


def repeat_until_undisturbed(
    name: str, launch_run: Callable[[], RunLaunch], attempts: int, lasting_disturbances: Container[str] = ()
) -> RunLaunch:
    """Launch a run until nothing disturbs it, and return the last launch.

    After the last attempt, the disturbance is the outcome of the run. A rank that gets SIGKILL in every launch is killed because
    of its own behaviour, and a run that never holds its pace requires more than this machine has. A run that was stopped,
    suspended or had its clock set is invalid. Other processes on its devices are only flagged. A flag shows that earlier launches
    were disturbed.

    Args:
        name: name of the run, for messages.
        launch_run: function that launches the run once.
        attempts: maximum number of launches, at least 1 (`protocol.attempts`).
        lasting_disturbances: disturbances seen by telemetry that repetitions of earlier runs did not end.
    """
    for attempt in range(1, attempts + 1):
        launch = launch_run()
        reason = _find_disturbance(launch, lasting_disturbances)
        if not reason or attempt == attempts:
            break
        print(f"{name}: {reason}; the run has no record and is repeated (attempt {attempt} of {attempts})", flush=True)
    step_end, outcome, telemetry = launch
    if attempt > 1:
        step_end = replace(step_end, flags=(*step_end.flags, REPEATED))
    if step_end.disturbance:
        outcome = replace(outcome, status="invalid", failure=Failure(reason=step_end.disturbance))
    return RunLaunch(step_end, outcome, telemetry)


def _find_disturbance(launch: RunLaunch, lasting_disturbances: Container[str]) -> str:
    """Return the description of what disturbed a launch from outside, or an empty string if nothing did."""
    if launch.step_end.disturbance:
        return launch.step_end.disturbance
    failure = launch.outcome.failure
    if failure is not None and failure.reason in DISTURBANCES:
        return failure.reason
    return next((text for text in launch.telemetry.disturbances if text not in lasting_disturbances), "")
