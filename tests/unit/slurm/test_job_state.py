from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.slurm.job_state import DONE, LOST, SUBMITTED, JobState, judge_job_state
from campaign.slurm.parse import FINAL_STATES, SlurmJob, parse_sacct, parse_squeue
from campaign.slurm.poll import QueueSnapshot
from tests.unit.slurm.saved import saved

SUBMITTED_S = 1000.0
ASKED_S = 2000.0


def verdict(
    *jobs: SlurmJob,
    now: float = ASKED_S + 1,
    asked_s: float = ASKED_S,
    missing: float | None = None,
    result: bool = False,
    reachable: bool = True,
    latency_s: float = 60.0,
    submitted_s: float = SUBMITTED_S,
    job_id: str = "7",
) -> JobState:
    return judge_job_state(
        job_id,
        QueueSnapshot(
            asked_s, reachable, True, "" if reachable else "connect failure", {job.job_id: job for job in jobs}
        ),
        has_result=result,
        submitted_s=submitted_s,
        now_s=now,
        latency_s=latency_s,
        first_missing_s=missing,
    )


def job(
    state: str, reason: str = "", hosts: tuple[str, ...] = (), exit_code: int | None = None, queued: bool = True
) -> SlurmJob:
    return SlurmJob("7", state, reason, hosts, exit_code=exit_code, queued=queued)


STATES = st.sampled_from(
    [*sorted(FINAL_STATES), "RUNNING", "PENDING", "COMPLETING", "UNKNOWN", "REQUEUED", "SUSPENDED", "EXPEDITING"]
)
JOBS = st.builds(job, STATES, st.sampled_from(["", "Priority", "JobHeldUser"]), queued=st.booleans())
TIMES = st.floats(0, 5000)


SITUATIONS = st.fixed_dictionaries(
    {
        "reachable": st.booleans(),
        **dict.fromkeys(("now", "asked_s", "submitted_s"), TIMES),
        "missing": st.none() | TIMES,
        "latency_s": st.floats(0, 500),
    }
)


@given(st.none() | JOBS, SITUATIONS)
def test_a_result_decides_whatever_slurm_says(known: SlurmJob | None, situation: dict[str, Any]) -> None:
    told = verdict(*[known] if known else [], result=True, **situation)
    assert (told.alive, told.done, told.state, told.stuck) == (False, True, DONE, False)


@given(st.none() | JOBS, SITUATIONS)
def test_nothing_is_given_up_before_it_was_missing_for_the_latency(
    known: SlurmJob | None, situation: dict[str, Any]
) -> None:
    told = verdict(*[known] if known else [], **situation)
    assert not told.done
    assert told.description
    if not told.alive:
        assert told.missing_since_s is not None
        cancelled_in_the_queue = known is not None and known.state == "CANCELLED" and not known.hosts
        assert cancelled_in_the_queue or situation["now"] - told.missing_since_s >= situation["latency_s"]
        assert not told.stuck
        if told.state == LOST:
            assert situation["reachable"]
            assert situation["missing"] is not None
            assert situation["asked_s"] > situation["missing"]
        else:
            assert known is not None
            assert known.state in FINAL_STATES


@given(JOBS, TIMES, st.none() | TIMES)
def test_what_the_queue_shows_as_not_ended_is_always_waited_for(
    known: SlurmJob, now: float, missing: float | None
) -> None:
    told = verdict(known, now=now, missing=missing, latency_s=0.0)
    if known.is_active and known.queued:
        assert told.alive
        assert told.missing_since_s is None


@given(st.lists(st.none() | JOBS, min_size=1, max_size=12), st.floats(1, 100), st.booleans())
def test_whatever_happens_a_job_that_stays_over_is_given_up_in_the_end(
    history: list[SlurmJob | None], latency_s: float, ends: bool
) -> None:
    """Looks of any content, 30 s apart, and then only ones that show it ended, or not at all."""
    missing, now = None, ASKED_S
    last = job("FAILED") if ends else None
    for known in [*history, *[last] * 10]:
        now += 30
        told = verdict(*[known] if known else [], now=now, asked_s=now - 1, missing=missing, latency_s=latency_s)
        missing = told.missing_since_s
    assert not told.alive


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_an_end_without_a_result_counts_after_the_latency(state: str) -> None:
    first = verdict(job(state, hosts=("host1",)), now=3000.0)
    assert (first.alive, first.state, first.missing_since_s) == (True, state, 3000.0)
    assert "its result has not appeared yet" in first.description
    assert verdict(job(state, hosts=("host1",)), now=3059.0, missing=3000.0).alive
    last = verdict(job(state, hosts=("host1",)), now=3060.0, missing=3000.0)
    assert (last.alive, last.done, last.hosts) == (False, False, ("host1",))
    assert "on host1" in last.description
    assert "left no result" in last.description


