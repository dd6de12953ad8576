"""Files that several processes read and write at once: atomic writing, JSON documents, JSON lines and locks.

Writers raise OSError and leave no partial file behind. `durable` forces the content to disk, so that it survives a power
failure; without it, the content survives only the death of the process.
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
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from campaign.common.errors import RecordError, format_first_error, get_user_name

MAX_DOCUMENT_BYTES = 1 << 30
"""Size limit of JSON documents. The plan of 50,000 cells has some 40 MB."""
_MAX_LOCK_FILE_BYTES = 4096
NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


def hash_document(document: object, length: int = 20) -> str:
    """Return the first `length` hex digits of the SHA-256 of a JSON-serialisable document, independent of key order."""
    return hash_text(dump_canonical_json(document), length)


def dump_canonical_json(document: object) -> str:
    """Return the unique JSON text of a document, from which its hash is computed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hash_text(text: str, length: int = 20) -> str:
    """Return the first `length` hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def find_files(directory: Path, suffix: str) -> list[Path]:
    """Return the regular files with a suffix below a directory in order of their names, as an archive packs them.

    Links to files and directories are followed, except links to a directory that contains them. Names that begin with a dot are
    left out. The result is empty if the directory does not exist.
    """
    return sorted(_walk_files(directory, suffix, ()))


def _walk_files(directory: Path, suffix: str, ancestors: tuple[str, ...]) -> Iterator[Path]:
    real = os.path.realpath(directory)
    if real in ancestors or not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        if path.suffix == suffix and path.is_file():
            yield path
        else:
            yield from _walk_files(path, suffix, (*ancestors, real))


@contextmanager
def replace_atomically(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends.

    If the block raises, `path` stays as it was.
    """
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
    """Replace the content of a file atomically. Text is encoded as UTF-8.

    A reader sees either the old content or the new one, never a part.
    """
    with replace_atomically(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def overwrite_in_place(path: Path, content: bytes) -> bool:
    """Overwrite an existing file with content that fits into its size, padded with spaces.

    This needs no space on the disk. Returns False if the content is larger than the file.
    """
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
    """Write a file durably and atomically. An existing file is left alone.

    Raises RecordError if the file cannot be written.
    """
    if path.exists():
        return
    try:
        write_atomic(path, content, durable=True)
    except OSError as error:
        raise RecordError(
            f"{path}: could not be written ({error.strerror}); free space or fix permissions, then run the same command "
            "again: finished records are kept"
        ) from error


def open_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file for reading, without waiting for the writer of a named pipe.

    Raises OSError for anything but a regular file.

    Args:
        path: file to open.
        max_bytes: size beyond which the file is refused, whatever its name promises. None means no limit.
    """
    return os.fdopen(_open_regular_descriptor(path, max_bytes), "rb")


def read_bytes(path: Path | str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError as `open_regular` does."""
    with FileIO(_open_regular_descriptor(path, max_bytes)) as file:
        return file.readall()


def _open_regular_descriptor(path: Path | str, max_bytes: int | None) -> int:
    """Open a regular file and return its descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    problem = None
    if not stat.S_ISREG(status.st_mode):
        problem = errno.EINVAL, "it is a directory, pipe or device instead of a regular file"
    elif max_bytes is not None and status.st_size > max_bytes:
        problem = errno.EFBIG, f"it has {status.st_size} bytes, but at most {max_bytes} are allowed"
    if problem:
        os.close(descriptor)
        raise OSError(*problem, str(path))
    return descriptor


def read_text(path: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """Return the content of a regular file as text. Raises ValueError if it is not UTF-8."""
    return read_bytes(path, max_bytes).decode()


def parse_json(content: bytes | str) -> Any:
    """Parse a JSON text. Raises ValueError for an invalid text or one that is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load_json(path: Path) -> Any:
    """Parse a JSON file. Raises OSError if it cannot be read, or ValueError if its content is invalid."""
    return parse_json(read_bytes(path))


@contextmanager
def reject_damaged_document(path: Path, remedy: str) -> Iterator[None]:
    """Turn every error that damaged content causes in this block into a RecordError.

    Args:
        path: file of the document, for the message.
        remedy: end of the message.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        from pydantic import ValidationError  # It is imported here, because most processes do not need it.

        if isinstance(error, ValidationError):
            problem: object = format_first_error(error, "the document")
        else:
            problem = error if isinstance(error, OSError | ValueError) else repr(error)
        raise RecordError(f"{path}: cannot be read ({problem}); {remedy}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. The result is empty if the file is missing or holds no JSON object."""
    try:
        return require_json(path, "")
    except RecordError:
        return {}


def require_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file. Raises RecordError with the file, the problem and the remedy otherwise."""
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
    is_new = durable and not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # An earlier writer died before it completed its line.
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_directory(path.parent)


def read_json_lines(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the JSON objects of all complete lines from byte `offset` on, and the offset after them. Torn lines are skipped."""
    try:
        with open_regular(path, offset + MAX_DOCUMENT_BYTES) as file:
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


def is_untrusted_directory(directory: Path, trusted_uids: Collection[int]) -> bool:
    """Return True if a path is not a directory, or if a user outside `trusted_uids` owns it or the link to it.

    Returns False if nothing exists at the path.
    """
    try:
        owners = {directory.lstat().st_uid, directory.stat().st_uid}
    except FileNotFoundError:
        return directory.is_symlink()
    return not directory.is_dir() or not owners.issubset(trusted_uids)


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents with the permissions of the nearest existing directory.

    The new directories also get the group of that directory and pass it on to their own content. See `apply_sharing_umask`.
    """
    existing = apply_sharing_umask(directory)
    missing = (
        [] if existing == directory else [directory, *takewhile(lambda parent: parent != existing, directory.parents)]
    )
    for ancestor in reversed(missing):
        try:
            ancestor.mkdir()
        except FileExistsError:
            if not ancestor.is_dir():
                raise
            continue
        if _get_sharing_bits(existing):
            _share_with_group(ancestor, existing)


def apply_sharing_umask(path: Path) -> Path:
    """Set the umask of this process so that its files are writable for everyone who may write to the nearest directory.

    Processes that it starts inherit the umask. Nothing changes if only the owner may write to that directory, or if it is
    everybody's (sticky, as /tmp). Returns the directory, which is the one nearest to `path` that exists.
    """
    existing = path if path.is_dir() else next(ancestor for ancestor in path.parents if ancestor.is_dir())
    if bits := _get_sharing_bits(existing):
        os.umask(os.umask(0o077) & ~bits)
    return existing


def share_directories(directory: Path) -> None:
    """Share a directory and its direct subdirectories with everyone who may write to the parent directory.

    Only directories of this user are changed. Another program may have created them.
    """
    parent = apply_sharing_umask(directory.parent)
    for shared_directory in (directory, *directory.glob("*/")):
        if _get_sharing_bits(parent) and shared_directory.stat().st_uid == os.geteuid():
            _share_with_group(shared_directory, parent)


def _share_with_group(directory: Path, reference: Path) -> None:
    """Give a directory the group and the write permissions of a reference directory."""
    with suppress(PermissionError):  # This user may not be a member of the group.
        os.chown(directory, -1, reference.stat().st_gid)
        directory.chmod(directory.stat().st_mode | _get_sharing_bits(reference) | stat.S_ISGID)


def _get_sharing_bits(directory: Path) -> int:
    """Return the permission bits that grant the group and others the access that they have to a directory.

    Only groups of users with write access count. The result is 0 for a sticky directory.
    """
    mode = directory.stat().st_mode
    if mode & stat.S_ISVTX:
        return 0
    return (0o070 if mode & stat.S_IWGRP else 0) | (0o007 if mode & stat.S_IWOTH else 0)


def make_private_directory(directory: Path) -> None:
    """Create a directory that only this user can read. Raises FileExistsError if the path exists, whoever created it."""
    make_directory(directory.parent)
    directory.mkdir(mode=0o700)


def sync_directory(directory: Path) -> None:
    """Flush the entries of a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def acquire_lock(path: Path, holder: str | None = None, *, attempts: int = 1) -> int | None:
    """Lock a file and return the descriptor that holds the lock until it is closed or the process dies.

    Returns None if the lock is taken.

    Args:
        path: lock file.
        holder: content of the lock file. The default names this process and its host.
        attempts: number of attempts, 10 ms apart.
    """
    descriptor = _open_lock(path)
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        while not _try_flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            attempts -= 1
            if not attempts:
                return None
            time.sleep(0.01)
        _write_lock_holder(descriptor, holder)
        stack.pop_all()
    return descriptor


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[str], None] | None = None, holder: str | None = None) -> Iterator[None]:
    """Hold the lock of a file during a block, after waiting until it is free.

    Args:
        path: lock file.
        on_wait: function that is called with the current holder before the wait.
        holder: content of the lock file, as in `acquire_lock`.
    """
    descriptor = _open_lock(path)
    try:
        if not _try_flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if on_wait:
                on_wait(read_lock_holder(path))
            _try_flock(descriptor, fcntl.LOCK_EX)
        _write_lock_holder(descriptor, holder)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_lock(path: Path, holder: str | None = None) -> Iterator[bool]:
    """Hold the lock of a file during a block if it is free. Yields True if this block holds it."""
    descriptor = acquire_lock(path, holder)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return True if a live process holds the lock. This also works for a file of another user that can only be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes that check at the same time do not block each other.
        return not _try_flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def read_lock_holder(path: Path) -> str:
    """Return the holder of a lock as written in the lock file."""
    return read_text(path, _MAX_LOCK_FILE_BYTES).strip() or "another process"


