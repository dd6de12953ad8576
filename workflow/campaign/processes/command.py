"""One command of the system, run to its end or to its time-out."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

TIMED_OUT = 124  # as timeout(1) says it


def ask(argv: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> tuple[int, str, str]:
    """Exit code (minus the signal's number when a signal ended it; TIMED_OUT), output and complaints.

    OSError: it could not be started. At its time-out it is ended, and what it had said until then is given.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=timeout_s,
            check=False,
            # Ctrl-C in the terminal is for us: a command that changes something is not to be cut off half-way.
            process_group=0,
        )
    except subprocess.TimeoutExpired as error:
        out, words = (
            part.decode(errors="replace") if isinstance(part, bytes) else "" for part in (error.stdout, error.stderr)
        )
        return TIMED_OUT, out, f"{words}\n{argv[0]}: no answer for {timeout_s:g} s".lstrip("\n")
    return done.returncode, done.stdout, done.stderr
