"""Decision for each job that a lease waits for, by the state of the job.

state of the job                       decision
------------------------------------   --------------------------------------------------------------------
done (the result exists)               read the result
not alive (ended, lost)                give up; faulty hosts of the job or of the composition have failed
stuck for `latency_s`                  also give up, unless all hosts of the system have faults
queued again after it ran              faulty hosts that it ran on have failed; give up if hosts are pinned
queued, held by a user                 wait without a limit
queued                                 wait for hosts
running, completing, just submitted    wait
"""

from __future__ import annotations

import time
from dataclasses import replace

from campaign.common.paths import Results
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.host_faults import HostFaults
from campaign.slurm.job_parameters import list_pinned_hosts
from campaign.slurm.job_state import QUEUED_STATES, JobState, judge_job_state
from campaign.slurm.poll import QueuePoll
from campaign.slurm.submitter import DriverStatus, Submission
from campaign.spec.system_file import SystemFile


class JobMonitor:
    """Monitor of the jobs that one process waits for."""

    def __init__(self, system: SystemFile, results: Results, slurm: SlurmCommands, poll: QueuePoll) -> None:
        self._system = system
        self._results = results
        self._poll = poll
        self._faults = HostFaults(system, slurm)
        self._missing_since_s: dict[str, float | None] = {}
        self._stuck_since_s: dict[str, float] = {}
        self._last_hosts: dict[str, tuple[str, ...]] = {}

    def check_driver(self, submission: Submission) -> DriverStatus:
        """Return the status of a driver, as the table of this module defines it."""
        job_id, state = submission.job_id, self.judge_job(submission)
        words = f"job {job_id} {state.description}"
        if state.done:
            return DriverStatus(True, words)
        if not state.alive:
            pinned_hosts = list_pinned_hosts(self._system, submission.request)
            return DriverStatus(False, words, self._faults.select_failed({*state.hosts, *pinned_hosts}))
        if state.state in QUEUED_STATES:
            # A failure of the hosts that the job ran on before is reported only once.
            failures = self._faults.select_failed(self._last_hosts.pop(job_id, ()))
            # Slurm starts the job on other hosts unless its hosts are pinned.
            is_alive = not (failures and self._system.are_hosts_pinned)
            return DriverStatus(is_alive, words, failures, queued=not state.held)
        if state.state == "RUNNING":
            self._last_hosts[job_id] = state.hosts
        return DriverStatus(True, words)

    def judge_job(self, submission: Submission) -> JobState:
        """Return the state of a job from the shared poll. A job that cannot start counts as not alive."""
        job_id, snapshot = submission.job_id, self._poll.take_snapshot()
        job = submitted_jobs.read(self._results, submission.lease)
        shown_job = snapshot.jobs.get(job_id)
        # Accounting is queried only for jobs that have left the queue, so it cannot show another job with the same id.
        is_another = job is not None and shown_job is not None and shown_job.queued and not job.is_shown_by(shown_job)
        state = judge_job_state(
            job_id,
            snapshot,
            has_result=submission.result_file.exists(),
            submitted_s=job.submitted_s if job else 0.0,
            now_s=time.time(),
            latency_s=self._system.slurm.latency_s,
            first_missing_s=self._missing_since_s.get(job_id),
            id_is_reused=is_another,
        )
        self._missing_since_s[job_id] = state.missing_since_s
        return self._give_up_if_stuck(submission, state, snapshot.asked_s)

    def _give_up_if_stuck(self, submission: Submission, state: JobState, polled_s: float) -> JobState:
        """Return the state of a job, changed to not alive if every poll within `latency_s` found that it cannot start."""
        job_id = submission.job_id
        if not state.stuck:
            self._stuck_since_s.pop(job_id, None)
            return state
        if not self._is_stuck_for_long(job_id, polled_s) or self._faults.is_outage():
            return state
        if not state.needs_hosts:
            return replace(state, alive=False)
        missing = self._faults.find_missing(state, list_pinned_hosts(self._system, submission.request))
        if not missing:
            self._stuck_since_s[job_id] = polled_s  # delays the next query of the hosts
            return state
        words = f"cannot start, because hosts that it needs are down or drained ({', '.join(missing)}); it {state.description}"
        return replace(state, alive=False, description=words)

    def _is_stuck_for_long(self, job_id: str, polled_s: float) -> bool:
        # A controller that has just restarted reports all hosts as down until they respond.
        stuck_s = polled_s - self._stuck_since_s.setdefault(job_id, polled_s)
        return stuck_s > 0 and stuck_s >= self._system.slurm.latency_s
