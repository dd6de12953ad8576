"""Drivers as processes of this machine: found by their lock, ended in good order, and none but their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.common import files
from campaign.common.errors import ConfigError, LaunchError
from campaign.run.driver import Driver
from campaign.run.local_submitter import LocalSubmitter
from campaign.spec.driver_messages import DriverResult
from tests.unit.slurm.submission.login import ALIKE, Login, login

SOON_S = 30.0  # only spent when something is broken


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Login]:
    here = login(tmp_path, ALIKE)
    yield here
    for lease in here.leases():
        if here.results.work_directory(lease).exists():
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
    result = submission.read_result()
    assert result is not None
    assert isinstance(result.error, ConfigError)
    assert "gone.json: cannot be read" in str(result.error)
    assert LocalSubmitter(here.results, Driver).find(lease) in (None, submission)


def test_a_driver_is_found_by_another_process_and_only_under_its_lease(here: Login) -> None:
    lease, other = here.leases()[:2]
    # Until the lock is given up, the driver waits.
    with files.hold_lock(here.results.work_directory(lease) / "driver.lock"):
        submission = LocalSubmitter(here.results, Driver).submit(here.request(lease))
        successor = LocalSubmitter(here.results, Driver)
        assert successor.find(lease) == submission
        assert successor.find(other) is None
        assert successor.check_driver(submission).alive


def test_a_process_number_that_comes_again_brings_no_old_driver_back(here: Login) -> None:
    """In a container numbers are given again soon: the second driver has that of the first, and neither its request nor result."""
    command = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-m", __name__]
    answer = subprocess.run(
        [*command, str(here.directory), here.leases()[0]], capture_output=True, text=True, timeout=60, check=False
    )
    if "unshare:" in answer.stderr:
        pytest.skip(f"no namespaces here: {answer.stderr.strip()}")
    assert answer.stdout.split() == ["same", "number", "first.json", "second.json"], answer.stderr


def main(directory: str, lease: str) -> None:
    """Two drivers, one after the other, with one process number; prints which file each did not find."""
    here, told, numbers = Login(Path(directory)), [], []
    for name in ("first.json", "second.json"):
        submitter = LocalSubmitter(here.results, Driver)
        # The driver is the second process from here on.
        Path("/proc/sys/kernel/ns_last_pid").write_text("3000")
        plan = str(here.directory / name)
        submission = submitter.submit(replace(here.request(lease), lease_plan=plan, token=name.replace(".", "")))
        results: list[DriverResult] = []
        # The first one that is there counts.
        until(lambda of=submission, to=results: to.extend(filter(None, [of.read_result()])) or to)  # type: ignore[misc]
        until(lambda found=submitter.find: found(lease) is None)  # type: ignore[misc]
        until(
            lambda of=submission, fate=submitter.check_driver: (
                not fate(of).alive and not Path("/proc", of.job_id).exists()
            )
        )  # type: ignore[misc]
        told.append(Path(str(results[0].error).partition(":")[0]).name)
        numbers.append(submission.job_id)
    print("same" if len(set(numbers)) == 1 else "other", "number", *told)


def test_a_stopped_driver_says_so_and_is_not_found_again(here: Login) -> None:
    lease, other = here.leases()[:2]
    submitter = LocalSubmitter(here.results, Driver)
    with (
        files.hold_lock(here.results.work_directory(lease) / "driver.lock"),
        files.hold_lock(here.results.work_directory(other) / "driver.lock"),
    ):
        submission, another = (submitter.submit(here.request(each)) for each in (lease, other))
        submitter.stop(lease)
        assert submitter.find(lease) is None
        assert submitter.find(other) == another
    driven = submission.read_result()
    # A driver that was stopped while it started left nothing.
    assert driven is None or isinstance(driven.error, LaunchError)


def test_a_driver_that_has_ended_is_not_alive(here: Login) -> None:
    submitter, lease = LocalSubmitter(here.results, Driver), here.leases()[0]
    submission = submitter.submit(here.request(lease))
    until(submission.result_file.exists)
    until(lambda: not submitter.check_driver(submission).alive)
    submitter.stop(lease)
    said = submission.log_file.stat().st_size
    submitter.forget(lease)
    assert submitter.find(lease) is None
    # Of hundreds of leases, only logs that say something are kept.
    assert submission.folder.exists() == bool(said)


if __name__ == "__main__":
    main(*sys.argv[1:])
