"""One run on its launcher: what its workload does before, the step that measures, and what it does afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from campaign.errors import LaunchError
from campaign.launch.protocol import Launcher, Limits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Run, Step, Workload


def launch_run(
    launcher: Launcher, workload: Workload, run: Run, step: Step, mark: str, log: Path, limits: Limits
) -> Ended:
    """How the step ended, and no other. LaunchError: it could not be started, or what goes before it failed.

    Other steps have logs of their own beside `log`, which are kept where something was printed.
    """
    flags: list[str] = []
    with _cleaned_up(launcher, workload, run, mark, log, limits, flags):
        for number, before in enumerate(workload.before(run)):
            own = log.with_name(f"{log.stem}.prepare{number or ''}{log.suffix}")
            if problem := _beside(launcher, before, f"{mark}.prepare{number}", own, run.directory, limits):
                error = LaunchError(f"{run.cell.workload}: prepare: {problem}; the run has no record")
                raise error.with_log(own) if own.exists() else error
        ended = launcher.run(step, mark, log, run.directory, limits)
        flags += _take_result(workload.result_file(run), run.directory, log)
    return replace(ended, flags=(*ended.flags, *flags))


@contextmanager
def _cleaned_up(
    launcher: Launcher, workload: Workload, run: Run, mark: str, log: Path, limits: Limits, flags: list[str]
) -> Iterator[None]:
    """Clean up at the end, whatever ends it."""
    try:
        yield
    finally:
        for number, after in enumerate(workload.after(run)):
            own = log.with_name(f"{log.stem}.cleanup{number or ''}{log.suffix}")
            try:
                problem = _beside(launcher, after, f"{mark}.cleanup{number}", own, run.directory, limits)
            except LaunchError as error:
                problem = str(error)
            flags += [f"cleanup: {problem}"] if problem else []


def _beside(launcher: Launcher, step: Step, mark: str, log: Path, directory: Path, limits: Limits) -> str:
    """Why a step failed; empty where it did not."""
    log.unlink(missing_ok=True)
    ended = launcher.run(step, mark, log, directory, limits)
    if log.exists() and not log.stat().st_size:
        log.unlink()
    if not ended.timed_out and all(code == 0 for code in ended.codes):
        return ""
    why = f"was stopped after {limits.time_limit_s:g} s" if ended.timed_out else f"ended with {ended.codes[0]}"
    printed = Log(log).tail(200).rpartition("\n")[2] if log.exists() else ""
    return f"'{' '.join(step.argv)[:120]}' {why}{f' ({printed})' if printed else ''}"


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
            with path.open("rb") as source:
                shutil.copyfileobj(source, target)
        target.write(b"\n")
    return [f"{len(found)} files '{name}': the last by name counts"] if len(found) > 1 else []
