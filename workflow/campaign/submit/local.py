"""Drivers as processes of this machine, started by submitit's local executor.

A driver has a session of its own, and SIGINT and SIGHUP are ignored while submitit starts it: it survives what ends Snakemake. A
later process finds it by its lock, never by a process number alone, which may have been given to another process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from campaign import files
from campaign.config.resolve import Campaign
from campaign.documents.driver_messages import DriverRequest
from campaign.paths import Results
from campaign.processes.marked import kill_marked, live, words_of
from campaign.submit.protocol import Fate, MakeDriver, Submission

_STOP_S = 20.0  # from SIGTERM to the end of the driver
_KILL_S = 10.0  # from SIGKILL to the end of what does not hang in the kernel
_LOOKS = 3  # a process that is just being started has no command line for an instant
_LOOK_S = 0.1
_FOREVER_MIN = 60 * 24 * 365  # submitit's local executor ends a job after five minutes unless told otherwise


class LocalSubmitter:
    """See `protocol.Submitter`. A driver is a process of this machine, found by its command line."""

    look_s = 0.05
    outlives = False
    latency_s = 0.0

    def __init__(self, results: Results, driver: MakeDriver) -> None:
        self.results = results
        self.driver = driver

    def submit(self, request: DriverRequest) -> Submission:
        import submitit

        folder = _folder(self.results, request.lease)
        executor = submitit.LocalExecutor(folder=folder)
        executor.update_parameters(timeout_min=_FOREVER_MIN, tasks_per_node=1)
        with _deaf_to_terminal():
            job = executor.submit(self.driver(request))
        return Submission(request.lease, str(job.job_id), folder)

    def find(self, lease: str) -> Submission | None:
        folder = _folder(self.results, lease)
        found = _starting_or_running(folder) if folder.exists() else {}
        return Submission(lease, found[min(found)], folder) if found else None

    def fate(self, submission: Submission) -> Fate:
        lock = self.results.driver_lock(submission.lease)
        return Fate(files.is_locked(lock) or bool(_starting_or_running(_folder(self.results, submission.lease))))

    def stop(self, lease: str) -> None:
        folder = _folder(self.results, lease)
        deadline = time.time() + _STOP_S
        # Again and again: a driver that is just starting misses the first signals, and those after the first do nothing.
        while (pids := _starting_or_running(folder)) and time.time() < deadline + _KILL_S:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if time.time() < deadline else signal.SIGKILL)
            time.sleep(0.1)
        kill_marked(self.results.run_mark(lease))

    def forget(self, lease: str) -> None:
        """A process that has ended is not found again."""


def open_submitter(
    campaign: Campaign, results: Results, driver: MakeDriver, say: Callable[[str], None]
) -> LocalSubmitter:
    return LocalSubmitter(results, driver)


def _folder(results: Results, lease: str) -> Path:
    """submitit's folder of one lease; being in a command line, it also tells whose driver a process is."""
    return (results.work(lease) / "submitit").resolve()


def _starting_or_running(folder: Path) -> dict[int, str]:
    """`_processes`, believed to be none only after several looks."""
    for _ in range(_LOOKS):
        if found := _processes(folder):
            return found
        time.sleep(_LOOK_S)
    return {}


def _processes(folder: Path) -> dict[int, str]:
    """Live processes (submitit's controllers, and drivers) of a folder, and the job of each."""
    found: dict[int, str] = {}
    name = b"SUBMITIT_LOCAL_JOB_ID="
    for pid in live():
        arguments = words_of(pid, "cmdline")
        if os.fsencode(folder) not in arguments or not (variables := words_of(pid, "environ")):
            continue
        if b"submitit.local._local" in arguments:
            found[pid] = str(pid)
        elif b"submitit.core._submit" in arguments:
            found[pid] = next((value[len(name) :].decode() for value in variables if value.startswith(name)), "")
    return found


@contextmanager
def _deaf_to_terminal() -> Iterator[None]:
    """What is started inside ignores Ctrl-C and hang-up: a driver outlives the terminal, and is stopped by us alone."""
    before = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
