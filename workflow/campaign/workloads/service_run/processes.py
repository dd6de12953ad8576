"""Processes of a run: those that it starts, and those that these have put into the background."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from campaign.processes.marked import children, end_children
from campaign.workloads.service_run.output import Output

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
        """How it ended; None: it has not."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """To all processes of its session that are in the foreground."""
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
