"""Runs that were first in their allocation, and that its time limit ended: they need a longer one, or get a record that says so."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from campaign.common import files
from campaign.common.errors import CampaignError
from campaign.slurm.parse import duration_s
from campaign.slurm.run_on_hosts import call

_NEAR_S = 150.0  # of its end: the warning comes a minute before it, and Slurm may send it a minute early
_SHARE = 0.25  # of the allocation that the run has had at least: otherwise it was preempted
_ASK_S = 10.0


@dataclass(frozen=True)
class FirstRun:
    """The first run of a lease's driver in its allocation, noted in `directory`, that of the lease."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / "first-run.json"

    def begin(self, run: str) -> None:
        files.write_json(self.path, {"run": run, "job": _job(), "began_s": time.time()})

    def end(self) -> None:
        self.path.unlink(missing_ok=True)

    def cut_short(self) -> bool:
        """Whether the time limit of this allocation ends that run, as it is noted from now on; False where Slurm does not tell."""
        found = files.read_json(self.path)
        left_s, limit_s = _times_s() if found.get("job") == _job() else (None, None)
        if left_s is None or limit_s is None:
            return False
        ran_s = time.time() - found["began_s"]
        if left_s > _NEAR_S or ran_s < _SHARE * limit_s:
            return False
        files.write_json(self.path, {**found, "ran_s": ran_s, "limit_s": limit_s})
        return True

    def was_cut_short(self) -> bool:
        return "limit_s" in files.read_json(self.path)

    def why(self, run: str) -> str:
        """Why a run is not started again: an allocation as long as this one was too short for it; empty where it is started."""
        found = files.read_json(self.path)
        if found.get("run") != run or "limit_s" not in found:
            return ""
        _, limit_s = _times_s()
        if limit_s is None or limit_s > found["limit_s"]:
            return ""
        return (
            f"it was still running after {found['ran_s']:.0f} s, when the time limit of its job came, {limit_s / 60:g} min "
            "(`slurm.time_min`), although it was the first run of the job; raise or remove `slurm.time_min`, then `campaign redo` "
            "has it measured again"
        )


def _job() -> str:
    return f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def _times_s() -> tuple[float | None, float | None]:
    """Time left and time limit of this job in s; None where Slurm does not tell, or there is none."""
    with suppress(CampaignError):
        asked = ["squeue", "--noheader", f"--jobs={os.environ.get('SLURM_JOB_ID', '')}", "--format=%L|%l"]
        _, out, _ = call(asked, _ASK_S)
        left, _, limit = out.strip().partition("|")
        return duration_s(left), duration_s(limit)
    return None, None