def test_a_job_that_was_cancelled_in_the_queue_is_not_waited_for() -> None:
    told = verdict(job("CANCELLED"), now=3000.0)
    assert (told.alive, told.state) == (False, "CANCELLED")
    assert "left no result" in told.description


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (job("FAILED", exit_code=3), "ended in state FAILED with exit status 3"),
        (job("FAILED", exit_code=-9), "ended in state FAILED by signal 9"),
        (job("OUT_OF_MEMORY", exit_code=-125), "ended in state OUT_OF_MEMORY, and its result has not appeared yet"),
        (job("NODE_FAIL", hosts=("host2",)), "ended in state NODE_FAIL on host2"),
    ],
)
def test_words_for_an_end(known: SlurmJob, words: str) -> None:
    assert words in verdict(known).description


def test_a_look_from_before_the_submission_says_nothing() -> None:
    # Job numbers begin anew with a new controller: what is known of number 7 is of another job.
    for known in ([], [job("FAILED")]):
        told = verdict(*known, submitted_s=ASKED_S + 0.5, missing=1.0, latency_s=0.0)
        assert (told.alive, told.state, told.missing_since_s) == (True, SUBMITTED, None)


def test_a_submission_of_the_future_does_not_hide_an_end() -> None:
    assert not verdict(job("FAILED"), submitted_s=ASKED_S + 3600, missing=ASKED_S - 100).alive


def test_a_forgotten_job_is_lost_after_a_grace_and_never_at_once() -> None:
    first = verdict(latency_s=0.0, now=2001.0)
    assert (first.alive, first.state, first.missing_since_s) == (True, LOST, 2001.0)
    assert verdict(latency_s=0.0, now=2010.0, asked_s=2009.0, missing=2001.0).alive
    assert verdict(latency_s=0.0, now=2500.0, asked_s=2000.0, missing=2001.0).alive
    last = verdict(latency_s=0.0, now=2100.0, asked_s=2090.0, missing=2001.0)
    assert (last.alive, last.state) == (False, LOST)
    assert "lost" in last.description


def test_accounting_that_is_late_does_not_keep_a_job_alive_for_ever() -> None:
    known = job("RUNNING", hosts=("host1",), queued=False)
    first = verdict(known, now=2001.0)
    assert (first.alive, first.missing_since_s) == (True, 2001.0)
    last = verdict(known, now=2100.0, asked_s=2090.0, missing=2001.0)
    assert (last.alive, last.state, last.hosts) == (False, LOST, ("host1",))


def test_a_job_that_is_seen_again_begins_its_grace_anew() -> None:
    assert verdict(job("PENDING", "BeginTime"), missing=5.0).missing_since_s is None


def test_nothing_is_lost_while_the_controller_does_not_answer() -> None:
    told = verdict(reachable=False, missing=1.0, now=1e6)
    assert (told.alive, told.missing_since_s) == (True, None)
    assert "connect failure" in told.description
    running = verdict(job("RUNNING", hosts=("host1",)), reachable=False)
    assert (running.alive, running.state) == (True, "RUNNING")
    assert "does not answer" in running.description
    assert not verdict(job("FAILED"), reachable=False, missing=1.0).alive


def test_a_clock_that_was_set_back_begins_the_grace_anew() -> None:
    told = verdict(job("FAILED"), now=3000.0, missing=9000.0)
    assert (told.alive, told.missing_since_s) == (True, 3000.0)


@pytest.mark.parametrize(
    "reason",
    [
        "ReqNodeNotAvail, UnavailableNodes:host[3-4]",
        "ReqNodeNotAvail,_UnavailableNodes:host[3-4]",
        "ReqNodeNotAvail(Unavailable:host[3-4])",
    ],
)
def test_hosts_that_are_down_are_named(reason: str) -> None:
    told = verdict(job("PENDING", reason))
    assert (told.alive, told.needs_hosts, told.hosts) == (True, True, ("host3", "host4"))


