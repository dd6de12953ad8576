"""Process that holds the namespaces of emulated hosts; when it ends, the kernel removes them.

It is started by file path and uses the standard library only (it starts in 30 ms). It reads a plan as one line of JSON from
standard input:

    user        make a user namespace first (an ordinary user needs one)
    isolate     use separate process ids and mounts, too: when the keeper ends, so does everything started under it
    hostname    host name of the keeper itself, if it is isolated
    commands    argv lists to run first (mounts)
    namespaces  [name, hostname or null]: network namespaces, each with a separate host name if one is given
    batches     [namespace, argv, lines]: lines for the standard input of `ip -batch -` or `tc -batch -`
    outside     descriptor of the network namespace that it was started from; batches use it as {@outside}
    anchor      descriptor of a file, held open; once it is removed, a keeper with the order to stay ends
    owner       descriptor (pidfd) of the process whose end also ends the keeper

It answers with one line: {"pid", "descriptors"} or {"failed", "stage"}. It ends on SIGTERM, with the owner, and at the end of
its standard input, unless that contained "keep": then it stays until it is killed or its anchor is removed.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

OUTSIDE = "@outside"
Descriptors = dict[str, dict[str, int]]

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x20000000, 0x40000000
_KILL_ROUNDS, _KILL_ROUND_S = 4, 0.01
_POLL_INTERVAL_S = 1.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class StageFailedError(Exception):
    """Failure of a stage: `kernel` (a namespace is refused) or `setup` (a command failed)."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def unshare(flags: int, description: str) -> None:
    """Move this process into new namespaces. Raises StageFailedError if the kernel refuses."""
    if _LIBC.unshare(flags):
        raise StageFailedError("kernel", f"{description}: {os.strerror(ctypes.get_errno())}")


def enter_namespace(descriptor: int, kind: int) -> None:
    """Move this process into an existing namespace. Raises StageFailedError if the kernel refuses."""
    if _LIBC.setns(descriptor, kind):
        raise StageFailedError("kernel", f"entering a namespace: {os.strerror(ctypes.get_errno())}")


def create_user_namespace() -> None:
    """Move this process into a new user namespace, in which its user is root."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(_NEWUSER, "a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would add 10 ms to the start
                file.write(text)
        except OSError as error:
            raise StageFailedError("kernel", f"mapping users into a user namespace: {error.strerror}") from error


def run_command(argv: list[str], lines: Sequence[str] = ()) -> None:
    """Run a command with these lines on its standard input. Raises StageFailedError if it fails."""
    result = subprocess.run(
        argv, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, encoding="utf-8"
    )
    if result.returncode:
        message = " ".join(result.stderr.split())
        input_lines = f" for: {'; '.join(lines)}" if lines else ""
        raise StageFailedError("setup", f"{' '.join(argv)}: {message or f'exit code {result.returncode}'}{input_lines}")


def open_namespace(kind: str) -> int:
    """Open a namespace of this process and return the descriptor."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def create_namespaces(names: list[tuple[str, str | None]]) -> Descriptors:
    """Create namespaces and return their descriptors by name and kind.

    This process is back in its original namespaces afterwards.
    """
    home_namespaces = {"net": open_namespace("net"), "uts": open_namespace("uts")}
    descriptors: Descriptors = {".": home_namespaces}
    for name, hostname in names:
        unshare(_NEWNET, "a network namespace")
        descriptors[name] = {"net": open_namespace("net")}
        if hostname:
            unshare(_NEWUTS, "a separate host name")
            socket.sethostname(hostname)
            descriptors[name]["uts"] = open_namespace("uts")
            enter_namespace(home_namespaces["uts"], _NEWUTS)
    enter_namespace(home_namespaces["net"], _NEWNET)
    return descriptors


def set_up_namespaces(plan: dict[str, Any]) -> tuple[int, Descriptors]:
    """Create the namespaces of a plan, run its commands and batches, and return the process id and the descriptors."""
    unshare(_NEWNET, "a network namespace")
    if plan["isolate"]:
        unshare(_NEWNS | _NEWUTS, "separate mounts")
        socket.sethostname(plan["hostname"])
        run_command(["mount", "--make-rprivate", "/"])
        unshare(_NEWPID, "separate process ids")
        if os.fork():
            os._exit(0)
        os.setsid()
    # This is the process id outside, which can be read only before /proc is replaced.
    pid = int(os.readlink("/proc/self"))  # noqa: PTH115
    if plan["isolate"]:
        run_command(["mount", "-t", "proc", "proc", "/proc"])
    for argv in plan["commands"]:
        run_command(argv)
    descriptors = create_namespaces(plan["namespaces"])
    if plan["outside"] is not None:
        descriptors[OUTSIDE] = {"net": plan["outside"]}
    paths = {name: f"/proc/{os.getpid()}/fd/{kinds['net']}" for name, kinds in descriptors.items()}
    for namespace, argv, lines in plan["batches"]:
        enter_namespace(descriptors[namespace]["net"], _NEWNET)
        run_command(argv, [line.format_map(paths) for line in lines])
    enter_namespace(descriptors["."]["net"], _NEWNET)
    return pid, descriptors


def kill_processes_inside(descriptors: Descriptors) -> None:
    """Kill all processes inside the namespaces.

    A process in a namespace whose links are gone could only wait for a peer that never answers.
    """
    inodes = {os.fstat(kinds["net"]).st_ino for name, kinds in descriptors.items() if name != OUTSIDE}
    # From here on no process can enter. A process that is just entering is killed in one of the next rounds.
    for descriptor in [descriptor for kinds in descriptors.values() for descriptor in kinds.values()]:
        os.close(descriptor)
    for _ in range(_KILL_ROUNDS if descriptors else 0):
        for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
            # The process has ended, or belongs to another user and so is not in our namespaces.
            with contextlib.suppress(OSError):
                if pid != os.getpid() and os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:  # noqa: PTH116
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_ROUND_S)


def reap_children(*_: object) -> None:
    """Reap all child processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_until_removed(anchor: int) -> None:
    """Close the standard streams, and wait until the anchor file is removed."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # A user who removes the directory can no longer stop the cluster, so it ends.
    while os.fstat(anchor).st_nlink:
        time.sleep(_POLL_INTERVAL_S)


def wait_for_owner(owner: int) -> bool:
    """Wait for the end of the owner or of standard input, and return True if the owner told the keeper to stay."""
    poll = select.poll()
    for descriptor in (0, owner):
        poll.register(descriptor, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll()]
    return 0 in ready and os.read(0, 64).strip() == b"keep"


def main() -> None:
    """Set up the namespaces of the plan on standard input, and hold them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptors: Descriptors = {}
    try:
        # The input is unbuffered, because wait_for_owner reads what follows the first line.
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            plan = json.loads(stdin.readline())
        if plan["user"]:
            create_user_namespace()
        pid, descriptors = set_up_namespaces(plan)
        # As the first process of its process ids, it is the parent of every orphan.
        signal.signal(signal.SIGCHLD, reap_children)
        print(json.dumps({"pid": pid, "descriptors": descriptors}), flush=True)
        if wait_for_owner(plan["owner"]):
            os.close(plan["owner"])
            wait_until_removed(plan["anchor"])
    except (StageFailedError, OSError) as error:
        stage = error.stage if isinstance(error, StageFailedError) else "setup"
        print(json.dumps({"failed": str(error), "stage": stage}), flush=True)
    finally:
        kill_processes_inside(descriptors)


if __name__ == "__main__":
    main()
