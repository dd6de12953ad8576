"""Processes of a run: those that it starts, and those that these have put into the background.

What they print is passed on to the log of the run as it comes, with the end of it kept as evidence.
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
    """A line of the program itself."""
    write(f"service: {words}\n".encode())


def write(data: bytes) -> None:
    """Write to the log of the run, where a line of another process never comes into the middle of these bytes."""
    while data:
        data = data[os.write(1, data) :]


class Output:
    """The output of one process. wanted: what `seen` waits for; copy: a file that gets all of it, too."""

    def __init__(self, pipe: int, wanted: str | None = None, copy: Path | None = None) -> None:
        self._pipe = pipe
        self._wanted = None if wanted is None else re.compile(wanted.encode())
        self._copy = copy
        self._tail = b""
        self.seen = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """The end of it. What has ended is given a moment, since its last words may still be on their way."""
        self._thread.join(0.5)
        return self._tail.decode(errors="replace").strip()

    def _pass_on(self) -> None:
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
    """A program in a session of its own, and its output (see `Output`). OSError: it could not be started."""

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
        """The exit code; None while the process runs."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of its session that are in the foreground."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def background() -> set[int]:
    """Processes that others have left behind, and that this one has adopted."""
    found = (children() or set()) - _started
    for pid in list(found):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                found.discard(pid)
    return found


def end(processes: Sequence[Process], within_s: float, beside: Sequence[Process] = ()) -> bool:
    """End these processes and what they have left behind; whether some had to be killed. beside: those that end by themselves."""
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
        process.code  # noqa: B018  # so that it is waited for
        process.output.tail()
    return bool(left)