def _open_lock(path: Path) -> int:
    make_directory(path.parent)
    # Children must not inherit the descriptor: a run that outlives its driver would keep the lock.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def _try_flock(descriptor: int, operation: int) -> bool:
    """Apply a lock operation and return True if the lock was obtained. Raises RecordError if the file system has no locks."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        raise RecordError(
            f"{path}: its file system ({find_file_system(path)[0]}) does not support "
            f"locks ({error.strerror}), which prevent runs from being measured "
            "twice; mount it with locks, or choose another file system with --results"
        ) from error
    return True


def find_file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> tuple[str, frozenset[str]]:
    """Return the type of the file system of a path, and its mount options. The type is "unknown" if no mount matches.

    Args:
        path: file or directory, which need not exist.
        mountinfo: table of mounts as the kernel writes it.
    """
    resolved_path, kind_and_options = path.resolve(), ("unknown", frozenset[str]())
    longest_length = -1
    for line in mountinfo.read_text(encoding="utf-8").splitlines():
        mount, _, kind = line.partition(" - ")
        mount_fields, device_fields = mount.split(), kind.split()
        mount_point = Path(mount_fields[4].encode().decode("unicode_escape"))  # A space is written as \\040.
        if (
            resolved_path.is_relative_to(mount_point) and len(mount_point.parts) >= longest_length
        ):  # If two mounts have the same point, the later one hides the earlier one.
            kind_and_options, longest_length = (
                (device_fields[0], frozenset({*mount_fields[5].split(","), *device_fields[-1].split(",")})),
                len(mount_point.parts),
            )
    return kind_and_options


def _write_lock_holder(descriptor: int, holder: str | None) -> None:
    text = (
        f"process {os.getpid()} on {os.uname().nodename} of user {get_user_name(os.geteuid())}\n"
        if holder is None
        else holder
    )
    with suppress(OSError):  # The lock is valid even if a full disk cannot store the name of its holder.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
