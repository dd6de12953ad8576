"""Registry of the jobs that measure leases, and checks of jobs that Slurm has restarted.

One small file per lease is written before its driver is submitted, and removed after the driver's result was read.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.files import read_bytes, write_json
from campaign.common.paths import Results
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.parse import JOB_FORMAT, SlurmJob, parse_squeue
from campaign.slurm.poll import QueuePoll
from campaign.spec.driver_messages import DriverRequest

MAX_RESTARTS = 10


@dataclass(frozen=True)
class SubmittedJob:
    """Submitted job of a driver.

    Args:
        request: request for the driver.
        job_id: id of the job; empty until sbatch has answered.
        folder: folder of the submission.
        submitted_s: time at which sbatch answered or was called, in Unix seconds.
        name: name of the job.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    request: DriverRequest
    job_id: str
    folder: str
    submitted_s: float
    name: str

    @property
    def lease(self) -> str:
        return self.request.lease

    def is_shown_by(self, job: SlurmJob) -> bool:
        """Return whether a job that Slurm reports is this one, and not a later one with the same number.

        Job ids start again from 1 if a cluster is reinstalled.
        """
        if parse_token(job.comment):
            return parse_token(job.comment) == Path(self.folder).name
        # Accounting and some sites store no comments, so the name must suffice.
        return job.name == self.name


_DOCUMENT = TypeAdapter(SubmittedJob)


def append_token(comment: str, token: str) -> str:
    """Append the token that identifies a job to the comment of the job."""
    return f"{comment} token={token}"


def parse_token(comment: str) -> str:
    """Return the token in the comment of a job, or an empty string if there is none."""
    return comment.rpartition("token=")[2].partition(" ")[0] if "token=" in comment else ""


def _path(results: Results, lease: str) -> Path:
    return results.work_directory(lease) / "job.json"


def read(results: Results, lease: str) -> SubmittedJob | None:
    """Read the job of a lease.

    The result is None if no job was submitted, if sbatch has not answered, or if the driver's result was read.
    """
    job = _read(results, lease)
    return job if job and job.job_id else None


def read_unanswered(results: Results, lease: str) -> SubmittedJob | None:
    """Read the submission of a lease whose outcome is unknown. Return None if there is none."""
    job = _read(results, lease)
    return job if job and not job.job_id else None


def read_all(results: Results) -> list[SubmittedJob]:
    """Read the jobs and the unanswered submissions of all leases."""
    leases = [path.parent.name for path in results.work_directory("").glob("*/job.json")]
    return [job for lease in leases if (job := _read(results, lease))]


def _read(results: Results, lease: str) -> SubmittedJob | None:
    try:
        return _DOCUMENT.validate_json(read_bytes(_path(results, lease)))
    except (OSError, ValueError):
        return None


def write(results: Results, job: SubmittedJob) -> None:
    """Write the job that a lease waits for, replacing an earlier one."""
    write_json(_path(results, job.lease), asdict(job))


def remove(results: Results, lease: str) -> None:
    """Remove the job of a lease. Do nothing if there is none."""
    _path(results, lease).unlink(missing_ok=True)


def is_expected(results: Results, lease: str, poll_s: float) -> bool:
    """Return whether a job of the lease is queued or running, as far as this can be determined.

    The process that left this job behind will return for it.
    """
    job = _read(results, lease)
    if job is None or not job.job_id:
        return job is not None
    slurm = SlurmCommands(results.slurm_call_log)
    try:
        # The shared poll suffices for a job that it shows. Hundreds of processes look for orphans and must not query each job.
        queue = QueuePoll(results.slurm_state, slurm, poll_s).take_snapshot()
        shown_job = queue.jobs.get(job.job_id)
        if not queue.reachable or queue.asked_s < job.submitted_s:
            return True
        if shown_job:
            return shown_job.is_active and job.is_shown_by(shown_job)
        # The poll does not show jobs of other users.
        is_in_queue = query_is_queued(job, slurm)
    except ConfigError:  # Slurm is not installed, so the campaign belongs to another machine.
        return True
    return is_in_queue is not False


def query_is_queued(job: SubmittedJob, slurm: SlurmCommands) -> bool | None:
    """Return whether a job is queued or running, or None if Slurm does not answer.

    Raises ConfigError if Slurm is not installed.
    """
    answer = slurm("squeue", "--noheader", f"--jobs={job.job_id}", JOB_FORMAT)
    if not answer.is_success:
        return False if "Invalid job id" in answer.err else None
    return any(job.is_shown_by(shown_job) for shown_job in parse_squeue(answer.out))


def count_restarts() -> int:
    """Return how many times Slurm has restarted this job (after preemption, time limit or loss of a host); 0 outside of a job."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def check_restart(results: Results, request: DriverRequest) -> None:
    """Raise LaunchError if this job was restarted too often, or if no process waits for it any more."""
    if not count_restarts():
        return
    if count_restarts() > MAX_RESTARTS:
        raise LaunchError(
            f"Slurm has restarted the job {count_restarts()} times, but only {MAX_RESTARTS} times are allowed"
        )
    job = read(results, request.lease)
    if job is None or job.request.token != request.token:
        # The composition of the job has been released, and another user may hold it now.
        raise LaunchError(f"job {os.environ['SLURM_JOB_ID']} was given up, but Slurm has restarted it")


def check_restart_allowed() -> None:
    """Raise LaunchError if this job may not be restarted again."""
    if count_restarts() >= MAX_RESTARTS:
        raise LaunchError(f"Slurm has restarted the job {count_restarts()} times, which is the limit")
