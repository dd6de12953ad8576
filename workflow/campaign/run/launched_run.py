"""Execution of one run on its launcher: preparation, the measured step, and cleanup.

A run that was disturbed from outside is repeated, so that a fault of the apparatus is not attributed to the workload.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from campaign.common.credentials import collect_secrets, mask_secrets
from campaign.common.errors import LaunchError
from campaign.common.files import open_regular
from campaign.workloads.failures import KILLED, PACE_NOT_HELD
from campaign.workloads.launcher import Launcher, Limits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run, Step, Workload
from campaign.workloads.rank_marks import judge_marks, mark_ranks


@dataclass(frozen=True)
class LaunchedRun:
    """One run on its launcher.

    Args:
        launcher: launcher of the system.
        workload: workload of the run.
        run: run to execute.
        mark: mark of its processes.
        log: log of the measured step; other steps have logs of their own in the same directory.
        limits: time and memory limits of each step.
    """

    launcher: Launcher
    workload: Workload
    run: Run
    mark: str
    log: Path
    limits: Limits

    def ended(self, step: Step) -> Ended:
        """Execute the run with its preparation and cleanup, and return how the measured step ended.

        Raises LaunchError if the step could not be started, or if a preparation failed.
        """
        flags: list[str] = []
        try:
            for number, before in enumerate(self.workload.before(self.run)):
                log = self._log_of("prepare", number)
                if problem := self._beside(before, f"prepare{number}", log):
                    error = LaunchError(f"{self.run.cell.workload}: prepare: {problem}; the run has no record")
                    raise error.with_log(log) if log.exists() else error
            ended = self._launch(step, self.mark, self.log)
            flags += _take_result(self.workload.result_file(self.run), self.run.directory, self.log)
        finally:
            flags += self._cleaned_up()
        return replace(ended, flags=(*ended.flags, *flags))

    def _launch(self, step: Step, mark: str, log: Path) -> Ended:
        """Run a step to its end; the marks of its ranks take precedence over the exit code of a wrapper around them."""
        directory = self.run.directory
        ended = self.launcher.run(mark_ranks(step, directory), mark, log, directory, self.limits)
        return judge_marks(step, directory, ended, log)

    def _cleaned_up(self) -> Iterator[str]:
        """Run the cleanup steps, however the run ended, and yield a flag per failed step."""
        for number, after in enumerate(self.workload.after(self.run)):
            try:
                problem = self._beside(after, f"cleanup{number}", self._log_of("cleanup", number))
            except LaunchError as error:
                problem = str(error)
            if problem:
                yield f"cleanup: {problem}"

    def _log_of(self, what: str, number: int) -> Path:
        """Return the log path of an auxiliary step."""
        return self.log.with_name(f"{self.log.stem}.{what}{number or ''}{self.log.suffix}")

    def _beside(self, step: Step, what: str, log: Path) -> str:
        """Run a preparation or cleanup step and return the reason of its failure, or '' if it succeeded.

        The log is kept if the step printed anything.
        """
        log.unlink(missing_ok=True)
        ended = self._launch(step, f"{self.mark}.{what}", log)
        if log.exists() and not log.stat().st_size:
            log.unlink()
        if not ended.timed_out and all(code == 0 for code in ended.codes):
            return ""
        stopped = f"was stopped after {self.limits.time_limit_s:g} s"
        why = stopped if ended.timed_out else f"ended with {ended.codes[0]}"
        printed = (
            mask_secrets(Log(log).tail(200).rpartition("\n")[2], collect_secrets(os.environ)) if log.exists() else ""
        )
        return f"'{mask_secrets(' '.join(step.argv))[:120]}' {why}{f' ({printed})' if printed else ''}"


def _take_result(name: str | None, directory: Path, log: Path) -> list[str]:
    """Append the workload's result file to the log, and return flags if there is no file or more than one."""
    if name is None:
        return []
    found = sorted(path for path in directory.glob(name) if path.is_file())
    if not found:
        return [f"the program wrote no file '{name}'"]
    with log.open("ab") as target:
        target.write(b"\n")
        for path in found[-1:]:
            with open_regular(path) as source:
                shutil.copyfileobj(source, target)
        target.write(b"\n")
    return [f"{len(found)} files '{name}': the last by name counts"] if len(found) > 1 else []


TRIES = 3


def until_undisturbed(name: str, launch: Callable[[], tuple[Ended, Outcome]]) -> tuple[Ended, Outcome]:
    """Launch a run again until nothing disturbs it, at most `MAX_TRIES` times, and return that launch.

    A rank that gets SIGKILL in every launch is killed for its own behaviour. A run whose pace was never held requires more than
    this
    machine has. Both are outcomes of the run. Raises LaunchError if every launch was stopped, suspended, or had its clock set.
    """
    own = 0
    for _ in range(TRIES):
        ended, outcome = launch()
        why = ended.disturbed
        if not why and outcome.failure is not None and outcome.failure.reason in (KILLED, PACE_NOT_HELD):
            own += 1
            why = outcome.failure.reason
        if not why or own == TRIES:
            return ended, outcome
        print(f"{name}: {why}; the run has no record and is repeated", flush=True)
    raise LaunchError(f"{name}: {why}; disturbed {TRIES} times in a row: find out what stops or kills runs here")
