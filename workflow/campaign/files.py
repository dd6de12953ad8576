"""Files that several processes write and read at once: locks, atomic replacement, and documents that may be missing or torn."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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


def read_document(path: Path) -> dict[str, Any]:
    """The document in a file; empty where there is no file, or none that is a document."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def content_hash(document: object, length: int = 20) -> str:
    """Hex digest (SHA-256, first `length` digits) of a JSON-serialisable document, independent of key order."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def replace(path: Path, document: object) -> None:
    """Write a small JSON file so that it is there whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
