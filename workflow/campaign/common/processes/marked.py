"""Processes of a run, found by the mark in their environment, including those that a killed driver left behind.

The mark is the variable CAMPAIGN_RUN, read from /proc. A list in a file would lack the processes that a killed driver could not
record any more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

MARK = "CAMPAIGN_RUN"
_END_S, _PAUSE_S = 5.0, 0.002
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None)


def marked(prefix: str, among: Iterable[int] | None = None) -> Iterator[int]:
    """Yield the pids of this user's live processes whose CAMPAIGN_RUN begins with a prefix. This process is left out.

    Args:
        prefix: beginning of the mark.
        candidates: pids to search. None means all processes of the host.
    """
    wanted = f"{MARK}={prefix}".encode()
    for pid in live() if among is None else among:
        if pid != os.getpid() and any(variable.startswith(wanted) for variable in words_of(pid, "environ")):
            yield pid


def live() -> Iterator[int]:
    """Return the pids of all processes of this host."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def words_of(pid: int, name: Literal["cmdline", "environ"]) -> list[bytes]:
    """Return the words of a process's command line, or the variables of its environment.

    The list is empty if the process has ended or belongs to another user.
    """
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def adopt_orphans() -> None:
    """Make this process adopt descendants whose parent has ended, so that `list_children` shows what a run left behind."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def children() -> set[int] | None:
    """Return the pids of this process's children, including those that have ended.

    Returns None if the list would be incomplete, because orphans are not adopted (see `adopt_orphans`).
    """
    adopts = ctypes.c_int(0)
    _prctl(_GET_CHILD_SUBREAPER, ctypes.addressof(adopts))
    try:
        tasks = [Path(task.path, "children").read_text(encoding="utf-8") for task in os.scandir("/proc/self/task")]
    except OSError:
        return None
    return {int(pid) for pids in tasks for pid in pids.split()} if adopts.value else None


class Child(Protocol):
    """Child process that this process waits for, such as `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self) -> int | None: ...


def end_run(processes: Sequence[Child], marker: str, before: set[int] | None) -> None:
    """End the processes of a run and the processes that they left in the background.

    A process that left its parent, its session and its environment behind has become a child of this process (`adopt_orphans`),
    and
    so have the children of killed processes. Searching all processes of a host can take longer than a short run, so the search
    is
    skipped if nothing is left.

    Args:
        processes: processes of the run.
        marker: prefix of their mark.
        earlier_children: result of `list_children` before the run.
    """
    for process in processes:
        process.poll()
    left = _left(before)
    if left is None or left:
        kill_marked(marker)
    for process in processes:
        process.wait()
    if left:
        end_children(before)


def end_children(but: set[int] | None) -> None:
    """Kill the children of this process, and those that it adopts meanwhile, by SIGKILL.

    Args:
        spared: pids of children that are left alone. None means that nothing is killed, because the list would be incomplete.
    """
    until_s = time.monotonic() + _END_S
    while (left := _left(but)) and time.monotonic() < until_s:
        for pid in left:
            with suppress(ProcessLookupError, ChildProcessError):  # another part of the program waits for it
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PAUSE_S)


def _left(before: set[int] | None) -> set[int] | None:
    """Return the children that this process got since an earlier list, or None if a list is incomplete."""
    now = children()
    return None if now is None or before is None else now - before


def _prctl(option: int, argument: int) -> None:
    _LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0)


def kill_marked(prefix: str) -> int:
    """Kill all processes whose mark begins with a prefix by SIGKILL, until none is left.

    Returns the number of processes that were found.
    """
    met = 0
    for _ in range(20):  # a process may fork during the search
        pids = list(marked(prefix))
        if not pids:
            break
        met += len(pids)
        for pid in pids:
            send(pid, signal.SIGKILL, lambda each: each in marked(prefix, [each]))
    return met


def send(pid: int, number: int, is_meant: Callable[[int], bool]) -> None:
    """Send a signal to a process if it is still the intended one.

    Args:
        pid: number of the process.
        number: number of the signal.
        is_target: check by pid that the process is the intended one.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:  # it has ended
        return
    try:
        if is_meant(pid):  # the number cannot be reused as long as the descriptor is open
            with suppress(OSError):
                signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def has_open(pid: int, path: Path) -> bool:
    """Return True if a process has a file open.

    This identifies a process reliably, because its number may belong to another process in another container.
    """
    with suppress(OSError):
        wanted = path.stat()
        return any(os.path.samestat(wanted, each.stat()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists())
    return False


def memory_mib(pids: list[int]) -> float:
    """Return the proportional set size of processes in MiB. Pages that forked ranks share count once."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue  # ended meanwhile
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024
