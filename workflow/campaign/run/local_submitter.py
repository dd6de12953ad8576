"""Submission of drivers as local processes.

A driver is forked from the submitting process, because a new interpreter takes longer to start than a short run. It has its own
session, so it survives the end of Snakemake. It holds a lock in its folder as long as it lives. A later process finds the driver
by this lock, because process ids can be reused.
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
from campaign.slurm.submitter import DriverStatus, MakeDriver, ReportingDriver, Submission
from campaign.spec.driver_messages import DriverRequest

_SIGTERM_TIMEOUT_S = 20.0  # from SIGTERM to the end of the driver
_SIGKILL_TIMEOUT_S = 10.0  # from SIGKILL to the end of a process that does not hang in the kernel
_EXIT_TIMEOUT_S = 5.0  # from a driver's result to its end
_POLL_INTERVAL_S = 0.02
_REQUEST_FILE = "request.json"
_LOCK_FILE = "alive.lock"
PROCESS_NAME = "campaign-driver"
"""Name of a driver in `ps -o comm` and `top`. Its command line is that of the process that submitted it."""


class LocalSubmitter:
    """Submitter whose drivers are processes of this machine, which are found by their locks (see `Submitter`)."""

    poll_interval_s = 0.01
    drivers_survive = False
    latency_s = 0.0

    def __init__(self, results: Results, driver: MakeDriver) -> None:
        self.results = results
        self.driver = driver
        self._driver_pids: set[int] = set()

    def submit(self, request: DriverRequest, queue_s: float = math.inf) -> Submission:
        """Fork a driver for a request. Local drivers do not queue, so `queue_s` is unused.

        Raises LaunchError if another process holds the lock of the new driver.
        """
        # Each driver has its own folder, because process ids are reused.
        folder = self._drivers_directory(request.lease) / request.token
        files.make_private_directory(folder)
        files.write_json(folder / _REQUEST_FILE, request.document())
        lock = files.acquire_lock(folder / _LOCK_FILE, "")
        if lock is None:
            raise LaunchError(
                f"{folder / _LOCK_FILE}: another process holds this lock; check that the file system supports file locks"
            )
        pid = _fork_driver(ReportingDriver(self.driver(request), folder), folder, lock)
        self._driver_pids.add(pid)
        os.pwrite(lock, str(pid).encode(), 0)
        os.close(lock)  # the driver has inherited the lock
        return Submission(request, str(pid), folder)

    def find(self, lease: str) -> Submission | None:
        """Return the running driver of a lease, or None if there is none. A driver whose request cannot be read is stopped."""
        for folder in self._running_driver_folders(lease):
            try:
                return Submission(
                    DriverRequest.from_document(files.read_json(folder / _REQUEST_FILE)), str(_read_pid(folder)), folder
                )
            except ValueError:  # the request cannot be read
                self.stop(lease)
        return None

    def check_driver(self, submission: Submission) -> DriverStatus:
        """Return whether a driver is running."""
        self._reap_drivers()
        return DriverStatus(files.is_locked(submission.folder / _LOCK_FILE))

    def stop(self, lease: str) -> None:
        """Stop the drivers of a lease by SIGTERM, then SIGKILL, and kill the processes of its runs."""
        deadline_s = time.monotonic() + _SIGTERM_TIMEOUT_S
        # Signals are repeated, because a driver that is just starting misses the first ones. Further signals have no effect.
        while (
            folders := list(self._running_driver_folders(lease))
        ) and time.monotonic() < deadline_s + _SIGKILL_TIMEOUT_S:
            signal_number = signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL
            for folder in folders:
                if pid := _read_pid(folder):
                    send_signal(pid, signal_number, lambda pid, lock=folder / _LOCK_FILE: has_file_open(pid, lock))  # type: ignore[misc]
            time.sleep(_POLL_INTERVAL_S)
        kill_marked_processes(self.results.run_mark_prefix(lease))

    def forget(self, lease: str) -> None:
        """Wait for drivers that are ending, and delete the folders of drivers with a result and an empty log."""
        deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
        while self._reap_drivers() and time.monotonic() < deadline_s:
            time.sleep(self.poll_interval_s)
        for result in self._drivers_directory(lease).glob("*/*.result.json"):
            if not any(log.stat().st_size for log in result.parent.glob("*_log.err")):
                shutil.rmtree(result.parent, ignore_errors=True)

    def end_left_behind(self) -> None:
        """Do nothing: each lease ends its own drivers."""

    def _reap_drivers(self) -> set[int]:
        """Reap the ended drivers of this process, and return the process ids of the running ones.

        In a container, no other process may reap them. Other children are not reaped, because their process ids may belong to
        drivers of an earlier process.
        """
        for pid in list(self._driver_pids):
            try:
                has_ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                has_ended = True
            if has_ended:
                self._driver_pids.discard(pid)
        return self._driver_pids

    def _drivers_directory(self, lease: str) -> Path:
        """Return the directory in which each driver of a lease has a folder, named by its token."""
        return (self.results.work_directory(lease) / "drivers").resolve()

    def _running_driver_folders(self, lease: str) -> Iterator[Path]:
        """Yield the folders of the lease's running drivers."""
        return (
            lock.parent
            for lock in sorted(self._drivers_directory(lease).glob(f"*/{_LOCK_FILE}"))
            if files.is_locked(lock)
        )


def open_submitter(campaign: object, results: Results, driver: MakeDriver, report: object) -> LocalSubmitter:
    """Create the submitter for local drivers. `campaign` and `report` are unused."""
    return LocalSubmitter(results, driver)


def _read_pid(folder: Path) -> int:
    """Return the process id of the driver with this folder, or 0 while it is being forked."""
    return int((folder / _LOCK_FILE).read_text(encoding="utf-8").strip() or 0)


def _fork_driver(driver: ReportingDriver, folder: Path, lock: int) -> int:
    """Fork a process that runs the driver, and return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Signals are blocked during the fork, so that a signal for this process does not end the driver.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            _run_driver(driver, folder, lock)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _run_driver(driver: ReportingDriver, folder: Path, lock: int) -> NoReturn:
    """Run the driver in its forked process and exit."""
    exit_code = 1
    try:
        os.setsid()
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        _close_inherited_files(folder / f"{os.getpid()}_0_log.err", lock)
        with suppress(OSError):
            Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="utf-8")
        driver()
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(exit_code)


def _close_inherited_files(log: Path, lock: int) -> None:
    """Close the files inherited from the submitting process, including its locks and terminal, and redirect output to the log.

    Args:
        log: file for standard output and error.
        lock: descriptor of the driver's lock, which stays open.
    """
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2 and descriptor != lock:
            with suppress(OSError):  # the listing itself
                os.close(descriptor)
    log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    null_descriptor = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in enumerate((null_descriptor, log_descriptor, log_descriptor)):
        os.dup2(source, descriptor)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
