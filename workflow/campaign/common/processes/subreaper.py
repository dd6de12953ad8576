"""Wrapper that runs a program, ends the processes that it leaves behind, and exits in the same way.

`python -m campaign.common.processes.subreaper FILE PROGRAM ARGUMENT ..` is for a rank on a host where no other process follows
every process. A daemon that left its parent, its session and its environment behind becomes a child of this process. A line
`stopped` is appended to FILE when the program is stopped from outside. After SIGTERM, by which Slurm begins to end a step, the
program and all other processes have a few seconds. Without this process, Slurm loses track of those that continue. Standard
library only, because every rank starts it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

from campaign.common.processes.marked import adopt_orphans, kill_children

_END_TIMEOUT_S = 3


def _handle_signal(number: int, _: object) -> None:
    """Start the grace period at SIGTERM, and end all children and this process at SIGALRM."""
    if number == signal.SIGTERM:
        signal.alarm(_END_TIMEOUT_S)
        return
    kill_children(set())
    os._exit(128 + signal.SIGTERM)


def main() -> None:
    """Run the program in the command line, end what it leaves behind, and exit with its status or signal."""
    adopt_orphans()
    pid = os.fork()
    if pid == 0:
        try:
            os.execvp(sys.argv[2], sys.argv[2:])
        except OSError as error:
            print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(126)
    signal.signal(signal.SIGTERM, _handle_signal)
    signal.signal(signal.SIGALRM, _handle_signal)
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            break
        with suppress(OSError), Path(sys.argv[1]).open("a", encoding="utf-8") as file:
            file.write("stopped\n")
    kill_children(set())
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
