"""Detection of runs that the time limit of their allocation ended although they were its first run.

Such a run needs a longer allocation, or it gets a record that states the reason.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaign.common import files
from campaign.common.errors import CampaignError
from campaign.slurm.parse import parse_duration_s
from campaign.slurm.run_on_hosts import run_slurm_command

# Slurm sends the warning one minute before the end of the allocation, and may send it another minute early.
_MAX_REMAINING_S = 150.0
# A run that had a smaller part of its allocation was preempted and not cut short.
_MIN_ALLOCATION_FRACTION = 0.25
_SQUEUE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class FirstRunFile:
    """File that describes the first run of a lease's driver in its allocation.

    Args:
        directory: directory of the lease.
    """

    directory: Path

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.directory / "first-run.json"

    def record_start(self, run: str) -> None:
        """Record that the first run of this allocation has started."""
        files.write_json(self.path, {"run": run, "job": _current_job_id(), "began_s": time.time()})

    def remove(self) -> None:
        """Remove the file after the run has ended."""
        self.path.unlink(missing_ok=True)

    def record_if_cut_short(self) -> bool:
        """Return whether the time limit of this allocation ends the first run, and record it in the file if so.

        Return False if Slurm does not report the time limit.
        """
        document = files.read_json(self.path)
        remaining_s, limit_s = _query_time_limit_s() if document.get("job") == _current_job_id() else (None, None)
        if remaining_s is None or limit_s is None:
            return False
        ran_s = time.time() - document["began_s"]
        if remaining_s > _MAX_REMAINING_S or ran_s < _MIN_ALLOCATION_FRACTION * limit_s:
            return False
        files.write_json(self.path, {**document, "ran_s": ran_s, "limit_s": limit_s})
        return True

    def was_cut_short(self) -> bool:
        """Return whether the file records that the time limit ended the run."""
        return "limit_s" in files.read_json(self.path)

    def explain_no_retry(self, run: str) -> str:
        """Explain why a run is not started again, or return an empty string if it may be started.

        A run is not started again if an allocation as long as this one was too short for it.
        """
        document = files.read_json(self.path)
        if document.get("run") != run or "limit_s" not in document:
            return ""
        _, limit_s = _query_time_limit_s()
        if limit_s is None or limit_s > document["limit_s"]:
            return ""
        return (
            f"the run was still running after {document['ran_s']:.0f} s, when its job reached the time limit of "
            f"{limit_s / 60:g} min (`slurm.time_min`), although it was the first run of the job; raise or remove "
            "`slurm.time_min`, then measure the run again with `campaign redo`"
        )


def _current_job_id() -> str:
    """Return the id of this job with its restart count, such as `123.0`."""
    return f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def _query_time_limit_s() -> tuple[float | None, float | None]:
    """Return the remaining time and the time limit of this job in seconds.

    Each is None if Slurm does not report it or if there is no limit.
    """
    with suppress(CampaignError):
        argv = ["squeue", "--noheader", f"--jobs={os.environ.get('SLURM_JOB_ID', '')}", "--format=%L|%l"]
        _, out, _ = run_slurm_command(argv, _SQUEUE_TIMEOUT_S)
        remaining, _, limit = out.strip().partition("|")
        return parse_duration_s(remaining), parse_duration_s(limit)
    return None, None
