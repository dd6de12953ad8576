"""Submission of the job of one lease through submitit: no job is lost, and none is submitted twice.

A submission is written to the lease's `job.json` before sbatch is called, and its token is part of the job's comment. So whoever
comes after a crash finds the job. Each submission has a folder of its own, which is named by the token.
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

_SITE = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
_SBATCH_S = 15.0  # as long as an sbatch may be on its way after its caller was killed


class UnansweredSubmission(LaunchError):
    """Slurm cannot be asked just now what became of a submission."""


class JobSubmissions:
    """The submissions of one campaign, with their folders in the directory that its processes share."""

    def __init__(self, results: Results, slurm: SlurmCommands, poll: QueuePoll) -> None:
        self.results = results
        self.directory = results.submissions.resolve()
        self.slurm = slurm
        self.poll = poll

    def submit(self, driver: Submittable, parameters: dict[str, Any], comment: str) -> Refusal | None:
        """Submit a driver. Return None once its job is written down, otherwise why Slurm took none."""
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
            # Otherwise Slurm may have taken it all the same, and the answer was lost: `settle` looks for it.
            if refusal.kind in ("wait", "mistake"):
                shutil.rmtree(folder, ignore_errors=True)
                submitted_jobs.remove(self.results, job.lease)
            return refusal
        finally:
            self.slurm.log_call(("sbatch", parameters["job_name"]), started_s, time.monotonic() - ticks_s, code)
        self._write_down(job, job_id)
        return None

    def read(self, lease: str) -> Submission | None:
        """Return the submission of a lease whose job is known, or None."""
        job = submitted_jobs.read(self.results, lease)
        return Submission(job.request, job.job_id, Path(job.folder)) if job else None

    def settle(self, lease: str) -> None:
        """Find the job of a submission whose process was killed or got no answer, or forget the submission.

        Raises UnansweredSubmission if Slurm does not answer.
        """
        job = submitted_jobs.read_unanswered(self.results, lease)
        if job is None:
            return
        time.sleep(max(0.0, min(_SBATCH_S, job.submitted_s + _SBATCH_S - time.time())))
        folder = Path(job.folder)
        job_id = self._find_job(folder)
        if job_id is None:
            shutil.rmtree(folder, ignore_errors=True)
            files.make_private_directory(folder)  # a controller may remember later what it was killed over
            submitted_jobs.remove(self.results, lease)
            return
        for path in folder.glob("*.pkl"):  # the job looks for it under this name, for a minute
            path.rename(folder / f"{job_id}_submitted.pkl")
        self._write_down(job, job_id)

    def count_unseen(self, snapshot: QueueSnapshot) -> int:
        """Count the jobs that were submitted after a look at the queue, so that it does not show them."""
        jobs = submitted_jobs.read_all(self.results)
        return sum(job.submitted_s >= snapshot.asked_s and job.job_id not in snapshot.jobs for job in jobs)

    def list_left_behind(self, snapshot: QueueSnapshot) -> Iterator[str]:
        """List the campaign's jobs in the queue that have left no result and that no lease waits for."""
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
                f"Slurm does not answer ({snapshot.problem}), so it is not known whether a job was submitted"
            )
        for job in snapshot.jobs.values():
            if submitted_jobs.parse_token(job.comment) == folder.name:
                return job.job_id
        return None

    def _write_down(self, job: SubmittedJob, job_id: str) -> None:
        self.poll.watch_job(job_id)
        # A look at the queue that began before sbatch had answered need not show the job.
        submitted_jobs.write(self.results, replace(job, job_id=job_id, submitted_s=time.time()))


def call_sbatch(folder: Path, driver: Submittable, parameters: dict[str, Any], comment: str) -> str:
    """Submit a driver through submitit, and return the id of its job. Raises LaunchError with the words of sbatch.

    Raises UnansweredSubmission if the answer is not understood: Slurm may have taken the job.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # The batch script becomes the driver: so the warning before a time limit reaches it.
    executor = SlurmExecutor(folder=folder, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(**parameters, comment=comment)
    try:
        # submitit prints what sbatch said; so do we, once.
        with without_personal_defaults(), redirect_stderr(io.StringIO()):
            return str(executor.submit(ReportingDriver(driver, folder)).job_id)
    except FailedSubmissionError as error:  # sbatch has ended well, and said something else than the number of a job
        raise UnansweredSubmission(str(error).splitlines()[0]) from error
    except (FailedJobError, OSError) as error:
        raise LaunchError(str(error)) from error


@contextmanager
def without_personal_defaults() -> Iterator[None]:
    """Run a block without variables that sbatch takes for options: a person's defaults, and those of the job around this."""
    in_job = "SLURM_JOB_ID" in os.environ
    personal = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("SBATCH_")
        or name == "SLURM_HINT"
        or (in_job and name.startswith("SLURM_") and name not in _SITE)
    }
    for name in personal:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(personal)
