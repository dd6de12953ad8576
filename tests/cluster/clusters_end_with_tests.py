"""Clusters under a directory end with the process that tests in it, even when that is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Its input ends with the process that holds the other end. A cluster ends when its lock is removed.
_WAIT = 'cat; find "$1" -name keeper.lock -delete'


@contextmanager
def clusters_end_with_this_process(directory: Path) -> Iterator[None]:
    # A session of its own: a signal for the group of the tests, such as Ctrl-C, is not for it.
    waiting = subprocess.Popen(
        ["sh", "-c", _WAIT, "clusters", str(directory)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        assert waiting.stdin is not None
        waiting.stdin.close()
        waiting.wait()
