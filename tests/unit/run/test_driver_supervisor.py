from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import HostFailed
from campaign.common.paths import Results
from campaign.run.driver_supervisor import DriverSupervisor, choose_poll_interval_s
from campaign.slurm.submitter import DriverStatus, StillQueuedError
from campaign.spec.driver_messages import DriverResult
from campaign.spec.record import RecordStore


class Queue:
    """A job and who waits for it: it is queued for so many looks, then it runs, and leaves its result with the last one."""

    poll_interval_s = 0.02
    log_file = Path("log")

    def __init__(self, queued: int, running: int = 1) -> None:
        self.looks = [True] * queued + [False] * running

    def check_driver(self, _: Any) -> DriverStatus:
        queued = self.looks.pop(0)
        return DriverStatus(True, "job 7: waits in the queue (Resources)" if queued else "job 7: runs", queued=queued)

    def read_result(self) -> DriverResult | None:
        return None if self.looks else DriverResult(use="lease.1")


def supervisor(directory: Path, queue: Any, **more: float) -> DriverSupervisor:
    results = Results(directory, "c")
    campaign: Any = None
    return DriverSupervisor(
        campaign, results, RecordStore(directory), "lease", Path(), queue, print, lambda _: None, **more
    )


def test_devices_are_not_held_for_a_job_whose_hosts_were_taken(tmp_path: Path) -> None:
    queue: Any = Queue(queued=1000)
    with pytest.raises(StillQueuedError, match=r"job 7: waits in the queue \(Resources\)"):
        supervisor(tmp_path, queue, queue_s=0.1).wait_for_result(queue, 0, 1)
    assert 3 <= 1001 - len(queue.looks) < 20


@pytest.mark.parametrize("queue_s", [{}, {"queue_s": 30.0}])
def test_a_job_may_wait_for_a_moment_and_where_nothing_is_held_as_long_as_it_takes(
    tmp_path: Path, queue_s: dict[str, float]
) -> None:
    queue: Any = Queue(queued=20)
    assert supervisor(tmp_path, queue, **queue_s).wait_for_result(queue, 0, 1).use == "lease.1"


class GoneJob:
    """A job that has ended and left nothing but, maybe, its log."""

    poll_interval_s = 0.02
    drivers_survive = True

    def __init__(self, log_file: Path) -> None:
        self.log_file = log_file

    def check_driver(self, _: Any) -> DriverStatus:
        return DriverStatus(False, "job 7: ended as FAILED on host1, and left no result")

    def read_result(self) -> DriverResult | None:
        return None


def test_a_driver_that_leaves_not_even_a_log_points_to_results_that_its_host_does_not_see(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    job: Any = GoneJob(tmp_path / "7_0_log.err")
    with pytest.raises(
        HostFailed, match=rf"and without a log, as on a host that cannot access {tmp_path}; all hosts need"
    ):
        supervisor(tmp_path, job).wait_for_result(job, 0, 1)
    job.log_file.touch()
    with pytest.raises(HostFailed, match=rf"left no result\) \(log: {job.log_file}\)$"):
        supervisor(tmp_path, job).wait_for_result(job, 0, 1)


@pytest.mark.parametrize(("elapsed_s", "interval_s"), [(2.0, 0.1), (10.0, 0.1), (30.0, 0.3), (1e5, 1.0)])
def test_short_leases_are_polled_often_and_long_ones_rarely(elapsed_s: float, interval_s: float) -> None:
    assert choose_poll_interval_s(0.1, elapsed_s) == pytest.approx(interval_s)
