"""sbatch as submitit calls it, untouched by what the caller's shell says of jobs."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import submitit
from submitit import Job
from submitit.core.utils import DelayedSubmission, FailedSubmissionError, JobPaths

_JOB = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)  # with the cluster's name where a site has several
_SITE = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")


class Sbatch(submitit.SlurmExecutor):
    """Submits with the options of the system file and the plan alone. The job's number comes in sbatch's own form for programs."""

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        """As submitit has it, but for its array, which it makes by an executor of its own class."""
        if len(delayed_submissions) == 1:
            return super()._internal_process_submissions(delayed_submissions)
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        pickles = [folder / f"{uuid.uuid4().hex}.pkl" for _ in delayed_submissions]
        for submission, path in zip(delayed_submissions, pickles, strict=True):
            submission.set_timeout(self.parameters["time"], self.max_num_timeout)
            submission.dump(path)
        self.parameters["map_count"] = len(pickles)
        job_id = self._submit_command(self._submitit_command_str).job_id
        jobs: list[Job[Any]] = [submitit.SlurmJob(self.folder, f"{job_id}_{task}") for task in range(len(pickles))]
        for job, path in zip(jobs, pickles, strict=True):
            job.paths.move_temporary_file(path, "submitted_pickle")
        return jobs

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        unset = [word for name in personal(os.environ) for word in ("-u", name)]
        return [*(("env", *unset) if unset else ()), "sbatch", "--parsable", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        text = string if isinstance(string, str) else string.decode(errors="replace")
        if found := _JOB.findall(text):
            return str(found[-1])  # what a site's plugin has to say comes before
        raise FailedSubmissionError(f'sbatch gave no number of a job: "{text}"')


def personal(environment: Mapping[str, str]) -> Iterator[str]:
    """Variables that sbatch or a step would take for options: a person's defaults, and those of a job that this runs in."""
    in_job = "SLURM_JOB_ID" in environment
    for name in sorted(environment):
        if (
            name.startswith("SBATCH_")
            or name == "SLURM_HINT"
            or (in_job and name.startswith("SLURM_") and name not in _SITE)
        ):
            yield name
