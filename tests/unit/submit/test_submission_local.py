"""Drivers as processes of this machine: found by their command line, ended in good order, and none but their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from campaign import files
from campaign.errors import ConfigError, LaunchError
from campaign.run.driver import Driver
from campaign.submit.local import LocalSubmitter
from tests.unit.submit.login import ALIKE, Login, login

SOON_S = 30.0  # only spent when something is broken


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Login]:
    here = login(tmp_path, ALIKE)
    yield here
    for lease in here.leases():
        if here.results.work(lease).exists():
            LocalSubmitter(here.results, Driver).stop(lease)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_a_driver_that_cannot_work_leaves_its_reason(here: Login) -> None:
    submitter, lease = LocalSubmitter(here.results, Driver), here.leases()[0]
    request = replace(here.request(lease), lease_plan=str(here.directory / "gone.json"))
    submission = submitter.submit(request)
    until(submission.result_file.exists)
    result = submission.result()
    assert result is not None
    assert isinstance(result.error, ConfigError)
    assert "gone.json: cannot be read" in str(result.error)
    assert submission.request() == request


def test_a_driver_is_found_by_another_process_and_only_under_its_lease(here: Login) -> None:
    lease, other = here.leases()[:2]
    # Until the lock is given up, the driver waits.
    with files.lock(here.results.work(lease) / "driver.lock"):
        submission = LocalSubmitter(here.results, Driver).submit(here.request(lease))
        successor = LocalSubmitter(here.results, Driver)
        assert successor.find(lease) == submission
        assert successor.find(other) is None
        assert successor.fate(submission).alive


def test_a_stopped_driver_says_so_and_is_not_found_again(here: Login) -> None:
    lease, other = here.leases()[:2]
    submitter = LocalSubmitter(here.results, Driver)
    with (
        files.lock(here.results.work(lease) / "driver.lock"),
        files.lock(here.results.work(other) / "driver.lock"),
    ):
        submission, another = (submitter.submit(here.request(each)) for each in (lease, other))
        submitter.stop(lease)
        assert submitter.find(lease) is None
        assert submitter.find(other) == another
    driven = submission.result()
    # A driver that was stopped while it started left nothing.
    assert driven is None or isinstance(driven.error, LaunchError)


def test_a_driver_that_has_ended_is_not_alive(here: Login) -> None:
    submitter, lease = LocalSubmitter(here.results, Driver), here.leases()[0]
    submission = submitter.submit(here.request(lease))
    until(submission.result_file.exists)
    until(lambda: not submitter.fate(submission).alive)
    submitter.stop(lease)
    submitter.forget(lease)
    assert submitter.find(lease) is None
