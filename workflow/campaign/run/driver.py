"""Driver process that measures the missing runs of a lease inside an allocation, and writes each record once.

submitit submits this process. It can be killed at any moment. The next driver of the lease continues with the missing runs.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.common import files
from campaign.common.errors import CampaignError, LaunchError, convert_os_error
from campaign.common.processes.clocks import get_timestamp_s
from campaign.plan.campaign.resolve_slurm_options import merge_slurm_options, parse_slurm_options
from campaign.plan.lease_plans import campaign_part_from_lease_plan
from campaign.slurm import submitted_jobs
from campaign.slurm.cut_short import FirstRunFile
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.lease_plan import read_lease_plan


class DriverStopped(BaseException):
    """Exception raised when SIGTERM interrupts a driver. The current run leaves no record."""


@dataclass(frozen=True)
class Driver:
    """Picklable callable that measures the runs of a request.

    Args:
        request: lease and results directory to work on.
    """

    request: DriverRequest

    def __call__(self) -> dict[str, Any]:
        """Measure the missing runs until all have a record or the driver is stopped.

        Returns:
            The document of a `DriverResult`.
        """
        _detach_from_terminal()
        # Imported late, because a process that only submits the driver imports this module as well.
        from campaign.run.run_loop import DriverSession

        results, lease = self.request.results, self.request.lease
        result = DriverResult(began_s=get_timestamp_s())
        try:
            submitted_jobs.check_restart(results, self.request)
            with files.hold_lock(results.driver_lock_file(lease), holder=self.request.token):
                DriverSession(self.request, result).measure_missing_runs()
        except CampaignError as error:
            result.error = error
        except OSError as error:
            result.error = convert_os_error(error, results.directory)
        except DriverStopped:
            if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
                # Only Slurm can distinguish a cancelled job from one that it will restart. A result would mark the job as over.
                raise
            result.error = LaunchError(f"the driver of {lease} was stopped by SIGTERM")
        return result.document()

    def checkpoint(self) -> None:
        """Allow submitit to restart the driver after a time limit or a preemption.

        Raises LaunchError if the driver must not be restarted, or if a run needs a longer job.
        """
        # submitit counts the time limits of a job, but does not limit the number of preemptions.
        submitted_jobs.check_restart_allowed()
        if (
            FirstRunFile(self.request.results.work_directory(self.request.lease)).record_if_cut_short()
            and not self._has_fixed_time_limit()
        ):
            raise LaunchError("a run needs more time than its job was given; the next job will be given more time")

    def _has_fixed_time_limit(self) -> bool:
        """Return whether the user fixed the time limit of the job, so that another job could not have more time."""
        plan = read_lease_plan(Path(self.request.lease_plan))
        options = merge_slurm_options(
            campaign_part_from_lease_plan(plan).system, plan.configuration, parse_slurm_options(plan.slurm)
        )
        return options.time_min is not None


def _detach_from_terminal() -> None:
    """Start a new session, so that Ctrl-C and hang-up of the terminal do not reach the driver.

    SIGTERM ends the driver with cleanup.
    """
    if os.getpgid(0) != os.getpid():
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _raise_stopped)


def _raise_stopped(*_: object) -> None:
    """Handle SIGTERM by raising DriverStopped once."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # A second signal must not interrupt the cleanup, which ends the ranks.
    raise DriverStopped
