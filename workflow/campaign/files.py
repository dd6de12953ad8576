"""Files that several processes read and write at once: atomic writing, JSON documents and JSON lines, locks.

Writers raise OSError and leave nothing partial behind. `durable` forces the content to disk, so that it survives a power failure;
without it the content survives the death of the process only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from campaign.errors import RecordError


def content_hash(document: object, length: int = 20) -> str:
    """Hex digest (SHA-256, first `length` digits) of a JSON-serialisable document, independent of key order."""
    return hash_of(canonical_json(document), length)


def canonical_json(document: object) -> str:
    """The one text of a document that its hash is taken of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hash_of(text: str, length: int = 20) -> str:
    """Hex digest (SHA-256, first `length` digits) of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends; if the block raises, `path` stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, content: bytes | str, *, durable: bool = False) -> None:
    """Replace a file (text as UTF-8): a reader sees the old content or the new one, never a part."""
    with replacing(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, document: object, *, durable: bool = False, indent: int | None = None) -> None:
    """Replace a JSON file atomically."""
    write_atomic(path, json.dumps(document, indent=indent) + "\n", durable=durable)


def write_once(path: Path, content: bytes) -> None:
    """Write a file durably and atomically; an existing file is left alone. RecordError: that is not possible."""
    if path.exists():
        return
    try:
        write_atomic(path, content, durable=True)
    except OSError as error:
        raise RecordError(
            f"{path}: could not be written ({error.strerror}); free space or fix permissions, then run the same command "
            "again: finished records are kept"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or holds no JSON object."""
    try:
        return require_json(path, "")
    except RecordError:
        return {}


def require_json(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file. RecordError names the file, what is wrong with it, and the remedy."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); {remedy}") from error
    if not isinstance(document, dict):
        raise RecordError(f"{path}: cannot be read (not a JSON object); {remedy}")
    return document


def append_json(path: Path, document: object, *, durable: bool = False) -> None:
    """Append one line of JSON by a single write, so that lines of several processes do not mix."""
    line = json.dumps(document).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = durable and not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # an earlier writer died within its line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_directory(path.parent)


def read_json_lines(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of all complete lines from byte `offset` on, and the offset behind them; torn lines are skipped."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return [], offset
    complete = content[: content.rfind(b"\n") + 1]
    documents = []
    for line in complete.split(b"\n"):
        with suppress(ValueError):
            documents.append(json.loads(line))
    return [document for document in documents if isinstance(document, dict)], offset + len(complete)


def open_private(directory: Path) -> None:
    """Make a directory of a well-known name, or make sure that it is this user's alone; PermissionError names one that is not.

    Under a temporary directory such a name is anybody's to take first, also with a link to what this user may write to.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if is_foreign(directory, trusted=(os.geteuid(),)):
        raise PermissionError(errno.EPERM, "it belongs to another user, or is no directory", str(directory))
    directory.chmod(0o700)


def is_foreign(directory: Path, trusted: Collection[int]) -> bool:
    """Whether it is no directory, or it or the link to it is of a user who is not in `trusted`; False where there is nothing."""
    try:
        owners = {directory.lstat().st_uid, directory.stat().st_uid}
    except FileNotFoundError:
        return directory.is_symlink()
    return not directory.is_dir() or not owners.issubset(trusted)


def make_private(directory: Path) -> None:
    """Make a directory that only this user can look into; FileExistsError where there is something, whoever made it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)


def sync_directory(directory: Path) -> None:
    """Force the names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire_lock(path: Path, holder: str | None = None, *, attempts: int = 1) -> int | None:
    """Lock a file; gives the descriptor that holds the lock until it is closed or the process dies, None if the lock is taken.

    holder: content of the lock file; this process and host by default. attempts: tries, 10 ms apart.
    """
    descriptor = _open_lock(path)
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        while not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            attempts -= 1
            if not attempts:
                return None
            time.sleep(0.01)
        _name_holder(descriptor, holder)
        stack.pop_all()
    return descriptor


@contextmanager
def lock(path: Path, on_wait: Callable[[str], None] | None = None, holder: str | None = None) -> Iterator[None]:
    """Hold the lock of a file, waiting for it; before waiting, `on_wait` is called with its holder. holder: see `acquire_lock`."""
    descriptor = _open_lock(path)
    try:
        if not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if on_wait:
                on_wait(lock_holder(path))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        _name_holder(descriptor, holder)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_lock(path: Path, holder: str | None = None) -> Iterator[bool]:
    """Hold the lock of a file if it is free; gives whether this block holds it."""
    descriptor = acquire_lock(path, holder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def directory_lock(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a directory that all users can read, waiting for it; nothing is written. on_wait: called before waiting."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock; also of another user, whose file can only be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes that look at the same time do not see each other.
        return not _flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> str:
    """Who holds the lock, as its file says."""
    return path.read_text().strip() or "another process"


def _open_lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Children must not inherit the descriptor: a run that outlives its driver would keep the lock.
    # Who shares the directory with a group (umask 002) shares its locks, too.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def _flock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    return True


def _name_holder(descriptor: int, holder: str | None) -> None:
    text = f"process {os.getpid()} on {os.uname().nodename}\n" if holder is None else holder
    with suppress(OSError):  # the lock counts without its holder's name, which a full disk may not take
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
