"""Batches: one sbatch each, a job or an array, of which none is lost and none is made twice.

A batch is written down (`batches/<token>.json`) before sbatch is called, and the token is part of the job's comment: so whoever
comes after a crash finds the job. All of this is only done under the campaign's `submit.lock`.
"""

from __future__ import annotations

import io
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from campaign import files
from campaign.documents.driver_messages import DriverRequest
from campaign.errors import LaunchError
from campaign.files import load_json, read_json
from campaign.paths import Results
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.poll import Poll, QueueSnapshot
from campaign.slurm.refusal import Refusal, parse_refusal
from campaign.submit.protocol import Reporting, Submittable

_SITE = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
_SBATCH_S = 15.0  # as long as an sbatch may be on its way after its caller was killed


class UnansweredSubmission(LaunchError):
    """Slurm cannot be asked just now what became of a batch."""


class Batches:
    """The batches of one campaign, in the directory that its processes share."""

    def __init__(self, results: Results, directory: Path, slurm: Slurm, poll: Poll) -> None:
        self.results = results
        self.directory = directory / "batches"
        self.slurm = slurm
        self.poll = poll

    def submit(self, drivers: Sequence[Submittable], parameters: dict[str, Any], comment: str) -> Refusal | None:
        """One sbatch for these drivers; None once the job of each is written down, otherwise why Slurm took none of them."""
        token = secrets.token_hex(8)
        folder = self.directory / token
        files.make_private(folder)
        started_s, ticks_s, code = time.time(), time.monotonic(), 1
        leases = {driver.request.lease: driver.request.document() for driver in drivers}
        intent = {"leases": leases, "name": parameters["job_name"], "time_s": started_s}
        files.write_json(folder.with_suffix(".json"), intent)
        try:
            job_ids = submit(folder, drivers, parameters, submitted_jobs.mark(comment, token))
            code = 0
        except UnansweredSubmission as error:
            return Refusal("transient", str(error))
        except LaunchError as error:
            refusal = parse_refusal(str(error))
            # Otherwise Slurm may have taken it all the same, and the answer was lost: `recover` looks for it.
            if refusal.kind in ("wait", "mistake"):
                _discard(folder)
            return refusal
        finally:
            argv = ("sbatch", parameters["job_name"], str(len(drivers)))
            self.slurm.note(argv, started_s, time.monotonic() - ticks_s, code)
        self._write_down(folder, job_ids)
        return None

    def recover(self) -> None:
        """Finish the batches that a process began which was killed, or got no answer. Unanswered: that has to wait."""
        for intent in sorted(self.directory.glob("*.json")):
            document = read_json(intent)
            if not document or "written" in document:
                continue
            time.sleep(max(0.0, min(_SBATCH_S, document["time_s"] + _SBATCH_S - time.time())))
            folder = intent.with_suffix("")
            job_id = self._job_of(folder)
            if job_id is None:
                _discard(folder)
                # A controller may remember later what it was killed over.
                files.write_json(intent, {"leases": {}, "written": []})
                continue
            try:
                leases = {lease: DriverRequest.of(request) for lease, request in document["leases"].items()}
            except (AttributeError, ValueError):  # of another version, whose jobs this one cannot run
                _discard(folder)
                continue
            job_ids = [job_id] if len(leases) == 1 else [f"{job_id}_{index}" for index in range(len(leases))]
            _place_pickles(folder, {leases[lease].token: job_id for lease, job_id in zip(leases, job_ids, strict=True)})
            self._write_down(folder, job_ids)

    def unseen(self, snapshot: QueueSnapshot) -> int:
        """Jobs that were submitted after a look at the queue, so that it does not show them."""
        documents = (read_json(path) for path in self.directory.glob("*.json"))
        return sum(
            job_id not in snapshot.jobs
            for document in documents
            if document.get("written_s", 0.0) >= snapshot.asked_s
            for job_id in document.get("written", ())
        )

    def left_behind(self, snapshot: QueueSnapshot) -> Iterator[str]:
        """Jobs of these batches that are queued or run, have left no result, and are waited for by no lease."""
        waited_for = {path.parent.name for path in self.results.work("").glob("*/job.json")}
        known = {found.job_id for lease in waited_for if (found := submitted_jobs.read(self.results, lease))}
        tokens = set()
        for path in self.directory.glob("*.json"):
            document = read_json(path)
            if "written" not in document:  # it may be on its way
                continue
            tokens.add(path.stem)
            for request, job_id in zip(document["leases"].values(), document["written"], strict=True):
                if (path.with_suffix("") / f"{request['token']}.result.json").exists():
                    known.add(job_id)
        for job in snapshot.jobs.values():
            ends = not job.active or job.state == "COMPLETING"
            if not ends and submitted_jobs.token_in(job.comment) in tokens and job.job_id not in known:
                yield job.job_id

    def _job_of(self, folder: Path) -> str | None:
        """The job (or the array) that was submitted from a folder, if any."""
        for log in folder.glob("*_log.out"):
            return log.name.split("_")[0]
        snapshot = self.poll.snapshot(fresh=True)
        if not snapshot.reachable:
            raise UnansweredSubmission(
                f"Slurm does not answer ({snapshot.problem}), so it is not known whether a job was submitted"
            )
        for job in snapshot.jobs.values():
            if submitted_jobs.token_in(job.comment) == folder.name:
                return job.job_id.split("_")[0]
        return None

    def _write_down(self, folder: Path, job_ids: Sequence[str]) -> None:
        intent = folder.with_suffix(".json")
        document = load_json(intent)
        for request, job_id in zip(document["leases"].values(), job_ids, strict=True):
            self.poll.watch(job_id)
            job = submitted_jobs.Submitted(
                DriverRequest.of(request), job_id, str(folder), document["time_s"], document["name"]
            )
            submitted_jobs.write(self.results, job)
        files.write_json(intent, {**document, "written": list(job_ids), "written_s": time.time()})


def _discard(folder: Path) -> None:
    """A batch that Slurm knows nothing of."""
    folder.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def submit(folder: Path, drivers: Sequence[Submittable], parameters: dict[str, Any], comment: str) -> list[str]:
    """One sbatch through submitit; gives the job ids as squeue shows them. LaunchError: what sbatch said.

    Unanswered: it said nothing that can be understood, and may have submitted them.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # The batch script becomes the driver: so the warning before a time limit reaches it.
    executor = SlurmExecutor(folder=folder, python=f"exec {shlex.quote(sys.executable)}")
    executor.update_parameters(**parameters, comment=comment)
    try:
        # submitit prints what sbatch said; so do we, once.
        with without_personal_defaults(), redirect_stderr(io.StringIO()):
            return [str(job.job_id) for job in executor.submit_array([Reporting(each, folder) for each in drivers])]
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


def _place_pickles(folder: Path, job_ids: dict[str, str]) -> None:
    """Give the drivers that submitit wrote the names under which their jobs look for them (they look for a minute).

    job_ids: by the token of the request, which is looked for in the file: nothing is unpickled here.
    """
    for path in folder.glob("*.pkl"):
        if path.name.endswith("_submitted.pkl"):
            continue
        content = path.read_bytes()
        for token, job_id in job_ids.items():
            if token.encode() in content:
                path.rename(folder / f"{job_id}_submitted.pkl")
