"""Measurement of one lease: compose, submit the driver, report progress, verify, release, and build the manifest.

A job of the rule `measure` calls this module. It can be killed at any moment. The same call then takes over the lease and the
driver, and measures nothing twice.
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
from campaign.plan.campaign.resolve_slurm_options import parse_slurm_options
from campaign.plan.concurrency import is_on_one_machine, is_paced, resolve_isolation
from campaign.plan.lease_plans import build_lease_frontier, campaign_part_from_lease_plan
from campaign.plan.missing_runs import RecordedRuns, read_recorded_runs
from campaign.plan.past_costs import CampaignCosts, begin_forecast, end_forecast, measure_costs, read_lease_document
from campaign.run.adaptive_repetitions import record_implied_runs
from campaign.run.driver import Driver
from campaign.run.driver_supervisor import DriverLeftRunning, DriverSupervisor
from campaign.run.locks import hold_machine_locks, hold_process_lock
from campaign.run.preflight import describe_missing_emulation, find_missing_software, refuse_unmeasurable
from campaign.run.progress import append_progress
from campaign.run.submitters import StillQueuedError, open_submitter
from campaign.slurm.commands import SlurmCommands
from campaign.slurm.excluded_hosts import ChangedHosts, ExcludedHosts
from campaign.slurm.free_hosts import FreeHosts
from campaign.slurm.run_on_hosts import is_unknown_job
from campaign.slurm.strategies import SlurmStrategy, open_strategy
from campaign.slurm.strategies.controller import Controller
from campaign.spec.cell import Cell
from campaign.spec.lease_plan import LeasePlan
from campaign.spec.record import Record, RecordStore
from campaign.spec.run_numbers import list_run_numbers
from campaign.spec.superseded import supersede_records

MANIFEST_SCHEMA = "manifest/1"
_RETRY_INTERVAL_S = 1.0
_QUEUE_TIMEOUT_S = 300.0  # schedulers examine their queue at least every few minutes
_RECONCILE_INTERVAL_S = 30.0  # between two searches for orphaned leases
_POWER_DOWN_TIMEOUT_S = 120.0  # from the end of a job to the release of the devices that Slurm composed for it


def measure_missing_runs(
    plan: LeasePlan,
    results: Results,
    report: Callable[[str], None] = print,
    invocation: str = "",
) -> dict[str, Any]:
    """Measure every run of a lease that has no record, and return the manifest, which the caller writes.

    Apparatus failures are retried up to the protocol's `attempts`. If runs are still missing then, the manifest lists them with
    the reason and no error is raised. The report shows these runs, and the same command measures them.

    Args:
        plan: plan of the lease.
        results: results directory.
        report: callback for messages.
        invocation: token of the Snakemake process that starts leases; one of its leases regularly releases orphaned leases.
    """
    try:
        with (
            raise_on_ending_signal(),
            files.hold_lock(
                results.measure_lock_file(plan.lease),
                lambda holder: report(f"{plan.lease}: waiting for {holder}, which already measures this lease"),
            ),
        ):
            measuring = _LeaseMeasurement(plan, results, report, invocation)
            across_hosts = measuring.campaign.system.launcher == "slurm"
            with hold_process_lock(results.system_state_directory(".processes"), across_hosts=across_hosts):
                return measuring.run()
    except OSError as error:
        raise convert_os_error(error, results.directory) from error


class _LeaseMeasurement:
    """One call of `measure_missing_runs`, under the lease's lock."""

    def __init__(self, plan: LeasePlan, results: Results, report: Callable[[str], None], invocation: str) -> None:
        self.plan = plan
        self.invocation = invocation or secrets.token_hex(8)
        self.campaign = campaign_part_from_lease_plan(plan)
        self.results = results
        self.report = report
        self.store = RecordStore(results.directory)
        self.uses: list[str] = []
        self.problems: list[str] = []
        self.forecast: dict[str, Any] | None = None
        self.submitter = open_submitter(self.campaign, results, Driver, self.report_for_lease)
        self.strategy: SlurmStrategy = open_strategy(
            self.campaign.system, SlurmCommands(results.slurm_call_log), self.report_for_lease
        )
        self.excluded, self.changed = ExcludedHosts(results.slurm_state), ChangedHosts(results.slurm_state)
        self.free_hosts = FreeHosts(
            self.campaign.system, SlurmCommands(results.slurm_call_log), results.slurm_state, self.report_for_lease
        )
        self.site = Site(self.campaign.system, results.root)
        # The driver gets its own copy, because a later plan may replace the original.
        path = results.work_directory(plan.lease) / f"plan.{plan.digest}.json"
        if not path.exists() or read_text(path) != plan.format_text():
            write_atomic(path, plan.format_text(), durable=True)
        self.supervisor = DriverSupervisor(
            self.campaign, results, self.store, plan.lease, path, self.submitter, report, self.exclude_hosts
        )
        if self.free_hosts.is_needed:
            self.supervisor.queue_s = _QUEUE_TIMEOUT_S

    def run(self) -> dict[str, Any]:
        """Measure the missing runs, or release the lease if none is missing, and return the manifest."""
        self.store.share_document(self.plan.campaign_as_used)
        self.store_last_use()
        self.move_damaged_records()
        self.write_implied_records()
        if not self.list_missing_runs():
            self.report_for_lease("all runs have a record; 'campaign redo' measures runs again")
            # An earlier process may have been killed while it released the lease. Its devices are released now.
            self.submitter.stop(self.plan.lease)
            with self.site.open_fabric() as fabric:
                self.release_orphans(fabric)
        elif not self.lacks_software():
            self.check_site()
            if remark := describe_missing_emulation(self.campaign):
                self.report_for_lease(remark)
            forecast = self.plan.forecast.model_dump() if self.plan.forecast else None
            self.forecast = begin_forecast(self.results, self.plan.lease, forecast)
            with self.isolate():
                self.measure_with_retries()
        return self.build_manifest()

    def lacks_software(self) -> bool:
        """Return whether software for the runs is missing on this machine, and store the reason for the manifest.

        Nothing is composed in that case.
        """
        refuse_unmeasurable(self.restrict_campaign())
        if missing := find_missing_software(self.restrict_campaign()):
            self.problems.append("; ".join(missing))
            self.report_for_lease(self.problems[-1])
        return bool(missing)

    def check_site(self) -> None:
        """Check once per invocation that the system meets the requirements of all leases.

        Raises ConfigError with the reasons if no lease can work.
        """
        path, system = self.results.site_check_file(self.campaign.system.name), self.campaign.system.name
        with files.hold_lock(path.with_suffix(".lock")):
            last_check = read_json(path)
            if last_check.get("invocation") != self.invocation:
                findings = check_before_leases(
                    self.site, parse_slurm_options(self.plan.slurm), SlurmCommands(self.results.slurm_call_log)
                )
                for finding in findings:
                    self.report_for_lease(f"system {system}: {finding.what}: {finding.words}")
                blockers = [f"{finding.what}: {finding.words}" for finding in findings if finding.verdict == "stop"]
                write_json(path, last_check := {"invocation": self.invocation, "stops": blockers})
        if last_check["stops"]:
            raise ConfigError(
                "\n".join([f"system {system}: no lease can be measured (see 'campaign check'):", *last_check["stops"]])
            )

    def restrict_campaign(self) -> Campaign:
        """Return the campaign restricted to the lease's configuration and workloads.

        The software of other workloads may be missing on this machine.
        """
        needed_workloads = {cell.workload for cell in self.plan.cells} | {
            requirement.workload for requirement in self.campaign.protocol.require
        }
        workloads = {name: workload for name, workload in self.campaign.workloads.items() if name in needed_workloads}
        return replace(self.campaign, configurations=(self.plan.configuration,), workloads=workloads)

    def release_orphans(self, fabric: Fabric, excluded_leases: Collection[str] = ()) -> None:
        """Release leases of dead processes on the fabric, and store the documents of this campaign's leases.

        Args:
            fabric: fabric of the system.
            excluded_leases: leases that are not released.
        """
        for orphan in reconcile_orphans(fabric, self.site, dry_run=False, skip=excluded_leases):
            self.report_for_lease(
                f"lease {orphan.lease_id} no longer had an owner: {orphan.outcome} {', '.join(orphan.devices)}"
            )
            lease = find_lease_name(self.results, orphan.lease_id)
            if lease is not None:
                self.store_lease_document(lease, self.open_journal(orphan.lease_id))
        for name, hosts in self.changed.read().items():
            # A process died after it changed these hosts in the scheduler, and no process owns the lease any more.
            if (
                name not in excluded_leases
                and self.open_journal(name).state in (None, "RELEASED")
                and not is_owned(self.site.journals_directory, name)
            ):
                self.restore_scheduler(name, hosts)

    def release_orphans_if_due(self, fabric: Fabric, own_lease: str) -> None:
        """Release leases of dead processes, unless a lease of this invocation did so in the last 30 seconds."""
        state_file = self.results.directory / "work" / f"reconciled.{self.campaign.system.name}.json"
        with files.try_lock(state_file.with_suffix(".lock")) as is_free:
            last_check = files.read_json(state_file)
            is_recent = 0 <= time.time() - float(last_check.get("time_s", 0.0)) < _RECONCILE_INTERVAL_S
            if is_free and not (is_recent and last_check.get("invocation") == self.invocation):
                self.release_orphans(fabric, excluded_leases=(own_lease,))
                files.write_json(state_file, {"invocation": self.invocation, "time_s": time.time()})

    def restore_scheduler(self, journal_name: str, hosts: Collection[str]) -> None:
        """Restore the scheduler's view of hosts after a lease, then remove the record of the change."""
        self.strategy.end(hosts, journal_name)
        self.changed.remove(journal_name)

    def open_journal(self, journal_name: str) -> Journal:
        """Return the journal of a lease on this system."""
        return Journal(self.site.journals_directory, journal_name)

    def store_lease_document(self, lease: str, journal: Journal) -> None:
        """Store the document of a finished lease in the results directory, where records refer to it."""
        use = determine_use_id(self.results, journal)
        document = make_lease_document(journal.make_document(), lease, use)
        write_once(self.results.leases / f"{use}.json", (json.dumps(document, indent=1) + "\n").encode())

    def store_last_use(self) -> None:
        """Store the document of a use that failed, or whose process died before it could store the document."""
        journal = self.open_journal(lease_id(self.results, self.plan.lease))
        if journal.state in ("RELEASED", "LEAKED"):
            self.store_lease_document(self.plan.lease, journal)

    def move_damaged_records(self) -> None:
        """Move unreadable records into superseded/, so that their runs are measured again."""
        keys = [(cell.id, run) for cell in self.plan.work_cells for run in list_run_numbers(cell.settings)]
        keys = [key for key in keys if self.store.path(*key).exists()]
        if damaged_records := self.store.find_damaged(keys):
            superseded = supersede_records(
                self.store, list(damaged_records), why=f"damaged: {next(iter(damaged_records.values()))}"
            )
            self.report_for_lease(
                f"{pluralize(len(damaged_records), 'damaged record')} moved to {superseded.directory}; the runs are measured again"
            )

    def report_for_lease(self, message: str) -> None:
        """Report a message, prefixed with the name of the lease."""
        self.report(f"{self.plan.lease}: {message}")

    def read_known_runs(self) -> RecordedRuns:
        """Read which runs of the lease have a record."""
        return read_recorded_runs(
            self.store, skip_implied=self.campaign.protocol.skip_implied, cells=self.plan.work_cells
        )

    def list_missing_runs(self) -> list[tuple[Cell, int]]:
        """Return the cell and run number of each run that has no record."""
        return self.read_known_runs().list_missing_runs(self.plan.work_cells)

    def write_implied_records(self) -> None:
        """Write the records of runs whose result is implied by out-of-memory runs, before anything is composed."""
        records: list[Record] = []

        def report_record(cell: Cell, record: Record, cell_done: bool) -> None:
            records.append(record)
            append_progress(self.results, self.plan.lease, cell, record, cell_done=cell_done)

        frontier = build_lease_frontier(self.plan, self.store, skip=self.campaign.protocol.skip_implied)
        record_implied_runs(
            frontier,
            self.list_missing_runs(),
            self.plan.specification,
            self.plan.campaign_hash,
            report_record,
            self.campaign.metric,
        )
        if records:
            self.report_for_lease(
                f"{pluralize(len(records), 'run')} skipped, because smaller batches ran out of memory "
                "('--config skip_implied=no' starts such runs)"
            )

    @contextmanager
    def isolate(self) -> Iterator[None]:
        """Hold the machine locks if leases or other users' campaigns would disturb each other.

        Campaigns that keep the pace of emulated devices share the lock.
        """
        is_exclusive = resolve_isolation(self.campaign) == "machine"
        if not is_exclusive and not (is_paced(self.campaign) and is_on_one_machine(self.campaign)):
            yield
            return
        with hold_machine_locks([self.campaign.system], self.report_for_lease, is_shared=not is_exclusive):
            yield

    def measure_with_retries(self) -> None:
        """Measure until no run is missing, or until the apparatus has failed too often."""
        attempt = lost_jobs = 0
        while attempt < self.campaign.protocol.attempts:
            attempt += 1
            missing_before = len(self.list_missing_runs())
            try:
                self.measure_once()
            except StillQueuedError as queue_error:
                # This is not a failure. A job that waits although its hosts are free gets more time on each try.
                attempt -= 1
                self.store_last_use()
                self.report_for_lease(
                    f"{queue_error}; its devices are released after {self.supervisor.queue_s:.0f} s of waiting"
                )
                self.supervisor.queue_s *= 2
                continue
            except (FabricError, LaunchError) as error:
                self.store_last_use()
                if isinstance(error, HostFailed):
                    self.exclude_hosts(error.hosts)
                if not self.list_missing_runs():
                    self.report_for_lease(str(error))
                    return
                if is_unknown_job(str(error)) and lost_jobs < self.campaign.protocol.attempts:
                    # This is not a failure either, but the retries are limited in case the controller loses every job.
                    attempt, lost_jobs = attempt - 1, lost_jobs + 1
                    self.report_for_lease(
                        f"{error}; Slurm's controller restarted and lost the job, which does not count as an attempt"
                    )
                    time.sleep(_RETRY_INTERVAL_S)
                    continue
                self.problems.append(str(error))
                self.report_for_lease(f"attempt {attempt} of {self.campaign.protocol.attempts} failed: {error}")
                if isinstance(error, Refused):
                    return
                time.sleep(_RETRY_INTERVAL_S)
                continue
            if not self.list_missing_runs():
                return
            if len(self.list_missing_runs()) == missing_before:
                self.problems.append("the driver ended without measuring anything")

    def exclude_hosts(self, hosts: Mapping[str, str]) -> None:
        """Exclude failed hosts from further leases until they are healthy again, unless all hosts of the system failed.

        Args:
            hosts: reason for the failure, by host.
        """
        if not hosts:
            return
        paths = self.excluded.exclude_hosts(hosts, self.plan.lease, self.campaign.system)
        for host, path in paths.items():
            self.report_for_lease(
                f"{host} is excluded until it is healthy again: {hosts[host]} ('rm {path}' readmits it)"
            )
        if not paths:
            reasons = "; ".join(f"{host}: {reason}" for host, reason in hosts.items())
            self.report_for_lease(f"{reasons}. All hosts of the system failed, so none of them is excluded")

    def measure_once(self) -> None:
        """Compose the devices, measure the missing runs, and release the devices once."""
        with self.site.open_fabric() as fabric:
            system = self.campaign.system
            if system.launcher == "slurm":
                slurm_options = system.slurm.model_dump(include={"partition", "account", "qos"}, exclude_none=True)
                options = [f"--{name}={value}" for name, value in slurm_options.items()]
                controller = Controller(
                    SlurmCommands(self.results.slurm_call_log), self.report_for_lease, system.slurm.poll_s
                )
                for host, reason in self.excluded.readmit_hosts(controller, system, options).items():
                    self.report_for_lease(f"{host} is used again: {reason}")
            hosts = self.excluded.list_usable(system)
            plan = self.plan
            lease_request = make_request(self.campaign, self.results, plan.lease, plan.configuration, hosts)
            self.release_orphans_if_due(fabric, lease_request.lease_id)
            if self.free_hosts.is_needed and self.open_journal(lease_request.lease_id).state in (None, "RELEASED"):
                lease_request = replace(lease_request, allowed_hosts=self.wait_for_hosts(fabric, lease_request))
            if self.strategy.composed_by_slurm:
                self.measure_on_demand()
                return

            def announce_change(hosts: Collection[str]) -> None:
                if self.campaign.system.launcher == "slurm":
                    self.changed.add(lease_request.lease_id, hosts)
                self.strategy.begin(hosts, lease_request.lease_id)

            try:
                lease = acquire_lease(
                    fabric,
                    lease_request,
                    self.site.journals_directory,
                    wait_s=self.campaign.protocol.compose_wait_s,
                    poll_s=0.2,
                    on_wait=lambda message: self.report_for_lease(f"waiting: {message}"),
                    before_compose=announce_change,
                )
            except BaseException:
                with defer_ending_signals():
                    self.restore_scheduler(lease_request.lease_id, self.changed.read().get(lease_request.lease_id, ()))
                raise
            self.measure_composition(fabric, lease)

    def wait_for_hosts(self, fabric: Fabric, lease_request: LeaseRequest) -> tuple[str, ...]:
        """Return the hosts on which the driver's job can start now, so that no devices are held for a queued job."""

        def can_place(names: tuple[str, ...]) -> bool:
            try:
                fabric.select_devices(
                    replace(lease_request, allowed_hosts=names),
                    self.site.fenced_devices.mark_fenced(fabric.read_inventory()),
                )
            except (NoMatch, Incompatible):
                return False
            except FabricError:  # The lease waits later for devices that other leases hold.
                return True
            return True

        return self.free_hosts.wait_until_free(
            lease_request.allowed_hosts, lease_request.configuration.hosts, can_place
        )

    def measure_on_demand(self) -> None:
        """Measure on devices that Slurm composes for the driver's job, and wait for their release."""
        try:
            self.supervisor.run_driver(None, None, len(self.list_missing_runs()))
        finally:
            if use := self.supervisor.use:
                self.uses.append(use)
                name = use.rpartition(".")[0]
                deadline_s = time.monotonic() + _POWER_DOWN_TIMEOUT_S
                while self.open_journal(name).state != "RELEASED" and time.monotonic() < deadline_s:
                    time.sleep(self.submitter.poll_interval_s)
                self.store_lease_document(self.plan.lease, self.open_journal(name))

    def measure_composition(self, fabric: Fabric, lease: HeldLease) -> None:
        """Measure on a composition and release it.

        The composition is kept for the next invocation if the driver continues alone.
        """
        use = determine_use_id(self.results, lease.journal)
        hosts = [host.name for host in lease.composition.hosts]
        self.uses.append(use)
        try:
            mark_in_use(lease)
            self.strategy.announce(lease.composition, lease.id)
            self.supervisor.run_driver(lease, use, len(self.list_missing_runs()))
            self.verify_composition(fabric, lease, use)
        except DriverLeftRunning:
            lease.ownership.close()
            raise
        except BaseException as error:
            try:
                if isinstance(error, LaunchError):
                    fault = {"operation": "allocation", "error": type(error).__name__}
                    lease.journal.add_facts(fault={**fault, "message": self.shorten_paths(str(error))})
            finally:
                self.release_lease(fabric, lease, hosts)
            raise
        self.release_lease(fabric, lease, hosts)

    def release_lease(self, fabric: Fabric, lease: HeldLease, hosts: list[str]) -> None:
        """Release a lease on the fabric and in the scheduler, and store its document."""
        with defer_ending_signals():
            try:
                self.strategy.begin(hosts, lease.id)
            except LaunchError as error:
                # Devices that stay attached are worse than a scheduler that is not informed yet.
                self.report_for_lease(f"the devices are released in spite of an error: {error}")
            document = release_lease(fabric, lease)
            self.restore_scheduler(lease.id, hosts)
            self.store_lease_document(self.plan.lease, lease.journal)  # last: it needs space
        if document["leaked"]:
            self.report_for_lease(
                f"the fabric did not release {', '.join(document['leaked'])}; try again with 'campaign release'"
            )

    def verify_composition(self, fabric: Fabric, lease: HeldLease, use: str) -> None:
        """Verify the composition after the runs, and move records of runs on a broken composition into superseded/.

        Raises FabricError if the composition broke.
        """
        problems = check_lease(fabric, lease)
        if not problems:
            return
        runs = [
            (cell.id, repetition)
            for cell in self.plan.work_cells
            for repetition in list_run_numbers(cell.settings)
            if self.store.path(cell.id, repetition).exists()
            and self.store.read_latest(cell.id, repetition).lease_id == use
        ]
        reason = f"the composition broke during the measurement ({'; '.join(problems)})"
        if not runs:
            raise FabricError(reason)
        superseded = supersede_records(self.store, runs, why=f"{use}: {reason}")
        raise FabricError(f"{reason}; the records of its runs were moved to {superseded.directory}")

    def build_manifest(self) -> dict[str, Any]:
        """Build the manifest of the lease, with its missing runs, problems and durations."""
        known_runs = self.read_known_runs()
        missing = known_runs.list_missing_runs(self.plan.work_cells)
        problems = [self.shorten_paths(problem) for problem in self.problems]
        end_forecast(self.results, self.plan.lease)
        summary_file = self.results.work_directory(self.plan.lease) / "measured.json"
        if self.uses:
            write_json(
                summary_file,
                measured_fields := {"uses": self.uses, "forecast": self.forecast, **self.summarize_durations()},
            )
        else:  # Nothing was measured this time, so the durations of the previous manifest still hold.
            measured_fields = read_json(summary_file) or {
                "uses": [],
                "forecast": self.forecast,
                **self.summarize_durations(),
            }
        return {
            "schema_version": MANIFEST_SCHEMA,
            "lease": self.plan.lease,
            "configuration": self.plan.configuration.name,
            "composition": self.plan.composition,
            "run_set": self.plan.run_set,
            "runs": sum(len(known_runs.list_planned_runs(cell)) for cell in self.plan.work_cells),
            "missing": [[cell.id, repetition] for cell, repetition in missing],
            "reason": problems[-1] if missing and problems else "",
            "problems": problems,
            **measured_fields,
        }

    def summarize_durations(self) -> dict[str, Any]:
        """Return the durations and costs of the lease's uses and runs, for comparison with the forecast and for the next one."""
        uses = [read_lease_document(self.results.leases / f"{use}.json") for use in self.uses]
        durations_s = [
            released_s - requested_s
            for use in uses
            if (requested_s := use.get("requested_s")) and (released_s := use.get("released_s"))
        ]
        is_complete = len(durations_s) == len(self.uses) and bool(durations_s)
        spans = self.supervisor.spans
        system = self.campaign.system
        no_costs = CampaignCosts(self.campaign.name, system.name, fabric=str(system.fabric["kind"]))
        cells = {cell.id: (cell.workload, cell.configuration) for cell in self.plan.work_cells}
        costs = measure_costs(no_costs, cells, spans, [use for use in uses if use])
        actual = {"runs": len(spans), "uses": len(uses), "wall_s": round(sum(durations_s), 3) if is_complete else None}
        return {"actual": actual, "costs": costs.to_document()}

    def shorten_paths(self, message: str) -> str:
        """Return a message with paths made relative to the results directory, so that it stays valid in reports and archives."""
        directory = self.results.directory
        return message.replace(f"{directory.resolve()}/", "").replace(f"{directory}/", "")
