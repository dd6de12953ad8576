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
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO

from campaign.common.errors import RecordError, first_problem, user_name

DOCUMENT_BYTES = 1 << 30
"""More is no document of ours: the plan of 50,000 cells has some 40 MB."""
_LOCK_BYTES = 4096
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def content_hash(document: object, length: int = 20) -> str:
    """Hex digest (SHA-256, first `length` digits) of a JSON-serialisable document, independent of key order."""
    return hash_of(canonical_json(document), length)


def canonical_json(document: object) -> str:
    """The one text of a document that its hash is taken of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hash_of(text: str, length: int = 20) -> str:
    """Hex digest (SHA-256, first `length` digits) of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def find_files(directory: Path, suffix: str) -> list[Path]:
    """Return the regular files with a suffix below a directory in order of their names, as an archive packs them.

    Links to files and directories are followed, but for one that leads to a directory that it is in. Names that begin with a dot
    are left out. The directory need not be there.
    """
    return sorted(_walk_files(directory, suffix, ()))


def _walk_files(directory: Path, suffix: str, above: tuple[str, ...]) -> Iterator[Path]:
    real = os.path.realpath(directory)
    if real in above or not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        if path.suffix == suffix and path.is_file():
            yield path
        else:
            yield from _walk_files(path, suffix, (*above, real))


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends; if the block raises, `path` stays as it was."""
    make_directory(path.parent)
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


def overwrite(path: Path, content: bytes) -> bool:
    """Write over a file that has room for it, padded with spaces: this needs no space on the disk. False where it has none."""
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size:
            return False
        os.pwrite(file.fileno(), content.ljust(size), 0)
        os.fsync(file.fileno())
    return True


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


def open_regular(path: Path, limit: int | None = None) -> BufferedReader:
    """Open a regular file for reading, without waiting for a writer as of a named pipe; OSError for whatever else is there.

    limit: bytes beyond which a file is refused, whatever its name promises.
    """
    return os.fdopen(_regular(path, limit), "rb")


def read_bytes(path: Path, limit: int = DOCUMENT_BYTES) -> bytes:
    """The content of a regular file; OSError as `open_regular`."""
    with FileIO(_regular(path, limit)) as file:
        return file.readall()


def _regular(path: Path, limit: int | None) -> int:
    """The descriptor of a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(found.st_mode):
        problem = errno.EINVAL, "it is a directory, pipe or device, and no regular file"
    elif limit is not None and found.st_size > limit:
        problem = errno.EFBIG, f"it has {found.st_size} bytes; {limit} at most are read"
    if problem:
        os.close(descriptor)
        raise OSError(*problem, str(path))
    return descriptor


def read_text(path: Path, limit: int = DOCUMENT_BYTES) -> str:
    """`read_bytes` as UTF-8; ValueError where it is none."""
    return read_bytes(path, limit).decode()


def parse_json(content: bytes | str) -> Any:
    """What a JSON text says; ValueError for any other, also for one that is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load_json(path: Path) -> Any:
    """What a JSON file says; OSError, or ValueError for any other content."""
    return parse_json(read_bytes(path))


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Turn whatever the content of a damaged document raises in this block into a RecordError with the file and the remedy."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        from pydantic import ValidationError  # most processes have no need of it

        if isinstance(error, ValidationError):
            what: object = first_problem(error, "the document")
        else:
            what = error if isinstance(error, OSError | ValueError) else repr(error)
        raise RecordError(f"{path}: cannot be read ({what}); {remedy}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing or holds no JSON object."""
    try:
        return require_json(path, "")
    except RecordError:
        return {}


