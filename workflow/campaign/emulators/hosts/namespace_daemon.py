"""Process that holds the namespaces of emulated hosts; when it ends, the kernel removes them.

It is started by file path and uses the standard library only (it starts in 30 ms). It reads a plan as one line of JSON from
standard input:

    user        make a user namespace first (an ordinary user needs one)
    isolate     use separate process ids and mounts, too: when the keeper ends, so does everything started under it
    hostname    host name of the keeper itself, if it is isolated
    commands    argv lists to run first (mounts)
    namespaces  [name, hostname or null]: network namespaces, each with a separate host name if one is given
    batches     [namespace, argv, lines]: lines for the standard input of `ip -batch -` or `tc -batch -`
    outside     descriptor of the network namespace that it was started from, available to batches as {@outside}
    anchor      descriptor of a file, held open; once it is removed, a keeper with the order to stay ends
    owner       descriptor (pidfd) of the process whose end also ends the keeper

It answers with one line: {"pid", "descriptors"} or {"failed", "stage"}. It ends on SIGTERM, with the owner, and at the end of
its
standard input, unless that contained "keep": then it stays until it is killed or its anchor is removed.
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
_ROUNDS, _ROUND_S = 4, 0.01
_LOOK_S = 1.0
_LIBC = ctypes.CDLL(None, use_errno=True)


class StageFailed(Exception):
    """Failure of a stage: `kernel` (a namespace is refused) or `setup` (a command failed)."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def unshare(flags: int, what: str) -> None:
    """Move this process into new namespaces. Raises StageFailedError if the kernel refuses."""
    if _LIBC.unshare(flags):
        raise StageFailed("kernel", f"{what}: {os.strerror(ctypes.get_errno())}")


def enter(descriptor: int, kind: int) -> None:
    """Move this process into an existing namespace. Raises StageFailedError if the kernel refuses."""
    if _LIBC.setns(descriptor, kind):
        raise StageFailed("kernel", f"entering a namespace: {os.strerror(ctypes.get_errno())}")


def become_root_of_a_user_namespace() -> None:
    """Move this process into a new user namespace, in which its user is root."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(_NEWUSER, "a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib would add 10 ms to the start
                file.write(text)
        except OSError as error:
            raise StageFailed("kernel", f"mapping users into a user namespace: {error.strerror}") from error


def run(argv: list[str], lines: Sequence[str] = ()) -> None:
    """Run a command with these lines as standard input. Raises StageFailedError if it fails."""
    done = subprocess.run(
        argv, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        asked = f" for: {'; '.join(lines)}" if lines else ""
        raise StageFailed("setup", f"{' '.join(argv)}: {said or f'exit code {done.returncode}'}{asked}")


def open_namespace(kind: str) -> int:
    """Open a namespace of this process and return the descriptor."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def make_namespaces(wanted: list[tuple[str, str | None]]) -> Descriptors:
    """Create namespaces and return their descriptors by name and kind.

    This process is back in its original namespaces afterwards.
    """
    home = {"net": open_namespace("net"), "uts": open_namespace("uts")}
    made: Descriptors = {".": home}
    for name, hostname in wanted:
        unshare(_NEWNET, "a network namespace")
        made[name] = {"net": open_namespace("net")}
        if hostname:
            unshare(_NEWUTS, "a host name of its own")
            socket.sethostname(hostname)
            made[name]["uts"] = open_namespace("uts")
            enter(home["uts"], _NEWUTS)
    enter(home["net"], _NEWNET)
    return made


def set_up(plan: dict[str, Any]) -> tuple[int, Descriptors]:
    """Create the namespaces of a plan, run its commands and batches, and return the process id and the descriptors."""
    unshare(_NEWNET, "a network namespace")
    if plan["isolate"]:
        unshare(_NEWNS | _NEWUTS, "mounts of its own")
        socket.sethostname(plan["hostname"])
        run(["mount", "--make-rprivate", "/"])
        unshare(_NEWPID, "process ids of its own")
        if os.fork():
            os._exit(0)
        os.setsid()
    # Before /proc is replaced: the process id that those outside know.
    pid = int(os.readlink("/proc/self"))  # noqa: PTH115
    if plan["isolate"]:
        run(["mount", "-t", "proc", "proc", "/proc"])
    for argv in plan["commands"]:
        run(argv)
    made = make_namespaces(plan["namespaces"])
    if plan["outside"] is not None:
        made[OUTSIDE] = {"net": plan["outside"]}
    paths = {name: f"/proc/{os.getpid()}/fd/{kinds['net']}" for name, kinds in made.items()}
    for namespace, argv, lines in plan["batches"]:
        enter(made[namespace]["net"], _NEWNET)
        run(argv, [line.format_map(paths) for line in lines])
    enter(made["."]["net"], _NEWNET)
    return pid, made


def kill_inhabitants(made: Descriptors) -> None:
    """Kill all processes in the namespaces.

    A process in a namespace whose links are gone could only wait for a peer that never answers.
    """
    inodes = {os.fstat(kinds["net"]).st_ino for name, kinds in made.items() if name != OUTSIDE}
    # From here on no process can enter; a process that is just entering is killed in one of the next rounds.
    for descriptor in [descriptor for kinds in made.values() for descriptor in kinds.values()]:
        os.close(descriptor)
    for _ in range(_ROUNDS if made else 0):
        for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
            # It ended meanwhile, or it is somebody else's and so not in our namespaces.
            with contextlib.suppress(OSError):
                if pid != os.getpid() and os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:  # noqa: PTH116
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_S)


def reap(*_: object) -> None:
    """Reap all ended children."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def stay(anchor: int) -> None:
    """Close the standard streams, and wait until the anchor file is removed."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # A user who removes the directory can no longer stop the cluster, and wants it to end.
    while os.fstat(anchor).st_nlink:
        time.sleep(_LOOK_S)


def wait_for_the_end(owner: int) -> bool:
    """Wait for the end of the owner or of standard input, and return whether the owner ordered the keeper to stay."""
    poll = select.poll()
    for descriptor in (0, owner):
        poll.register(descriptor, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll()]
    return 0 in ready and os.read(0, 64).strip() == b"keep"


def main() -> None:
    """Set up the namespaces of the plan on standard input, and hold them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    made: Descriptors = {}
    try:
        # One read a byte at a time: what comes after the line is for wait_for_the_end.
        with open(0, "rb", buffering=0, closefd=False) as asked:
            plan = json.loads(asked.readline())
        if plan["user"]:
            become_root_of_a_user_namespace()
        pid, made = set_up(plan)
        # As the first process of its process ids it is the parent of every orphan.
        signal.signal(signal.SIGCHLD, reap)
        print(json.dumps({"pid": pid, "descriptors": made}), flush=True)
        if wait_for_the_end(plan["owner"]):
            os.close(plan["owner"])
            stay(plan["anchor"])
    except (StageFailed, OSError) as error:
        stage = error.stage if isinstance(error, StageFailed) else "setup"
        print(json.dumps({"failed": str(error), "stage": stage}), flush=True)
    finally:
        kill_inhabitants(made)


if __name__ == "__main__":
    main()
