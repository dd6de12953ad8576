"""Compositions that the cluster's ResumeProgram made for jobs, from its notes. They outlive the cluster on the fabric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from campaign.processes.command import run_command

_RELEASE_S = 600.0
_NOTES = Path("state/compositions/jobs")


@dataclass(frozen=True, slots=True)
class OnDemand:
    """A composition of one job, in the words of `campaign release`."""

    job_id: str
    configuration: str
    campaign: str
    results: str
    python: str

    def release(self) -> str:
        """Release it; says what became of it."""
        argv = [self.python, "-m", "campaign.cli.main", "release", self.configuration, "--campaign", self.campaign]
        argv += ["--results", self.results, "--name", f"job-{self.job_id}"]
        done = run_command(argv, _RELEASE_S)
        return (done.err if done.code else done.out).strip()


def on_demand(directory: Path) -> tuple[OnDemand, ...]:
    """All compositions that the cluster in this directory has for jobs."""
    notes = sorted(path for path in (directory / _NOTES).glob("[0-9]*") if path.is_dir())
    fields = ("configuration", "campaign", "results", "python")
    return tuple(OnDemand(note.name, *((note / field).read_text().strip() for field in fields)) for note in notes)
