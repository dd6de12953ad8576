"""The state of a submitted job, from its result file and what Slurm reports. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from campaign.slurm.parse import SlurmJob, parse_hosts_or_empty
from campaign.slurm.poll import QueueSnapshot

LOST = "LOST"
SUBMITTED = "SUBMITTED"
DONE = "DONE"
QUEUED_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})

_LOST_S = 30.0

# Reasons of pending jobs that somebody has to do something about: slurm.schedmd.com/job_reason_codes.html, and slurmctld 22.05.
# A limit of what an account may use at once is none of them: it passes when others' jobs end.
_HELD_REASON = re.compile(r"JobHeld(User|Admin)")
_STUCK_REASONS: tuple[tuple[str, str], ...] = (
    (r"BadConstraints", "no host has what it requests"),
    (r"DependencyNeverSatisfied", "the job that it depends on failed"),
    (r"held", "Slurm holds it; `scontrol release` lets it start"),
    (r"ReservationDeleted", "its reservation is gone"),
    (r"PartitionDown|PartitionInactive|partition .*(down|inactive)", "its partition is closed"),
    (r"Partition(NodeLimit|TimeLimit|Config)", "its partition does not allow so many hosts or so long a time"),
    (r"(Account|QOS)NotAllowed|Invalid(Account|QOS)|not permitted", "its account or quality of service may not run it"),
    (
        r"(Assoc|QOS)\w*(Per(Job|Node)|MinGRES|NotSatisfied|TimeLimit|UsageThreshold)",
        "it requests more than its limits allow",
    ),
    (r"(Assoc|QOS)\w*((?<!Run)Minutes|Wall)", "the limit of its account or quality of service is used up"),
)
# Slurm gives these also to a job that only waits: behind a partition of higher priority, or for hosts that wake up.
_HOSTS_AWAY = re.compile(r"ReqNodeNotAvail.*Unavailable|NodeDown|DOWN, DRAINED|DOWN,_DRAINED")


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job, judged from the queue and the result file.

    Args:
        alive: True to keep waiting.
        state: state of Slurm, or DONE, SUBMITTED (not polled since), LOST (unknown to Slurm).
        words: what the job does or did, as the end of a sentence that starts with its name.
        hosts: hosts on which the job runs or ran; for a stuck job, those that it waits for.
        done: True if the result file exists (then not alive, whatever Slurm reports).
        stuck: True if the job is pending for a reason that does not pass by itself.
        needs_hosts: True if the job is stuck only if hosts that it needs are down or drained, by the state of the hosts.
        held: True if a person holds the job until a person releases it.
        missing_since_s: time since which the job has been known to have ended without a result; argument of the next `judge`.
    """

    alive: bool
    state: str
    words: str
    hosts: tuple[str, ...] = ()
    done: bool = False
    stuck: bool = False
    needs_hosts: bool = False
    held: bool = False
    missing_since_s: float | None = None


def judge_job_state(
    job_id: str,
    snapshot: QueueSnapshot,
    *,
    result_there: bool,
    submitted_s: float,
    now_s: float,
    latency_s: float,
    first_missing_s: float | None,
    number_of_another: bool = False,
) -> JobState:
    """Judge the state of a job from a snapshot of the queue. All times are Unix seconds of this machine's clock.

    Args:
        job_id: id of the job.
        snapshot: snapshot of the queue.
        result_there: True if the result file exists, checked after the snapshot was taken.
        submitted_s: time of the submission.
        now: current time.
        latency_s: delay in seconds with which files may appear; an ended job may lack its result for so long.
        first_missing_s: `missing_since_s` of the last verdict, None at first.
        number_of_another: True if the job that the snapshot shows under this id is another one.
    """
    job = snapshot.jobs.get(job_id)
    if result_there:
        return JobState(False, DONE, "is done", job.hosts if job else (), done=True)
    # A clock that was set back since makes a submission of the future; then the look is as good as any.
    if snapshot.asked_s < submitted_s <= now_s:
        return JobState(True, SUBMITTED, "was submitted")
    if number_of_another:
        return JobState(False, LOST, "is lost: Slurm has given its number to another job, and it left no result")
    if job is not None and job.is_active and job.queued:
        return _judge_active(job, snapshot)
    since_s = now_s if first_missing_s is None or first_missing_s > now_s else first_missing_s
    if job is not None and not job.is_active:
        # One that was cancelled in the queue has written nothing that could be late.
        never_started = job.state == "CANCELLED" and not job.hosts
        return _judge_ended(job, since_s, alive=not never_started and now_s - since_s < latency_s)
    if not snapshot.reachable:
        words = f"has an unknown state: Slurm does not answer ({snapshot.problem or 'no message'})"
        return JobState(True, SUBMITTED, words, job.hosts if job else ())
    # Only of two looks that both lack it, the second after the first verdict: never at once, even when files are not late.
    waits = now_s - since_s < max(latency_s, _LOST_S) or snapshot.asked_s <= since_s
    # Neither in the queue nor ended according to the accounting, which may be off or late.
    words = "left the queue, and the accounting does not say how it ended"
    if not waits:
        words = "is lost: Slurm does not know it any more, and it left no result"
    return JobState(waits, LOST, words, job.hosts if job else (), missing_since_s=since_s)


def _judge_active(job: SlurmJob, snapshot: QueueSnapshot) -> JobState:
    if job.state in QUEUED_STATES:
        verdict = _judge_pending(job)
    else:
        where = f" on {', '.join(job.hosts)}" if job.hosts else ""
        words = f"is {job.state.lower().replace('_', ' ')}"
        verdict = JobState(True, job.state, f"{words}{where}", job.hosts)
    if snapshot.reachable:
        return verdict
    # What kept it from starting may have passed meanwhile.
    return replace(verdict, words=f"{verdict.words} (last known state: Slurm does not answer)", stuck=False)


def _judge_pending(job: SlurmJob) -> JobState:
    if _HELD_REASON.search(job.reason):
        words = (
            f"is held, and waited for until `scontrol release {job.job_id}` lets it start (Slurm says: {job.reason})"
        )
        return JobState(True, job.state, words, held=True)
    meaning = next((words for pattern, words in _STUCK_REASONS if re.search(pattern, job.reason)), "")
    if job.state in ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"):
        meaning = meaning or "Slurm holds it; `scontrol release` lets it start"
    if meaning:
        return JobState(True, job.state, f"cannot start: {meaning} (Slurm says: {job.reason})", stuck=True)
    words = f"waits in the queue{f' ({job.reason})' if job.reason else ''}"
    if not _HOSTS_AWAY.search(job.reason):
        return JobState(True, job.state, words)
    lacking = re.search(r"Unavailable(?:Nodes)?:([^\s()]+)", job.reason)
    hosts = parse_hosts_or_empty(lacking[1]) if lacking else ()
    return JobState(True, job.state, words, hosts, stuck=True, needs_hosts=True)


def _judge_ended(job: SlurmJob, since_s: float, alive: bool) -> JobState:
    words = f"ended as {job.state}"
    if job.hosts:
        words += f" on {', '.join(job.hosts)}"
    if job.exit_code and job.state == "FAILED":
        words += f" by signal {-job.exit_code}" if job.exit_code < 0 else f" with exit status {job.exit_code}"
    words += ", and its result is not there yet" if alive else ", and left no result"
    return JobState(alive, job.state, words, job.hosts, missing_since_s=since_s)
