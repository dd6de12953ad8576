"""Going into namespaces that somebody else holds open. Standard library only, for a process that has just been forked."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(*places: Sequence[str]) -> Iterator[list[list[int]]]:
    """Descriptors of each place's doors (paths of namespaces), closed at the end of the block.

    All are opened before the first is entered: behind it the others may be out of sight. OSError: whoever held them has ended.
    """
    with ExitStack() as stack:
        doors = []
        for place in places:
            doors.append([os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in place])
            stack.callback(close, doors[-1])
        yield doors


def close(doors: Sequence[int]) -> None:
    for door in doors:
        os.close(door)


def enter(doors: Sequence[int]) -> None:
    """Move this process into each namespace in turn; it must have one thread. OSError: the kernel refuses."""
    for door in doors:
        if _LIBC.setns(door, 0):  # 0: of whatever kind it is
            code = ctypes.get_errno()
            raise OSError(code, f"an emulated host cannot be entered: {os.strerror(code)}")