@pytest.mark.parametrize(
    "reason",
    [
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "ReqNodeNotAvail, UnavailableNodes:",
    ],
)
def test_a_reason_that_a_waiting_job_has_too_is_no_statement_that_it_cannot_start(reason: str) -> None:
    told = verdict(job("PENDING", reason))
    assert (told.alive, told.stuck, told.needs_hosts, told.hosts) == (True, True, True, ())
    assert told.description == f"waits in the queue ({reason})"


# Reason codes: squeue(1), slurm.schedmd.com/job_reason_codes.html (25.05), and what 22.05 printed (tests/data/slurm).
@pytest.mark.parametrize(
    "reason",
    [
        "BadConstraints",
        "launch failed requeued held",
        "DependencyNeverSatisfied",
        "PartitionDown",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "Job's account not permitted to use this partition (their allows other not root)",
        "AccountNotAllowed",
        "InvalidQOS",
        "AssocGrpCPUMinutesLimit",
        "AssocGrpBillingMinutes",
        "QOSGrpWallLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSMinGRES",
        "AssociationTimeLimit",
        "ReservationDeleted",
    ],
)
def test_a_reason_that_does_not_pass_is_told(reason: str) -> None:
    told = verdict(job("PENDING", reason))
    assert (told.alive, told.stuck) == (True, True)
    assert reason in told.description
    assert not verdict(job("PENDING", reason), reachable=False).stuck


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "Priority",
        "Resources",
        "BeginTime",
        "JobArrayTaskLimit",
        "Dependency",
        "Licenses",
        "Reservation",
        "ReqNodeNotAvail, May be reserved for other job",
        "ReqNodeNotAvail, Reserved for maintenance",
        "AssocMaxJobsLimit",
        "AssocGrpNodeLimit",
        "AssocGrpGRES",
        "AssocGrpCPURunMinutesLimit",
        "QOSMaxJobsPerAccountLimit",
        "QOSMaxGRESPerUser",
        "Cleaning",
    ],
)
def test_a_reason_that_passes_is_waited_for(reason: str) -> None:
    told = verdict(job("PENDING", reason))
    assert (told.alive, told.stuck) == (True, False)
    assert "waits in the queue" in told.description


@pytest.mark.parametrize("state", ["PENDING", "REQUEUE_HOLD"])
@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin"])
def test_a_job_that_a_person_holds_is_waited_for(state: str, reason: str) -> None:
    told = verdict(job(state, reason))
    assert (told.alive, told.stuck, told.held) == (True, False, True)
    assert f"scontrol release {job(state, reason).job_id}" in told.description


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
def test_a_job_that_was_requeued_to_be_held_is_stuck(state: str) -> None:
    told = verdict(job(state))
    assert (told.alive, told.stuck) == (True, True)


@pytest.mark.parametrize("state", ["COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "POWER_UP_NODE", "UNKNOWN"])
def test_a_state_on_the_way_is_waited_for(state: str) -> None:
    told = verdict(job(state, hosts=("host1",)), missing=1.0)
    assert (told.alive, told.stuck, told.hosts) == (True, False, ("host1",))


def test_the_queue_of_a_real_slurm() -> None:
    text = saved("squeue") + saved("squeue-ended").replace("\n5|", "\n55|")
    jobs = {each.job_id: each for each in parse_squeue(text)}
    told = {name: verdict(*jobs.values(), job_id=name, now=ASKED_S, latency_s=0.0) for name in jobs}
    assert {name for name, each in told.items() if each.stuck or each.held} == {"5"}
    assert not told["21"].alive
    assert told["21"].hosts == ("host2",)
    assert told["22"].alive


def test_the_pending_jobs_of_a_real_slurm() -> None:
    for each in parse_squeue(saved("squeue-pending")):
        told = verdict(each, job_id=each.job_id, now=ASKED_S, latency_s=0.0)
        assert told.alive
        assert told.stuck != told.held


def test_the_accounting_of_a_real_slurm() -> None:
    ended = [each for each in parse_sacct(saved("sacct")) if not each.is_active]
    assert len(ended) > 5
    for each in ended:
        told = verdict(each, job_id=each.job_id, now=ASKED_S, missing=ASKED_S - 60)
        assert (told.alive, told.hosts) == (False, each.hosts)
