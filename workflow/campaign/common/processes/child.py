"""Start and end of child processes that belong to a context."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from campaign.common.processes.namespaces import enter_namespaces, open_namespaces

END_TIMEOUT_S = 5.0
_SET_PARENT_DEATH_SIGNAL = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None)


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | int,
    namespaces: Sequence[str] = (),
    directory: Path | None = None,
    *,
    ends_with_parent: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in these namespaces, with stdout and stderr joined and without stdin.

    Args:
        argv: command line.
        environment: all environment variables of the process.
        output: file or descriptor for its output.
        namespaces: files of the namespaces to enter.
        directory: working directory.
        ends_with_parent: sends SIGTERM to the process when the process that started it ends.
    """
    with open_namespaces(namespaces) as (descriptors,):

        def prepare() -> None:
            enter_namespaces(descriptors)
            if ends_with_parent:
                _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)

        return subprocess.Popen(
            argv,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A separate process group, because the driver handles Ctrl-C of the terminal.
            process_group=0,
            # Without nsenter, under which a program that cannot be started would look like one that failed.
            preexec_fn=prepare if descriptors or ends_with_parent else None,
        )


def end_processes(processes: Sequence[subprocess.Popen[bytes]], before_kill: Callable[[], None] | None = None) -> None:
    """End processes with SIGTERM, and with SIGKILL after `END_TIMEOUT_S`.

    Args:
        processes: processes to end.
        before_kill: function that is called before a process is killed, to end what it started elsewhere.
    """
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM) if process.poll() is None else None
    for process in processes:
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            if before_kill is not None:
                before_kill()
            process.kill()
            process.wait()
