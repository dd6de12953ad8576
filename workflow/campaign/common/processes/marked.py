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

MARK_VARIABLE = "CAMPAIGN_RUN"
INVOCATION_VARIABLE = "CAMPAIGN_INVOCATION"
"""Environment variable with a token of the Snakemake process, which all processes that it starts inherit."""
_KILL_TIMEOUT_S, _KILL_RETRY_INTERVAL_S = 5.0, 0.002
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None)


def find_marked_processes(prefix: str, candidates: Iterable[int] | None = None) -> Iterator[int]:
    """Yield the pids of this user's live processes whose CAMPAIGN_RUN begins with a prefix. This process is left out.

    Args:
        prefix: beginning of the mark.
        candidates: pids to search. None means all processes of the host.
    """
    assignment = f"{MARK_VARIABLE}={prefix}".encode()
    for pid in list_pids() if candidates is None else candidates:
        if pid != os.getpid() and any(
            variable.startswith(assignment) for variable in read_process_words(pid, "environ")
        ):
            yield pid


def list_pids() -> Iterator[int]:
    """Return the pids of all processes of this host."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def read_process_words(pid: int, name: Literal["cmdline", "environ"]) -> list[bytes]:
    """Read the arguments of a process's command line, or the variables of its environment.

    The list is empty if the process has ended or belongs to another user.
    """
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def adopt_orphans() -> None:
    """Make this process adopt descendants whose parent has ended, so that `list_children` shows what a run left behind."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def list_children() -> set[int] | None:
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


class ChildProcess(Protocol):
    """Child process that this process waits for, such as `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self) -> int | None: ...


def end_run_processes(processes: Sequence[ChildProcess], marker: str, earlier_children: set[int] | None) -> None:
    """End the processes of a run and the processes that they left in the background.

    A process that left its parent, its session and its environment behind has become a child of this process
    (`adopt_orphans`), and so have the children of killed processes. Searching all processes of a host can take longer than a
    short run, so the search is skipped if nothing is left.

    Args:
        processes: processes of the run.
        marker: prefix of their mark.
        earlier_children: result of `list_children` before the run.
    """
    for process in processes:
        process.poll()
    leftovers = _list_new_children(earlier_children)
    if leftovers is None or leftovers:
        kill_marked_processes(marker)
    for process in processes:
        process.wait()
    if leftovers:
        kill_children(earlier_children)


def kill_children(spared_pids: set[int] | None) -> None:
    """Kill the children of this process, including those that it adopts meanwhile, with SIGKILL.

    Args:
        spared_pids: pids of children that are left alone. None means that nothing is killed, because the list would be incomplete.
    """
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while (remaining := _list_new_children(spared_pids)) and time.monotonic() < deadline_s:
        for pid in remaining:
            with suppress(ProcessLookupError, ChildProcessError):  # Another part of the program may wait for it.
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_KILL_RETRY_INTERVAL_S)


def _list_new_children(earlier_children: set[int] | None) -> set[int] | None:
    """Return the children that this process got since an earlier list, or None if a list is incomplete."""
    current_children = list_children()
    return None if current_children is None or earlier_children is None else current_children - earlier_children


def _prctl(option: int, argument: int) -> None:
    _LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0)


def kill_marked_processes(prefix: str) -> int:
    """Kill all processes whose mark begins with a prefix with SIGKILL until none remain.

    Returns the number of processes that were found.
    """
    process_count = 0
    for _ in range(20):  # A process may fork during the search.
        pids = list(find_marked_processes(prefix))
        if not pids:
            break
        process_count += len(pids)
        for pid in pids:
            send_signal(pid, signal.SIGKILL, lambda candidate: candidate in find_marked_processes(prefix, [candidate]))
    return process_count


def send_signal(pid: int, number: int, is_target: Callable[[int], bool]) -> None:
    """Send a signal to a process if it is still the intended one.

    Args:
        pid: number of the process.
        number: number of the signal.
        is_target: check by pid that the process is the intended one.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:  # The process has ended.
        return
    try:
        if is_target(pid):  # The number cannot be reused as long as the descriptor is open.
            with suppress(OSError):
                signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def has_file_open(pid: int, path: Path) -> bool:
    """Return True if a process has a file open.

    This identifies a process reliably, because its number may belong to another process in another container.
    """
    with suppress(OSError):
        status = path.stat()
        return any(
            os.path.samestat(status, descriptor.stat())
            for descriptor in Path(f"/proc/{pid}/fd").iterdir()
            if descriptor.exists()
        )
    return False


def measure_memory_mib(pids: list[int]) -> float:
    """Return the proportional set size of processes in MiB. Pages that forked ranks share count once."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue  # The process has ended.
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024
