"""Submission of the job of one lease through submitit. No job is lost, and none is submitted twice.

A submission is written to the lease's `job.json` before sbatch is called, and its token is part of the job's comment. After a
crash, another process finds the job by this token. Each submission has its own folder, which is named by the token.
"""

from __future__ import annotations

import io
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.common.paths import Results
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.poll import QueuePoll, QueueSnapshot
from campaign.slurm.refusal import Refusal, parse_refusal
from campaign.slurm.submitted_jobs import SubmittedJob
from campaign.slurm.submitter import ReportingDriver, Submission, Submittable

_SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
_SBATCH_DELAY_S = 15.0  # An sbatch may still submit its job for this long after its caller was killed.


class UnansweredSubmission(LaunchError):
    """Error for a submission whose outcome is unknown because Slurm does not answer."""


class JobSubmissions:
    """Submissions of one campaign, with their folders in the directory that its processes share."""

    def __init__(self, results: Results, slurm: SlurmCommands, poll: QueuePoll) -> None:
        self.results = results
        self.directory = results.submissions.resolve()
        self.slurm = slurm
        self.poll = poll

    def submit(self, driver: Submittable, parameters: dict[str, Any], comment: str) -> Refusal | None:
        """Submit a driver and record its job. Return None on success, otherwise the refusal of Slurm."""
        token = secrets.token_hex(8)
        folder = self.directory / token
        files.make_private_directory(folder)
        started_s, ticks_s, code = time.time(), time.monotonic(), 1
        job = SubmittedJob(driver.request, "", str(folder), started_s, parameters["job_name"])
        submitted_jobs.write(self.results, job)
        try:
            job_id = call_sbatch(folder, driver, parameters, submitted_jobs.append_token(comment, token))
            code = 0
        except UnansweredSubmission as error:
            return Refusal("transient", str(error))
        except LaunchError as error:
            refusal = parse_refusal(str(error))
            # In all other cases Slurm may have accepted the job although its answer was lost. `settle` then looks for the job.
            if refusal.kind in ("wait", "mistake"):
                shutil.rmtree(folder, ignore_errors=True)
                submitted_jobs.remove(self.results, job.lease)
            return refusal
        finally:
            self.slurm.log_call(("sbatch", parameters["job_name"]), started_s, time.monotonic() - ticks_s, code)
        self._write_down(job, job_id)
        return None

    def read(self, lease: str) -> Submission | None:
        """Return the submission of a lease, or None if no job of the lease is known."""
        job = submitted_jobs.read(self.results, lease)
        return Submission(job.request, job.job_id, Path(job.folder)) if job else None

    def settle(self, lease: str) -> None:
        """Find the job of a submission whose process was killed or got no answer.

        The submission is removed if it has no job. Raises UnansweredSubmission if Slurm does not answer.
        """
        job = submitted_jobs.read_unanswered(self.results, lease)
        if job is None:
            return
        time.sleep(max(0.0, min(_SBATCH_DELAY_S, job.submitted_s + _SBATCH_DELAY_S - time.time())))
        folder = Path(job.folder)
        job_id = self._find_job(folder)
        if job_id is None:
            shutil.rmtree(folder, ignore_errors=True)
            files.make_private_directory(
                folder
            )  # A controller that was killed may still remember the job after its restart.
            submitted_jobs.remove(self.results, lease)
            return
        for path in folder.glob("*.pkl"):  # The job looks for the file under this name, for one minute.
            path.rename(folder / f"{job_id}_submitted.pkl")
        self._write_down(job, job_id)

    def count_unseen(self, snapshot: QueueSnapshot) -> int:
        """Count the jobs that were submitted after a snapshot was taken, and that it therefore does not show."""
        jobs = submitted_jobs.read_all(self.results)
        return sum(job.submitted_s >= snapshot.asked_s and job.job_id not in snapshot.jobs for job in jobs)

    def list_left_behind(self, snapshot: QueueSnapshot) -> Iterator[str]:
        """Yield the ids of the campaign's queued jobs that have no result and that no lease waits for."""
        awaited_ids = {Path(job.folder).name for job in submitted_jobs.read_all(self.results)}
        for job in snapshot.jobs.values():
            folder = self.directory / (submitted_jobs.parse_token(job.comment) or "none")
            ends = not job.is_active or job.state == "COMPLETING"
            if (
                not ends
                and folder.name not in awaited_ids
                and folder.is_dir()
                and not any(folder.glob("*.result.json"))
            ):
                yield job.job_id

    def _find_job(self, folder: Path) -> str | None:
        """Find the job that was submitted from a folder, by its log or by its token."""
        for log in folder.glob("*_log.out"):
            return log.name.split("_")[0]
        snapshot = self.poll.take_snapshot(fresh=True)
        if not snapshot.reachable:
            raise UnansweredSubmission(
                f"Slurm does not answer ({snapshot.problem}), so it is unknown whether a job was submitted"
            )
        for job in snapshot.jobs.values():
            if submitted_jobs.parse_token(job.comment) == folder.name:
                return job.job_id
        return None

    def _write_down(self, job: SubmittedJob, job_id: str) -> None:
        self.poll.watch_job(job_id)
        # A poll that began before sbatch answered need not show the job.
        submitted_jobs.write(self.results, replace(job, job_id=job_id, submitted_s=time.time()))


def call_sbatch(folder: Path, driver: Submittable, parameters: dict[str, Any], comment: str) -> str:
    """Submit a driver through submitit, and return the id of its job.

    Raises LaunchError with the message of sbatch if the job is refused, and UnansweredSubmission if the answer is not
    understood. In the latter case Slurm may have accepted the job.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # `exec` replaces the batch script by the driver, so that the warning before a time limit reaches the driver.
    executor = SlurmExecutor(folder=folder, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(**parameters, comment=comment)
    try:
        # submitit prints the message of sbatch, but this program reports it as well.
        with without_personal_defaults(), redirect_stderr(io.StringIO()):
            return str(executor.submit(ReportingDriver(driver, folder)).job_id)
    except FailedSubmissionError as error:  # sbatch succeeded, but its output contains no job id.
        raise UnansweredSubmission(str(error).splitlines()[0]) from error
    except (FailedJobError, OSError) as error:
        raise LaunchError(str(error)) from error


@contextmanager
def without_personal_defaults() -> Iterator[None]:
    """Run a block without the variables that sbatch reads as options, from the user or from a surrounding job."""
    in_job = "SLURM_JOB_ID" in os.environ
    personal = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("SBATCH_")
        or name == "SLURM_HINT"
        or (in_job and name.startswith("SLURM_") and name not in _SITE_VARIABLES)
    }
    for name in personal:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(personal)
