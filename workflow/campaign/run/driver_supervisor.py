"""Supervision of a lease's driver: find the running driver or submit one, wait for it, and report progress."""

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
from campaign.plan.past_costs import Span
from campaign.run.progress import Progress
from campaign.run.submitters import StillQueued, Submission, Submitter
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.record import Store, is_full

_ASK_S = 5.0  # timeout for a second Ctrl-C
_LOOK_S = 0.1  # for a driver that has run for a while; a submitter with a longer poll interval uses its own


class LeftRunning(SignalInterrupt):
    """Interruption of the supervisor while the driver can continue alone; the driver and its composition are left as they are."""


@dataclass
class Supervisor:
    """Supervisor of all drivers of one lease, during one call of `measure_missing_runs`.

    Args:
        campaign: campaign of the lease.
        results: results directory.
        store: records of the results directory.
        lease: name of the lease.
        lease_plan: path of the lease's plan.
        submitter: submitter of the campaign's launcher.
        say: callback for messages.
        exclude: called with the reason of failure by host, for hosts that failed.
        queue_s: longest time a driver may wait in the queue while devices are held for it, in seconds.
        spans: time spans of the runs.
        use: use of the lease by the last driver.
    """

    campaign: Campaign
    results: Results
    store: Store
    lease: str
    lease_plan: Path
    submitter: Submitter
    say: Callable[[str], None]
    exclude: Callable[[Mapping[str, str]], None]
    queue_s: float = math.inf
    spans: list[Span] = field(default_factory=list)
    use: str = ""

    def tell(self, message: str) -> None:
        """Report a message, prefixed with the name of the lease."""
        self.say(f"{self.lease}: {message}")

    def drive(self, lease: HeldLease | None, use: str | None, runs: int) -> None:
        """Find the running driver of this lease or submit one, and wait for its result.

        Args:
            lease: held lease; None if Slurm composes the devices for the driver, which then determines the use (`self.use`).
            use: use of the lease.
            runs: number of runs that have no record.
        """
        self.use = ""
        files.make_directory(self.results.progress_file.parent)
        offset = self.results.progress_file.stat().st_size if self.results.progress_file.exists() else 0
        found = self.submitter.find(self.lease)
        holding = lease.journal.holding_token if lease else ""
        if found and (found.request.use, found.request.holding) != (use, holding):
            self.tell("stopping its former driver, whose composition is gone")
            self.submitter.stop(self.lease)
            found = None
        if found:
            self.tell(f"found its driver still there (job {found.job_id})")
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
                submitted = found or self.submitter.submit(request, self.queue_s)
            result = self.wait(submitted, offset, runs)
        except SignalInterrupt as interrupted:
            if self.submitter.outlives and self.submitter.find(self.lease) and not self.cancelled(interrupted):
                raise LeftRunning from None
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
            raise result.error.with_log(submitted.log_file)
        if result.error:
            raise result.error
        self.store.await_records(result.measured, self.submitter.latency_s)

    def wait(self, submitted: Submission, offset: int, runs: int) -> DriverResult:
        """Wait for the result of the driver and report its progress meanwhile.

        Raises StillQueued if the job waits in the queue for too long, RecordError if the disk is full, and HostFailed if the
        driver
        ended without a result.

        Args:
            submitted: submission of the driver.
            offset: position in the progress file from which lines are read, in bytes.
            runs: number of runs that have no record.
        """
        progress = Progress(self.results, self.lease, runs, self.say)
        words, queued_until, since = "", math.inf, time.monotonic()
        while True:
            # The result is read after the status: a driver that ends in between has left its result by then.
            status = self.submitter.check_driver(submitted)
            result = submitted.result()
            lines, offset = files.read_json_lines(self.results.progress_file, offset)
            for line in lines:
                if line["lease"] == self.lease and line["status"] != "implied":
                    ended = float(line["time_s"])
                    self.spans.append(Span(line["cell"], ended - line["wall_s"], ended, line["status"] == "ok"))
                progress.show(line)
            if result is not None:
                return result
            if status.words and status.words != words:
                words = status.words
                self.tell(words)
            queued_until = min(queued_until, time.monotonic() + self.queue_s) if status.queued else math.inf
            if time.monotonic() > queued_until:
                raise StillQueued(status.words)
            if status.alive:
                self.exclude(status.failed_hosts)
                # Polling takes processor time from the measurement; a hundredth of the time of the lease so far is no noticeable delay.
                time.sleep(max(self.submitter.poll_interval_s, min((time.monotonic() - since) / 100, _LOOK_S)))
            elif is_full(self.results.directory):
                raise RecordError(
                    f"{self.results.directory}: the disk is full, which ended the driver of {self.lease}; free space, "
                    "then run the same command again: finished records are kept"
                )
            else:
                log = f"(log: {submitted.log_file})"
                if self.submitter.outlives and not submitted.log_file.exists():
                    directory = self.results.root.resolve()
                    log = f"and without a log, as on a host that does not see {directory}; all hosts must see it (--results)"
                raise HostFailed(
                    f"the driver of {self.lease} is gone without a result{f' ({status.words})' if status.words else ''} {log}",
                    status.failed_hosts,
                )

    def cancelled(self, interrupted: SignalInterrupt) -> bool:
        """Return whether the user confirms by a second Ctrl-C that the jobs are to be cancelled.

        The first process to ask prints the question and the answer for all of them.
        """
        if not interrupted.is_from_terminal:
            return False
        with files.try_lock(self.results.slurm_state / "asking.lock") as first:
            if first:
                self.tell(
                    f"Ctrl-C: jobs stay in Slurm, and the same command picks them up; Ctrl-C again within {_ASK_S:g} s cancels them"
                )
            cancel = wait_for_repeated_interrupt(_ASK_S)
            if first:
                self.tell("cancelling" if cancel else "left running; 'campaign status' shows them")
        return cancel
