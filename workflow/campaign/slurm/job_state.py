"""State of a submitted job, judged from its result file and the reports of Slurm. Pure."""

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

# Reasons of pending jobs that need intervention, from slurm.schedmd.com/job_reason_codes.html and slurmctld 22.05. A limit on
# what an account may use at the same time is not among them, because it passes when other jobs end.
_HELD_REASON = re.compile(r"JobHeld(User|Admin)")
_STUCK_REASONS: tuple[tuple[str, str], ...] = (
    (r"BadConstraints", "no host has the resources that it requests"),
    (r"DependencyNeverSatisfied", "the job that it depends on failed"),
    (r"held", "Slurm holds it; `scontrol release` lets it start"),
    (r"ReservationDeleted", "its reservation was deleted"),
    (r"PartitionDown|PartitionInactive|partition .*(down|inactive)", "its partition is down or inactive"),
    (r"Partition(NodeLimit|TimeLimit|Config)", "its partition does not allow that many hosts or that much time"),
    (r"(Account|QOS)NotAllowed|Invalid(Account|QOS)|not permitted", "its account or quality of service may not run it"),
    (
        r"(Assoc|QOS)\w*(Per(Job|Node)|MinGRES|NotSatisfied|TimeLimit|UsageThreshold)",
        "it requests more than its account or quality of service allows",
    ),
    (r"(Assoc|QOS)\w*((?<!Run)Minutes|Wall)", "the limit of its account or quality of service is used up"),
)
# Slurm also reports these reasons for a job that only waits for a partition of higher priority, or for hosts that power up.
_HOSTS_AWAY = re.compile(r"ReqNodeNotAvail.*Unavailable|NodeDown|DOWN, DRAINED|DOWN,_DRAINED")


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job, judged from the queue and the result file.

    Args:
        alive: True if it is worth waiting for the job.
        state: state of Slurm, or DONE, SUBMITTED (not polled since), LOST (unknown to Slurm).
        words: description of the state as a predicate, such as "is running on host1".
        hosts: hosts on which the job runs or ran; for a stuck job, those that it waits for.
        done: True if the result file exists (then not alive, whatever Slurm reports).
        stuck: True if the job is pending for a reason that does not pass by itself.
        needs_hosts: True if the job is stuck only if the hosts that it needs are down or drained.
        held: True if a user or administrator holds the job.
        missing_since_s: time at which the job was first found to have ended without a result, in Unix seconds.
    """

    alive: bool
    state: str
    description: str
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
    has_result: bool,
    submitted_s: float,
    now_s: float,
    latency_s: float,
    first_missing_s: float | None,
    id_is_reused: bool = False,
) -> JobState:
    """Judge the state of a job from a snapshot of the queue. All times are Unix seconds of this machine's clock.

    Args:
        job_id: id of the job.
        snapshot: snapshot of the queue.
        has_result: True if the result file exists, checked after the snapshot was taken.
        submitted_s: time of the submission.
        now_s: current time.
        latency_s: delay in seconds with which files may appear; the result of an ended job may be missing for that long.
        first_missing_s: `missing_since_s` of the previous verdict; None for the first one.
        id_is_reused: True if the snapshot shows another job with this id.
    """
    job = snapshot.jobs.get(job_id)
    if has_result:
        return JobState(False, DONE, "is done", job.hosts if job else (), done=True)
    # If the clock was set back, the submission seems to be in the future. The snapshot is then used as it is.
    if snapshot.asked_s < submitted_s <= now_s:
        return JobState(True, SUBMITTED, "was submitted")
    if id_is_reused:
        return JobState(False, LOST, "is lost: Slurm has given its id to another job, and it left no result")
    if job is not None and job.is_active and job.queued:
        return _judge_active(job, snapshot)
    since_s = now_s if first_missing_s is None or first_missing_s > now_s else first_missing_s
    if job is not None and not job.is_active:
        # A job that was cancelled in the queue has written nothing that could appear late.
        never_started = job.state == "CANCELLED" and not job.hosts
        return _judge_ended(job, since_s, alive=not never_started and now_s - since_s < latency_s)
    if not snapshot.reachable:
        words = f"has an unknown state: Slurm does not answer ({snapshot.problem or 'no message'})"
        return JobState(True, SUBMITTED, words, job.hosts if job else ())
    # A job is lost only if two polls lack it, the second one after the first verdict, even if files are never late.
    waits = now_s - since_s < max(latency_s, _LOST_S) or snapshot.asked_s <= since_s
    # The accounting may be disabled or late.
    words = "left the queue, and the accounting does not show how it ended"
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
    # The reason that kept the job from starting may no longer apply.
    return replace(verdict, description=f"{verdict.description} (last known state: Slurm does not answer)", stuck=False)


def _judge_pending(job: SlurmJob) -> JobState:
    if _HELD_REASON.search(job.reason):
        words = f"is held; the campaign waits until `scontrol release {job.job_id}` lets it start (Slurm says: {job.reason})"
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
    words = f"ended in state {job.state}"
    if job.hosts:
        words += f" on {', '.join(job.hosts)}"
    if job.exit_code and job.state == "FAILED":
        words += f" by signal {-job.exit_code}" if job.exit_code < 0 else f" with exit status {job.exit_code}"
    words += ", and its result has not appeared yet" if alive else ", and left no result"
    return JobState(alive, job.state, words, job.hosts, missing_since_s=since_s)
