"""Runs a program, ends what it leaves behind, and ends as it did: `python -m campaign.processes.subreaper PROGRAM ARGUMENT ..`.

For a rank where nobody else follows every process: a daemon that has left its parent, its session and its environment behind
becomes a child of this process. Standard library only, since every rank starts it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from campaign.processes.marked import adopt_orphans, end_children


def main() -> None:
    adopt_orphans()
    pid = os.fork()
    if pid == 0:
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(126)
    _, status = os.waitpid(pid, 0)
    end_children(set())
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
