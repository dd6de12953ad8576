"""Locks for exclusive measurement on a machine, also against other users' campaigns, and a check that file locks work."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from campaign.common import files
from campaign.common.errors import ConfigError, RecordError, get_user_name
from campaign.spec.system_file import SystemFile

# The path does not depend on TMPDIR, because users with different values of TMPDIR share the machine.
MACHINE_LOCK = Path("/tmp/composable-campaign.lock")
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def hold_machine_locks(
    systems: Iterable[SystemFile], report: Callable[[str], None], *, is_shared: bool = False
) -> Iterator[None]:
    """Hold the machine locks of systems inside a block, after waiting for other campaigns that measure on this machine.

    Raises ConfigError if a lock file cannot be opened.

    Args:
        systems: systems whose lock files are held.
        report: called with a message before waiting.
        is_shared: True to share the lock with other campaigns that share it.
    """
    with ExitStack() as descriptors:
        for path in sorted({Path(system.machine_lock or MACHINE_LOCK) for system in systems}):
            try:
                descriptors.callback(
                    os.close, _acquire_lock(path, report, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
                )
            except OSError as error:
                raise ConfigError(
                    f"{path}: the file cannot be locked ({error.strerror or error}), but every campaign on this machine must lock "
                    "it; have it removed, or set `machine_lock` in the system file to a file that all users can read"
                ) from error
        yield


def _acquire_lock(path: Path, report: Callable[[str], None], operation: int) -> int:
    """Wait for the lock of a file and return the file's descriptor.

    Nothing is written to the file, which may belong to another user.
    """
    while True:
        descriptor = _open_lock_file(path)
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            report(
                f"waiting for {_describe_holder(descriptor)}, which measures on this machine and holds {path} "
                "(if it is not a campaign, end it or set `machine_lock` in the system file to another file)"
            )
            fcntl.flock(descriptor, operation)
        with suppress(FileNotFoundError):  # The lock of a file that was removed in the meantime has no effect.
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        os.close(descriptor)


def _open_lock_file(path: Path) -> int:
    """Open a lock file and return its descriptor. The file is created if it does not exist."""
    while True:
        # With O_CREAT alone, kernels refuse another user's file in a directory that all may write to.
        with suppress(FileNotFoundError):
            return os.open(path, _OPEN_FLAGS)
        with suppress(FileExistsError):
            descriptor = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o444)
            os.fchmod(descriptor, 0o444)  # overrides the umask
            return descriptor


def _describe_holder(descriptor: int) -> str:
    """Describe the process that holds the lock of an open file, as listed by the kernel."""
    inode = str(os.fstat(descriptor).st_ino)
    for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
            with suppress(OSError):
                process = Path("/proc", words[4])
                name, user = (
                    (process / "comm").read_text(encoding="utf-8").strip(),
                    get_user_name(process.stat().st_uid),
                )
                return f"process {words[4]} ({name}) of user {user}"
    return "a process that is not visible here"


# Mount options with which a lock is not visible on other hosts.
_LOCAL_LOCK_OPTIONS = {
    "cifs": {"nobrl"},
    "gfs2": {"localflocks", "lockproto=lock_nolock"},
    "lustre": {"localflock", "noflock"},
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "ocfs2": {"localflocks"},
}
_RETRY_INTERVAL_S = 0.05
_REMEDY = "choose --results on a file system whose locks all processes see (docs: 'Share a results directory')"


@contextmanager
def hold_process_lock(directory: Path, *, across_hosts: bool) -> Iterator[None]:
    """Hold a lock for this process in a directory, and verify that processes see each other's locks there.

    Raises RecordError, with the file system's name, if they do not.

    Args:
        directory: directory of the locks.
        across_hosts: True if locks must also be visible on other hosts.
    """
    path = directory / f"{os.uname().nodename}.{os.getpid()}.{_start_ticks(os.getpid())}.lock"
    descriptor = files.acquire_lock(path)
    try:
        if descriptor is None or not _excludes_child(path):
            raise _lock_error(directory, "lets two processes hold the same lock")
        for lock_file in directory.glob(f"{os.uname().nodename}.*.lock"):
            _check_other_lock(lock_file)
        kind, options = files.find_file_system(directory)
        if across_hosts and (local_options := sorted(_LOCAL_LOCK_OPTIONS.get(kind.rstrip("4"), set()) & options)):
            raise _lock_error(directory, f"is mounted with {local_options[0]}, so hosts do not see each other's locks")
        yield
    finally:
        path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def _excludes_child(path: Path) -> bool:
    """Return whether a child process is refused the lock that this process holds."""
    if (child := os.fork()) == 0:
        try:
            os._exit(int(files.acquire_lock(path) is None))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def _check_other_lock(lock_file: Path) -> None:
    """Remove the lock file of a dead process.

    Raises RecordError if a live process holds the lock and this process cannot see that.
    """
    _, pid, start_ticks = lock_file.stem.rsplit(".", 2)
    is_alive = _start_ticks(int(pid)) == start_ticks
    for _ in range(2):  # the process may be taking or releasing its lock right now
        if files.is_locked(lock_file) or not lock_file.exists():
            return
        if is_alive and lock_file.read_text(encoding="utf-8"):
            time.sleep(_RETRY_INTERVAL_S)
    if is_alive and lock_file.read_text(encoding="utf-8") and lock_file.exists():
        raise _lock_error(
            lock_file.parent, f"does not show the lock that process {pid} holds, perhaps because it is mounted twice"
        )
    if not is_alive:
        lock_file.unlink(missing_ok=True)


def _start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or an empty string if no such process is alive."""
    try:
        state, *words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else words[18]


def _lock_error(directory: Path, problem: str) -> RecordError:
    """Build the error for a file system whose locks do not work."""
    return RecordError(f"{directory}: its file system ({files.find_file_system(directory)[0]}) {problem}; {_REMEDY}")
