"""Going into namespaces that somebody else holds open. Standard library only, for a process that has just been forked."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(*groups: Sequence[str]) -> Iterator[list[list[int]]]:
    """Descriptors of each group of namespace files, closed at the end of the block.

    All are opened before the first is entered, since inside it the paths of the others may lead elsewhere. OSError: their holder
    has ended.
    """
    with ExitStack() as stack:
        descriptors = []
        for paths in groups:
            descriptors.append([os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths])
            stack.callback(close, descriptors[-1])
        yield descriptors


def close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def enter(descriptors: Sequence[int]) -> None:
    """Move this process into each namespace in turn; it must have one thread. OSError: the kernel refuses."""
    for descriptor in descriptors:
        if _LIBC.setns(descriptor, 0):  # 0: of whatever kind it is
            code = ctypes.get_errno()
            raise OSError(code, f"an emulated host cannot be entered: {os.strerror(code)}")
