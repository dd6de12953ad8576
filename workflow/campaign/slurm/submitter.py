"""Interface that starts drivers.

A submitted driver can be found again, whatever happens to the process that submitted it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from campaign.common.errors import LaunchError
from campaign.common.files import load_json, write_json
from campaign.spec.driver_messages import DriverRequest, DriverResult

_MAX_WRITE_DELAY_S = 120.0  # A renamed file is visible as a whole on every host after this time.


class Submittable(Protocol):
    """Picklable driver that measures the requested runs and returns `DriverResult.document`."""

    @property
    def request(self) -> DriverRequest: ...

    def __call__(self) -> dict[str, Any]: ...
    def checkpoint(self) -> None: ...


MakeDriver = Callable[[DriverRequest], Submittable]


@dataclass(frozen=True)
class Submission:
    """A submitted driver with its request, the id of its job, and its folder, which only this user can write to."""

    request: DriverRequest
    job_id: str
    folder: Path

    @property
    def lease(self) -> str:
        return self.request.lease

    @property
    def result_file(self) -> Path:
        return make_result_path(self.folder, self.request)

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.job_id}_0_log.err"

    def read_result(self) -> DriverResult | None:
        """Read the result of the driver, or return None if there is none yet.

        Raises LaunchError if the file is not a result of this driver.
        """
        try:
            document = load_json(self.result_file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            with suppress(OSError):
                if time.time() - self.result_file.stat().st_mtime >= _MAX_WRITE_DELAY_S:
                    where = f"the result of the driver of {self.lease} cannot be read"
                    raise LaunchError(f"{where} ({error}): {self.result_file}") from error
            return None  # the file is still incomplete on a shared file system
        try:
            if document.pop("token") != self.request.token:
                raise ValueError("the result belongs to another driver")
            return DriverResult.from_document(document)
        except (AttributeError, KeyError, ValueError) as error:
            raise LaunchError(f"the driver of {self.lease} left an unexpected result in {self.result_file}") from error


def make_result_path(folder: Path, request: DriverRequest) -> Path:
    """Return the path of the result file of a driver."""
    return folder / f"{request.token}.result.json"


@dataclass(frozen=True)
class ReportingDriver:
    """Callable for submitit that runs a driver and writes its result to a JSON file.

    The result is not pickled, because a pickle from another user could run any code.
    """

    driver: Submittable
    folder: Path

    def __call__(self) -> None:
        try:
            document = self.driver()
        except Exception as error:
            launch_error = LaunchError(
                f"the driver of {self.driver.request.lease} failed: {type(error).__name__}: {error}"
            )
            self._write_result(DriverResult(error=launch_error).document())
            raise
        self._write_result(document)

    def checkpoint(self, *_: Any) -> Any:
        """Resubmit the same driver after a time limit or preemption, unless it refuses (hook of submitit)."""
        from submitit.helpers import DelayedSubmission

        self.driver.checkpoint()
        return DelayedSubmission(self)

    def _write_result(self, document: dict[str, Any]) -> None:
        request = self.driver.request
        write_json(make_result_path(self.folder, request), {"token": request.token, **document}, durable=True)


@dataclass(frozen=True)
class DriverStatus:
    """Status of a driver that has no result yet.

    Args:
        alive: True if the driver has not ended.
        words: readable description, such as "job 12 waits in the queue (Priority)".
        failed_hosts: reason by host, for hosts whose failure ended the driver or moved it to other hosts.
        queued: True if the driver waits for hosts.
    """

    alive: bool
    description: str = ""
    failed_hosts: dict[str, str] = field(default_factory=dict)
    queued: bool = False


class StillQueuedError(LaunchError):
    """Error for a driver that waits too long in the queue, or to enter it, while devices are held for it."""


class Submitter(Protocol):
    """Interface that starts the drivers of the leases of one campaign."""

    poll_interval_s: float
    """Seconds between two checks of a driver that has just started."""
    drivers_survive: bool
    """True if a driver continues without the process that waits for it."""
    latency_s: float
    """Delay in seconds with which the records of a driver may appear on this machine."""

    def submit(self, request: DriverRequest, queue_s: float = math.inf) -> Submission:
        """Start a driver, and return when it is certain that the driver can be found again.

        Raises LaunchError or ConfigError if the driver is refused, and StillQueuedError if no more jobs were accepted for
        `queue_s` seconds.
        """

    def find(self, lease: str) -> Submission | None:
        """Return the lease's driver if it is alive or its result has not been read, or None if there is none."""

    def check_driver(self, submission: Submission) -> DriverStatus:
        """Return the status of a driver. Read the result after this call, because the driver may end in between."""

    def stop(self, lease: str) -> None:
        """End all drivers of a lease and all processes that they started."""

    def forget(self, lease: str) -> None:
        """Remove the files of a driver whose result has been read."""

    def end_left_behind(self) -> None:
        """End the drivers of this campaign for which no lease waits any more."""
