"""Which job measures which lease: one small file a lease, written when its driver was submitted, gone when its end was read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from campaign.errors import ConfigError
from campaign.files import write_json
from campaign.paths import Results
from campaign.slurm.commands import Slurm


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
    for intent in (results.slurm / "batches").glob("*.json"):
        try:
            document = json.loads(intent.read_bytes())
        except (OSError, ValueError):
            continue  # it was discarded meanwhile
        if "written" not in document and lease in document["leases"]:
            return True
    return False


def is_expected(results: Results, lease: str) -> bool:
    """Whether a job of the lease is queued or runs, as far as can be found out: who left it will come back for it."""
    job = read(results, lease)
    if job is None:
        return is_begun(results, lease)
    try:
        answer = Slurm(results.slurm / "commands.jsonl")("squeue", "--noheader", f"--jobs={job.job_id}", "--format=%i")
    except ConfigError:  # no Slurm here: another machine's campaign
        return True
    if answer.ok:
        return bool(answer.out.strip())
    return "Invalid job id" not in answer.err
