"""Cancellation of a job, including the wait for its end."""

from __future__ import annotations

import time

from campaign.common.paths import Results
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.poll import QueuePoll
from campaign.slurm.submitter import Submission

MAX_CANCEL_S = 90.0  # covers Slurm's KillWait and a slow epilog
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0


def cancel_job(submission: Submission, results: Results, slurm: SlurmCommands, poll: QueuePoll) -> bool:
    """Cancel a job and wait for its end. Return False if the job still exists after MAX_CANCEL_S.

    Another job that got the same id later is not cancelled.
    """
    pause_s, began_s, deadline = MIN_PAUSE_S, time.time(), time.monotonic() + MAX_CANCEL_S
    job = submitted_jobs.read(results, submission.lease)
    is_cancelled = False
    while job is not None and not submission.result_file.exists():
        is_queued = _is_queued(job, slurm, poll, began_s)
        if is_queued is False:
            return True
        if is_queued and not is_cancelled:
            answer = slurm("scancel", job.job_id)
            is_cancelled = answer.is_success or "Invalid job id" in answer.err  # the job has just ended
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)
    return True


def _is_queued(job: submitted_jobs.SubmittedJob, slurm: SlurmCommands, poll: QueuePoll, began_s: float) -> bool | None:
    """Return whether a job is queued or running, or None if no poll since `began_s` (Unix seconds) shows it.

    All processes that cancel jobs share the polls.
    """
    snapshot = poll.take_snapshot(fresh=True)
    shown_job = snapshot.jobs.get(job.job_id)
    if shown_job is not None and shown_job.is_active and job.is_shown_by(shown_job):
        return True
    if not snapshot.reachable or snapshot.asked_s < began_s:
        return None
    # The poll does not show jobs of other users.
    return shown_job is None and submitted_jobs.query_is_queued(job, slurm)
