"""Submission of drivers as local processes, forked from the submitting process: a new interpreter takes longer than a short
run.

A driver has a session of its own, so that it survives the end of Snakemake. It holds a lock in its folder during its whole life.
A later process finds the driver by this lock, because process ids can be reused.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.common.paths import Results
from campaign.common.processes.marked import has_file_open, kill_marked_processes, send_signal
from campaign.common.processes.signals import ENDING_SIGNALS
from campaign.slurm.submitter import DriverStatus, MakeDriver, Reporting, Submission
from campaign.spec.driver_messages import DriverRequest

_STOP_S = 20.0  # from SIGTERM to the end of the driver
_KILL_S = 10.0  # from SIGKILL to the end of a process that does not hang in the kernel
_END_S = 5.0  # from a driver's result to its end
_LOOK_S = 0.02
_REQUEST = "request.json"
_LOCK = "alive.lock"
NAME = "campaign-driver"
"""What `ps -o comm` and `top` show of a driver, whose command line is that of the process that submitted it."""


class LocalSubmitter:
    """Submitter whose drivers are processes of this machine, found by their locks. See `protocol.Submitter`."""

    poll_interval_s = 0.01
    outlives = False
    latency_s = 0.0

    def __init__(self, results: Results, driver: MakeDriver) -> None:
        self.results = results
        self.driver = driver
        self._forked: set[int] = set()

    def submit(self, request: DriverRequest, queue_s: float = math.inf) -> Submission:
        # One folder per driver, because process ids are reused.
        """Fork a driver for a request.

        Raises LaunchError if the lock of the new driver is held by another process.

        Args:
            request: request to measure.
            queue_s: unused, as local drivers do not queue.
        """
        folder = self._folders(request.lease) / request.token
        files.make_private_directory(folder)
        files.write_json(folder / _REQUEST, request.document())
        lock = files.acquire_lock(folder / _LOCK, "")
        if lock is None:
            raise LaunchError(f"{folder / _LOCK}: is locked by another process; does its file system lock files?")
        pid = _forked(Reporting(self.driver(request), folder), folder, lock)
        self._forked.add(pid)
        os.pwrite(lock, str(pid).encode(), 0)
        os.close(lock)  # the driver has it
        return Submission(request, str(pid), folder)

    def find(self, lease: str) -> Submission | None:
        """Return the running driver of a lease, or None. A driver whose request cannot be read is stopped."""
        for folder in self._alive(lease):
            try:
                return Submission(DriverRequest.of(files.read_json(folder / _REQUEST)), str(_pid(folder)), folder)
            except ValueError:  # the request of this driver is lost
                self.stop(lease)
        return None

    def check_driver(self, submission: Submission) -> DriverStatus:
        """Return whether a driver is running."""
        self._unreaped()
        return DriverStatus(files.is_locked(submission.folder / _LOCK))

    def stop(self, lease: str) -> None:
        """Stop the drivers of a lease by SIGTERM, then SIGKILL, and kill the processes of its runs."""
        deadline = time.monotonic() + _STOP_S
        # Again and again: a driver that is just starting misses the first signals, and those after the first do nothing.
        while (folders := list(self._alive(lease))) and time.monotonic() < deadline + _KILL_S:
            number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
            for folder in folders:
                if pid := _pid(folder):
                    send_signal(pid, number, lambda pid, lock=folder / _LOCK: has_file_open(pid, lock))  # type: ignore[misc]
            time.sleep(_LOOK_S)
        kill_marked_processes(self.results.run_mark_prefix(lease))

    def forget(self, lease: str) -> None:
        """Wait for drivers that are ending, and delete the folders of drivers with a result and an empty log."""
        until = time.monotonic() + _END_S
        while self._unreaped() and time.monotonic() < until:
            time.sleep(self.poll_interval_s)
        for result in self._folders(lease).glob("*/*.result.json"):
            if not any(log.stat().st_size for log in result.parent.glob("*_log.err")):
                shutil.rmtree(result.parent, ignore_errors=True)

    def end_left_behind(self) -> None:
        """Do nothing: each lease ends its own drivers."""

    def _unreaped(self) -> set[int]:
        """Reap the ended drivers of this process, and return the process ids of the running ones.

        In a container no other process may reap them. No other child is waited for, because a driver of an earlier process may
        have its
        process id.
        """
        for pid in list(self._forked):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                ended = True
            if ended:
                self._forked.discard(pid)
        return self._forked

    def _folders(self, lease: str) -> Path:
        """Return the directory in which each driver of a lease has a folder, named by its token."""
        return (self.results.work_directory(lease) / "drivers").resolve()

    def _alive(self, lease: str) -> Iterator[Path]:
        """Yield the folders of the lease's running drivers."""
        return (lock.parent for lock in sorted(self._folders(lease).glob(f"*/{_LOCK}")) if files.is_locked(lock))


def open_submitter(campaign: object, results: Results, driver: MakeDriver, say: object) -> LocalSubmitter:
    """Create the submitter for local drivers. `campaign` and `report` are unused."""
    return LocalSubmitter(results, driver)


def _pid(folder: Path) -> int:
    """Return the process id of the driver with this folder, or 0 while it is being forked."""
    return int((folder / _LOCK).read_text(encoding="utf-8").strip() or 0)


def _forked(work: Reporting, folder: Path, lock: int) -> int:
    """Fork a process that runs the driver, and return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal to this process must not be taken for one to the driver.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            _work(work, folder, lock)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Reporting, folder: Path, lock: int) -> NoReturn:
    """Run the driver in its forked process and exit."""
    code = 1
    try:
        os.setsid()
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        _leave_files(folder / f"{os.getpid()}_0_log.err", lock)
        with suppress(OSError):
            Path("/proc/self/comm").write_text(NAME, encoding="utf-8")
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _leave_files(log: Path, lock: int) -> None:
    """Close the files inherited from the submitting process, including its locks and terminal, and redirect output to the log.

    Args:
        log: file for standard output and error.
        lock: descriptor of the driver's lock, which stays open.
    """
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != lock:
            with suppress(OSError):  # the listing itself
                os.close(number)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, out, out)):
        os.dup2(source, number)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
