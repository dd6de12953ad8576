"""Asking Slurm for allocations: few calls of sbatch whoever asks, limits that are waited for, and mistakes that are named."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from campaign import files
from campaign.errors import ConfigError, LaunchError
from campaign.run.driver import Driver
from campaign.slurm import submitted_jobs
from campaign.submit import slurm as module
from campaign.submit.allocation_requests import AllocationRequest, AllocationRequests
from campaign.submit.protocol import StillQueued, Submission
from tests.fake_slurm import ENDED, FakeSlurm
from tests.unit.submit.login import ALIKE, Login, login, request_in

ROOT = Path(__file__).resolve().parents[3]
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
    assert not list((here.results.slurm / "requests").glob("*.json"))
    assert len(fake_slurm.calls("sbatch")) == 1


def test_calls_of_sbatch_are_counted_with_those_of_the_other_commands(here: Login, fake_slurm: FakeSlurm) -> None:
    here.submit(here.leases()[0])
    lines = (here.results.slurm / "commands.jsonl").read_text().splitlines()
    assert sum('"sbatch"' in line for line in lines) == len(fake_slurm.calls("sbatch")) == 1


def test_leases_that_ask_at_the_same_moment_share_an_array(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHER_S", 1.0)
    here = login(tmp_path, many(8))
    found = all_at_once(here, here.leases())
    assert len(fake_slurm.calls("sbatch")) == 1
    assert sorted(each.job_id for each in found.values()) == [f"1_{task}" for task in range(8)]
    for lease, each in found.items():
        assert request_in(each.folder / f"{each.job_id}_submitted.pkl") == here.request(lease)


def test_processes_share_an_array_too(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """Also such as ask one after the other within a second."""
    here = login(tmp_path, many(4))
    command = [sys.executable, "-m", "tests.unit.submit.login", str(tmp_path)]
    asking = [
        subprocess.Popen([*command, lease, "4", str(after_s)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for lease, after_s in zip(here.leases(), (0, 0.1, 0.2, 0.7), strict=True)
    ]
    try:
        printed = [process.communicate(timeout=SOON_S)[0].strip() for process in asking]
    finally:
        for process in asking:
            process.kill()
            process.wait()
    assert sorted(printed) == sorted(fake_slurm.jobs())
    assert len(fake_slurm.calls("sbatch")) == 1


def test_leases_that_become_ready_one_after_the_other_take_few_calls(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHER_S", 1.0)
    here = login(tmp_path, many(24))

    def ask(number: int, lease: str) -> Submission:
        request = here.request(lease)
        time.sleep(number * 0.13)
        with here.measuring(lease):
            return here.submitter().submit(request)

    leases = here.leases()
    with ThreadPoolExecutor(len(leases)) as pool:
        found = list(pool.map(ask, range(len(leases)), leases))
    assert len({each.job_id for each in found}) == 24
    assert len(fake_slurm.calls("sbatch")) <= 9


def test_only_what_is_alike_shares_an_array(here: Login, fake_slurm: FakeSlurm) -> None:
    first, *others = here.leases()
    with here.measuring(*others):
        here.ask(*others)
        here.submit(first)
    assert (
        sorted(job["name"] for job in fake_slurm.jobs().values()) == ["small/1x1-local"] * 2 + ["small/1x2-local"] * 2
    )
    assert len(fake_slurm.calls("sbatch")) == 2


def test_the_longest_time_limit_is_that_of_the_array(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    longer = {"campaign.overrides": [{"when": "batch == 2", "repetitions": 900}]}
    here = login(tmp_path, {**many(3), **longer})
    first, *others = here.leases()
    limits = {lease: here.submitter().parameters(here.request(lease))["time"] for lease in here.leases()}
    assert len(set(limits.values())) == 2
    with here.measuring(*others):
        here.ask(*others)
        here.submit(first)
    (text,) = fake_slurm.files()
    assert f"--time={max(limits.values())}\n" in text


def test_arrays_are_split_at_the_largest_that_slurm_takes(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.put(array_size_max=4)
    here = login(tmp_path, many(10))
    first, *others = here.leases()
    with here.measuring(*others):
        here.ask(*others)
        here.submit(first)
    assert [text.count("--array=0-3%4") + 2 * text.count("--array=0-1%2") for text in fake_slurm.files()] == [1, 1, 2]
    assert len(fake_slurm.jobs()) == 10
    assert len(fake_slurm.calls("scontrol")) == 1, "its configuration is asked for once a campaign"


def test_without_arrays_each_job_goes_alone(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    fake_slurm.put(array_size_max=0)
    here = login(tmp_path, many(3))
    first, *others = here.leases()
    with here.measuring(*others):
        here.ask(*others)
        here.submit(first)
    assert not any("--array" in text for text in fake_slurm.files())
    assert sorted(fake_slurm.jobs()) == ["1", "2", "3"]


@pytest.mark.parametrize("lease_per", ["configuration", "cell"])
def test_a_thousand_cells_in_twenty_compositions_take_twenty_calls_at_most(
    lease_per: str, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(
        tmp_path,
        {
            **ALIKE,
            "system.hosts": [{"name": "host[1-4]", "devices": [{"model": "cpu-rank", "count": 5}]}],
            "campaign.configurations": [{"hosts": [1, 2, 3, 4], "devices_per_host": [1, 2, 3, 4, 5]}],
            "campaign.axes.batch": list(range(1, 51)),
            "campaign.protocol": {"repetitions": 1, "lease_per": lease_per},
        },
    )
    first, *others = here.leases()
    assert len(others) + 1 == {"configuration": 20, "cell": 1000}[lease_per]
    submitter = here.submitter()
    options = {lease.partition(".")[0]: submitter.parameters(here.request(lease)) for lease in here.leases()}
    assert len(options) == 20
    with here.measuring(*others):
        for lease in others:
            submitter.requests.ask(AllocationRequest(here.request(lease), options[lease.partition(".")[0]]))
        here.submit(first)
    assert len(fake_slurm.calls("sbatch")) <= 20
    assert len(fake_slurm.jobs()) == len(others) + 1
    assert all(submitted_jobs.read(here.results, lease) for lease in here.leases())


WAITS = "max_jobs is 2, and so many jobs are queued; waiting until some have ended"


def test_who_holds_devices_does_not_wait_for_room_in_the_queue(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, many(2), max_jobs=1, poll_s=5.0)
    first, second = here.leases()
    here.submit(first)
    started_s = time.monotonic()
    with here.measuring(second), pytest.raises(StillQueued, match="max_jobs is 1"):
        here.submitter().submit(here.request(second), 0.5)
    assert time.monotonic() - started_s < 4
    assert len(fake_slurm.jobs()) == 1
    assert not here.submitter().requests.is_open(second)


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
    assert submitter._room() == 3
    for number, lease in enumerate(here.leases()[:3], 1):
        with here.measuring(lease):
            submitter.submit(here.request(lease))
        assert submitter._room() == 3 - number
    assert len(fake_slurm.calls("squeue")) == 1


def test_too_many_jobs_are_waited_for(here: Login, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer(TOO_MANY, times=3)
    assert here.submit(here.leases()[0]).job_id == "1"
    assert len(fake_slurm.calls("sbatch")) == 4
    (said,) = here.said
    assert "AssocMaxSubmitJobLimit" in said
    assert len(list((here.results.slurm / "batches").glob("*.json"))) == 1, "of refused ones nothing is left"


def test_all_wait_together(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """However many leases wait for Slurm to take more jobs, one of them tries again an interval."""
    changes = {**many(6), "system.slurm": {"overrides": [{"when": "hosts == 1", "additional": {"nice": 1}}]}}
    here = login(tmp_path, changes, poll_s=0.5)
    fake_slurm.most_jobs(0, TOO_MANY)
    started = time.monotonic()
    asking = threading.Thread(target=all_at_once, args=(here, here.leases()))
    asking.start()
    until(lambda: len(fake_slurm.calls("sbatch")) >= 8)
    intervals = (time.monotonic() - started) / 0.5
    calls = len(fake_slurm.calls("sbatch"))
    fake_slurm.most_jobs(10**6, "")
    asking.join(SOON_S)
    # At first, arrays of 6, 3 and 1; from then on, one job an interval.
    assert calls <= 3 + intervals + 1
    assert len(fake_slurm.jobs()) == 6


def test_an_array_that_is_too_many_jobs_goes_in_parts(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, many(8))
    first, *others = here.leases()
    fake_slurm.most_jobs(3, TOO_MANY)
    done = threading.Event()

    def end_them() -> None:
        while not done.wait(0.05):
            found = [job_id for job_id, job in fake_slurm.jobs().items() if job["state"] not in ENDED]
            if len(found) >= 2:
                for job_id in found:
                    fake_slurm.set(job_id, state="COMPLETED")

    ending = threading.Thread(target=end_them)
    ending.start()
    try:
        all_at_once(here, here.leases())
    finally:
        done.set()
        ending.join()
    assert len(fake_slurm.jobs()) == 8
    assert len({submitted_jobs.read(here.results, lease).job_id for lease in [first, *others]}) == 8  # type: ignore[union-attr]


def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, {**ALIKE, "system.slurm": {"partition": "gpus"}})
    fake_slurm.answer(
        "invalid partition specified: gpus\nsbatch: error: Batch job submission failed: Invalid partition name specified"
    )
    with pytest.raises(
        ConfigError, match=r"system bench: slurm: 1x1-local.*c1: .*Invalid partition name.*; partitions here: gpu, wide"
    ):
        here.submit(here.leases()[0])
    assert len(fake_slurm.calls("sbatch")) == 1
    assert not list((here.results.slurm / "batches").iterdir()), "nothing is left of it"
    assert not list((here.results.slurm / "requests").iterdir())
    assert here.submit(here.leases()[0]).job_id == "1", "once it is mended"


def test_another_leases_mistake_is_not_ones_own(here: Login, fake_slurm: FakeSlurm) -> None:
    theirs, ours = here.leases("1x1-local"), here.leases("1x2-local")
    fake_slurm.answer("Invalid account or account/partition combination specified")
    with here.measuring(*theirs, *ours[1:]):
        here.ask(*theirs)
        assert here.submit(ours[0]).job_id == "1"
        # They have their answer, and ask nobody again.
        requests = AllocationRequests(here.results.slurm, 1.0)
        for lease in theirs:
            with pytest.raises(ConfigError, match="Invalid account or account/partition"):
                requests.raise_refusal(lease)
    assert len(fake_slurm.calls("sbatch")) == 2


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


def test_a_request_of_the_dead_is_dropped(here: Login, fake_slurm: FakeSlurm) -> None:
    alive, dead = here.leases("1x2-local")
    here.ask(dead)
    here.submit(alive)
    assert len(fake_slurm.jobs()) == 1
    assert submitted_jobs.read(here.results, dead) is None
    assert not list((here.results.slurm / "requests").iterdir())


def test_an_answer_to_the_dead_is_not_taken_for_ones_own(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    AllocationRequests(here.results.slurm, 1.0).refuse([lease], "no such partition", mistake=True)
    assert here.submit(lease).job_id == "1"


def test_a_damaged_request_is_dropped(here: Login, fake_slurm: FakeSlurm) -> None:
    alive, other = here.leases("1x2-local")
    with here.measuring(other):
        here.ask(other)
        path = here.results.slurm / "requests" / f"{other}.json"
        path.write_bytes(path.read_bytes()[:50])
        here.submit(alive)
    assert len(fake_slurm.jobs()) == 1
    assert not path.exists()


def test_what_a_process_asked_before_it_died_is_not_submitted_for_its_successor(
    here: Login, fake_slurm: FakeSlurm
) -> None:
    mine, other = here.leases("1x2-local")
    here.ask(mine)
    with here.measuring(mine):
        assert here.submitter().find(mine) is None
        here.submit(other)
        assert submitted_jobs.read(here.results, mine) is None
        found = here.submitter().submit(here.request(mine, use=2))
    assert found.request == here.request(mine, use=2)


def test_a_file_system_without_locks_is_named(here: Login, fake_slurm: FakeSlurm) -> None:
    with pytest.raises(LaunchError, match="lock files"):
        here.submitter().submit(here.request(here.leases()[0]))
    assert fake_slurm.calls("sbatch") == []


def test_a_lease_has_one_job(here: Login, fake_slurm: FakeSlurm) -> None:
    here.submit(here.leases()[0])
    with pytest.raises(LaunchError, match="job 1 of an earlier driver is still there; 'scancel 1' ends it"):
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
    assert not list((here.results.slurm / "requests").iterdir())
    assert not files.is_locked(here.results.slurm / "submit.lock")
