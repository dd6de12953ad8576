"""Drivers as Slurm jobs, submitted by submitit: one allocation a lease, and one array for the leases whose allocations are alike.

Each lease has a process of its own that asks; whoever of them gets the lock submits for all that ask at that moment. When Slurm
takes no more jobs, all of them wait together, and one of them tries again after a while.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign import files
from campaign.config.resolve import Campaign
from campaign.config.resolve_slurm_options import given_options, options_of, time_limit_min
from campaign.config.system_file import SlurmOptions, SystemFile
from campaign.documents.driver_messages import DriverRequest
from campaign.documents.lease_plan import LeaseForecast, LeasePlan, read_lease_plan
from campaign.documents.record import Store
from campaign.errors import LaunchError
from campaign.fabrics.hardware import Composition
from campaign.lease.campaign_leases import lease_id
from campaign.paths import Results
from campaign.plan.missing_runs import read_known
from campaign.slurm import submitted_jobs
from campaign.slurm.commands import Slurm
from campaign.slurm.cut_short import FirstRun
from campaign.slurm.excluded_hosts import ExcludedHosts, outage
from campaign.slurm.job_state import QUEUED, JobState, judge
from campaign.slurm.parse import array_size_max
from campaign.slurm.poll import Poll
from campaign.slurm.refusal import LISTED, Refusal
from campaign.slurm.sbatch_options import sbatch_parameters
from campaign.slurm.strategies import open_strategy
from campaign.slurm.strategies.controller import NODES, parse_nodes
from campaign.submit.allocation_requests import MANY, AllocationRequest, AllocationRequests, Cancellations
from campaign.submit.batches import Batches, UnansweredSubmission
from campaign.submit.protocol import Fate, MakeDriver, StillQueued, Submission

_GATHER_S = 1.0  # each lease has a process of its own, and they start one after the other
_GATHERS = 20
_ASK_S = 0.1
_STOP_S = 90.0  # KillWait, and a slow epilog
_STOP_LOOK_S = 10.0
_LOOK_S = 0.5


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
        self.batches = Batches(results, self.directory, self.slurm, self.poll)
        self.cancellations = Cancellations(self.directory, self.slurm)
        self.requests = AllocationRequests(self.directory, self.settings.poll_s)
        self.look_s = min(_LOOK_S, self.settings.poll_s)
        self.latency_s = self.settings.latency_s
        self._missing_since: dict[str, float | None] = {}
        self._stuck: dict[str, float] = {}  # since when it has been seen that they cannot start
        self._ran_on: dict[str, tuple[str, ...]] = {}
        self._said = ""

    # -- asking ------------------------------------------------------------------------------------------------------------

    def submit(self, request: DriverRequest, queue_s: float = math.inf) -> Submission:
        lease, until = request.lease, time.monotonic() + queue_s
        if (there := self._submitted(lease)) is not None:
            raise LaunchError(
                f"job {there.job_id} of an earlier driver is still there; 'scancel {there.job_id}' ends it"
            )
        self.requests.ask(AllocationRequest(request, self.parameters(request)))
        try:
            while (found := self._submitted(lease)) is None:
                self.requests.raise_refusal(lease)
                with files.try_lock(self.directory / "submit.lock") as leads:
                    if leads:
                        self._lead(lease)
                words, left_s = self.requests.waiting()
                self._say_once(words)
                if time.monotonic() > until:
                    raise StillQueued(words or "Slurm takes no more jobs")
                time.sleep(max(_ASK_S, min(left_s, until - time.monotonic())))
            return found
        finally:
            self.requests.withdraw(lease)

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
        return sbatch_parameters(
            self.campaign.name,
            system,
            planned.configuration,
            given,
            time_min=time_limit_min(expected_s, longest_s),
            hosts=hosts,
            excluded=() if hosts else ExcludedHosts(self.directory).current(),
            # By the lease's own id, as `begin` was told it; the request's is that of this use of it.
            further=open_strategy(system, self.slurm, self.say).options(lease_id(self.results, request.lease)),
        )

    def _tell_short(self, system: SystemFile, planned: LeasePlan, given: SlurmOptions) -> None:
        """Say before anything is submitted that a job will be shorter than one of its runs."""
        limit_min = options_of(system, planned.configuration, given).time_min
        expected_s = _expected_s(planned.forecast, 1)
        if limit_min is not None and expected_s is not None and expected_s > 60 * limit_min:
            self._say_once(
                f"a run of {planned.configuration.name} is expected to take {expected_s / 60:.3g} min, longer than its whole job "
                f"(slurm.time_min: {limit_min}): it will be recorded as time_limit; raise or remove slurm.time_min"
            )

    def _lead(self, lease: str) -> None:
        """Submit for everybody who asks, unless all wait or the lease has its answer; under the lock."""
        if self.requests.waiting()[0] or self.requests.is_refused(lease) or self._submitted(lease) is not None:
            return
        if not self.requests.is_open(lease):
            raise LaunchError(
                f"{lease}: its request is gone though it is still asking; does the file system of {self.directory} lock files "
                "for all its hosts?"
            )
        self._gather()
        try:
            self.batches.recover()
        except UnansweredSubmission as error:
            self.requests.wait(str(error))
            return
        for group in self._alike():
            if not self._submit_group(group):
                return

    def _gather(self) -> None:
        """Wait for others that ask at the same time, as long as there come more."""
        asked = 0
        for _ in range(_GATHERS):
            if (now := self.requests.number()) == asked:
                return
            asked = now
            time.sleep(_GATHER_S)

    def _alike(self) -> list[list[AllocationRequest]]:
        """What is asked for, by what can be one array."""
        alike: dict[str, list[AllocationRequest]] = defaultdict(list)
        for lease, asked in self.requests.open():
            asker_lives = files.is_locked(self.results.measure_lock(lease))
            if asked is None or not asker_lives or self._submitted(lease) is not None:
                self.requests.withdraw(lease)
            else:
                # Equal but for their time limits: the longest of them is enough for all.
                alike[json.dumps({**asked.parameters, "time": None}, sort_keys=True)].append(asked)
        return list(alike.values())

    def _submit_group(self, group: Sequence[AllocationRequest]) -> bool:
        """Submit what is alike, in as few arrays as Slurm takes; False when what is left has to wait."""
        most = self.requests.at_once()
        while group:
            room = self._room()
            if room < 1:
                limit = f"max_jobs is {self.settings.max_jobs}"
                self.requests.wait(f"{limit}, and so many jobs are queued; waiting until some have ended", most)
                return False
            size = min(len(group), room, most)
            size = max(1, min(size, self._array_size())) if size > 1 else 1
            chunk = [asked for asked in group[:size] if self.requests.is_open(asked.request.lease)]
            if not chunk:
                group = group[size:]
                continue
            longest = max(chunk, key=lambda asked: asked.parameters["time"])
            drivers = [self.driver(asked.request) for asked in chunk]
            refusal = self.batches.submit(drivers, longest.parameters, self._comment(longest))
            if refusal is None:
                most = min(2 * most, MANY)
            elif refusal.kind == "wait" and size > 1:
                most = size // 2  # a limit may leave room for some of them
                continue
            elif refusal.kind in ("wait", "transient"):
                self.requests.wait(refusal.words, most)
                return False
            else:
                self._refuse(chunk, refusal)
            for asked in chunk:
                self.requests.withdraw(asked.request.lease)
            group = group[size:]
        return True

    def _room(self) -> int:
        """How many more jobs the campaign's own limit leaves room for."""
        limit = self.settings.max_jobs
        if limit is None:
            return MANY
        snapshot = self.poll.snapshot()
        queued = sum(job.active and job.name.startswith(f"{self.campaign.name}/") for job in snapshot.jobs.values())
        return limit - queued - self.batches.unseen(snapshot)

    def _array_size(self) -> int:
        """Most tasks of one array; asked once a campaign."""
        path = self.directory / "controller.json"
        try:
            return int(files.load_json(path)["array_size_max"])
        except (OSError, ValueError, KeyError, TypeError):
            answer = self.slurm("scontrol", "show", "config")
        if not answer.ok:
            return 1
        files.write_json(path, {"array_size_max": (most := array_size_max(answer.out))})
        return most

    def _comment(self, asked: AllocationRequest) -> str:
        """What a job says of itself to a ResumeProgram."""
        configuration = asked.parameters["job_name"].partition("/")[2]
        return (
            f"campaign={asked.request.lease_plan} results={self.results.root.resolve()} configuration={configuration} "
            f"python={sys.executable}"
        )

    def _refuse(self, chunk: Sequence[AllocationRequest], refusal: Refusal) -> None:
        """Tell those who asked; they raise it."""
        mistake = refusal.kind == "mistake"
        words = f"sbatch refused {chunk[0].parameters['job_name']}: {refusal.words}"
        if mistake:
            asked = f", which asks for {hosts}" if (hosts := chunk[0].parameters.get("nodelist")) else ""
            leases = ", ".join(each.request.lease for each in chunk)
            words = f"system {self.campaign.system.name}: slurm: {leases}{asked}: {refusal.words}"
        if refusal.key in LISTED:
            what, form = LISTED[refusal.key]
            there = sorted(set(self.slurm("sinfo", "--noheader", f"--format={form}").out.split()))
            words += f"; {what} here: {', '.join(there)}" if there else ""
        self.requests.refuse([asked.request.lease for asked in chunk], words, mistake=mistake)

    # -- finding again -----------------------------------------------------------------------------------------------------

    def find(self, lease: str) -> Submission | None:
        # Nobody is kept from asking while somebody submits, or what is asked for at one time would not be one array.
        while self.requests.is_open(lease) or submitted_jobs.is_begun(self.results, lease):
            try:
                # Of a process that died asking: for another use of the lease, perhaps.
                self._withdraw(lease)
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

    def _withdraw(self, lease: str) -> None:
        """Nobody asks for this lease any more, and what became of its batch is known. Unanswered: that has to wait."""
        with files.lock(self.directory / "submit.lock"):
            self.requests.withdraw(lease)
            self.batches.recover()

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
        # Where no host of the system is well, another job would not start either.
        if gives_up and not outage(self.campaign.system, self._all_unwell()):
            return replace(verdict, alive=False)
        return verdict

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
        self.requests.withdraw(lease)
        try:
            self._withdraw(lease)
        except UnansweredSubmission as error:
            self.say(f"{error}; the same command again looks for it")
        found = self._submitted(lease)
        if found is None or self._ended(found):
            self.forget(lease)
        else:
            self.say(f"job {found.job_id} is still there after {_STOP_S:g} s; 'scancel {found.job_id}' ends it")

    def _ended(self, submission: Submission) -> bool:
        """Cancel a job, if it still is the one of this number, and wait for its end. False: it could not be had."""
        pause_s, since_s, until = _ASK_S, time.time(), time.monotonic() + _STOP_S
        job = submitted_jobs.read(self.results, submission.lease)
        asked = False
        while job is not None and not submission.result_file.exists():
            there = self._is_there(job, since_s)
            if there is False:
                return True
            if there and not asked:
                self.cancellations.ask(job.job_id)
                asked = True
            self.cancellations.send()
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
        for job_id in self.batches.left_behind(self.poll.snapshot(fresh=True)):
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
