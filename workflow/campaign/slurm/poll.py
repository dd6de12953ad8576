"""Poll of the job queue, made once per interval for a whole campaign, however many processes wait.

The processes share a directory. `poll.json` is the last result, `poll.lock` is held by the process that polls, and `watched/`
has an empty file for each job that a process waits for. A process polls if the last result is too old, otherwise it reads the
result. A poll is one squeue call. An sacct call is added if a watched job has left the queue and is not known to have ended.
One Snakemake starts all processes, so they share one machine and one clock. If the clock is set, one more poll is made.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from campaign.common import files
from campaign.common.errors import ConfigError, convert_os_error
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.parse import ACCOUNTING_FORMAT, JOB_FORMAT, SlurmJob, parse_sacct, parse_squeue

_MAX_FRESH_AGE_S = 1.0
_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
_MAX_DENIED_S = 60.0  # A file server may recover from a fault within this time.
_ACCOUNTING_DISABLED = "accounting storage is disabled"


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """Jobs of this user as Slurm reported them at one time.

    Args:
        asked_s: time of the poll, in Unix seconds of this machine's clock.
        reachable: True if the controller answered; otherwise `jobs` holds the last known jobs.
        accounting: True if sacct can be queried; None if it was not needed yet or did not answer.
        problem: message of the command that did not answer.
        jobs: jobs by id, including watched jobs that have ended.
    """

    asked_s: float
    reachable: bool
    accounting: bool | None = None
    problem: str = ""
    jobs: Mapping[str, SlurmJob] = field(default_factory=dict)


class QueuePoll:
    """Poll of the queue, shared by the processes of one campaign. The clock returns Unix seconds."""

    def __init__(
        self, directory: Path, slurm: SlurmCommands, interval_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.slurm = slurm
        self.interval_s = interval_s
        self.clock = clock
        self._file = directory / "poll.json"
        self._lock = directory / "poll.lock"
        self._watched = directory / "watched"
        self._denied_s: float | None = None  # time of the first failure to open the lock
        self._read_last: tuple[tuple[int, int], QueueSnapshot] | None = (
            None  # inode and time of the file, and its content
        )
        self._unshared: QueueSnapshot | None = None

    def watch_job(self, job_id: str) -> None:
        """Watch a job, so that accounting is queried for it after it has left the queue. Idempotent."""
        files.make_directory(self._watched)
        (self._watched / job_id).touch()

    def unwatch_job(self, job_id: str) -> None:
        """Stop watching a job. Idempotent."""
        (self._watched / job_id).unlink(missing_ok=True)

    def list_watched(self) -> frozenset[str]:
        """Return the ids of the jobs for which a process waits."""
        try:
            return frozenset(path.name for path in self._watched.iterdir())
        except FileNotFoundError:
            return frozenset()

    def take_snapshot(self, fresh: bool = False) -> QueueSnapshot:
        """Return the last snapshot of the queue, or poll again if it is too old.

        A snapshot is too old after the poll interval, or after one second if `fresh` is set. Without `fresh`, the call does not
        wait for another process that is polling. While the directory cannot be used, the last known jobs are returned as if the
        controller did not answer. Raises ConfigError if squeue is not installed, and RecordError if the directory stays
        unwritable.
        """
        limit_s = min(_MAX_FRESH_AGE_S, self.interval_s) if fresh else self.interval_s
        latest = self._read_latest()
        if latest is not None and self._is_new(latest, limit_s):
            return latest
        try:
            with files.try_lock(self._lock) as has_lock:
                self._denied_s = None
                if has_lock:
                    return self._refresh(limit_s)
            if latest is not None and not fresh:
                return latest
            with files.hold_lock(self._lock):
                return self._refresh(limit_s)
        except OSError as error:
            if error.errno in _PERMISSION_ERRNOS:
                self._denied_s = self._denied_s or self.clock()
                if self.clock() - self._denied_s >= _MAX_DENIED_S:
                    raise convert_os_error(error, self._lock) from error
            last = latest or QueueSnapshot(0.0, False)
            return replace(last, reachable=False, problem=f"{error.filename or self._lock}: {error.strerror or error}")

    def _refresh(self, limit_s: float) -> QueueSnapshot:
        """Poll, unless another process has just polled. The lock must be held."""
        previous = self._read_latest()
        if previous is not None and self._is_new(previous, limit_s):
            return previous
        latest = self._query_slurm(previous or QueueSnapshot(0.0, False))
        try:
            files.write_json(self._file, asdict(latest))
            self._unshared = None
        except OSError:  # The snapshot is kept in memory, so that this process does not poll again within the interval.
            self._unshared = latest
        return latest

    def _query_slurm(self, previous: QueueSnapshot) -> QueueSnapshot:
        # This comes before squeue, because squeue must then show every job that is already watched.
        watched_ids, asked_s = self.list_watched(), self.clock()
        answer = self.slurm("squeue", "--me", "--states=all", "--noheader", JOB_FORMAT)
        if not answer.is_success:
            return replace(previous, asked_s=asked_s, reachable=False, problem=answer.last_error_line)
        jobs = {job.job_id: job for job in parse_squeue(answer.out)}
        ended_jobs = {name: job for name, job in previous.jobs.items() if name in watched_ids and not job.is_active}
        missing_ids = watched_ids - jobs.keys() - ended_jobs.keys()
        accounting, problem = previous.accounting, ""
        if missing_ids and accounting is not False:
            accounting, problem, accounted_jobs = self._query_accounting(missing_ids)
            jobs |= {name: job for name, job in accounted_jobs.items() if name in missing_ids}
        return QueueSnapshot(asked_s, True, accounting, problem, ended_jobs | jobs)

    def _query_accounting(self, job_ids: frozenset[str]) -> tuple[bool | None, str, dict[str, SlurmJob]]:
        """Query accounting and return whether it is available (None if unknown), its error message, and the jobs."""
        try:
            options = ("--noheader", "--parsable2", "--allocations", ACCOUNTING_FORMAT)
            answer = self.slurm("sacct", f"--jobs={','.join(sorted(job_ids))}", *options)
        except ConfigError as error:
            return False, str(error), {}
        if _ACCOUNTING_DISABLED in answer.err + answer.out:
            return False, "", {}
        if not answer.is_success:
            return None, answer.last_error_line, {}
        return True, "", {job.job_id: job for job in parse_sacct(answer.out)}

    def _is_new(self, snapshot: QueueSnapshot, limit_s: float) -> bool:
        return 0 <= self.clock() - snapshot.asked_s < limit_s

    def _read_latest(self) -> QueueSnapshot | None:
        """Return the last snapshot, shared or not, or None if none can be read."""
        try:
            file = self._file.stat()
            if self._read_last is None or self._read_last[0] != (file.st_ino, file.st_mtime_ns):
                document = files.load_json(self._file)
                jobs = {
                    name: SlurmJob(**{**row, "hosts": tuple(row["hosts"])}) for name, row in document["jobs"].items()
                }
                # Hundreds of processes read the file twice per second, but it changes only once per interval.
                self._read_last = (file.st_ino, file.st_mtime_ns), QueueSnapshot(**{**document, "jobs": jobs})
            snapshots = [self._unshared, self._read_last[1]]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # no file yet, or a file of another version
            snapshots = [self._unshared]
        return max(filter(None, snapshots), key=lambda snapshot: snapshot.asked_s, default=None)
