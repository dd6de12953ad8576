"""All leases of a plan, measured by one process: it starts one process a lease, forked from itself, as many at a time as fit on
hosts, devices and cores.

An ending signal starts no further lease; the processes of the leases stop and release. Nothing is lost by killing this process:
each lease goes on alone, and the same command again waits for it and measures the rest.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import pkgutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

from campaign.config.resolve import Campaign
from campaign.documents.lease_plan import LeasePlan, read_lease_plan
from campaign.documents.plan import LeaseCost, PlanDocument
from campaign.documents.record import Store
from campaign.errors import CampaignError
from campaign.fabrics.registry import fabric_kind
from campaign.files import is_locked, read_json
from campaign.launch import LAUNCHERS
from campaign.lease.campaign_leases import Site, clear
from campaign.paths import Results
from campaign.plan.concurrency import Limit, on_one_machine, replays
from campaign.plan.lease_plans import whole_campaign_of
from campaign.plan.missing_runs import Known, read_known, without_damaged
from campaign.plan.packing import Job, given_back, left, next_to_start
from campaign.processes.signals import ENDING
from campaign.run.driver import Driver
from campaign.run.environment import package_versions
from campaign.run.machine_lock import alone_on_the_machine
from campaign.run.progress import totals
from campaign.submit import SUBMITTERS, open_submitter

STARTS_WHILE = "CAMPAIGN_STARTS_WHILE"
"""Variable that names a file; leases are started as long as somebody holds its lock: Snakemake, until it is told to end."""
_LOOK_S = 1.0

_RECONCILE_S = 30.0  # between two looks for leases that others left behind

Measure = Callable[[LeasePlan, Path, bool, bool], object]
"""Measures a lease and writes its manifest into a file; ends its process with another status than 0 when that fails. Its last
arguments tell it to release first what dead processes left, and to leave devices attached for the next lease of its block."""


@dataclass(frozen=True)
class Outcome:
    """manifests: of all leases, in the order of the plan; failed: leases without one; left: leases that were not started."""

    manifests: tuple[Path, ...]
    failed: tuple[str, ...]
    left: int


def next_manifest(results: Results, lease: str, run_set: str) -> Path:
    """The file of the next manifest of a lease."""
    return _manifests(results, lease, run_set)[1]


def _manifests(results: Results, lease: str, run_set: str) -> tuple[Path | None, Path]:
    """The last manifest of a lease, and the next one."""
    last, number = None, 1
    while (path := results.manifests / lease / f"{run_set}.{number}.json").exists():
        last, number = path, number + 1
    return last, path


def measure_plan(planned: PlanDocument, directory: Path, results: Results, measure: Measure, cores: int) -> Outcome:
    """Measure the leases of a plan of which a run or the manifest is missing. directory: where the plan is."""
    return _Queue(planned, directory, results, measure, cores).run()


class _Queue:
    def __init__(self, planned: PlanDocument, directory: Path, results: Results, measure: Measure, cores: int) -> None:
        self.directory = directory
        self.results = results
        self.measure = measure
        self.campaign: Campaign = whole_campaign_of(self.lease_plan(planned.leases[0]))
        systems = {each.name: each.system for each in self.campaign.configurations}
        # A system of which nothing is planned here may be out of reach.
        self.parts = {
            name: self.campaign.on(name)
            for name in dict.fromkeys(systems[each.configuration] for each in planned.leases)
        }
        self.systems = systems
        self.limit = Limit.of(self.campaign, max(1, cores))
        self.free = self.limit.whole
        self.shares = {each.name: self.limit.share(each) for each in self.campaign.configurations}
        self.manifests: dict[str, Path] = {}
        self.failed: list[str] = []
        self.running: dict[int, tuple[LeaseCost, float, BaseProcess]] = {}
        self.reconciled_s = dict.fromkeys(self.parts, -math.inf)
        self.told = 0  # the signal that ends this process
        self.waiting = list(self.unmeasured(planned))
        self.jobs = [self.job(lease, lease.expected_s or 0.0) for lease in self.waiting]

    def lease_plan(self, lease: LeaseCost) -> LeasePlan:
        return read_lease_plan(self.directory / lease.document)

    def unmeasured(self, planned: PlanDocument) -> Iterator[LeaseCost]:
        skip = self.campaign.protocol.skip_implied
        store = Store(self.results.directory)
        known = without_damaged(read_known(store, skip_implied=skip), store)
        for lease in planned.leases:
            last, path = _manifests(self.results, lease.lease, lease.run_set)
            if last and read_json(last).get("missing") == [] and self.is_whole(lease, known):
                self.manifests[lease.lease] = last
            else:
                self.manifests[lease.lease] = path
                yield lease

    def is_whole(self, lease: LeaseCost, known: Known) -> bool:
        """Whether all runs of a lease have a record; most leases are known to without a check of their whole document."""
        cells = read_json(self.directory / lease.document).get("cells", [])
        keys = [(cell["id"], run) for cell in cells for run in cell["runs"]]
        return known.measured.issuperset(keys) or not known.missing(self.lease_plan(lease).work)

    def run(self) -> Outcome:
        # Replays share a machine with each other, but with nothing else that is measured on it.
        together = self.waiting and replays(self.campaign) and any(map(on_one_machine, self.parts.values()))
        with alone_on_the_machine(partial(print, flush=True)) if together else nullcontext():
            return self._run()

    def _run(self) -> Outcome:
        before = {number: signal.signal(number, self.end) for number in ENDING}
        for part in self.parts.values() if self.waiting else ():
            _load(part)
        gc.freeze()  # what is there is shared with the forked processes, as long as nobody writes to it
        try:
            while self.running or (self.waiting and self.may_start()):
                while self.may_start() and (found := self.next()):
                    self.start(found)
                self.reap()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for part in self.parts.values():
            self.clear(part)
            if not self.told:
                try:
                    open_submitter(part, self.results, Driver).end_left_behind()
                except (CampaignError, OSError) as error:
                    print(f"it was not looked whether jobs are left: {error}", flush=True)
        return Outcome(tuple(self.manifests.values()), tuple(self.failed), len(self.waiting))

    def clear(self, part: Campaign) -> None:
        """Detach what leases of this campaign left attached for the next one, and bring back what was found on a host."""
        try:
            with Site(part.system, self.results.root).fabric() as fabric:
                clear(fabric, self.results)
        except (CampaignError, OSError) as error:
            print(f"devices may have stayed attached ('campaign fabric reconcile' looks): {error}", flush=True)

    def end(self, number: int, _: object) -> None:
        if not self.told and number != signal.SIGINT:  # the terminal tells all processes of Ctrl-C itself
            for _, _, process in self.running.values():
                process.terminate()
        self.told = self.told or number

    def may_start(self) -> bool:
        starts_while = os.environ.get(STARTS_WHILE)
        return not self.told and (starts_while is None or is_locked(Path(starts_while)))

    def next(self) -> LeaseCost | None:
        """The next lease that fits beside those under way (`packing`); the first one, where it is not known how long they take."""
        now = time.monotonic()
        under_way = [
            self.job(lease, (lease.expected_s or 0.0) - (now - started)) for lease, started, _ in self.running.values()
        ]
        place = next_to_start(self.jobs, under_way, self.free)
        if place is None:
            return None
        self.jobs.pop(place)
        return self.waiting.pop(place)

    def job(self, lease: LeaseCost, seconds: float) -> Job:
        return Job(self.shares[lease.configuration], max(0.0, seconds), lease.composition)

    def start(self, lease: LeaseCost) -> None:
        self.free = left(self.free, self.shares[lease.configuration])
        system = self.systems[lease.configuration]
        reconcile = time.monotonic() - self.reconciled_s[system] >= _RECONCILE_S
        if reconcile:
            self.reconciled_s[system] = time.monotonic()
        here = (other for other in self.waiting if self.systems[other.configuration] == system)
        follows = any(other.composition == lease.composition for other in here)
        process = multiprocessing.get_context("fork").Process(target=self.child, args=(lease, reconcile, follows))
        totals(self.results)  # for the forked process, which reads on from there
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        try:
            process.start()
            self.running[process.sentinel] = lease, time.monotonic(), process
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def child(self, lease: LeaseCost, reconcile: bool, leave: bool) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        self.measure(self.lease_plan(lease), self.manifests[lease.lease], reconcile, leave)

    def reap(self) -> None:
        for sentinel in cast(list[int], wait(list(self.running), timeout=_LOOK_S)):
            lease, _, process = self.running.pop(sentinel)
            self.free = given_back(self.free, self.shares[lease.configuration])
            process.join()
            if process.exitcode:
                self.failed.append(lease.lease)


def _load(campaign: Campaign) -> None:
    """Load before forking what each lease would load or look up by itself, which takes longer than a short run."""
    package_versions()
    launcher = campaign.system.launcher
    pkgutil.resolve_name(LAUNCHERS[launcher]).load(torch=any(each.needs_torch for each in campaign.workloads.values()))
    import_module(SUBMITTERS[launcher])
    fabric_kind(campaign.system.fabric["kind"])
