"""Drivers as Slurm jobs, submitted by submitit: one allocation a lease.

Each lease has a process of its own, which submits its job; the lock `submit.lock` has one of them submit at a time. When Slurm
takes no more jobs, all of them wait together (`waits.json`), and one of them tries again after a while.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from campaign import files
from campaign.config.resolve import Campaign
from campaign.config.resolve_slurm_options import given_options, options_of, time_limit_min
from campaign.config.system_file import SlurmOptions, SystemFile
from campaign.documents.driver_messages import DriverRequest
from campaign.documents.lease_plan import LeaseForecast, LeasePlan, read_lease_plan
from campaign.documents.record import Store
from campaign.errors import ConfigError, LaunchError
from campaign.fabrics.hardware import Composition
from campaign.lease.campaign_leases import lease_id
from campaign.paths import Results
from campaign.plan.missing_runs import read_known
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.cut_short import FirstRun
from campaign.slurm.excluded_hosts import ExcludedHosts, outage
from campaign.slurm.job_state import QUEUED, JobState, judge
from campaign.slurm.listed_hosts import TIME_LIMITS, parse_time_limit_min
from campaign.slurm.poll import Poll
from campaign.slurm.refusal import LISTED, Refusal
from campaign.slurm.sbatch_options import sbatch_parameters
from campaign.slurm.strategies import open_strategy
from campaign.slurm.strategies.controller import NODES, parse_nodes
from campaign.submit.job_submission import JobSubmissions, UnansweredSubmission
from campaign.submit.protocol import Fate, MakeDriver, StillQueued, Submission

_LOCK_S = 0.1
_STOP_S = 90.0  # KillWait, and a slow epilog
_STOP_LOOK_S = 10.0
_LOOK_S = 0.5
_TIME_LIMITS_S = 600.0  # partitions seldom change


class SlurmSubmitter:
    """See `protocol.Submitter`. All processes of a campaign share `results.slurm`."""

    outlives = True

    def __init__(self, campaign: Campaign, results: Results, driver: MakeDriver, say: Callable[[str], None]) -> None:
        self.campaign = campaign
        self.driver = driver
        self.settings = campaign.system.slurm
        self.results = results
        self.say = say
        self.directory = results.slurm.resolve()
        self.slurm = Slurm(results.slurm_calls.resolve())
        self.poll = Poll(self.directory, self.slurm, self.settings.poll_s)
        self.submissions = JobSubmissions(results, self.slurm, self.poll)
        self._wait_file = self.directory / "waits.json"
        self.look_s = min(_LOOK_S, self.settings.poll_s)
        self.latency_s = self.settings.latency_s
        self._missing_since: dict[str, float | None] = {}
        self._stuck: dict[str, float] = {}  # since when it has been seen that they cannot start
        self._ran_on: dict[str, tuple[str, ...]] = {}
        self._said = ""

    # -- submitting --------------------------------------------------------------------------------------------------------

    def submit(self, request: DriverRequest, queue_s: float = math.inf) -> Submission:
        lease, until = request.lease, time.monotonic() + queue_s
        if (there := self._submitted(lease)) is not None:
            raise LaunchError(
                f"job {there.job_id} of an earlier driver is still there; 'scancel {there.job_id}' ends it"
            )
        parameters = self.parameters(request)
        while (found := self._submitted(lease)) is None:
            with files.try_lock(self.directory / "submit.lock") as is_mine:
                if is_mine and not self._read_wait()[0]:
                    self._submit(request, parameters)
                    continue
            words, left_s = self._read_wait()
            self._say_once(words)
            if time.monotonic() > until:
                raise StillQueued(words or "Slurm takes no more jobs")
            time.sleep(max(_LOCK_S, min(left_s, until - time.monotonic())))
        return found

    def _submit(self, request: DriverRequest, parameters: dict[str, Any]) -> None:
        """Submit, or write down what all have to wait for; under the lock. ConfigError, LaunchError: Slurm refused."""
        try:
            self.submissions.settle(request.lease)
        except UnansweredSubmission as error:
            self._write_wait(str(error))
            return
        if self._submitted(request.lease) is not None:
            return
        limit = self.settings.max_jobs
        if limit is not None and self._count_queued() >= limit:
            self._write_wait(f"max_jobs is {limit}, and so many jobs are queued; waiting until some have ended")
            return
        refusal = self.submissions.submit(self.driver(request), parameters, self._comment(request, parameters))
        if refusal is None:
            return
        if refusal.kind not in ("wait", "transient"):
            self._raise_refusal(refusal, request, parameters)
        self._write_wait(refusal.words)

    def _write_wait(self, words: str) -> None:
        """Have no process try before the next look at the queue."""
        files.write_json(self._wait_file, {"words": words, "until_s": time.time() + self.settings.poll_s})

    def _read_wait(self) -> tuple[str, float]:
        """Read what all processes wait for, and for how long still (s); empty and 0 when one of them may try."""
        document = files.read_json(self._wait_file)
        left_s = document.get("until_s", 0.0) - time.time()
        # Clocks of login nodes differ: nobody waits longer than from one look to the next.
        return (document["words"], left_s) if 0 < left_s <= self.settings.poll_s else ("", 0.0)

    def _say_once(self, words: str) -> None:
        if words and words != self._said:
            self._said = words
            self.say(words)

    def parameters(self, request: DriverRequest) -> dict[str, Any]:
        """Parameters for sbatch (`slurm.sbatch_options`)."""
        planned = read_lease_plan(Path(request.lease_plan))
        known = read_known(Store(self.results.directory), skip_implied=self.campaign.protocol.skip_implied)
        missing = known.missing(planned.work)
        longest_s = sum(cell.settings.time_limit_s for cell, _ in missing)
        system = self.campaign.system
        hosts = _pinned_hosts(system, request)
        given = given_options(planned.slurm)
        self._tell_short(system, planned, given)
        # A forecast that a run has outlasted is none.
        outlasted = FirstRun(self.results.work(request.lease)).was_cut_short()
        expected_s = None if outlasted else _expected_s(planned.forecast, len(missing))
        options = options_of(system, planned.configuration, given)
        return sbatch_parameters(
            self.campaign.name,
            system,
            planned.configuration,
            given,
            time_min=self._limit_time(options, time_limit_min(expected_s, longest_s)),
            hosts=hosts,
            excluded=() if hosts else ExcludedHosts(self.directory).current(),
            # By the lease's own id, as `begin` was told it; the request's is that of this use of it.
            further=open_strategy(system, self.slurm, self.say).options(lease_id(self.results, request.lease)),
        )

    def _limit_time(self, options: SlurmOptions, time_min: int) -> int:
        """Return the time limit of a job, at most what its partition allows: a driver goes on in another job.

        Raises ConfigError if the system file sets a longer one.
        """
        # A quality of service may lift the limit of a partition, and options of sbatch may replace both.
        if options.qos or {"time", "partition", "qos", "clusters", "reservation"} & options.additional.keys():
            return time_min
        limit_min = parse_time_limit_min(self._read_time_limits(), options.partition)
        if limit_min is None:
            return time_min
        if options.time_min is not None and options.time_min > limit_min:
            raise ConfigError(
                f"system {self.campaign.system.name}: slurm: time_min is {options.time_min} min, and partition "
                f"{options.partition or '(the default)'} allows {limit_min} min at most; lower or remove `slurm.time_min`"
            )
        return min(time_min, limit_min)

    def _read_time_limits(self) -> str:
        """Read the answer to TIME_LIMITS, for which one process of the campaign asks once in a while."""
        path = self.directory / "time_limits.json"
        with files.lock(path.with_suffix(".lock")):
            document = files.read_json(path)
            if not 0 <= time.time() - document.get("time_s", 0.0) < _TIME_LIMITS_S:
                document = {"time_s": time.time(), "answer": self.slurm(*TIME_LIMITS).out}
                files.write_json(path, document)
        return str(document["answer"])

    def _tell_short(self, system: SystemFile, planned: LeasePlan, given: SlurmOptions) -> None:
        """Say before anything is submitted that a job will be shorter than one of its runs."""
        limit_min = options_of(system, planned.configuration, given).time_min
        expected_s = _expected_s(planned.forecast, 1)
        if limit_min is not None and expected_s is not None and expected_s > 60 * limit_min:
            self._say_once(
                f"a run of {planned.configuration.name} is expected to take {expected_s / 60:.3g} min, longer than its whole job "
                f"(slurm.time_min: {limit_min}): it will be recorded as time_limit; raise or remove slurm.time_min"
            )

    def _count_queued(self) -> int:
        """Count the campaign's jobs in the queue, also those that the last look does not show yet."""
        snapshot = self.poll.snapshot()
        queued = sum(job.active and job.name.startswith(f"{self.campaign.name}/") for job in snapshot.jobs.values())
        return queued + self.submissions.count_unseen(snapshot)

    def _comment(self, request: DriverRequest, parameters: dict[str, Any]) -> str:
        """What a job says of itself to a ResumeProgram."""
        configuration = parameters["job_name"].partition("/")[2]
        return (
            f"campaign={request.lease_plan} results={self.results.root.resolve()} configuration={configuration} "
            f"python={sys.executable}"
        )

    def _raise_refusal(self, refusal: Refusal, request: DriverRequest, parameters: dict[str, Any]) -> NoReturn:
        mistake = refusal.kind == "mistake"
        words = f"sbatch refused {parameters['job_name']}: {refusal.words}"
        if mistake:
            asked = f", which asks for {hosts}" if (hosts := parameters.get("nodelist")) else ""
            words = f"system {self.campaign.system.name}: slurm: {request.lease}{asked}: {refusal.words}"
        if refusal.key in LISTED:
            what, form = LISTED[refusal.key]
            there = sorted(set(self.slurm("sinfo", "--noheader", f"--format={form}").out.split()))
            words += f"; {what} here: {', '.join(there)}" if there else ""
        raise (ConfigError if mistake else LaunchError)(words)

    # -- finding again -----------------------------------------------------------------------------------------------------

    def find(self, lease: str) -> Submission | None:
        while submitted_jobs.read_unanswered(self.results, lease) is not None:
            try:
                self.submissions.settle(lease)
            except UnansweredSubmission as error:
                self._say_once(str(error))
                time.sleep(self.settings.poll_s)
        found = self._submitted(lease)
        if found is None or found.result_file.exists():
            return found
        if self._verdict(
            found
        ).alive:  # by the shared look: a campaign that is picked up is not to ask once for each lease
            return found
        self.forget(lease)
        return None

    def _submitted(self, lease: str) -> Submission | None:
        job = submitted_jobs.read(self.results, lease)
        return Submission(job.request, job.job_id, Path(job.folder)) if job else None

    # -- watching and ending -----------------------------------------------------------------------------------------------

    def _verdict(self, submission: Submission) -> JobState:
        snapshot = self.poll.snapshot()
        job = submitted_jobs.read(self.results, submission.lease)
        shown = snapshot.jobs.get(submission.job_id)
        # What the accounting says of a number is only asked for jobs that have left the queue.
        another = job is not None and shown is not None and shown.queued and not job.is_shown_by(shown)
        verdict = judge(
            submission.job_id,
            snapshot,
            result_there=submission.result_file.exists(),
            submitted_s=job.submitted_s if job else 0.0,
            now=time.time(),
            latency_s=self.latency_s,
            first_missing_s=self._missing_since.get(submission.job_id),
            number_of_another=another,
        )
        self._missing_since[submission.job_id] = verdict.missing_since_s
        if not verdict.stuck:
            self._stuck.pop(submission.job_id, None)
            return verdict
        # To a controller that has just restarted all hosts are down until it hears from them: a pending job is given up only
        # when all looks of a while find that it cannot start.
        first_s = self._stuck.setdefault(submission.job_id, snapshot.asked_s)
        gives_up = snapshot.asked_s > first_s and snapshot.asked_s - first_s >= self.latency_s
        if not gives_up:
            return verdict
        # Where no host of the system is well, another job would not start either.
        if outage(self.campaign.system, self._all_unwell()):
            return verdict
        if verdict.needs_hosts:
            away = self._find_hosts_away(verdict, _pinned_hosts(self.campaign.system, submission.request))
            if not away:
                self._stuck[submission.job_id] = snapshot.asked_s  # not looked at again for the latency
                return verdict
            words = f"cannot start: hosts that it needs are down or drained: {', '.join(away)}; it {verdict.words}"
            return replace(verdict, alive=False, words=words)
        return replace(verdict, alive=False)

    def _find_hosts_away(self, verdict: JobState, pinned: Sequence[str]) -> list[str]:
        """Return the hosts without which a pending job cannot start and that are down or drained, by the state of the hosts."""
        broken = {name for name, node in parse_nodes(self.slurm(*NODES).out).items() if node.broken}
        if pinned:
            return [host for host in pinned if host in broken]
        # Any of the others that the reason lists would do.
        return list(verdict.hosts) if {*verdict.hosts} <= broken else []

    def fate(self, submission: Submission) -> Fate:
        verdict = self._verdict(submission)
        words = f"job {submission.job_id}: {verdict.words}"
        if verdict.done:
            return Fate(True, words)
        if not verdict.alive:
            pinned = _pinned_hosts(self.campaign.system, submission.request)
            return Fate(False, words, self._unwell({*verdict.hosts, *pinned}))
        if verdict.state == "RUNNING":
            self._ran_on[submission.job_id] = verdict.hosts
        # Hosts that it ran on until Slurm put it back into the queue; told once.
        failed = self._unwell(self._ran_on.pop(submission.job_id, ()) if verdict.state in QUEUED else ())
        # Slurm starts it on other hosts, unless it is told which.
        queued = verdict.state in QUEUED and not verdict.held
        return Fate(not (failed and self.campaign.system.pins_hosts), words, failed, queued)

    def _unwell(self, hosts: Collection[str]) -> dict[str, str]:
        """The hosts that Slurm itself finds unwell while others are well, and in which way."""
        unwell = self._all_unwell() if hosts else {}
        # What befell all of them is no host's fault.
        return {} if outage(self.campaign.system, unwell) else {host: unwell[host] for host in hosts if host in unwell}

    def _all_unwell(self) -> dict[str, str]:
        """All hosts that Slurm finds unwell, and in which way; not those that a controller which has just started awaits."""
        return {
            name: f"Slurm says {', '.join(sorted(node.state))}{node.reason and f': {node.reason}'}"
            for name, node in parse_nodes(self.slurm(*NODES).out).items()
            if node.broken or any("reboot" in word for word in node.state)
        }

    def stop(self, lease: str) -> None:
        try:
            self.submissions.settle(lease)
        except UnansweredSubmission as error:
            self.say(f"{error}; the same command again looks for it")
        found = self._submitted(lease)
        if found is None or self._ended(found):
            self.forget(lease)
        else:
            self.say(f"job {found.job_id} is still there after {_STOP_S:g} s; 'scancel {found.job_id}' ends it")

    def _ended(self, submission: Submission) -> bool:
        """Cancel a job, if it still is the one of this number, and wait for its end. False: it could not be had."""
        pause_s, since_s, until = _LOCK_S, time.time(), time.monotonic() + _STOP_S
        job = submitted_jobs.read(self.results, submission.lease)
        cancelled = False
        while job is not None and not submission.result_file.exists():
            there = self._is_there(job, since_s)
            if there is False:
                return True
            if there and not cancelled:
                answer = self.slurm("scancel", job.job_id)
                cancelled = answer.ok or "Invalid job id" in answer.err  # it has ended meanwhile
            if time.monotonic() > until:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _STOP_LOOK_S)
        return True

    def _is_there(self, job: submitted_jobs.Submitted, since_s: float) -> bool | None:
        """Whether a job is queued or runs, by a look that all who stop share; None: not known to a look from `since_s` on."""
        look = self.poll.snapshot(fresh=True)
        shown = look.jobs.get(job.job_id)
        if shown is not None and shown.active and job.is_shown_by(shown):
            return True
        if not look.reachable or look.asked_s < since_s:
            return None
        return shown is None and submitted_jobs.is_there(job, self.slurm)  # not this user's, perhaps

    def end_left_behind(self) -> None:
        """Cancel jobs that no lease waits for, such as one that a controller that was killed remembers again."""
        for job_id in self.submissions.list_left_behind(self.poll.snapshot(fresh=True)):
            self.say(f"job {job_id} was given up earlier and is still there; it is cancelled")
            self.slurm("scancel", job_id)

    def forget(self, lease: str) -> None:
        found = self._submitted(lease)
        if found is not None:
            self.poll.forget(found.job_id)
            submitted_jobs.remove(self.results, lease)


def _pinned_hosts(system: SystemFile, request: DriverRequest) -> list[str]:
    """Hosts of the composition, where it says which are used."""
    if request.composition is None or not system.pins_hosts:
        return []
    return [host.name for host in Composition.from_document(request.composition).hosts]


def _expected_s(forecast: LeaseForecast | None, runs: int) -> float | None:
    """Expected duration of so many runs of a lease, by the forecast of its plan; None where it is unknown."""
    if forecast is None or not forecast.runs or forecast.runs_s is None:
        return None
    return forecast.runs_s * min(1.0, runs / forecast.runs)


open_submitter = SlurmSubmitter
