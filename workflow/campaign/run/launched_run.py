"""One run on its launcher: what its workload does before, the step that measures, and what it does afterwards.

A run that something from outside has disturbed is repeated, so that the apparatus is not taken for the subject.
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
    """One run on its launcher. mark: of its processes; log: of the step that measures, beside which other steps have their own."""

    launcher: Launcher
    workload: Workload
    run: Run
    mark: str
    log: Path
    limits: Limits

    def ended(self, step: Step) -> Ended:
        """How the step ended, and no other. LaunchError: it could not be started, or what goes before it failed."""
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
        """Run a step to its end; what its ranks mark counts before the exit code of a wrapper around them."""
        directory = self.run.directory
        ended = self.launcher.run(mark_ranks(step, directory), mark, log, directory, self.limits)
        return judge_marks(step, directory, ended, log)

    def _cleaned_up(self) -> Iterator[str]:
        """Clean up, whatever has ended the run; gives a flag for what failed."""
        for number, after in enumerate(self.workload.after(self.run)):
            try:
                problem = self._beside(after, f"cleanup{number}", self._log_of("cleanup", number))
            except LaunchError as error:
                problem = str(error)
            if problem:
                yield f"cleanup: {problem}"

    def _log_of(self, what: str, number: int) -> Path:
        return self.log.with_name(f"{self.log.stem}.{what}{number or ''}{self.log.suffix}")

    def _beside(self, step: Step, what: str, log: Path) -> str:
        """Why another step of the run failed; empty where it did not. Its log is kept where something was printed."""
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
    """Append the file of results to the log."""
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
    """The first of a few launches that nothing has disturbed. LaunchError: each was stopped, suspended, or had its clock set.

    A rank that gets SIGKILL in each of them gets it for what it does, and one whose pace was never held asks for more than this
    machine has: that is the run's outcome.
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
