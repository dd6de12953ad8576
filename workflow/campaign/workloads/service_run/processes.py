"""Processes of a run: those that the program starts, and those that these leave in the background.

Their output is forwarded to the log of the run as it comes, and its end is kept as evidence.
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

from campaign.common.processes.marked import children, end_children

_TAIL_BYTES = 4096
_LINE_BYTES = 1 << 16


def say(words: str) -> None:
    """Write a message of this program to the log of the run."""
    write(f"service: {words}\n".encode())


def write(data: bytes) -> None:
    """Write bytes to the log of the run without lines of other processes in between."""
    while data:
        data = data[os.write(1, data) :]


class Output:
    """Output of one process, which a thread forwards to the log of the run.

    Args:
        pipe: file descriptor from which the output is read.
        pattern: regular expression that sets `has_matched` when a line matches it.
        copy_path: file that gets a copy of the output.
    """

    def __init__(self, pipe: int, wanted: str | None = None, copy: Path | None = None) -> None:
        self._pipe = pipe
        self._wanted = None if wanted is None else re.compile(wanted.encode())
        self._copy = copy
        self._tail = b""
        self.seen = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """Return the last 4 KiB of the output.

        Waits up to 0.5 s for output of an ended process that is still in the pipe.
        """
        self._thread.join(0.5)
        return self._tail.decode(errors="replace").strip()

    def _pass_on(self) -> None:
        """Forward the output to the log and the copy until the pipe is closed, and search it for the pattern."""
        line = b""
        with (self._copy or Path(os.devnull)).open("wb") as file:
            while data := os.read(self._pipe, 1 << 16):
                write(data)
                file.write(data)
                file.flush()
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                if self._wanted is not None and not self.seen:
                    *lines, line = (line[-_LINE_BYTES:] + data).split(b"\n")
                    self.seen = any(map(self._wanted.search, (*lines, line)))
        os.close(self._pipe)


LOOK_S = 0.05
_started: set[int] = set()


class Process:
    """A program in its own session, with its output.

    Raises OSError if the program cannot be started. `pattern` and `copy_path` are those of `ProcessOutput`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        *,
        wanted: str | None = None,
        copy: Path | None = None,
    ) -> None:
        reading, writing = os.pipe()
        try:
            self._popen = subprocess.Popen(
                argv,
                env={**os.environ, **environment},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self.pid = self._popen.pid
        _started.add(self.pid)
        self.output = Output(reading, wanted, copy)

    @property
    def code(self) -> int | None:
        """Exit code of the process, or None while it runs."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all foreground processes of the session."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def background() -> set[int]:
    """Return the ids of running processes that others left behind and that this process has adopted."""
    found = (children() or set()) - _started
    for pid in list(found):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                found.discard(pid)
    return found


def end(processes: Sequence[Process], within_s: float, beside: Sequence[Process] = ()) -> bool:
    """End processes and everything that they left behind, and return True if some had to be killed.

    Args:
        processes: processes that get SIGTERM.
        timeout_s: time after which the remaining processes are killed.
        self_ending: processes that end without a signal within this time.
    """
    for process in processes:
        process.signal(signal.SIGTERM)
    until = time.monotonic() + within_s
    every, asked = [*processes, *beside], set[int]()
    while left := {each.pid for each in every if each.code is None} | (found := background()):
        for pid in found - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        asked |= found
        if time.monotonic() >= until:
            break
        time.sleep(LOOK_S)
    for process in every:
        process.signal(signal.SIGKILL)
    end_children(set())
    for process in every:
        process.code  # noqa: B018  # reaps the process
        process.output.tail()
    return bool(left)
