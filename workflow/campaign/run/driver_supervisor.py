"""Supervision of a lease's driver: a running driver is found or a new one submitted, and its progress is reported."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from campaign.common import files
from campaign.common.errors import HostFailed, LaunchError, RecordError
from campaign.common.paths import Results
from campaign.common.processes.signals import SignalInterrupt, wait_for_repeated_interrupt
from campaign.fabrics.http.options import withhold_secrets
from campaign.lease.lifecycle import HeldLease
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.past_costs import RunSpan
from campaign.run.progress import ProgressReporter
from campaign.run.submitters import StillQueuedError, Submission, Submitter
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.record import RecordStore, is_disk_full

_SECOND_INTERRUPT_TIMEOUT_S = 5.0  # timeout for a second Ctrl-C
_MAX_POLL_INTERVAL_RATIO = 10.0
"""Longest poll interval of a submitter, as a multiple of its shortest one."""


def choose_poll_interval_s(shortest_s: float, elapsed_s: float) -> float:
    """Choose the time until the next check of a driver.

    Polling takes processor time from the measurement, and a delay of 1 % of the lease's duration is not noticeable.

    Args:
        shortest_s: poll interval of the submitter.
        elapsed_s: time that the driver has taken so far.
    """
    return min(max(shortest_s, elapsed_s / 100), _MAX_POLL_INTERVAL_RATIO * shortest_s)


class DriverLeftRunning(SignalInterrupt):
    """Exception that interrupts the supervisor while the driver can continue alone. The driver and its composition are kept."""


@dataclass
class DriverSupervisor:
    """Supervisor of all drivers of one lease, during one call of `measure_missing_runs`.

    Args:
        campaign: campaign of the lease.
        results: results directory.
        store: records of the results directory.
        lease: name of the lease.
        lease_plan: path of the lease's plan.
        submitter: submitter of the campaign's launcher.
        report: callback for messages.
        exclude: called with the reason by host, for hosts that failed.
        queue_s: longest time a driver may wait in the queue while devices are held for it, in seconds.
        spans: time spans of the runs.
        use: use of the lease by the last driver.
    """

    campaign: Campaign
    results: Results
    store: RecordStore
    lease: str
    lease_plan: Path
    submitter: Submitter
    report: Callable[[str], None]
    exclude: Callable[[Mapping[str, str]], None]
    queue_s: float = math.inf
    spans: list[RunSpan] = field(default_factory=list)
    use: str = ""

    def report_for_lease(self, message: str) -> None:
        """Report a message, prefixed with the name of the lease."""
        self.report(f"{self.lease}: {message}")

    def run_driver(self, lease: HeldLease | None, use: str | None, missing_runs: int) -> None:
        """Find the running driver of this lease or submit one, and wait for its result.

        Args:
            lease: held lease; None if Slurm composes the devices for the driver, which then determines the use (`self.use`).
            use: use of the lease.
            missing_runs: number of runs that have no record.
        """
        self.use = ""
        files.make_directory(self.results.progress_file.parent)
        progress_offset = self.results.progress_file.stat().st_size if self.results.progress_file.exists() else 0
        running_driver = self.submitter.find(self.lease)
        holding = lease.journal.holding_token if lease else ""
        if running_driver and (running_driver.request.use, running_driver.request.holding) != (use, holding):
            self.report_for_lease("stopping the previous driver, because its composition no longer exists")
            self.submitter.stop(self.lease)
            running_driver = None
        if running_driver:
            self.report_for_lease(f"continuing with the existing driver (job {running_driver.job_id})")
        try:
            with withhold_secrets(self.campaign.system.fabric):
                request = DriverRequest(
                    lease_plan=str(self.lease_plan.resolve()),
                    root=str(self.results.root.resolve()),
                    campaign=self.results.campaign,
                    lease=self.lease,
                    use=use,
                    composition=lease.composition.document() if lease else None,
                    mismatches=lease.mismatches if lease else (),
                    token=secrets.token_hex(16),
                    holding=holding,
                )
                submission = running_driver or self.submitter.submit(request, self.queue_s)
            result = self.wait_for_result(submission, progress_offset, missing_runs)
        except SignalInterrupt as interruption:
            if (
                self.submitter.drivers_survive
                and self.submitter.find(self.lease)
                and not self.confirm_cancellation(interruption)
            ):
                raise DriverLeftRunning from None
            self.submitter.stop(self.lease)
            raise
        except BaseException:
            self.submitter.stop(self.lease)
            raise
        self.submitter.forget(self.lease)
        self.use = result.use
        if lease and result.began_s is not None:
            lease.journal.add_facts(driver_began_s=result.began_s)
        if isinstance(result.error, LaunchError):
            raise result.error.with_log(submission.log_file)
        if result.error:
            raise result.error
        self.store.await_records(result.measured, self.submitter.latency_s)

    def wait_for_result(self, submission: Submission, progress_offset: int, missing_runs: int) -> DriverResult:
        """Wait for the result of the driver and report its progress meanwhile.

        Args:
            submission: submission of the driver.
            progress_offset: position in the progress file from which lines are read, in bytes.
            missing_runs: number of runs that have no record.

        Raises:
            StillQueuedError: The job waits in the queue for too long.
            RecordError: The disk is full.
            HostFailed: The driver ended without a result.
        """
        progress = ProgressReporter(self.results, self.lease, missing_runs, self.report)
        status_message, queue_deadline_s, started_s = "", math.inf, time.monotonic()
        while True:
            # The result is read after the status, because a driver that ends in between has left its result by then.
            status = self.submitter.check_driver(submission)
            result = submission.read_result()
            lines, progress_offset = files.read_json_lines(self.results.progress_file, progress_offset)
            for line in lines:
                if line["lease"] == self.lease and line["status"] != "implied":
                    ended_s = float(line["time_s"])
                    self.spans.append(RunSpan(line["cell"], ended_s - line["wall_s"], ended_s, line["status"] == "ok"))
                progress.add_line(line)
            if result is not None:
                return result
            if status.description and status.description != status_message:
                status_message = status.description
                self.report_for_lease(status_message)
            queue_deadline_s = min(queue_deadline_s, time.monotonic() + self.queue_s) if status.queued else math.inf
            if time.monotonic() > queue_deadline_s:
                raise StillQueuedError(status.description)
            if status.alive:
                self.exclude(status.failed_hosts)
                time.sleep(choose_poll_interval_s(self.submitter.poll_interval_s, time.monotonic() - started_s))
            elif is_disk_full(self.results.directory):
                raise RecordError(
                    f"{self.results.directory}: the disk is full, so the driver of {self.lease} ended; free some space, then run "
                    "the same command again (finished records are kept)"
                )
            else:
                log = f"(log: {submission.log_file})"
                if self.submitter.drivers_survive and not submission.log_file.exists():
                    directory = self.results.root.resolve()
                    log = f"and without a log, as on a host that cannot access {directory}; all hosts need access (--results)"
                reason = f" ({status.description})" if status.description else ""
                raise HostFailed(
                    f"the driver of {self.lease} ended without a result{reason} {log}",
                    status.failed_hosts,
                )

    def confirm_cancellation(self, interruption: SignalInterrupt) -> bool:
        """Return whether the user cancels the jobs with a second Ctrl-C.

        The first process prints the question and the answer for all processes.
        """
        if not interruption.is_from_terminal:
            return False
        with files.try_lock(self.results.slurm_state / "asking.lock") as is_first:
            if is_first:
                self.report_for_lease(
                    "Ctrl-C: the jobs stay in Slurm, and the same command continues with them; press Ctrl-C again within "
                    f"{_SECOND_INTERRUPT_TIMEOUT_S:g} s to cancel them"
                )
            cancel = wait_for_repeated_interrupt(_SECOND_INTERRUPT_TIMEOUT_S)
            if is_first:
                self.report_for_lease(
                    "cancelling the jobs" if cancel else "the jobs stay in Slurm; 'campaign status' shows them"
                )
        return cancel
