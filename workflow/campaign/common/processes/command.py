"""Commands of the system, run to their end or to their time-out."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

TIMED_OUT = 124  # the exit code of timeout(1)


class Finished(NamedTuple):
    """How a command ended. code: minus the signal's number when a signal ended it, or TIMED_OUT."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def words(self) -> str:
        """Its last error line, for a message."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit status {self.code}, no message"


def run_command(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command without input and return what it printed; OSError when it cannot be started.

    At its time-out the command and its children are killed; the result holds what they had printed until then.
    """
    # In a session of its own: Ctrl-C in the terminal must not cut off half-way a command that changes something.
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill_session(process)
        out, err = _printed(process)
        return Finished(TIMED_OUT, out, f"{err}\n{argv[0]}: no answer for {timeout_s:g} s".lstrip("\n"))
    except BaseException:
        _kill_session(process)
        raise
    return Finished(process.returncode, out, err)


def _kill_session(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _printed(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return process.communicate(timeout=1)
    except subprocess.TimeoutExpired as error:  # a process that the kernel keeps does not end
        out, err = (
            part.decode(errors="replace") if isinstance(part, bytes) else "" for part in (error.stdout, error.stderr)
        )
        return out, err
