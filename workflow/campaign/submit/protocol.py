"""What every way to start drivers offers: a driver that was submitted is found again, whatever became of whoever submitted it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from campaign.documents.driver_messages import DriverRequest, DriverResult
from campaign.errors import LaunchError

_WHOLE_S = 120.0  # until a file that was renamed into its place is seen whole on every host


class Driver(Protocol):
    """What submitit starts: picklable, measures what is requested, and gives `DriverResult.document`."""

    @property
    def request(self) -> DriverRequest: ...

    def __call__(self) -> dict[str, Any]: ...


MakeDriver = Callable[[DriverRequest], Driver]


@dataclass(frozen=True)
class Submission:
    """A driver on its way: the id of its job, and the folder where submitit leaves its result."""

    lease: str
    job_id: str
    folder: Path

    @property
    def result_file(self) -> Path:
        return self.folder / f"{self.job_id}_0_result.pkl"

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.job_id}_0_log.err"

    def request(self) -> DriverRequest | None:
        """What the driver was asked for; None when that cannot be found out any more."""
        return request_in(self.folder / f"{self.job_id}_submitted.pkl")

    def result(self) -> DriverResult | None:
        """What the driver returned, or None while it has not; LaunchError when it ended with an exception."""
        try:
            kind, value = pickle.loads(self.result_file.read_bytes())
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever the remains of a pickle lead to
            with suppress(OSError):
                if time.time() - self.result_file.stat().st_mtime >= _WHOLE_S:
                    where = f"the result of the driver of {self.lease} cannot be read"
                    raise LaunchError(f"{where} ({error!r}): {self.result_file}") from error
            return None  # not yet whole on a shared file system
        if kind == "error":
            last = [line for line in str(value).splitlines() if line.strip()][-1:] or ["without a message"]
            raise LaunchError(f"the driver of {self.lease} failed: {last[0].strip()} (log: {self.log_file})")
        try:
            return DriverResult.of(value)
        except (KeyError, TypeError, ValueError) as error:
            raise LaunchError(f"the driver of {self.lease} left an unexpected result in {self.result_file}") from error


@dataclass(frozen=True)
class Fate:
    """How a driver without a result is doing.

    words: for people ("pending: Priority"); failed_hosts: hosts that ended it, or that it was taken from, and why, where known.
    """

    alive: bool
    words: str = ""
    failed_hosts: dict[str, str] = field(default_factory=dict)


class Submitter(Protocol):
    """Starts the drivers of one campaign's leases."""

    look_s: float
    """Seconds between two looks at a driver."""
    outlives: bool
    """Whether a driver can be left alone when whoever waits for it goes."""
    latency_s: float
    """How late the records of a driver may be seen here."""

    def submit(self, request: DriverRequest) -> Submission:
        """Start a driver; returns once it is certain to be found again. LaunchError, ConfigError: it was refused."""

    def find(self, lease: str) -> Submission | None:
        """The driver of this lease that is still alive, or that ended without anybody to read its result."""

    def fate(self, submission: Submission) -> Fate:
        """How the driver is doing; only to be asked after looking for its result."""

    def stop(self, lease: str) -> None:
        """End all drivers of a lease in good order, and everything they started, whatever it takes."""

    def forget(self, lease: str) -> None:
        """Its result was read; nothing will look for this driver again."""


def request_in(pickled: Path) -> DriverRequest | None:
    """The request of the driver in a file that submitit wrote; None for a file that is not there or not whole."""
    from submitit.helpers import DelayedSubmission

    try:
        driver = cast(Driver, DelayedSubmission.load(pickled).function)
        return driver.request if isinstance(driver.request, DriverRequest) else None
    except Exception:  # whatever the remains of a pickle lead to
        return None
