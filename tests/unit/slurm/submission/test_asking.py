"""Asking Slurm for allocations: one call of sbatch per lease, limits that are waited for, and mistakes that are named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from campaign.common import files
from campaign.common.errors import ConfigError, LaunchError
from campaign.run.driver import Driver
from campaign.slurm import slurm_submitter as module
from campaign.slurm import submitted_jobs
from campaign.slurm.submitter import StillQueuedError, Submission
from tests.fake_slurm import ENDED, FakeSlurm
from tests.unit.slurm.submission.login import ALIKE, Login, login, request_in

TOO_MANY = (
    "AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)
SOON_S = 30.0  # only spent when something is broken


def many(number: int) -> dict[str, Any]:
    """So many leases of one configuration."""
    return {
        **ALIKE,
        "campaign.configurations": [{"devices_per_host": 2}],
        "campaign.axes.batch": list(range(1, number + 1)),
    }


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def all_at_once(here: Login, leases: list[str]) -> dict[str, Submission]:
    """Every lease asks from a thread with a submitter of its own, as every lease has a process of its own."""
    barrier = threading.Barrier(len(leases))

    def ask(lease: str) -> Submission:
        with here.measuring(lease):
            barrier.wait(SOON_S)
            return here.submitter().submit(here.request(lease))

    with ThreadPoolExecutor(len(leases)) as pool:
        return dict(zip(leases, pool.map(ask, leases), strict=True))


def test_a_submission_is_found_by_its_job(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    found = here.submit(lease)
    assert found.job_id == "1"
    job = submitted_jobs.read(here.results, lease)
    assert job is not None
    assert (job.job_id, job.folder) == ("1", str(found.folder))
    assert found.request == here.request(lease)
    assert request_in(found.folder / "1_submitted.pkl") == here.request(lease)
    assert len(fake_slurm.calls("sbatch")) == 1


def test_calls_of_sbatch_are_counted_with_those_of_the_other_commands(here: Login, fake_slurm: FakeSlurm) -> None:
    here.submit(here.leases()[0])
    lines = (here.results.slurm_state / "commands.jsonl").read_text().splitlines()
    assert sum('"sbatch"' in line for line in lines) == len(fake_slurm.calls("sbatch")) == 1


def test_leases_that_ask_at_the_same_moment_have_a_job_each(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, many(8))
    found = all_at_once(here, here.leases())
    assert len(fake_slurm.calls("sbatch")) == 8
    assert sorted(each.job_id for each in found.values()) == [str(number) for number in range(1, 9)]
    for lease, each in found.items():
        assert request_in(each.folder / f"{each.job_id}_submitted.pkl") == here.request(lease)


WAITS = "the limit of 2 jobs is reached (slurm.max_jobs); waiting until some have ended"


def test_who_holds_devices_does_not_wait_for_room_in_the_queue(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, many(2), max_jobs=1, poll_s=5.0)
    first, second = here.leases()
    here.submit(first)
    started_s = time.monotonic()
    with here.measuring(second), pytest.raises(StillQueuedError, match="the limit of 1 job is reached"):
        here.submitter().submit(here.request(second), 0.5)
    assert time.monotonic() - started_s < 4
    assert len(fake_slurm.jobs()) == 1
    assert submitted_jobs.read(here.results, second) is None


def test_no_more_jobs_are_queued_than_the_site_wants(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, many(5), max_jobs=2)
    leases = here.leases()
    for_ever = threading.Event()
    most = []

    def queued() -> list[str]:
        return [job_id for job_id, job in fake_slurm.jobs().items() if job["state"] not in ENDED]

    def end_them() -> None:
        while not for_ever.wait(0.05):
            found = queued()
            most.append(len(found))
            # Not before somebody was told to wait, or nobody might have to.
            if len(found) == 2 and WAITS in here.said:
                fake_slurm.set(found[0], state="COMPLETED")

    ending = threading.Thread(target=end_them)
    ending.start()
    try:
        all_at_once(here, leases)
    finally:
        for_ever.set()
        ending.join()
    assert max(most) == 2
    assert len(fake_slurm.jobs()) == 5
    assert WAITS in here.said


def test_jobs_that_the_last_look_did_not_show_count(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """A look at the queue is shared and up to an interval old: what was submitted since is in nobody's picture."""
    here = login(tmp_path, ALIKE, poll_s=600.0, max_jobs=3)
    submitter = here.submitter()
    assert submitter.queue.count_jobs() == 0
    for number, lease in enumerate(here.leases()[:3], 1):
        with here.measuring(lease):
            submitter.submit(here.request(lease))
        assert submitter.queue.count_jobs() == number
    assert len(fake_slurm.calls("squeue")) == 1