def require_json(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file. RecordError names the file, what is wrong with it, and the remedy."""
    try:
        document = load_json(path)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); {remedy}") from error
    if not isinstance(document, dict):
        raise RecordError(f"{path}: cannot be read (not a JSON object); {remedy}")
    return document


def append_json(path: Path, document: object, *, durable: bool = False) -> None:
    """Append one line of JSON by a single write, so that lines of several processes do not mix."""
    line = json.dumps(document).encode() + b"\n"
    make_directory(path.parent)
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
        with open_regular(path, offset + DOCUMENT_BYTES) as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return [], offset
    complete = content[: content.rfind(b"\n") + 1]
    documents = []
    for line in complete.split(b"\n"):
        with suppress(ValueError):
            documents.append(parse_json(line))
    return [document for document in documents if isinstance(document, dict)], offset + len(complete)


def is_foreign(directory: Path, trusted: Collection[int]) -> bool:
    """Whether it is no directory, or it or the link to it is of a user who is not in `trusted`; False where there is nothing."""
    try:
        owners = {directory.lstat().st_uid, directory.stat().st_uid}
    except FileNotFoundError:
        return directory.is_symlink()
    return not directory.is_dir() or not owners.issubset(trusted)


def make_directory(directory: Path) -> None:
    """Make a directory and those above it where they are missing, for those who may write to the nearest one that exists.

    See `share_like`; the new ones also get its group, and pass it on to what is made in them.
    """
    above = share_like(directory)
    missing = [each for each in (directory, *directory.parents) if len(each.parts) > len(above.parts)]
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            if not each.is_dir():
                raise
            continue
        if _shared_bits(above):
            _share(each, above)


def share_like(path: Path) -> Path:
    """Let this process and those it starts make files, whatever its umask, that all may write to who may write to a directory.

    Gives the directory: the nearest to `path` that exists. One that only its owner may write to changes nothing, nor one that is
    everybody's (sticky, as /tmp).
    """
    above = next(each for each in (path, *path.parents) if each.is_dir())
    if bits := _shared_bits(above):
        os.umask(os.umask(0o077) & ~bits)
    return above


def share_directories(directory: Path) -> None:
    """Share a directory of this user's, and those in it, that another program made, with those who may write to the one above."""
    above = share_like(directory.parent)
    for each in (directory, *directory.glob("*/")):
        if _shared_bits(above) and each.stat().st_uid == os.geteuid():
            _share(each, above)


def _share(made: Path, above: Path) -> None:
    with suppress(PermissionError):  # this user is no member of the group
        os.chown(made, -1, above.stat().st_gid)
        made.chmod(made.stat().st_mode | _shared_bits(above) | stat.S_ISGID)


def _shared_bits(directory: Path) -> int:
    mode = directory.stat().st_mode
    if mode & stat.S_ISVTX:
        return 0
    return (0o070 if mode & stat.S_IWGRP else 0) | (0o007 if mode & stat.S_IWOTH else 0)


def make_private(directory: Path) -> None:
    """Make a directory that only this user can look into; FileExistsError where there is something, whoever made it."""
    make_directory(directory.parent)
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
            _flock(descriptor, fcntl.LOCK_EX)
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


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock; also of another user, whose file can only be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes that look at the same time do not see each other.
        return not _flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> str:
    """Who holds the lock, as its file says."""
    return read_text(path, _LOCK_BYTES).strip() or "another process"


def _open_lock(path: Path) -> int:
    make_directory(path.parent)
    # Children must not inherit the descriptor: a run that outlives its driver would keep the lock.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def _flock(descriptor: int, operation: int) -> bool:
    """Whether the lock was got. RecordError: the file system has none."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        raise RecordError(
            f"{path}: its file system ({file_system(path)[0]}) has no locks ({error.strerror}), which keep runs from being made "
            "twice; mount it with locks, or use --results on another one"
        ) from error
    return True


def file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> tuple[str, frozenset[str]]:
    """Kind of the file system that a path is on, and the options of its mount; "unknown" where it is not listed."""
    place, found = path.resolve(), ("unknown", frozenset[str]())
    longest = -1
    for line in mountinfo.read_text(encoding="utf-8").splitlines():
        mount, _, kind = line.partition(" - ")
        words, about = mount.split(), kind.split()
        point = Path(words[4].encode().decode("unicode_escape"))  # a space is \\040
        if (
            place.is_relative_to(point) and len(point.parts) >= longest
        ):  # of two on one point, the later hides the earlier
            found, longest = (about[0], frozenset({*words[5].split(","), *about[-1].split(",")})), len(point.parts)
    return found


def _name_holder(descriptor: int, holder: str | None) -> None:
    text = (
        f"process {os.getpid()} on {os.uname().nodename} of user {user_name(os.geteuid())}\n"
        if holder is None
        else holder
    )
    with suppress(OSError):  # the lock counts without its holder's name, which a full disk may not take
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
