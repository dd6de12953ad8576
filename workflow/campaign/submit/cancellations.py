"""Cancels jobs of many processes that share a directory, with one scancel for all that are to be cancelled at one time.

`cancel/<job>` is a job that is to be cancelled; it is removed once scancel has accepted it.
"""

from __future__ import annotations

import time
from pathlib import Path

from campaign import files
from campaign.slurm.commands import Slurm

_GATHER_S = 0.2  # for others that cancel at the same time
_AT_ONCE = 1000  # ids in one command line


class Cancellations:
    """Jobs of one campaign that are to be cancelled."""

    def __init__(self, directory: Path, slurm: Slurm) -> None:
        self.directory = directory / "cancel"
        self.slurm = slurm

    def ask(self, job_id: str) -> None:
        """Have a job cancelled. Idempotent."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / job_id).touch()

    def send(self) -> None:
        """Cancel what is to be cancelled, unless another process does so just now; what scancel refused is left to the next."""
        with files.try_lock(self.directory.with_name("cancel.lock")) as mine:
            if not mine or not self.directory.is_dir() or not any(self.directory.iterdir()):
                return
            time.sleep(_GATHER_S)
            asked = sorted(self.directory.iterdir())
            for first in range(0, len(asked), _AT_ONCE):
                chunk = asked[first : first + _AT_ONCE]
                answer = self.slurm("scancel", *(path.name for path in chunk))
                if answer.ok or "Invalid job id" in answer.err:  # one that has ended meanwhile
                    for path in chunk:
                        path.unlink(missing_ok=True)
