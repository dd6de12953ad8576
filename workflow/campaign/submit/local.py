"""Drivers as processes of this machine, started by submitit's local executor.

A driver has a session of its own, and SIGINT and SIGHUP are ignored while submitit starts it: it survives what ends Snakemake. A
later process finds it by the token in its command line and lock, never by a process number: those are given again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaign import files
from campaign.config.resolve import Campaign
from campaign.documents.driver_messages import DriverRequest
from campaign.paths import Results
from campaign.processes.marked import kill_marked, live, send, words_of
from campaign.submit.protocol import Fate, MakeDriver, Reporting, Submission

_STOP_S = 20.0  # from SIGTERM to the end of the driver
_KILL_S = 10.0  # from SIGKILL to the end of what does not hang in the kernel
_LOOKS = 3  # a process that is just being started has no command line for an instant
_LOOK_S = 0.1
_REQUEST = "request.json"
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

        # Of this driver alone: submitit names its files by process numbers, and those of an earlier driver may be the same.
        folder = _folders(self.results, request.lease) / request.token
        files.make_private(folder)
        files.write_json(folder / _REQUEST, request.document())
        executor = submitit.LocalExecutor(folder=folder)
        executor.update_parameters(timeout_min=_FOREVER_MIN, tasks_per_node=1)
        with _deaf_to_terminal():
            job = executor.submit(Reporting(self.driver(request), folder))
        return Submission(request, str(job.job_id), folder)

    def find(self, lease: str) -> Submission | None:
        for process in _starting_or_running(_folders(self.results, lease)):
            try:
                return Submission(
                    DriverRequest.of(files.read_json(process.folder / _REQUEST)), process.job_id, process.folder
                )
            except ValueError:  # nobody can tell any more what it measures
                self.stop(lease)
        return None

    def fate(self, submission: Submission) -> Fate:
        lock = self.results.driver_lock(submission.lease)
        if files.is_locked(lock) and files.lock_holder(lock) == submission.request.token:
            return Fate(True)
        return Fate(any(found.folder == submission.folder for found in _starting_or_running(submission.folder.parent)))

    def stop(self, lease: str) -> None:
        folders = _folders(self.results, lease)
        deadline = time.monotonic() + _STOP_S
        # Again and again: a driver that is just starting misses the first signals, and those after the first do nothing.
        while (processes := _starting_or_running(folders)) and time.monotonic() < deadline + _KILL_S:
            number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
            for process in processes:
                send(process.pid, number, lambda pid: _process(pid, folders) is not None)
            time.sleep(0.1)
        kill_marked(self.results.run_mark(lease))

    def forget(self, lease: str) -> None:
        """A process that has ended is not found again."""


def open_submitter(
    campaign: Campaign, results: Results, driver: MakeDriver, say: Callable[[str], None]
) -> LocalSubmitter:
    return LocalSubmitter(results, driver)


@dataclass(frozen=True)
class _Process:
    """A live process of a driver (submitit's controller, or the driver): the id of its job, and its folder."""

    pid: int
    job_id: str
    folder: Path


def _folders(results: Results, lease: str) -> Path:
    """Where each driver of a lease has its folder, which has its token as name; being in a command line, it tells whose it is."""
    return (results.work(lease) / "submitit").resolve()


def _starting_or_running(folders: Path) -> list[_Process]:
    """Live processes with a folder in `folders`, believed to be none only after several looks."""
    if not folders.exists():
        return []
    for _ in range(_LOOKS):
        if found := [process for pid in live() if (process := _process(pid, folders))]:
            return sorted(found, key=lambda process: process.pid)
        time.sleep(_LOOK_S)
    return []


def _process(pid: int, folders: Path) -> _Process | None:
    """The process of this number, where it is of a driver with a folder in `folders`."""
    name = b"SUBMITIT_LOCAL_JOB_ID="
    arguments = words_of(pid, "cmdline")
    folder = next((Path(os.fsdecode(word)) for word in arguments if word.startswith(os.fsencode(folders) + b"/")), None)
    if folder is None or folder.parent != folders or not (variables := words_of(pid, "environ")):
        return None
    if b"submitit.local._local" in arguments:
        return _Process(pid, str(pid), folder)
    if b"submitit.core._submit" in arguments:
        return _Process(
            pid, next((value[len(name) :].decode() for value in variables if value.startswith(name)), ""), folder
        )
    return None


@contextmanager
def _deaf_to_terminal() -> Iterator[None]:
    """What is started inside ignores Ctrl-C and hang-up: a driver outlives the terminal, and is stopped by us alone."""
    before = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
