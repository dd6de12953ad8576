"""A file lock that the kernel drops when its holder dies, so that nobody has to believe a process number."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path, on_wait: Callable[[str], None] | None = None, poll_s: float = 0.1) -> Iterator[None]:
    """Hold the lock of a file, waiting in turn; `on_wait` is told once who has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Children must not inherit the descriptor: a run that outlives its driver would keep the lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if on_wait and not told:
                    on_wait(path.read_text().strip() or "another process")
                    told = True
                time.sleep(poll_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def attempt(path: Path) -> Iterator[bool]:
    """Hold the lock of a file if nobody does; gives whether it is held by this block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether some live process holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
