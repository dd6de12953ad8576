"""Measurement of one lease: compose, submit the driver, report progress, verify, release, and write the manifest.

A job of the rule `measure` calls this module. It can be killed at any moment; the same call again adopts the lease and the
driver,
and measures nothing twice.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from campaign.common import files
from campaign.common.errors import ConfigError, FabricError, HostFailed, LaunchError, convert_os_error
from campaign.common.files import read_json, read_text, write_atomic, write_json, write_once
from campaign.common.paths import Results, lease_id
from campaign.common.processes.signals import defer_ending_signals, raise_on_ending_signal
from campaign.common.wording import pluralize
from campaign.fabrics.errors import Incompatible, NoMatch, Refused
from campaign.fabrics.protocol import Fabric, LeaseRequest
from campaign.lease.campaign_leases import (
    Site,
    determine_use_id,
    find_lease_name,
    make_lease_document,
    make_request,
    reconcile_orphans,
)
from campaign.lease.check_hosts import check_before_leases
from campaign.lease.journal import Journal, is_owned
from campaign.lease.lifecycle import HeldLease, acquire_lease, check_lease, mark_in_use, release_lease
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.campaign.resolve_slurm_options import given_options
from campaign.plan.concurrency import isolation, keeps_pace, on_one_machine
from campaign.plan.lease_plans import campaign_of, lease_frontier
from campaign.plan.missing_runs import KnownRuns, read_known
from campaign.plan.past_costs import Costs, begin_forecast, end_forecast, measure_costs, read_lease_document
from campaign.run.adaptive_repetitions import record_implied
from campaign.run.driver import Driver
from campaign.run.driver_supervisor import LeftRunning, Supervisor
from campaign.run.locks import alone_on_the_machine, working_locks
from campaign.run.preflight import missing_software, not_emulated, refuse_unmeasurable
from campaign.run.progress import note
from campaign.run.submitters import StillQueued, open_submitter
from campaign.slurm.commands import Slurm
from campaign.slurm.excluded_hosts import ChangedHosts, ExcludedHosts
from campaign.slurm.free_hosts import FreeHosts
from campaign.slurm.run_on_hosts import is_job_forgotten
from campaign.slurm.strategies import SlurmStrategy, open_strategy
from campaign.slurm.strategies.controller import Controller
from campaign.spec.cell import Cell
from campaign.spec.lease_plan import LeasePlan
from campaign.spec.record import Record, Store
from campaign.spec.run_numbers import runs_of
from campaign.spec.superseded import set_aside

MANIFEST = "manifest/1"
_RETRY_S = 1.0
_QUEUE_S = 300.0  # a scheduler examines its queue at least every few minutes
_RECONCILE_S = 30.0  # between two searches for orphaned leases
_POWER_DOWN_S = 120.0  # from the end of a job to the release of the devices that Slurm composed for it


def measure(
    plan: LeasePlan,
    results: Results,
    say: Callable[[str], None] = print,
    invocation: str = "",
) -> dict[str, Any]:
    """Measure every run of a lease that has no record, and return the manifest, which the caller writes.

    Apparatus failures are retried up to the protocol's `attempts`. Runs that are still missing then are listed in the manifest
    with
    the reason, and raise nothing: the report shows them, and the same command again measures them.

    Args:
        plan: plan of the lease.
        results: results directory.
        say: callback for messages.
        invocation: token of the Snakemake process that starts leases; one of its leases regularly releases orphaned leases.
    """
    try:
        with (
            raise_on_ending_signal(),
            files.hold_lock(
                results.measure_lock_file(plan.lease),
                lambda who: say(f"{plan.lease}: waiting for {who}, which measures it already"),
            ),
        ):
            measuring = _Measuring(plan, results, say, invocation)
            of_hosts = measuring.campaign.system.launcher == "slurm"
            with working_locks(results.system_state_directory(".processes"), of_hosts=of_hosts):
                return measuring.run()
    except OSError as error:
        raise convert_os_error(error, results.directory) from error


class _Measuring:
    """One call of `measure_missing_runs`, under the lease's lock."""

    def __init__(self, plan: LeasePlan, results: Results, say: Callable[[str], None], invocation: str) -> None:
        self.plan = plan
        self.invocation = invocation or secrets.token_hex(8)
        self.campaign = campaign_of(plan)
        self.results = results
        self.say = say
        self.store = Store(results.directory)
        self.uses: list[str] = []
        self.problems: list[str] = []
        self.forecast: dict[str, Any] | None = None
        self.submitter = open_submitter(self.campaign, results, Driver, self.tell)
        self.strategy: SlurmStrategy = open_strategy(self.campaign.system, Slurm(results.slurm_call_log), self.tell)
        self.excluded, self.changed = ExcludedHosts(results.slurm_state), ChangedHosts(results.slurm_state)
        self.free_hosts = FreeHosts(self.campaign.system, Slurm(results.slurm_call_log), results.slurm_state, self.tell)
        self.site = Site(self.campaign.system, results.root)
        # The driver's own, wherever this process has it from: a later plan may take the place of that.
        path = results.work_directory(plan.lease) / f"plan.{plan.digest}.json"
        if not path.exists() or read_text(path) != plan.text():
            write_atomic(path, plan.text(), durable=True)
        self.supervisor = Supervisor(
            self.campaign, results, self.store, plan.lease, path, self.submitter, say, self.exclude
        )
        if self.free_hosts.matter:
            self.supervisor.queue_s = _QUEUE_S

    def run(self) -> dict[str, Any]:
        """Measure the missing runs, or release the lease if none is missing, and return the manifest."""
        self.store.share(self.plan.campaign_as_used)
        self.keep_last_use()
        self.set_damaged_aside()
        self.record_implied()
        if not self.missing():
            self.tell("all runs have a record; 'campaign redo' measures runs again")
            # Killed after its last record, while releasing: what it held is still to be released.
            self.submitter.stop(self.plan.lease)
            with self.site.open_fabric() as fabric:
                self.end_orphans(fabric)
        elif not self.lacks_software():
            self.check_site()
            if remark := not_emulated(self.campaign):
                self.tell(remark)
            forecast = self.plan.forecast.model_dump() if self.plan.forecast else None
            self.forecast = begin_forecast(self.results, self.plan.lease, forecast)
            with self.isolated():
                self.persist()
        return self.manifest()

    def lacks_software(self) -> bool:
        """Return whether this machine lacks software for the runs, and note it as the reason why they have no record.

        Nothing is composed then.
        """
        refuse_unmeasurable(self.of_lease())
        if lacking := missing_software(self.of_lease()):
            self.problems.append("; ".join(lacking))
            self.tell(self.problems[-1])
        return bool(lacking)

    def check_site(self) -> None:
        """Check once per invocation that the system meets the requirements of all leases.

        Raises ConfigError with the reasons if no lease can work.
        """
        path, system = self.results.site_check_file(self.campaign.system.name), self.campaign.system.name
        with files.hold_lock(path.with_suffix(".lock")):
            last = read_json(path)
            if last.get("invocation") != self.invocation:
                found = check_before_leases(
                    self.site, given_options(self.plan.slurm), Slurm(self.results.slurm_call_log)
                )
                for finding in found:
                    self.tell(f"system {system}: {finding.what}: {finding.words}")
                stops = [f"{finding.what}: {finding.words}" for finding in found if finding.verdict == "stop"]
                write_json(path, last := {"invocation": self.invocation, "stops": stops})
        if last["stops"]:
            raise ConfigError("\n".join([f"system {system}: no lease can work, see 'campaign check':", *last["stops"]]))

    def of_lease(self) -> Campaign:
        """Return the campaign restricted to the lease's configuration and workloads, as this machine may lack the software of
        others.
        """
        named = {cell.workload for cell in self.plan.cells} | {each.workload for each in self.campaign.protocol.require}
        workloads = {name: workload for name, workload in self.campaign.workloads.items() if name in named}
        return replace(self.campaign, configurations=(self.plan.configuration,), workloads=workloads)

    def end_orphans(self, fabric: Fabric, but: Collection[str] = ()) -> None:
        """Release leases of dead processes on the fabric, and store the documents of this campaign's leases.

        Args:
            fabric: fabric of the system.
            but: leases to leave alone.
        """
        for orphan in reconcile_orphans(fabric, self.site, dry_run=False, skip=but):
            self.tell(f"{orphan.lease_id} had no owner any more: {orphan.outcome} {', '.join(orphan.devices)}")
            lease = find_lease_name(self.results, orphan.lease_id)
            if lease is not None:
                self.keep(lease, self.journal(orphan.lease_id))
        for name, hosts in self.changed.read().items():
            # Begun by a process that died, and nobody's lease any more: the scheduler is still to be told.
            if (
                name not in but
                and self.journal(name).state in (None, "RELEASED")
                and not is_owned(self.site.journals_directory, name)
            ):
                self.restore(name, hosts)

    def look_for_orphans(self, fabric: Fabric, mine: str) -> None:
        """Release leases of dead processes, unless a lease of this invocation did so in the last 30 seconds."""
        looked = self.results.directory / "work" / f"reconciled.{self.campaign.system.name}.json"
        with files.try_lock(looked.with_suffix(".lock")) as is_free:
            last = files.read_json(looked)
            recent = 0 <= time.time() - float(last.get("time_s", 0.0)) < _RECONCILE_S
            if is_free and not (recent and last.get("invocation") == self.invocation):
                self.end_orphans(fabric, but=(mine,))
                files.write_json(looked, {"invocation": self.invocation, "time_s": time.time()})

    def restore(self, name: str, hosts: Collection[str]) -> None:
        """Restore the scheduler's view of hosts after a lease; the change stays on file until this is done."""
        self.strategy.end(hosts, name)
        self.changed.remove(name)

    def journal(self, name: str) -> Journal:
        """Return the journal of a lease on this system."""
        return Journal(self.site.journals_directory, name)

    def keep(self, lease: str, journal: Journal) -> None:
        """Store the document of a finished lease in the results directory, where records refer to it."""
        use = determine_use_id(self.results, journal)
        document = make_lease_document(journal.make_document(), lease, use)
        write_once(self.results.leases / f"{use}.json", (json.dumps(document, indent=1) + "\n").encode())

    def keep_last_use(self) -> None:
        """Store the document of a use that failed, or whose process died before it could write it."""
        journal = self.journal(lease_id(self.results, self.plan.lease))
        if journal.state in ("RELEASED", "LEAKED"):
            self.keep(self.plan.lease, journal)

    def set_damaged_aside(self) -> None:
        """Move unreadable records into superseded/, so that their runs are measured again."""
        keys = [(cell.id, run) for cell in self.plan.work for run in runs_of(cell.settings)]
        keys = [key for key in keys if self.store.path(*key).exists()]
        if damaged := self.store.damaged(keys):
            aside = set_aside(self.store, list(damaged), why=f"damaged: {next(iter(damaged.values()))}")
            self.tell(
                f"{pluralize(len(damaged), 'record')} cannot be read and went to {aside.directory}; measured again"
            )

    def tell(self, message: str) -> None:
        """Report a message, prefixed with the name of the lease."""
        self.say(f"{self.plan.lease}: {message}")

    def known(self) -> KnownRuns:
        """Read which runs of the lease have a record."""
        return read_known(self.store, skip_implied=self.campaign.protocol.skip_implied, cells=self.plan.work)

    def missing(self) -> list[tuple[Cell, int]]:
        """Return the cell and run number of each run that has no record."""
        return self.known().missing(self.plan.work)

    def record_implied(self) -> None:
        """Write the records of runs whose result is implied by out-of-memory runs, before anything is composed."""
        recorded: list[Record] = []

        def tell(cell: Cell, record: Record, cell_done: bool) -> None:
            recorded.append(record)
            note(self.results, self.plan.lease, cell, record, cell_done=cell_done)

        frontier = lease_frontier(self.plan, self.store, skip=self.campaign.protocol.skip_implied)
        record_implied(
            frontier, self.missing(), self.plan.specification, self.plan.campaign_hash, tell, self.campaign.metric
        )
        if recorded:
            self.tell(
                f"runs that are not started, because smaller batches ran out of memory: {len(recorded)} "
                "('--config skip_implied=no' starts them)"
            )

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Hold the machine locks if leases or other users' campaigns would disturb each other.

        Campaigns that keep a pace share the lock with each other.
        """
        alone = isolation(self.campaign) == "machine"
        if not alone and not (keeps_pace(self.campaign) and on_one_machine(self.campaign)):
            yield
            return
        with alone_on_the_machine([self.campaign.system], self.tell, shared=not alone):
            yield

    def persist(self) -> None:
        """Measure until no run is missing, or until the apparatus has failed too often."""
        attempt = forgotten = 0
        while attempt < self.campaign.protocol.attempts:
            attempt += 1
            before = len(self.missing())
            try:
                self.attempt()
            except StillQueued as queued:
                # Not a failure. A job that is held back while its hosts are free gets more time on each try.
                attempt -= 1
                self.keep_last_use()
                self.tell(f"{queued}, for {self.supervisor.queue_s:.0f} s: its devices are released meanwhile")
                self.supervisor.queue_s *= 2
                continue
            except (FabricError, LaunchError) as error:
                self.keep_last_use()
                if isinstance(error, HostFailed):
                    self.exclude(error.hosts)
                if not self.missing():
                    self.tell(str(error))
                    return
                if is_job_forgotten(str(error)) and forgotten < self.campaign.protocol.attempts:
                    # Not a failure either, but the number of such retries is limited in case the controller loses every job.
                    attempt, forgotten = attempt - 1, forgotten + 1
                    self.tell(f"{error}; Slurm's controller restarted and lost the job, which counts as no attempt")
                    time.sleep(_RETRY_S)
                    continue
                self.problems.append(str(error))
                self.tell(f"attempt {attempt} of {self.campaign.protocol.attempts} failed: {error}")
                if isinstance(error, Refused):
                    return
                time.sleep(_RETRY_S)
                continue
            if not self.missing():
                return
            if len(self.missing()) == before:
                self.problems.append("the driver ended without measuring anything")

    def exclude(self, hosts: Mapping[str, str]) -> None:
        """Exclude failed hosts from further leases until they are healthy again, unless all hosts of the system failed.

        Args:
            hosts: reason of failure by host.
        """
        if not hosts:
            return
        paths = self.excluded.add(hosts, self.plan.lease, self.campaign.system)
        for host, path in paths.items():
            self.tell(f"{host} is left out from now on, until it is healthy: {hosts[host]} ('rm {path}' takes it back)")
        if not paths:
            said = "; ".join(f"{host}: {why}" for host, why in hosts.items())
            self.tell(f"{said}. All hosts of the system failed, so none of them is left out")

    def attempt(self) -> None:
        """Compose, measure and release once."""
        with self.site.open_fabric() as fabric:
            system = self.campaign.system
            if system.launcher == "slurm":
                asked = system.slurm.model_dump(include={"partition", "account", "qos"}, exclude_none=True)
                options = [f"--{name}={value}" for name, value in asked.items()]
                controller = Controller(Slurm(self.results.slurm_call_log), self.tell, system.slurm.poll_s)
                for host, why in self.excluded.lift(controller, system, options).items():
                    self.tell(f"{host} is used again: {why}")
            hosts = self.excluded.remaining(system)
            plan = self.plan
            mine = make_request(self.campaign, self.results, plan.lease, plan.configuration, hosts)
            self.look_for_orphans(fabric, mine.lease_id)
            if self.free_hosts.matter and self.journal(mine.lease_id).state in (None, "RELEASED"):
                mine = replace(mine, allowed_hosts=self.wait_for_hosts(fabric, mine))
            if self.strategy.composed_by_slurm:
                self.drive_on_demand()
                return

            def change(hosts: Collection[str]) -> None:
                if self.campaign.system.launcher == "slurm":
                    self.changed.add(mine.lease_id, hosts)
                self.strategy.begin(hosts, mine.lease_id)

            try:
                lease = acquire_lease(
                    fabric,
                    mine,
                    self.site.journals_directory,
                    wait_s=self.campaign.protocol.compose_wait_s,
                    poll_s=0.2,
                    on_wait=lambda message: self.tell(f"waiting in turn: {message}"),
                    before_compose=change,
                )
            except BaseException:
                with defer_ending_signals():
                    self.restore(mine.lease_id, self.changed.read().get(mine.lease_id, ()))
                raise
            self.use(fabric, lease)

    def wait_for_hosts(self, fabric: Fabric, asked: LeaseRequest) -> tuple[str, ...]:
        """Return the hosts on which the driver's job can start now, so that no devices are held for a queued job."""

        def able(names: tuple[str, ...]) -> bool:
            try:
                fabric.select_devices(
                    replace(asked, allowed_hosts=names), self.site.fenced_devices.mark_fenced(fabric.read_inventory())
                )
            except (NoMatch, Incompatible):
                return False
            except FabricError:  # what others hold is waited for in turn
                return True
            return True

        return self.free_hosts.wait(asked.allowed_hosts, asked.configuration.hosts, able)

    def drive_on_demand(self) -> None:
        """Measure on devices that Slurm composes for the driver's job, and wait for their release."""
        try:
            self.supervisor.drive(None, None, len(self.missing()))
        finally:
            if use := self.supervisor.use:
                self.uses.append(use)
                name = use.rpartition(".")[0]
                until = time.monotonic() + _POWER_DOWN_S
                while self.journal(name).state != "RELEASED" and time.monotonic() < until:
                    time.sleep(self.submitter.poll_interval_s)
                self.keep(self.plan.lease, self.journal(name))

    def use(self, fabric: Fabric, lease: HeldLease) -> None:
        """Measure on a composition and release it.

        The composition is kept for the next invocation if the driver continues alone.
        """
        use = determine_use_id(self.results, lease.journal)
        hosts = [host.name for host in lease.composition.hosts]
        self.uses.append(use)
        try:
            mark_in_use(lease)
            self.strategy.announce(lease.composition, lease.id)
            self.supervisor.drive(lease, use, len(self.missing()))
            self.verify(fabric, lease, use)
        except LeftRunning:
            lease.ownership.close()
            raise
        except BaseException as error:
            try:
                if isinstance(error, LaunchError):
                    fault = {"operation": "allocation", "error": type(error).__name__}
                    lease.journal.add_facts(fault={**fault, "message": self.portable(str(error))})
            finally:
                self.release(fabric, lease, hosts)
            raise
        self.release(fabric, lease, hosts)

    def release(self, fabric: Fabric, lease: HeldLease, hosts: list[str]) -> None:
        """Release a lease on the fabric and in the scheduler, and store its document."""
        with defer_ending_signals():
            try:
                self.strategy.begin(hosts, lease.id)
            except LaunchError as error:
                # Devices that stay attached are worse than a scheduler that is not informed yet.
                self.tell(f"releasing all the same: {error}")
            document = release_lease(fabric, lease)
            self.restore(lease.id, hosts)
            self.keep(self.plan.lease, lease.journal)  # last: it needs space
        if document["leaked"]:
            self.tell(f"the fabric would not release {', '.join(document['leaked'])}; see 'campaign release'")

    def verify(self, fabric: Fabric, lease: HeldLease, use: str) -> None:
        """Verify the composition after the runs, and move records of runs on a broken composition into superseded/.

        Raises FabricError if the composition broke.
        """
        problems = check_lease(fabric, lease)
        if not problems:
            return
        runs = [
            (cell.id, repetition)
            for cell in self.plan.work
            for repetition in runs_of(cell.settings)
            if self.store.path(cell.id, repetition).exists() and self.store.read(cell.id, repetition).lease_id == use
        ]
        what = f"the composition broke while it was measured ({'; '.join(problems)})"
        if not runs:
            raise FabricError(what)
        aside = set_aside(self.store, runs, why=f"{use}: {what}")
        raise FabricError(f"{what}; its records are in {aside.directory}")

    def manifest(self) -> dict[str, Any]:
        """Build the manifest of the lease, with its missing runs, problems and durations."""
        known = self.known()
        missing = known.missing(self.plan.work)
        problems = [self.portable(problem) for problem in self.problems]
        end_forecast(self.results, self.plan.lease)
        kept = self.results.work_directory(self.plan.lease) / "measured.json"
        if self.uses:
            write_json(kept, measured := {"uses": self.uses, "forecast": self.forecast, **self.took()})
        else:  # asked for again, which has cost the manifest that was there: what it said stays true
            measured = read_json(kept) or {"uses": [], "forecast": self.forecast, **self.took()}
        return {
            "schema_version": MANIFEST,
            "lease": self.plan.lease,
            "configuration": self.plan.configuration.name,
            "composition": self.plan.composition,
            "run_set": self.plan.run_set,
            "runs": sum(len(known.planned(cell)) for cell in self.plan.work),
            "missing": [[cell.id, repetition] for cell, repetition in missing],
            "reason": problems[-1] if missing and problems else "",
            "problems": problems,
            **measured,
        }

    def took(self) -> dict[str, Any]:
        """Return the durations and costs of the lease's uses and runs, to compare with the forecast and to improve the next
        one.
        """
        uses = [read_lease_document(self.results.leases / f"{use}.json") for use in self.uses]
        times = [
            released - asked
            for use in uses
            if (asked := use.get("requested_s")) and (released := use.get("released_s"))
        ]
        whole = len(times) == len(self.uses) and bool(times)
        spans = self.supervisor.spans
        system = self.campaign.system
        empty = Costs(self.campaign.name, system.name, fabric=str(system.fabric["kind"]))
        cells = {cell.id: (cell.workload, cell.configuration) for cell in self.plan.work}
        costs = measure_costs(empty, cells, spans, [use for use in uses if use])
        actual = {"runs": len(spans), "uses": len(uses), "wall_s": round(sum(times), 3) if whole else None}
        return {"actual": actual, "costs": costs.document()}

    def portable(self, message: str) -> str:
        """Return a message with paths relative to the results directory, so that it stays valid in reports and archives."""
        directory = self.results.directory
        return message.replace(f"{directory.resolve()}/", "").replace(f"{directory}/", "")
