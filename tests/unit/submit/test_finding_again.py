"""Whatever becomes of whoever submits, every lease has its job or none: found by its token, never submitted twice, never lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign import files
from campaign.documents.driver_messages import DriverResult
from campaign.slurm import poll, submitted_jobs
from campaign.slurm.parse import JOB_FORMAT
from campaign.submit import allocation_requests, batches, slurm
from tests.fake_slurm import FakeSlurm
from tests.unit.submit.login import ALIKE, Login, finish, login, request_in

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
    """Batches of which it is not written down what became of them."""
    found = (json.loads(path.read_text()) for path in (here.results.slurm / "batches").glob("*.json"))
    return [list(document["leases"]) for document in found if "written" not in document]


def test_death_between_sbatch_and_journal_loses_no_job_and_doubles_none(
    here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    assert left_undone(here) == [[lease]]
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


def test_the_others_of_an_array_find_their_jobs_when_its_submitter_died(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, {**ALIKE, "campaign.axes.batch": [1, 2, 3]})
    dead, *others = here.leases("1x2-local")
    with here.measuring(*others):
        here.ask(*others)
        fake_slurm.answer(taken=True, kill=True)
        killed(here, dead)
        assert [sorted(leases) for leases in left_undone(here)] == [sorted([dead, *others])]
        # They only ask on: whoever has the lock finds out.
        found = {
            lease: here.submitter().submit(here.request(lease))
            for lease in others
            if not submitted_jobs.read(here.results, lease)
        }
    assert len(found) == 1, "the first of them recovers all"
    for lease in (dead, *others):
        job = submitted_jobs.read(here.results, lease)
        assert job is not None
        assert request_in(Path(job.folder) / f"{job.job_id}_submitted.pkl") == here.request(lease)
    assert len(fake_slurm.calls("sbatch")) == 1


@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("renamed", [0, 1, 3])
def test_an_array_that_was_written_down_in_part_is_finished(
    written: int, renamed: int, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(tmp_path, {**ALIKE, "campaign.axes.batch": [1, 2, 3]})
    first, *others = leases = here.leases("1x2-local")
    with here.measuring(*others):
        here.ask(*others)
        here.submit(first)
    before = {lease: submitted_jobs.read(here.results, lease) for lease in leases}
    for lease in leases[written:]:
        submitted_jobs.remove(here.results, lease)
    (intent,) = (here.results.slurm / "batches").glob("*.json")
    document = json.loads(intent.read_text())
    intent.write_text(json.dumps({name: document[name] for name in ("leases", "name", "time_s")}))
    for number, path in enumerate(sorted(intent.with_suffix("").glob("*_submitted.pkl"))[renamed:]):
        path.rename(path.with_name(f"{number}abc.pkl"))
    assert here.submitter().find(first) is not None
    assert {lease: submitted_jobs.read(here.results, lease) for lease in leases} == before
    for lease, job in before.items():
        assert job is not None
        assert request_in(Path(job.folder) / f"{job.job_id}_submitted.pkl") == here.request(lease)
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
        except slurm.LaunchError:  # it was refused, as it seemed: then the next attempt finds it
            again = submitter.find(lease)
            assert again is not None
            found = again
    assert found.job_id == "1"
    assert request_in(found.folder / "1_submitted.pkl") == here.request(lease)
    assert len(fake_slurm.calls("sbatch")) == 1


def test_a_job_that_has_left_the_queue_is_known_by_its_log(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    (folder,) = (path for path in (here.results.slurm / "batches").iterdir() if path.is_dir())
    (folder / "1_0_log.out").touch()
    fake_slurm.forget("1")
    here.submitter().stop("another lease")
    job = submitted_jobs.read(here.results, lease)
    assert job is not None
    assert job.job_id == "1"


def test_an_sbatch_that_outlives_its_caller_is_given_time(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_SBATCH_S", 1.0)
    here = login(tmp_path, ALIKE)
    lease = here.leases()[0]
    folder = here.results.slurm / "batches" / ("0" * 16)
    folder.mkdir(parents=True)
    leases = {lease: here.request(lease).document()}
    files.write_json(folder.with_suffix(".json"), {"leases": leases, "name": "small/1x1-local", "time_s": time.time()})
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
    assert found.result() == DriverResult([("a", 1)])
    here.submitter().forget(lease)
    assert here.submitter().find(lease) is None
    assert list((here.results.slurm / "watched").iterdir()) == []


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
    fate = submitter.fate(found)
    assert fate.alive
    assert fate.words.startswith("job 1: ")
    assert "Priority" in fate.words
    fake_slurm.set("1", state="RUNNING", hosts="host2", reason="None")
    assert "host2" in submitter.fate(found).words
    finish(found)
    fake_slurm.set("1", state="COMPLETED")
    assert submitter.fate(found).alive, "there is a result to be read"


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
    fate = here.submitter().fate(found)
    assert not fate.alive
    assert fate.failed_hosts == {
        "host1": "Slurm says down, not_responding: Not responding",
        "host3": "Slurm says drain, idle: memory",
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
    assert submitter.fate(found).failed_hosts == {}, "it still runs there"
    fake_slurm.set("1", state="PENDING", hosts="", reason="BeginTime")
    fates = [submitter.fate(found) for _ in range(2)]
    assert [fate.alive for fate in fates] == [True, True]
    assert list(fates[0].failed_hosts) == ["host1"]
    assert fates[1].failed_hosts == {}


def test_a_driver_that_may_run_nowhere_else_is_given_up_with_its_host(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, {**ALIKE, "system.slurm": {"placement": "pinned"}}, latency_s=0.0, poll_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    fake_slurm.set("1", state="RUNNING", hosts="host1", reason="None")
    assert submitter.fate(found).alive
    fake_slurm.set("1", state="PENDING", hosts="", reason="BeginTime")
    fake_slurm.put(hosts=UNWELL)
    fate = submitter.fate(found)
    assert not fate.alive
    assert list(fate.failed_hosts) == ["host1"]


DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(
    ("reason", "hosts", "alive", "queued"),
    [
        ("JobHeldUser", ["host1|idle|gpu:2|none"], True, False),
        ("JobHeldAdmin", ["host1|idle|gpu:2|none"], True, False),
        (DOWN, UNWELL, False, False),
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
    submitter.fate(found)
    time.sleep(0.01)
    fate = submitter.fate(found)
    assert (fate.alive, fate.queued) == (alive, queued)
    assert reason in fate.words
    assert ("scontrol release 1" in fate.words) == reason.startswith("JobHeld")
    assert set(fate.failed_hosts) == ({"host1"} if not alive else set())


def test_looking_for_a_driver_waits_for_nobody_who_submits(here: Login, fake_slurm: FakeSlurm) -> None:
    """Or leases that are asked for at the same time would come one after the other, each with an sbatch of its own."""
    with files.lock(here.results.slurm / "submit.lock"):
        assert here.submitter().find(here.leases()[0]) is None


def test_a_pending_job_is_given_up_when_looks_in_a_row_find_that_it_cannot_start(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(tmp_path, ALIKE, poll_s=0.0, latency_s=0.0)
    found = here.submit(here.leases()[0])
    submitter = here.submitter()
    alive = []
    for reason in (CONSTRAINED, "Priority", CONSTRAINED, CONSTRAINED):
        fake_slurm.set("1", reason=reason)
        alive.append(submitter.fate(found).alive)
    assert alive == [True, True, True, False]


def test_a_controller_that_has_just_restarted_is_given_time_to_hear_from_its_hosts(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    here = login(tmp_path, ALIKE, poll_s=0.0, latency_s=60.0)
    found = here.submit(here.leases()[0])
    fake_slurm.set("1", reason=CONSTRAINED)
    submitter = here.submitter()
    assert all(submitter.fate(found).alive for _ in range(4))


def test_one_look_is_one_look_however_often_it_is_read(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    here = login(tmp_path, ALIKE, poll_s=600.0)
    found = here.submit(here.leases()[0])
    fake_slurm.set("1", reason=CONSTRAINED)
    submitter = here.submitter()
    assert all(submitter.fate(found).alive for _ in range(5))
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
    fate = here.submitter().fate(found)
    assert (fate.alive, "its number to another job" in fate.words) == (False, True)
    here.submitter().stop(lease)
    assert fake_slurm.calls("scancel") == []
    assert fake_slurm.jobs()["1"]["state"] == "RUNNING"
    assert here.submitter().find(lease) is None
    assert here.submit(lease).job_id == "2"


def test_a_job_that_was_given_up_is_cancelled_at_the_end_and_no_other(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """As when a controller that was killed remembers a job again, or a batch that it had said nothing of."""
    here = login(tmp_path, {**ALIKE, "campaign.axes.batch": [1, 2, 3]})
    given_up, waited_for, over, unheard = here.leases()[:4]
    here.submit(given_up)
    here.submitter().forget(given_up)
    here.submit(waited_for)
    finish(here.submit(over))
    here.submitter().forget(over)
    fake_slurm.answer(taken=False, kill=True)
    killed(here, unheard)
    (token,) = (
        path.stem for path in here.results.batches.glob("*.json") if "written" not in json.loads(path.read_text())
    )
    assert here.submitter().find(unheard) is None
    late = fake_slurm.add("small/late", comment=f"python=x token={token}")
    fake_slurm.add("theirs", comment="python=x token=0123456789abcdef")
    here.said.clear()
    here.submitter().end_left_behind()
    ended = {job_id for job_id, job in fake_slurm.jobs().items() if job["state"] == "CANCELLED"}
    assert ended == {"1", late}
    assert here.said == [f"job {each} was given up earlier and is still there; it is cancelled" for each in ("1", late)]


def test_stopping_ends_what_was_submitted_by_a_process_that_was_killed(
    here: Login, lease: str, fake_slurm: FakeSlurm
) -> None:
    fake_slurm.answer(taken=True, kill=True)
    killed(here, lease)
    here.submitter().stop(lease)
    assert fake_slurm.jobs()["1"]["state"] == "CANCELLED"


def test_one_task_of_an_array_is_stopped_alone(here: Login, fake_slurm: FakeSlurm) -> None:
    first, other = here.leases("1x2-local")
    with here.measuring(other):
        here.ask(other)
        here.submit(first)
    here.submitter().stop(first)
    (task,) = (job_id for job_id, job in fake_slurm.jobs().items() if job["state"] == "CANCELLED")
    assert fake_slurm.calls("scancel") == [[task]]
    assert here.submitter().find(first) is None
    assert here.submitter().find(other) is not None


def test_a_driver_that_has_ended_is_not_cancelled(here: Login, lease: str, fake_slurm: FakeSlurm) -> None:
    finish(here.submit(lease))
    here.submitter().stop(lease)
    assert fake_slurm.calls("scancel") == []
    assert submitted_jobs.read(here.results, lease) is None


def test_a_job_that_cannot_be_cancelled_is_not_forgotten(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_STOP_S", 0.5)
    here = login(tmp_path, ALIKE)
    lease = here.leases()[0]
    here.submit(lease)
    fake_slurm.reachable(False)
    here.submitter().stop(lease)
    assert here.said == ["job 1 is still there after 0.5 s; 'scancel 1' ends it"]
    assert submitted_jobs.read(here.results, lease) is not None
    fake_slurm.reachable(True)
    here.submitter().stop(lease)
    assert fake_slurm.jobs()["1"]["state"] == "CANCELLED"


def test_waiting_for_the_end_of_a_job_costs_few_calls(
    here: Login, lease: str, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.submit(lease)
    now = [0.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(slurm, "_ASK_S", 0.1)
    submitter = here.submitter()
    looks = []
    answer = submitter.slurm("squeue", "--me", JOB_FORMAT)

    def never_ends(*argv: str) -> Any:
        looks.append(argv)
        return answer

    for part in (submitter, submitter.poll, submitter.cancellations):
        monkeypatch.setattr(part, "slurm", never_ends)
    submitter.stop(lease)
    assert now[0] > 90
    assert len([argv for argv in looks if argv[0] == "scancel"]) == 1
    assert len(looks) < 20


def test_hundreds_of_pending_jobs_are_picked_up_by_one_look_and_cancelled_by_one_call(
    tmp_path: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "_FRESH_S", 5.0)
    here = login(tmp_path, ALIKE, poll_s=30.0)
    leases = [f"lease-{number}" for number in range(300)]
    request = here.request(here.leases()[0])
    with fake_slurm.memory() as memory:
        memory["jobs"] = {
            f"7_{number}": {"name": "c/x", "comment": "token=t", "state": "PENDING", "reason": "Priority", "hosts": ""}
            for number in range(300)
        }
    for number, lease in enumerate(leases):
        job = submitted_jobs.Submitted(
            replace(request, lease=lease), f"7_{number}", str(tmp_path / "t"), time.time() - 60, "c/x"
        )
        submitted_jobs.write(here.results, job)
    for lease in leases:
        assert here.submitter().find(lease) is not None
    # Whoever looks for what dead processes left asks for every other lease.
    assert all(submitted_jobs.is_expected(here.results, lease, 30.0) for lease in leases)
    assert len(fake_slurm.calls("squeue")) == 1

    monkeypatch.setattr(allocation_requests, "_GATHER_S", 1.0)
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda lease: here.submitter().stop(lease), leases[:20]))
    assert {fake_slurm.jobs()[f"7_{number}"]["state"] for number in range(20)} == {"CANCELLED"}
    assert fake_slurm.jobs()["7_20"]["state"] == "PENDING"
    assert len(fake_slurm.calls("scancel")) <= 3
    assert len(fake_slurm.calls("squeue")) <= 6