def test_too_many_jobs_are_waited_for(here: Login, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer(TOO_MANY, times=3)
    assert here.submit(here.leases()[0]).job_id == "1"
    assert len(fake_slurm.calls("sbatch")) == 4
    (said,) = here.said
    assert "AssocMaxSubmitJobLimit" in said
    assert len(list(here.results.submissions.iterdir())) == 1, "of refused ones nothing is left"


def test_all_wait_together(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """However many leases wait for Slurm to take more jobs, one of them tries again an interval."""
    here = login(tmp_path, many(6), poll_s=0.5)
    fake_slurm.most_jobs(0, TOO_MANY)
    started = time.monotonic()
    asking = threading.Thread(target=all_at_once, args=(here, here.leases()))
    asking.start()
    until(lambda: len(fake_slurm.calls("sbatch")) >= 8)
    intervals = (time.monotonic() - started) / 0.5
    calls = len(fake_slurm.calls("sbatch"))
    fake_slurm.most_jobs(10**6, "")
    asking.join(SOON_S)
    assert calls <= 1 + intervals + 1
    assert len(fake_slurm.jobs()) == 6


def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, {**ALIKE, "system.slurm": {"partition": "gpus"}})
    fake_slurm.answer(
        "invalid partition specified: gpus\nsbatch: error: Batch job submission failed: Invalid partition name specified"
    )
    with pytest.raises(
        ConfigError,
        match=r"system bench: slurm: 1x1-local.*c1: .*Invalid partition name.*; available partitions: gpu, wide",
    ):
        here.submit(here.leases()[0])
    assert len(fake_slurm.calls("sbatch")) == 1
    assert not list(here.results.submissions.iterdir()), "nothing is left of it"
    assert submitted_jobs.read_all(here.results) == []
    assert here.submit(here.leases()[0]).job_id == "1", "once it is mended"


def test_a_refusal_that_is_not_known_is_the_apparatus(here: Login, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer("Unspecified error")
    with pytest.raises(LaunchError, match=r"sbatch refused small/1x1-local: .*Unspecified error"):
        here.submit(here.leases()[0])
    assert here.submit(here.leases()[0]).job_id == "1"


def test_a_controller_that_is_down_is_waited_for(here: Login, fake_slurm: FakeSlurm) -> None:
    fake_slurm.reachable(False)
    back = threading.Timer(1.0, fake_slurm.reachable, [True])
    back.start()
    try:
        assert here.submit(here.leases()[0]).job_id == "1"
    finally:
        back.join()
    assert len(fake_slurm.jobs()) == 1
    assert any("did not answer" in words or "does not answer" in words for words in here.said)


def test_a_lease_has_one_job(here: Login, fake_slurm: FakeSlurm) -> None:
    here.submit(here.leases()[0])
    with pytest.raises(LaunchError, match="job 1 of an earlier driver still exists; end it with 'scancel 1'"):
        here.submit(here.leases()[0])
    assert len(fake_slurm.jobs()) == 1


def test_nothing_is_held_when_asking_is_interrupted(here: Login, fake_slurm: FakeSlurm) -> None:
    fake_slurm.most_jobs(0, TOO_MANY)

    def interrupt(words: str) -> None:
        raise KeyboardInterrupt

    lease = here.leases()[0]
    submitter = module.SlurmSubmitter(here.campaign, here.results, Driver, interrupt)
    with here.measuring(lease), pytest.raises(KeyboardInterrupt):
        submitter.submit(here.request(lease))
    assert not files.is_locked(here.results.slurm_state / "submit.lock")
