"""Whatever becomes of whoever submits, every lease has its job or none: found by its token, never submitted twice, never lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common import files
from campaign.common.errors import LaunchError
from campaign.slurm import job_cancellation, job_submission, poll, submitted_jobs
from campaign.slurm.parse import JOB_FORMAT
from campaign.spec.driver_messages import DriverResult
from tests.fake_slurm import FakeSlurm
from tests.unit.slurm.submission.login import ALIKE, Login, finish, login, request_in

CONSTRAINED = "(ReqNodeNotAvail, UnavailableNodes:host1)"


def killed(here: Login, lease: str) -> None:
    """Another process asks for the lease, and is killed by the sbatch that it calls."""
    child = os.fork()
    if not child:
        try:
            here.submit(lease)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def left_undone(here: Login) -> list[str]:
    """Leases with a submission of which it is not written down what became of it."""
    return [job.lease for job in submitted_jobs.read_all(here.results) if not job.job_id]


def test_death_between_sbatch_and_journal_loses_no_job_and_doubles_none(
    here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    assert left_undone(here) == [lease]
    assert submitted_jobs.read(here.results, lease) is None
    found = here.submitter().find(lease)
    assert found is not None
    assert found.job_id == "1"
    # Under this name the job looks for it.
    assert request_in(found.folder / "1_submitted.pkl") == here.request(lease)
    assert left_undone(here) == []
    assert here.submitter().find(lease) == found
    assert len(fake_slurm.calls("sbatch")) == 1


def test_death_before_sbatch_is_forgotten(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer(taken=False, kill=True)
    killed(here, lease)
    assert here.submitter().find(lease) is None
    assert left_undone(here) == []
    assert here.submit(lease).job_id == "1"
    assert len(fake_slurm.jobs()) == 1


@pytest.mark.parametrize("renamed", [False, True])
def test_a_submission_that_was_not_written_down_is_finished(
    renamed: bool, here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    """By when submitit had given the driver its name, or had not."""
    found = here.submit(lease)
    job = submitted_jobs.read(here.results, lease)
    assert job is not None
    submitted_jobs.write(here.results, replace(job, job_id=""))
    if not renamed:
        (found.folder / "1_submitted.pkl").rename(found.folder / "abc.pkl")
    assert here.submitter().find(lease) == found
    assert request_in(found.folder / "1_submitted.pkl") == here.request(lease)
    assert len(fake_slurm.calls("sbatch")) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"words": "Socket timed out on send/recv operation"},
        {"words": "Unable to contact slurm controller (connect failure)"},
        {"words": "Unspecified error"},
        {"words": "partition gpu: your job is welcome\n", "code": 0},
    ],
)
def test_a_job_whose_number_was_not_told_is_found(
    answer: dict[str, Any], here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.answer(**answer, taken=True)
    with here.measuring(lease):
        submitter = here.submitter()
        try:
            found = submitter.submit(here.request(lease))
        except LaunchError:  # it was refused, as it seemed: then the next attempt finds it
            again = submitter.find(lease)
            assert again is not None
            found = again
    assert found.job_id == "1"
    assert request_in(found.folder / "1_submitted.pkl") == here.request(lease)
    assert len(fake_slurm.calls("sbatch")) == 1


def test_a_job_that_has_left_the_queue_is_known_by_its_log(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    (folder,) = here.results.submissions.iterdir()
    (folder / "1_0_log.out").touch()
    fake_slurm.forget("1")
    here.submitter().submissions.settle(lease)
    job = submitted_jobs.read(here.results, lease)
    assert job is not None
    assert job.job_id == "1"


def test_an_sbatch_that_outlives_its_caller_is_given_time(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_submission, "_SBATCH_DELAY_S", 1.0)
    here = login(tmp_path, ALIKE)
    lease = here.leases()[0]
    folder = here.results.submissions / ("0" * 16)
    folder.mkdir(parents=True)
    job = submitted_jobs.SubmittedJob(here.request(lease), "", str(folder), time.time(), "small/1x1-local")
    submitted_jobs.write(here.results, job)
    late = threading.Timer(0.5, lambda: fake_slurm.add("small/1x1-local", comment=f"python=x token={folder.name}"))
    late.start()
    try:
        found = here.submitter().find(lease)
    finally:
        late.join()
    assert found is not None
    assert found.job_id == "1"


def test_nothing_is_decided_while_slurm_does_not_answer(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    fake_slurm.reachable(False)
    back = threading.Timer(1.0, fake_slurm.reachable, [True])
    back.start()
    try:
        found = here.submitter().find(lease)
    finally:
        back.join()
    assert found is not None
    assert found.job_id == "1"
    assert [words for words in here.said if "does not answer" in words] == here.said[:1], "it is said once"


def test_a_driver_that_ended_is_found_for_as_long_as_nobody_has_read_its_result(
    here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    finish(here.submit(lease), DriverResult([("a", 1)]))
    fake_slurm.forget("1")
    found = here.submitter().find(lease)
    assert found is not None
    assert found.read_result() == DriverResult([("a", 1)])
    here.submitter().forget(lease)
    assert here.submitter().find(lease) is None
    assert list((here.results.slurm_state / "watched").iterdir()) == []


def test_a_job_that_ended_without_a_result_is_not_found_for_ever(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, ALIKE, latency_s=0.0)
    lease = here.leases()[0]
    here.submit(lease)
    fake_slurm.set("1", state="FAILED")
    assert here.submitter().find(lease) is None
    assert submitted_jobs.read(here.results, lease) is None
    assert here.submit(lease).job_id == "2"


def test_how_a_driver_is_doing(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, ALIKE, latency_s=0.0, poll_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    fate = submitter.check_driver(found)
    assert fate.alive
    assert fate.description.startswith("job 1 ")
    assert "Priority" in fate.description
    fake_slurm.set("1", state="RUNNING", hosts="host2", reason="None")
    assert "host2" in submitter.check_driver(found).description
    finish(found)
    fake_slurm.set("1", state="COMPLETED")
    assert submitter.check_driver(found).alive, "there is a result to be read"


def test_hosts_that_slurm_finds_unwell_are_named_when_a_driver_is_lost(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, ALIKE, latency_s=0.0, poll_s=0.0)
    found = here.submit(here.leases()[0])
    fake_slurm.set("1", state="NODE_FAIL", hosts="host[1-3]", reason="None")
    fake_slurm.put(
        hosts=[
            "host1|down+not_responding|gpu:2|Not responding",
            "host2|idle|gpu:2|none",
            "host3|idle+drain|gpu:2|memory",
        ]
    )
    fate = here.submitter().check_driver(found)
    assert not fate.alive
    assert fate.failed_hosts == {
        "host1": "Slurm reports down, not_responding: Not responding",
        "host3": "Slurm reports drain, idle: memory",
    }


UNWELL = ["host1|down+not_responding|gpu:2|Not responding", "host2|idle|gpu:2|none"]
"""As sinfo tells of two hosts."""


def test_hosts_that_slurm_took_a_driver_from_are_named_once_and_it_is_waited_for(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(tmp_path, ALIKE, latency_s=0.0, poll_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    fake_slurm.set("1", state="RUNNING", hosts="host[1-2]", reason="None")
    fake_slurm.put(hosts=UNWELL)
    assert submitter.check_driver(found).failed_hosts == {}, "it still runs there"
    fake_slurm.set("1", state="PENDING", hosts="", reason="BeginTime")
    fates = [submitter.check_driver(found) for _ in range(2)]
    assert [fate.alive for fate in fates] == [True, True]
    assert list(fates[0].failed_hosts) == ["host1"]
    assert fates[1].failed_hosts == {}


def test_a_driver_that_may_run_nowhere_else_is_given_up_with_its_host(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, {**ALIKE, "system.slurm": {"placement": "pinned"}}, latency_s=0.0, poll_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    fake_slurm.set("1", state="RUNNING", hosts="host1", reason="None")
    assert submitter.check_driver(found).alive
    fake_slurm.set("1", state="PENDING", hosts="", reason="BeginTime")
    fake_slurm.put(hosts=UNWELL)
    fate = submitter.check_driver(found)
    assert not fate.alive
    assert list(fate.failed_hosts) == ["host1"]


DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(
    ("reason", "hosts", "alive", "queued"),
    [
        ("JobHeldUser", ["host1|idle|gpu:2|none"], True, False),
        ("JobHeldAdmin", ["host1|idle|gpu:2|none"], True, False),
        (DOWN, UNWELL, False, False),
        (DOWN, ["host1|mixed|gpu:2|none", "host2|idle+drain|gpu:2|memory"], True, True),
        ("ReqNodeNotAvail, UnavailableNodes:", ["host1|idle+planned|gpu:2|none"], True, True),
        ("ReqNodeNotAvail, UnavailableNodes:host1", ["host1|idle+powering_up|gpu:2|none"], True, True),
        (
            DOWN,
            ["host1|down+not_responding|gpu:2|Not responding", "host2|unknown+not_responding|gpu:2|none"],
            False,
            False,
        ),
        (DOWN, [f"host{n}|down+not_responding|gpu:2|Not responding" for n in range(1, 5)], True, True),
    ],
)
def test_what_a_person_holds_and_what_befalls_all_hosts_is_waited_for(
    tmp_path: Path, fake_slurm: FakeSlurm, reason: str, hosts: list[str], alive: bool, queued: bool
) -> None:
    here = login(tmp_path, {**ALIKE, "system.slurm": {"placement": "pinned"}}, latency_s=0.0, poll_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    fake_slurm.set("1", reason=reason)
    fake_slurm.put(hosts=hosts)
    submitter.check_driver(found)
    time.sleep(0.01)
    fate = submitter.check_driver(found)
    assert (fate.alive, fate.queued) == (alive, queued)
    assert reason in fate.description
    assert ("scontrol release 1" in fate.description) == reason.startswith("JobHeld")
    assert set(fate.failed_hosts) == ({"host1"} if not alive else set())


def test_looking_for_a_driver_waits_for_nobody_who_submits(here: Login, fake_slurm: FakeSlurm) -> None:
    with files.hold_lock(here.results.slurm_state / "submit.lock"):
        assert here.submitter().find(here.leases()[0]) is None


def test_a_look_that_began_before_sbatch_answered_tells_nothing_of_the_job(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = login(tmp_path, ALIKE, poll_s=600.0)
    submitter = here.submitter()
    call = job_submission.call_sbatch

    def slow(*arguments: Any) -> str:
        submitter.poll.take_snapshot()
        return call(*arguments)

    monkeypatch.setattr(job_submission, "call_sbatch", slow)
    lease = here.leases()[0]
    with here.measuring(lease):
        found = submitter.submit(here.request(lease))
    assert submitter.check_driver(found).description == "job 1 was submitted"


def test_a_pending_job_is_given_up_when_looks_in_a_row_find_that_it_cannot_start(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(tmp_path, ALIKE, poll_s=0.0, latency_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    alive = []
    fake_slurm.put(hosts=UNWELL)
    for reason in (CONSTRAINED, "Priority", CONSTRAINED, CONSTRAINED):
        fake_slurm.set("1", reason=reason)
        alive.append(submitter.check_driver(found).alive)
    assert alive == [True, True, True, False]


def test_a_controller_that_has_just_restarted_is_given_time_to_hear_from_its_hosts(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(tmp_path, ALIKE, poll_s=0.0, latency_s=60.0)
    found = here.submit(here.leases()[0])
    fake_slurm.set("1", reason=CONSTRAINED)
    submitter = here.submitter()
    assert all(submitter.check_driver(found).alive for _ in range(4))


def test_one_look_is_one_look_however_often_it_is_read(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, ALIKE, poll_s=600.0)
    found = here.submit(here.leases()[0])
    fake_slurm.set("1", reason=CONSTRAINED)
    submitter = here.submitter()
    assert all(submitter.check_driver(found).alive for _ in range(5))
    assert len(fake_slurm.calls("squeue")) == 1


def test_stopping_cancels_the_job_and_forgets_it(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    here.submit(lease)
    here.submitter().stop(lease)
    here.submitter().stop(lease)
    assert fake_slurm.calls("scancel") == [["1"]]
    assert fake_slurm.jobs()["1"]["state"] == "CANCELLED"
    assert submitted_jobs.read(here.results, lease) is None


@pytest.mark.parametrize("comment", ["", "campaign=x token=0123456789abcdef"])
def test_a_job_that_got_the_number_later_is_neither_found_nor_cancelled(
    comment: str, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    """As after a cluster was installed again, which counts its jobs from 1."""
    here = login(tmp_path, ALIKE, poll_s=0.0)
    lease = here.leases()[0]
    found = here.submit(lease)
    fake_slurm.forget("1")
    fake_slurm.put(last=0)
    assert fake_slurm.add("theirs", comment=comment, state="RUNNING", hosts="host1") == "1"
    fate = here.submitter().check_driver(found)
    assert (fate.alive, "its id to another job" in fate.description) == (False, True)
    here.submitter().stop(lease)
    assert fake_slurm.calls("scancel") == []
    assert fake_slurm.jobs()["1"]["state"] == "RUNNING"
    assert here.submitter().find(lease) is None
    assert here.submit(lease).job_id == "2"


def test_a_job_that_was_given_up_is_cancelled_at_the_end_and_no_other(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """As when a controller that was killed remembers a job again, or one that it had said nothing of."""
    here = login(tmp_path, {**ALIKE, "campaign.axes.batch": [1, 2, 3]})
    given_up, waited_for, over, unheard = here.leases()[:4]
    here.submit(given_up)
    here.submitter().forget(given_up)
    here.submit(waited_for)
    finish(here.submit(over))
    here.submitter().forget(over)
    fake_slurm.answer(taken=False, kill=True)
    killed(here, unheard)
    (job,) = (job for job in submitted_jobs.read_all(here.results) if not job.job_id)
    token = Path(job.folder).name
    assert here.submitter().find(unheard) is None
    late = fake_slurm.add("small/late", comment=f"python=x token={token}")
    fake_slurm.add("theirs", comment="python=x token=0123456789abcdef")
    here.said.clear()
    here.submitter().end_left_behind()
    ended = {job_id for job_id, job in fake_slurm.jobs().items() if job["state"] == "CANCELLED"}
    assert ended == {"1", late}
    assert here.said == [f"job {each} was given up earlier but still exists; cancelling it" for each in ("1", late)]


def test_stopping_ends_what_was_submitted_by_a_process_that_was_killed(
    here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    here.submitter().stop(lease)
    assert fake_slurm.jobs()["1"]["state"] == "CANCELLED"


def test_a_driver_that_has_ended_is_not_cancelled(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    finish(here.submit(lease))
    here.submitter().stop(lease)
    assert fake_slurm.calls("scancel") == []
    assert submitted_jobs.read(here.results, lease) is None


def test_a_job_that_cannot_be_cancelled_is_not_forgotten(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cancellation, "MAX_CANCEL_S", 0.5)
    here = login(tmp_path, ALIKE)
    lease = here.leases()[0]
    here.submit(lease)
    fake_slurm.reachable(False)
    here.submitter().stop(lease)
    assert here.said == ["job 1 still exists 0.5 s after it was cancelled; end it with 'scancel 1'"]
    assert submitted_jobs.read(here.results, lease) is not None
    fake_slurm.reachable(True)
    here.submitter().stop(lease)
    assert fake_slurm.jobs()["1"]["state"] == "CANCELLED"


def test_waiting_for_the_end_of_a_job_costs_few_calls(
    here: Login, lease: str, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.submit(lease)
    now = [0.0]
    monkeypatch.setattr(job_cancellation.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(job_cancellation.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(job_cancellation, "MIN_PAUSE_S", 0.1)
    submitter = here.submitter()
    looks = []
    answer = submitter.slurm("squeue", "--me", JOB_FORMAT)

    def never_ends(*argv: str) -> Any:
        looks.append(argv)
        return answer

    for part in (submitter, submitter.poll):
        monkeypatch.setattr(part, "slurm", never_ends)
    submitter.stop(lease)
    assert now[0] > 90
    assert len([argv for argv in looks if argv[0] == "scancel"]) == 1
    assert len(looks) < 20


def test_hundreds_of_pending_jobs_are_picked_up_by_one_look(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "_MAX_FRESH_AGE_S", 5.0)
    here = login(tmp_path, ALIKE, poll_s=30.0)
    leases = [f"lease-{number}" for number in range(300)]
    request = here.request(here.leases()[0])
    with fake_slurm.memory() as memory:
        memory["jobs"] = {
            str(number): {"name": "c/x", "comment": "token=t", "state": "PENDING", "reason": "Priority", "hosts": ""}
            for number in range(300)
        }
    for number, lease in enumerate(leases):
        job = submitted_jobs.SubmittedJob(
            replace(request, lease=lease), str(number), str(tmp_path / "t"), time.time() - 60, "c/x"
        )
        submitted_jobs.write(here.results, job)
    for lease in leases:
        assert here.submitter().find(lease) is not None
    # Whoever looks for what dead processes left asks for every other lease.
    assert all(submitted_jobs.is_expected(here.results, lease, 30.0) for lease in leases)
    assert len(fake_slurm.calls("squeue")) == 1

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda lease: here.submitter().stop(lease), leases[:20]))
    assert {fake_slurm.jobs()[str(number)]["state"] for number in range(20)} == {"CANCELLED"}
    assert fake_slurm.jobs()["20"]["state"] == "PENDING"
    assert len(fake_slurm.calls("scancel")) == 20
    assert len(fake_slurm.calls("squeue")) <= 6
