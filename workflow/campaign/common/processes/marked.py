"""Processes of a run, found by the mark in their environment: also those that a killed driver left behind.

The mark is CAMPAIGN_RUN in the environment, looked up in /proc. A list of processes would lack those that a killed driver could not
finish writing down.
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
    """Pids of this user's live processes whose CAMPAIGN_RUN begins with `prefix`; among: where they are looked for, if not all."""
    wanted = f"{MARK}={prefix}".encode()
    for pid in live() if among is None else among:
        if pid != os.getpid() and any(variable.startswith(wanted) for variable in words_of(pid, "environ")):
            yield pid


def live() -> Iterator[int]:
    """Pids of all processes of this host."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def words_of(pid: int, name: Literal["cmdline", "environ"]) -> list[bytes]:
    """Words of a process's command line, or variables of its environment; none if it has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def adopt_orphans() -> None:
    """Make a process whose parent has ended a child of this one, so that `children` shows what a run left behind."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def children() -> set[int] | None:
    """Pids of this process's children, ended ones included; None where they would not be all (see `adopt_orphans`)."""
    adopts = ctypes.c_int(0)
    _prctl(_GET_CHILD_SUBREAPER, ctypes.addressof(adopts))
    try:
        tasks = [Path(task.path, "children").read_text(encoding="utf-8") for task in os.scandir("/proc/self/task")]
    except OSError:
        return None
    return {int(pid) for pids in tasks for pid in pids.split()} if adopts.value else None


class Child(Protocol):
    """A process that this one waits for, such as `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self) -> int | None: ...


def end_run(processes: Sequence[Child], marker: str, before: set[int] | None) -> None:
    """End the processes of a run and what they left in the background; `before`: the `children` before the run.

    What has left its parent, its session and its environment behind has become a child of this process (`adopt_orphans`), and so do
    the children of what is ended here. A look through all processes of a host can take longer than a short run, so it is taken only
    where something is left.
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
    """SIGKILL this process's children, and those that it gets meanwhile; None: nothing, since they would not be all."""
    until_s = time.monotonic() + _END_S
    while (left := _left(but)) and time.monotonic() < until_s:
        for pid in left:
            with suppress(ProcessLookupError, ChildProcessError):  # waited for by whoever started it
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_PAUSE_S)


def _left(before: set[int] | None) -> set[int] | None:
    now = children()
    return None if now is None or before is None else now - before


def _prctl(option: int, argument: int) -> None:
    _LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0)


def kill_marked(prefix: str) -> int:
    """SIGKILL everything that carries the mark, until nothing does; gives how many processes were met."""
    met = 0
    for _ in range(20):  # a process may fork while it is looked for
        pids = list(marked(prefix))
        if not pids:
            break
        met += len(pids)
        for pid in pids:
            send(pid, signal.SIGKILL, lambda each: each in marked(prefix, [each]))
    return met


def send(pid: int, number: int, is_meant: Callable[[int], bool]) -> None:
    """Send a signal to the process of this number, if it is still the one that is meant."""
    try:
        process = os.pidfd_open(pid)
    except OSError:  # it has ended
        return
    try:
        if is_meant(pid):  # and no other, since from now on the number stays that of the process that is open
            with suppress(OSError):
                signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def has_open(pid: int, path: Path) -> bool:
    """Whether a process has this file open: in another container its number is another process's."""
    with suppress(OSError):
        wanted = path.stat()
        return any(os.path.samestat(wanted, each.stat()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists())
    return False


def memory_mib(pids: list[int]) -> float:
    """Proportional set size of processes in MiB: pages shared by forked ranks count once."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue  # ended meanwhile
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024
