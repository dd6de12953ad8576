"""Jobs that Slurm has started again: after a preemption, a time limit, or the loss of a host. To be asked inside the job."""

from __future__ import annotations

import os

from campaign.errors import LaunchError
from campaign.paths import Results
from campaign.slurm import jobs

MOST = 10


def count() -> int:
    """How often this job was started again; 0 also where it is no job of Slurm."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def check(results: Results, lease: str) -> None:
    """LaunchError in a job that was started again once too often, or for which nobody waits any more."""
    if not count():
        return
    if count() > MOST:
        raise LaunchError(f"Slurm has started the job {count()} times again")
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    mine = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    submitted = jobs.read(results, lease)
    if submitted is None or submitted.job_id != mine:
        # Its composition is released by now, and perhaps somebody else's.
        raise LaunchError(f"job {mine} was given up, and Slurm has started it again all the same")


def check_another() -> None:
    """LaunchError in a job that is not to be started once more."""
    if count() >= MOST:
        raise LaunchError(f"Slurm has started the job {count()} times again, which is enough")
