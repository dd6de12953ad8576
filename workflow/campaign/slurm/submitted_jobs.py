"""Which job measures which lease, and jobs that Slurm has started again.

One small file per lease: written when its driver was submitted, removed when the driver's result was read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from campaign.errors import ConfigError, LaunchError
from campaign.files import write_json
from campaign.paths import Results
from campaign.slurm.commands import Slurm
from campaign.slurm.poll import Poll

RESTARTS_MAX = 10


@dataclass(frozen=True, slots=True)
class Submitted:
    """A driver's job. job_id: as squeue shows it (`12`, `12_3`); folder: submitit's; submitted_s: Unix time."""

    lease: str
    job_id: str
    folder: str
    submitted_s: float


def _path(results: Results, lease: str) -> Path:
    return results.work(lease) / "job.json"


def read(results: Results, lease: str) -> Submitted | None:
    """The job of a lease; None where none was submitted, or where its end was read."""
    try:
        return Submitted(**json.loads(_path(results, lease).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write(results: Results, job: Submitted) -> None:
    write_json(_path(results, job.lease), asdict(job))


def remove(results: Results, lease: str) -> None:
    _path(results, lease).unlink(missing_ok=True)


def is_begun(results: Results, lease: str) -> bool:
    """Whether the lease is in a batch (`submission.batches`) of which it is not written down what became of it."""
    for intent in results.batches.glob("*.json"):
        try:
            document = json.loads(intent.read_bytes())
        except (OSError, ValueError):
            continue  # it was discarded meanwhile
        if "written" not in document and lease in document["leases"]:
            return True
    return False


def is_expected(results: Results, lease: str, poll_s: float) -> bool:
    """Whether a job of the lease is queued or runs, as far as can be found out: who left it will come back for it."""
    job = read(results, lease)
    if job is None:
        return is_begun(results, lease)
    slurm = Slurm(results.slurm_calls)
    try:
        # The shared look does for a job that it shows: of hundreds, not each is to be asked for by each that looks for orphans.
        look = Poll(results.slurm, slurm, poll_s).snapshot()
        shown = look.jobs.get(job.job_id)
        if not look.reachable or look.asked_s < job.submitted_s or (shown and shown.active):
            return True
        if shown:
            return False
        # Not this user's, perhaps.
        answer = slurm("squeue", "--noheader", f"--jobs={job.job_id}", "--format=%i")
    except ConfigError:  # no Slurm here: another machine's campaign
        return True
    return bool(answer.out.strip()) if answer.ok else "Invalid job id" not in answer.err


def restart_count() -> int:
    """How often Slurm has started this job again (preemption, time limit, lost host); 0 outside of a job."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def check_restart(results: Results, lease: str) -> None:
    """LaunchError in a job that was restarted too often, or that nobody waits for any more."""
    if not restart_count():
        return
    if restart_count() > RESTARTS_MAX:
        raise LaunchError(f"Slurm has restarted the job {restart_count()} times, {RESTARTS_MAX} are allowed")
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    own = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    submitted = read(results, lease)
    if submitted is None or submitted.job_id != own:
        # Its composition has been released, and may belong to somebody else now.
        raise LaunchError(f"job {own} was given up, but Slurm has restarted it")


def check_restart_allowed() -> None:
    """LaunchError in a job that may not be restarted once more."""
    if restart_count() >= RESTARTS_MAX:
        raise LaunchError(f"Slurm has restarted the job {restart_count()} times, which is the limit")
