"""Drivers as Slurm jobs, submitted by submitit: one allocation per lease."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.slurm import job_cancellation, submitted_jobs
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.job_monitor import JobMonitor
from campaign.slurm.job_parameters import JobParameters
from campaign.slurm.job_queue import JobQueue
from campaign.slurm.job_submission import JobSubmissions, UnansweredSubmission
from campaign.slurm.poll import QueuePoll
from campaign.slurm.submitter import DriverStatus, MakeDriver, Submission
from campaign.spec.driver_messages import DriverRequest

_POLL_INTERVAL_S = 0.1


class SlurmSubmitter:
    """Submitter whose drivers are Slurm jobs (see `Submitter`). All processes of a campaign share the directory of the queue."""

    drivers_survive = True

    def __init__(
        self, campaign: Campaign, results: Results, make_driver: MakeDriver, report: Callable[[str], None]
    ) -> None:
        system = campaign.system
        self.results = results
        self.poll_interval_s = min(_POLL_INTERVAL_S, system.slurm.poll_s)
        self.latency_s = system.slurm.latency_s
        self.slurm = SlurmCommands(results.slurm_call_log.resolve())
        self.poll = QueuePoll(results.slurm_state.resolve(), self.slurm, system.slurm.poll_s)
        self.submissions = JobSubmissions(results, self.slurm, self.poll)
        self._report = report
        self._report_once = skip_repeats(report)
        parameters = JobParameters(campaign, results, self.slurm, report, self._report_once)
        self.queue = JobQueue(campaign, self.submissions, parameters, make_driver, self._report_once)
        self._monitor = JobMonitor(system, results, self.slurm, self.poll)

    def submit(self, request: DriverRequest, queue_s: float = math.inf) -> Submission:
        return self.queue.submit(request, queue_s)

    def find(self, lease: str) -> Submission | None:
        while submitted_jobs.read_unanswered(self.results, lease) is not None:
            try:
                self.submissions.settle(lease)
            except UnansweredSubmission as error:
                self._report_once(str(error))
                time.sleep(self.poll.interval_s)
        submission = self.submissions.read(lease)
        if submission is None or submission.result_file.exists():
            return submission
        # The shared poll is used, so that a continued campaign does not query Slurm once per lease.
        if self._monitor.judge_job(submission).alive:
            return submission
        self.forget(lease)
        return None

    def check_driver(self, submission: Submission) -> DriverStatus:
        return self._monitor.check_driver(submission)

    def stop(self, lease: str) -> None:
        try:
            self.submissions.settle(lease)
        except UnansweredSubmission as error:
            self._report(f"{error}; run the same command again to look for it")
        submission = self.submissions.read(lease)
        if submission is None or job_cancellation.cancel_job(submission, self.results, self.slurm, self.poll):
            self.forget(lease)
        else:
            job_id = submission.job_id
            self._report(
                f"job {job_id} still exists {job_cancellation.MAX_CANCEL_S:g} s after it was cancelled; end it with "
                f"'scancel {job_id}'"
            )

    def end_left_behind(self) -> None:
        """Cancel jobs that no lease waits for, such as a job that a restarted controller remembers again."""
        for job_id in self.submissions.list_left_behind(self.poll.take_snapshot(fresh=True)):
            self._report(f"job {job_id} was given up earlier but still exists; cancelling it")
            self.slurm("scancel", job_id)

    def forget(self, lease: str) -> None:
        submission = self.submissions.read(lease)
        if submission is not None:
            self.poll.unwatch_job(submission.job_id)
            submitted_jobs.remove(self.results, lease)


def skip_repeats(report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that reports a message unless it is empty or equal to the last one."""
    last_message = ""

    def report_once(message: str) -> None:
        nonlocal last_message
        if message and message != last_message:
            last_message = message
            report(message)

    return report_once


open_submitter = SlurmSubmitter
