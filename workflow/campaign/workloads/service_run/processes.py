"""Processes of a service run: programs that are started, and processes that these leave in the background.

Their output is forwarded to the log of the run immediately, and its end is kept as evidence.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from campaign.common.processes.marked import kill_children, list_children

_TAIL_BYTES = 4096
_MAX_LINE_BYTES = 1 << 16


def log_message(message: str) -> None:
    """Write a message of the service program itself to the log of the run."""
    write_to_log(f"service: {message}\n".encode())


def write_to_log(data: bytes) -> None:
    """Write bytes to the log of the run, without mixing them with lines of other processes."""
    while data:
        data = data[os.write(1, data) :]


class ProcessOutput:
    """Output of one process, forwarded to the log of the run by a thread.

    Args:
        pipe: file descriptor from which the output is read.
        pattern: regular expression that sets `has_matched` when a line matches it.
        copy_path: file for a copy of the output; None for no copy.
    """

    def __init__(self, pipe: int, pattern: str | None = None, copy_path: Path | None = None) -> None:
        self._pipe = pipe
        self._pattern = None if pattern is None else re.compile(pattern.encode())
        self._copy_path = copy_path
        self._tail = b""
        self.has_matched = False
        self._thread = threading.Thread(target=self._forward_output, daemon=True)
        self._thread.start()

    def read_tail(self) -> str:
        """Return the last 4 KiB of the output.

        After the process has ended, waits up to 0.5 s for output that is still in the pipe.
        """
        self._thread.join(0.5)
        return self._tail.decode(errors="replace").strip()

    def _forward_output(self) -> None:
        """Forward the output to the log and the copy until the pipe is closed, and search its lines for the pattern."""
        line = b""
        with (self._copy_path or Path(os.devnull)).open("wb") as file:
            while data := os.read(self._pipe, 1 << 16):
                write_to_log(data)
                file.write(data)
                file.flush()
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                if self._pattern is not None and not self.has_matched:
                    *lines, line = (line[-_MAX_LINE_BYTES:] + data).split(b"\n")
                    self.has_matched = any(map(self._pattern.search, (*lines, line)))
        os.close(self._pipe)


POLL_INTERVAL_S = 0.05
_started_pids: set[int] = set()


class ServiceProcess:
    """Program that runs in its own session, with its output.

    Raises OSError if the program cannot be started. `pattern` and `copy_path` are those of `ProcessOutput`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        *,
        pattern: str | None = None,
        copy_path: Path | None = None,
    ) -> None:
        read_fd, write_fd = os.pipe()
        try:
            self._popen = subprocess.Popen(
                argv,
                env={**os.environ, **environment},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=write_fd,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self.pid = self._popen.pid
        _started_pids.add(self.pid)
        self.output = ProcessOutput(read_fd, pattern, copy_path)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, or None while it runs."""
        return self._popen.poll()

    def signal(self, signal_number: signal.Signals) -> None:
        """Send a signal to all processes in the foreground of the program's session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal_number)


def find_adopted_processes() -> set[int]:
    """Return the ids of all running processes that were left behind by others and adopted by this process."""
    pids = (list_children() or set()) - _started_pids
    for pid in list(pids):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                pids.discard(pid)
    return pids


def end_processes(
    processes: Sequence[ServiceProcess], timeout_s: float, self_ending: Sequence[ServiceProcess] = ()
) -> bool:
    """End processes and all background processes that they left behind. Returns True if some had to be killed.

    Args:
        processes: processes to which SIGTERM is sent.
        timeout_s: time in seconds after which the remaining processes are killed.
        self_ending: processes that are expected to end within this time without a signal.
    """
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    all_processes, terminated_pids = [*processes, *self_ending], set[int]()
    while remaining_pids := {candidate.pid for candidate in all_processes if candidate.exit_code is None} | (
        adopted_pids := find_adopted_processes()
    ):
        for pid in adopted_pids - terminated_pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        terminated_pids |= adopted_pids
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    for process in all_processes:
        process.signal(signal.SIGKILL)
    kill_children(set())
    for process in all_processes:
        process.exit_code  # noqa: B018  # reaps the process
        process.output.read_tail()
    return bool(remaining_pids)
