"""The driver: inside an allocation, measures every run of a lease that has no record, and writes each record once.

It is what submitit submits. It can be killed at any moment: the next driver of the lease goes on with what is missing.
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
    """The driver was told to stop; the run under way leaves no record."""


@dataclass(frozen=True)
class Driver:
    """Measures what is requested. Picklable."""

    request: DriverRequest

    def __call__(self) -> dict[str, Any]:
        """Measure what is missing, until all runs have a record or something stops it; gives `DriverResult.document`."""
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
                # Cancelled, or to be started again? Slurm knows; a result would say that the job is over.
                raise
            done.error = LaunchError(f"the driver of {lease} was told to stop")
        return done.document()

    def checkpoint(self) -> None:
        """Agree to be started again after a time limit or preemption, to go on with what has no record; LaunchError otherwise."""
        # submitit counts the time limits of a job; preemptions without end are not for it to stop.
        submitted_jobs.check_restart_allowed()
        if FirstRun(self.request.results.work_directory(self.request.lease)).cut_short() and not self._limit_is_given():
            raise LaunchError(
                "a run needs more time than the job was submitted for; the next job is submitted for more"
            )

    def _limit_is_given(self) -> bool:
        """Whether a person has set the time limit of the job, so that another job would have no more time."""
        plan = read_lease_plan(Path(self.request.lease_plan))
        options = options_of(campaign_of(plan).system, plan.configuration, given_options(plan.slurm))
        return options.time_min is not None


def _leave_terminal() -> None:
    """A session of its own: the terminal's Ctrl-C and hang-up are not for the driver; SIGTERM ends it in good order."""
    if os.getpgid(0) != os.getpid():
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _stop)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; the ranks are ended on the way out
    raise Stopped
