"""Driver process: measures, inside an allocation, every run of a lease that has no record, and writes each record once.

submitit submits this process. It can be killed at any moment: the next driver of the lease continues with the missing runs.
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
from campaign.plan.campaign.resolve_slurm_options import given_options, options_of
from campaign.plan.lease_plans import campaign_of
from campaign.run.run_loop import DriverSession
from campaign.slurm import submitted_jobs
from campaign.slurm.cut_short import FirstRun
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.lease_plan import read_lease_plan


class Stopped(BaseException):
    """Interruption of a driver by SIGTERM; the run in progress leaves no record."""


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
        _leave_terminal()
        results, lease = self.request.results, self.request.lease
        done = DriverResult(began_s=get_timestamp_s())
        try:
            submitted_jobs.check_restart(results, self.request)
            with files.hold_lock(results.driver_lock_file(lease), holder=self.request.token):
                DriverSession(self.request, done).run()
        except CampaignError as failure:
            done.error = failure
        except OSError as failure:
            done.error = convert_os_error(failure, results.directory)
        except Stopped:
            if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
                # Only Slurm can distinguish a cancelled job from one to be started again; a result would mark the job as over.
                raise
            done.error = LaunchError(f"the driver of {lease} was told to stop")
        return done.document()

    def checkpoint(self) -> None:
        """Allow submitit to start the driver again after a time limit or a preemption, to continue with runs that have no
        record.

        Raises LaunchError if the driver must not be started again, or if a run needs a longer job.
        """
        # submitit counts the time limits of a job, but does not limit the number of preemptions.
        submitted_jobs.check_restart_allowed()
        if FirstRun(self.request.results.work_directory(self.request.lease)).cut_short() and not self._limit_is_given():
            raise LaunchError(
                "a run needs more time than the job was submitted for; the next job is submitted for more"
            )

    def _limit_is_given(self) -> bool:
        """Return whether the user fixed the time limit of the job, so that another job would have no more time."""
        plan = read_lease_plan(Path(self.request.lease_plan))
        options = options_of(campaign_of(plan).system, plan.configuration, given_options(plan.slurm))
        return options.time_min is not None


def _leave_terminal() -> None:
    """Start a new session, so that Ctrl-C and hang-up of the terminal do not reach the driver.

    SIGTERM ends the driver in good order.
    """
    if os.getpgid(0) != os.getpid():
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _stop)


def _stop(*_: object) -> None:
    """Handle SIGTERM by raising DriverStopped once."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one signal is enough; the ranks are ended during cleanup
    raise Stopped
