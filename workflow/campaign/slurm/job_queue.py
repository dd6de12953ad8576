"""Submission of a campaign's jobs, one process at a time.

Each lease has a process that submits its job under the lock `submit.lock`. When Slurm accepts no more jobs, all processes wait
(`waits.json`), and one of them tries again after the poll interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.errors import CampaignError, ConfigError, LaunchError
from campaign.common.wording import pluralize
from campaign.plan.campaign.resolve import Campaign
from campaign.slurm.job_parameters import JobParameters
from campaign.slurm.job_submission import JobSubmissions, UnansweredSubmission
from campaign.slurm.refusal import SINFO_COLUMNS, Refusal
from campaign.slurm.submitter import MakeDriver, StillQueuedError, Submission
from campaign.spec.driver_messages import DriverRequest

MIN_RETRY_S = 0.1
_PASSING_REFUSALS = ("wait", "transient")


@dataclass(frozen=True)
class SharedWait:
    """Wait that all processes of a campaign share before the next attempt to submit, stored in a file."""

    file: Path
    interval_s: float

    def start(self, reason: str) -> None:
        """Make all processes wait for one poll interval before the next attempt."""
        files.write_json(self.file, {"words": reason, "until_s": time.time() + self.interval_s})

    def read(self) -> tuple[str, float]:
        """Return the reason for the wait and its remaining seconds, or ("", 0.0) if a process may submit."""
        document = files.read_json(self.file)
        remaining_s = document.get("until_s", 0.0) - time.time()
        # The clocks of login nodes differ, so a wait that seems longer than one interval is ignored.
        return (document["words"], remaining_s) if 0 < remaining_s <= self.interval_s else ("", 0.0)


class JobQueue:
    """Access of one campaign's leases to the queue of Slurm."""

    def __init__(
        self,
        campaign: Campaign,
        submissions: JobSubmissions,
        parameters: JobParameters,
        make_driver: MakeDriver,
        report_once: Callable[[str], None],
    ) -> None:
        directory = submissions.results.slurm_state.resolve()
        self._campaign = campaign
        self._submissions = submissions
        self._parameters = parameters
        self._make_driver = make_driver
        self._report_once = report_once
        self._lock_file = directory / "submit.lock"
        self._wait = SharedWait(directory / "waits.json", campaign.system.slurm.poll_s)

    def submit(self, request: DriverRequest, queue_s: float) -> Submission:
        """Submit the job of a lease, and wait up to `queue_s` seconds while Slurm accepts no more jobs.

        Raises ConfigError or LaunchError if Slurm refuses the job, LaunchError if the lease already has a job, and
        StillQueuedError after `queue_s`.
        """
        deadline = time.monotonic() + queue_s
        earlier = self._submissions.read(request.lease)
        if earlier is not None:
            raise LaunchError(
                f"job {earlier.job_id} of an earlier driver still exists; end it with 'scancel {earlier.job_id}'"
            )
        parameters = self._parameters.build(request)
        while (submission := self._submissions.read(request.lease)) is None:
            with files.try_lock(self._lock_file) as is_locked:
                if is_locked and not self._wait.read()[0]:
                    self._submit_or_wait(request, parameters)
                    continue
            reason, remaining_s = self._wait.read()
            self._report_once(reason)
            if time.monotonic() > deadline:
                raise StillQueuedError(reason or "Slurm accepts no more jobs")
            time.sleep(max(MIN_RETRY_S, min(remaining_s, deadline - time.monotonic())))
        return submission

    def count_jobs(self) -> int:
        """Count the campaign's jobs in the queue, including those that the last poll does not show yet."""
        snapshot = self._submissions.poll.take_snapshot()
        shown_count = sum(
            job.is_active and job.name.startswith(f"{self._campaign.name}/") for job in snapshot.jobs.values()
        )
        return shown_count + self._submissions.count_unseen(snapshot)

    def _submit_or_wait(self, request: DriverRequest, parameters: dict[str, Any]) -> None:
        """Submit a job, or start the shared wait. The caller holds the lock.

        Raises ConfigError or LaunchError if Slurm refuses the job.
        """
        try:
            self._submissions.settle(request.lease)
        except UnansweredSubmission as error:
            self._wait.start(str(error))
            return
        if self._submissions.read(request.lease) is not None:
            return
        max_jobs = self._campaign.system.slurm.max_jobs
        if max_jobs is not None and self.count_jobs() >= max_jobs:
            self._wait.start(
                f"the limit of {pluralize(max_jobs, 'job')} is reached (slurm.max_jobs); waiting until some have ended"
            )
            return
        comment = self._parameters.build_comment(request, parameters)
        refusal = self._submissions.submit(self._make_driver(request), parameters, comment)
        if refusal is None:
            return
        if refusal.kind not in _PASSING_REFUSALS:
            raise self._describe_refusal(refusal, request, parameters)
        self._wait.start(refusal.message)

    def _describe_refusal(self, refusal: Refusal, request: DriverRequest, parameters: dict[str, Any]) -> CampaignError:
        """Return the error for a refusal: ConfigError for a mistake in the system file, otherwise LaunchError."""
        error_class: type[CampaignError] = LaunchError
        message = f"sbatch refused {parameters['job_name']}: {refusal.message}"
        if refusal.kind == "mistake":
            error_class = ConfigError
            hosts = parameters.get("nodelist")
            request_text = f", which requests {hosts}" if hosts else ""
            message = f"system {self._campaign.system.name}: slurm: {request.lease}{request_text}: {refusal.message}"
        return error_class(message + self._list_alternatives(refusal.key))

    def _list_alternatives(self, key: str) -> str:
        """Return the values that the site offers for a key of `slurm`, worded as the end of a message."""
        if key not in SINFO_COLUMNS:
            return ""
        noun, sinfo_format = SINFO_COLUMNS[key]
        values = sorted(set(self._submissions.slurm("sinfo", "--noheader", f"--format={sinfo_format}").out.split()))
        return f"; available {noun}: {', '.join(values)}" if values else ""
