"""Entering of namespaces that another process holds open.

Standard library only, for a process that has just been forked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def open_namespaces(*path_groups: Sequence[str]) -> Iterator[list[list[int]]]:
    """Open groups of namespace files, and yield the descriptors of each group. They are closed at the end of the block.

    All files are opened before the first namespace is entered, because inside it the other paths may lead elsewhere. Raises
    OSError if the holder of the namespaces has ended.

    Args:
        *path_groups: paths of namespace files by group.
    """
    with ExitStack() as stack:
        descriptors = []
        for paths in path_groups:
            descriptors.append([os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths])
            stack.callback(close_descriptors, descriptors[-1])
        yield descriptors


def close_descriptors(descriptors: Iterable[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def enter_namespaces(descriptors: Sequence[int]) -> None:
    """Move this process, which must have one thread, into each namespace in turn. Raises OSError if the kernel refuses."""
    for descriptor in descriptors:
        if _LIBC.setns(descriptor, 0):  # 0: any kind of namespace
            code = ctypes.get_errno()
            raise OSError(code, f"an emulated host cannot be entered: {os.strerror(code)}")
