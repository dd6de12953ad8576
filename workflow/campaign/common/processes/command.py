"""System commands that run until they end or time out."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

TIMEOUT_EXIT_CODE = 124  # This is the exit code of timeout(1).


class CompletedCommand(NamedTuple):
    """Result of a command.

    Attributes:
        code: exit code, minus the number of the signal that ended the command, or TIMEOUT_EXIT_CODE.
        out: standard output.
        err: standard error.
    """

    code: int
    out: str
    err: str

    @property
    def is_success(self) -> bool:
        """True if the exit code is 0."""
        return self.code == 0

    @property
    def last_error_line(self) -> str:
        """Last line of the error output, for a message."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit status {self.code}, no message"


def run_command(
    argv: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> CompletedCommand:
    """Run a command without input and return its exit code and output. Raises OSError if it cannot be started.

    After the timeout, the command and its children are killed. The result holds the output until then.

    Args:
        argv: command line.
        timeout_s: timeout in seconds.
        environment: all environment variables of the command. None means those of this process.
    """
    # A separate session, so that Ctrl-C in the terminal does not interrupt a command that changes something.
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
        out, err = _read_remaining_output(process)
        return CompletedCommand(TIMEOUT_EXIT_CODE, out, f"{err}\n{argv[0]}: no answer for {timeout_s:g} s".lstrip("\n"))
    except BaseException:
        _kill_session(process)
        raise
    return CompletedCommand(process.returncode, out, err)


def _kill_session(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_remaining_output(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the remaining output of a killed command as (stdout, stderr)."""
    try:
        return process.communicate(timeout=1)
    except subprocess.TimeoutExpired as error:  # A process that is blocked in the kernel does not end.
        out, err = (
            part.decode(errors="replace") if isinstance(part, bytes) else "" for part in (error.stdout, error.stderr)
        )
        return out, err
