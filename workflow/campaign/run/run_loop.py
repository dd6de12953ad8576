"""Driver session on one composition: measure its links, then measure run after run up to its record."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from campaign.common.accelerators import AcceleratorKind, get_peak_tflops
from campaign.common.credentials import collect_secrets, find_environment_references, mask_secrets
from campaign.common.errors import LaunchError, RecordError
from campaign.common.files import hash_document, make_directory
from campaign.common.processes.marked import kill_marked_processes
from campaign.common.processes.signals import defer_ending_signals
from campaign.emulators.hosts.emulation_plan import NOT_EMULATED
from campaign.lease.campaign_leases import ObtainedComposition, Site, read_on_demand_composition
from campaign.observe.links.lease_links import LinkStage, When, asked_of
from campaign.observe.telemetry.run_telemetry import Summary, Telemetry
from campaign.plan.campaign.workload_inputs import inputs_of, refuse_edited
from campaign.plan.lease_plans import campaign_of, lease_frontier
from campaign.plan.missing_runs import is_measured, read_known
from campaign.plan.oom_frontier import CONTRADICTS, implied_record
from campaign.plan.order import ordered
from campaign.plan.requirements import required, shortfall
from campaign.run.adaptive_repetitions import Repetitions
from campaign.run.environment import environment_document
from campaign.run.failed_devices import FailedDevices
from campaign.run.launched_run import LaunchedRun, until_undisturbed
from campaign.run.launchers import open_launcher
from campaign.run.local_devices import verify_here
from campaign.run.progress import note
from campaign.slurm.cut_short import FirstRun
from campaign.spec.cell import Cell
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.hardware import Composition
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.record import Failure, Record, RecordedCell, Store, is_full
from campaign.workloads.launcher import Launcher, Limits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run, RunStorage, Workload

_UNWRITABLE_S = 60.0


def worked_on_devices(outcome: Outcome, samples: Summary) -> Outcome:
    """Return the outcome of a run, marked invalid if its devices did no work.

    Args:
        outcome: outcome as the workload reports it.
        samples: telemetry of the run.
    """
    if outcome.status != "ok" or not samples.unused:
        return outcome
    failure = Failure(reason="devices of the run did no work", evidence="; ".join(samples.unused))
    return replace(outcome, status="invalid", failure=failure)


class _Tried(NamedTuple):
    """Finished run, with its outcome and telemetry."""

    run: Run
    ended: Ended
    outcome: Outcome
    log: Path
    samples: Summary


class DriverSession:
    """One driver at work on a lease.

    Args:
        request: request of the driver.
        done: result, which is kept up to date however the session ends.
    """

    def __init__(self, request: DriverRequest, done: DriverResult) -> None:
        self.request = request
        self.done = done
        self.plan = read_lease_plan(Path(request.lease_plan))
        self.campaign = campaign_of(self.plan)
        self.lease = request.lease
        self.results = request.results
        self.store = Store(self.results.directory)
        self.work = self.results.work_directory(self.lease)
        self.first_run = FirstRun(self.work)
        self.of_slurm = self.none_started = self.campaign.system.launcher == "slurm"
        self.journals = self.results.journals_directory(self.campaign.system.name)
        self.mark = self.results.run_mark_prefix(self.lease)
        self.environment = self.store.share(environment_document())
        self.software: dict[str, str] = {}
        skip_implied = self.campaign.protocol.skip_implied
        self.frontier = lease_frontier(self.plan, self.store, skip=skip_implied)
        self.repetitions = Repetitions(self.store, implied=skip_implied, metric=self.campaign.metric)

    def run(self) -> None:
        # A killed driver may have left processes that would disturb what is measured now.
        """Measure all missing runs of the lease on its composition, and write their records."""
        kill_marked_processes(self.mark)
        known = read_known(self.store, skip_implied=self.frontier.skip, cells=self.plan.work)
        todo = ordered(known.missing(self.plan.work), self.campaign.protocol, self.lease)
        left = Counter(cell.id for cell, _ in todo)
        self.obtained = self.arrive()
        self.obtained.require_held(self.journals)
        self.done.use = self.obtained.use
        system = self.campaign.system
        fenced = Site(system, self.results.root).fenced_devices
        self.devices = FailedDevices(system, self.obtained.composition, fenced, self.campaign.name, self.work)
        launcher = open_launcher(system.launcher, system, self.obtained.composition)
        self.emulated_links = launcher.links
        links = {} if self.emulated_links is None else {"links": self.emulated_links}
        document = {"schema_version": "composition/1", **self.obtained.composition.document(), **links}
        self.composition = self.store.share(document)
        try:
            interval_s, directory = self.campaign.protocol.telemetry_s, self.work / "telemetry"
            with Telemetry(launcher, self.obtained.composition, interval_s, directory) as self.telemetry:
                passed = self.pass_requirements(launcher, todo)
                self.links, self.link_flags = self.look_at_links(launcher, "before", todo)
                for cell, repetition in todo:
                    if self.repetitions.is_over(cell):
                        continue
                    if (tried := passed.pop((cell.id, repetition), None)) is not None:
                        record = self._record(*tried)
                    else:
                        record = self.implied(cell, repetition) or self.measure(launcher, cell, repetition)
                    with defer_ending_signals():  # a measured run must also get its record
                        record = self.keep(cell, record)
                    self.done.measured.append(record.key)
                    left[cell.id] -= 1
                    last = self.repetitions.is_over(cell, record) or left[cell.id] == 0
                    cell_done = (
                        last and not cell.reference and is_measured(self.store, cell, implied=self.frontier.skip)
                    )
                    note(self.results, self.lease, cell, record, cell_done=cell_done, metric=self.campaign.metric)
                self.look_at_links(launcher, "after", todo)
        finally:
            launcher.close()

    def pass_requirements(self, launcher: Launcher, todo: Sequence[tuple[Cell, int]]) -> dict[tuple[str, int], _Tried]:
        """Run the cells that verify the composition against the campaign's requirements.

        Returns:
            The finished runs of `todo` among them, by cell and run number.

        Raises:
            LaunchError: The composition does not meet a requirement. Nothing is recorded then.
        """
        passed: dict[tuple[str, int], _Tried] = {}
        by_cell: dict[str, _Tried] = {}
        for requirement, cell in required(self.campaign, self.plan.configuration.name) if todo else ():
            # A run without a number is not recorded, e.g. because an earlier use of the lease has recorded it.
            repetition = next((number for each, number in todo if each.id == cell.id), 0)
            if cell.id not in by_cell:
                by_cell[cell.id] = self.tried(launcher, cell, repetition)
                if repetition:
                    passed[cell.id, repetition] = by_cell[cell.id]
            tried = by_cell[cell.id]
            if why := shortfall(requirement, cell, tried.outcome):
                hosts = ", ".join(host.name for host in self.obtained.composition.hosts)
                raise LaunchError(f"{why}; nothing was measured on {hosts}").with_log(tried.log)
        return passed

    def look_at_links(self, launcher: Launcher, when: When, todo: Sequence[object]) -> tuple[str, tuple[str, ...]]:
        """Measure the composition's links if the campaign requests it and it is not done yet.

        Returns:
            The hash of the links document and the flags for runs over these links; both empty if nothing was measured.
        """
        once = self.campaign.protocol.links.compositions == "first" and self.plan.composition > 1
        if once or not todo or when not in asked_of(self.campaign):
            return "", ()
        stage = LinkStage(
            self.campaign, self.results, self.store, self.obtained.use, self.obtained.composition, self.lease
        )
        return stage.look(launcher, when, self.work / "links" / when, f"{self.mark}links.{when}")

    def arrive(self) -> ObtainedComposition:
        """Return the composition that this driver runs on.

        Inside an allocation, its devices are verified before anything runs on them.
        """
        request, system = self.request, self.campaign.system
        if request.use is None or request.composition is None:
            obtained = read_on_demand_composition(self.results, system.name, os.environ.get("SLURM_JOB_ID", ""))
        else:
            composition = Composition.from_document(request.composition)
            obtained = ObtainedComposition(request.use, composition, request.mismatches, request.holding)
        if not self.of_slurm:
            return replace(obtained, composition=verify_here(system, obtained.composition, self.work))
        from campaign.slurm.run_on_hosts import hosts_of_allocation, placed
        from campaign.slurm.verify_devices import verify

        if not system.pins_hosts:
            obtained = replace(obtained, composition=placed(obtained.composition, hosts_of_allocation()))
        verify(system, obtained.composition, self.work)
        return obtained

    def implied(self, cell: Cell, repetition: int) -> Record | None:
        """Build the record of a run that need not start because a smaller batch ran out of memory; None for any other run."""
        evidence = self.frontier.evidence(cell)
        if evidence is None:
            return None
        return implied_record(self.plan.specification(cell), self.plan.campaign_hash, cell, repetition, evidence)

    def measure(self, launcher: Launcher, cell: Cell, repetition: int) -> Record:
        """Execute one run and return its record."""
        return self._record(*self.tried(launcher, cell, repetition))

    def tried(self, launcher: Launcher, cell: Cell, repetition: int) -> _Tried:
        """Execute one run and return its outcome and telemetry.

        A run that was disturbed from outside is repeated. Raises RecordError if the disk is full.
        """
        workload, name = self.campaign.workloads[cell.workload], f"{cell.id}.{repetition}"
        log = self.results.logs / self.lease / f"{name}.log"
        run = self._run_of(cell, repetition, workload)
        if objection := self._objection(cell, workload, run.runs_on):
            now = time.time()
            ended, outcome = Ended((), now, now), Outcome("unsupported", Failure(reason=objection))
        elif self.of_slurm and (reason := self.first_run.why(name)):
            now = time.time()
            ended, outcome = Ended((), now, now), Outcome("time_limit", Failure(reason=reason))
            self.first_run.end()
        else:
            # Not after an exception, so that a run ended by the time limit stays noted.
            if first := self.none_started:
                self.none_started = False
                self.first_run.begin(name)
            ended, outcome = until_undisturbed(name, lambda: self._launch(launcher, workload, run, log))
            if first:
                self.first_run.end()
        if outcome.status != "ok" and is_full(self.results.directory):
            raise RecordError(
                f"{self.results.directory}: the disk is full, so that a run could not write what it has to say; free space, "
                "then run the same command again: finished records are kept"
            )
        samples = self._samples(run, ended, outcome)
        return _Tried(run, ended, worked_on_devices(outcome, samples), log, samples)

    def _run_of(self, cell: Cell, repetition: int, workload: Workload) -> Run:
        """Build the run of a cell with its composition, inputs and storage."""
        kind, system = cell.configuration.storage, self.campaign.system
        place = system.storage.get(kind)
        inputs = inputs_of(workload, {**workload.options, **cell.options}, self.campaign.inputs)
        composition, emulation = self.obtained.composition, self.campaign.system.emulation
        return Run(
            cell,
            repetition,
            replace(composition, hosts=composition.hosts[:1]) if cell.reference else composition,
            self.work / "runs" / f"{cell.id}.{repetition}",
            self.campaign.device_of(cell.configuration).runs_on,
            storage=RunStorage(Path(place.path), system.storage_limit_gb_per_s(kind)) if place else None,
            peak_tflops=self._peak_tflops(cell),
            launcher="slurm" if self.of_slurm else "local",
            files={text: file.path for text, file in inputs.items()},
            pace={} if emulation is None else emulation.paces(cell.precision),
            workload_dir=self.campaign.workload_dirs.get(cell.workload, ""),
        )

    def _objection(self, cell: Cell, workload: Workload, runs_on: AcceleratorKind) -> str | None:
        """Return the reason why the cell cannot run on its device, or None."""
        device = self.campaign.device_of(cell.configuration)
        if device.precisions is not None and cell.precision not in device.precisions:
            precisions = ", ".join(device.precisions)
            return f"{cell.configuration.device} does {precisions} only, says the system file"
        return workload.objection(cell, runs_on)

    def _launch(self, launcher: Launcher, workload: Workload, run: Run, log: Path) -> tuple[Ended, Outcome]:
        """Launch a run once and return how it ended and its outcome, judged for device faults."""
        make_directory(run.directory)
        try:
            log.unlink(missing_ok=True)  # of an attempt that left no record
            self._software(run.cell)
            files = inputs_of(workload, {**workload.options, **run.cell.options}, self.campaign.inputs)
            refuse_edited(files, in_container=workload.in_container)
            limits = Limits(run.cell.settings.time_limit_s, self.campaign.protocol.memory_limit_mib)
            step = workload.step(run)
            step = replace(step, environment={**self.telemetry.environment, **step.environment})
            mark = f"{self.mark}{run.directory.name}"
            ended = LaunchedRun(launcher, workload, run, mark, log, limits).ended(step)
            # The same token now proves that the lease was held throughout: a released lease has another token, or none.
            self.obtained.require_held(self.journals)
            outcome = workload.outcome(run, ended, Log(log))
            return ended, self.devices.judged(run, step, ended, outcome, Log(log))
        except LaunchError as error:
            if log.exists():
                error.with_log(log)
            raise
        finally:
            shutil.rmtree(run.directory, ignore_errors=True)

    def _software(self, cell: Cell) -> str:
        """Return the hash of the software document of a workload's own environment, examined before its first run.

        Raises LaunchError if the environment is missing.
        """
        key = hash_document([cell.workload, dict(cell.options)])
        if key not in self.software:
            document = self.campaign.workloads[cell.workload].software_document(
                cell.options, self.results.image_digests
            )
            self.software[key] = "" if document is None else self.store.share(document)
        return self.software[key]

    def _peak_tflops(self, cell: Cell) -> float | None:
        """Return the peak rate of a cell's device at its precision in TFLOP/s, or None if it is unknown."""
        model = cell.configuration.device
        device = self.campaign.device_of(cell.configuration)
        own: dict[str, float] = {str(name): peak for name, peak in device.peak_tflops.items()}
        if cell.precision in own or device.runs_on == "cpu":  # an emulated device has only the name of a device
            return own.get(cell.precision)
        return get_peak_tflops(model, device.reported_as, cell.precision)

    def _samples(self, run: Run, ended: Ended, outcome: Outcome) -> Summary:
        """Return the telemetry of a run, and store its samples next to the record."""
        if not ended.codes:
            return Summary()
        rate = outcome.throughput_per_s if outcome.status == "ok" else None
        samples = rate * (outcome.steady[1] - outcome.steady[0]) if rate and outcome.steady else None
        out = self.results.telemetry_file(run.cell.id, run.repetition)
        # The host may have real devices besides the cores that stand for devices.
        devices = {} if run.runs_on == "cpu" else run.ranks_by_host
        return self.telemetry.keep(ended.started, ended.ended, outcome.steady, samples, out, devices, outcome.ran_on)

    def _without_secrets(self, failure: Failure | None) -> Failure | None:
        """Return the failure with all secrets of the environment masked, as the program may have printed them."""
        if failure is None:
            return None
        documents = [*self.campaign.workloads.values(), self.campaign.system]
        named = [name for each in documents for _, name in find_environment_references(each.model_dump(mode="json"))]
        known = {*collect_secrets(os.environ), *(os.environ[name] for name in named if os.environ.get(name))}
        texts = {"reason": mask_secrets(failure.reason, known), "evidence": mask_secrets(failure.evidence, known)}
        return failure.model_copy(update=texts)

    def keep(self, cell: Cell, record: Record) -> Record:
        """Write a record with its flags, and return it.

        Writing is retried for a while under Slurm, so that a short outage of a shared file system costs no measurement.
        """
        if record.status == "ok" and self.frontier.contradicts(cell):
            record = record.model_copy(update={"flags": (*record.flags, CONTRADICTS)})
        record = record.model_copy(update={"stopped": self.repetitions.why_last(cell, record)})
        patience_s = _UNWRITABLE_S if self.of_slurm else 0.0
        until = time.monotonic() + patience_s
        while True:
            try:
                self.frontier.note(cell, record)
                self.repetitions.begin(cell)
                self.store.write(record)
                return record
            except RecordError as error:
                if time.monotonic() >= until:
                    raise
                print(f"trying again for {patience_s:g} s: {error}", flush=True)
                time.sleep(1.0)

    def _record(self, run: Run, ended: Ended, outcome: Outcome, log: Path, samples: Summary) -> Record:
        """Build the record of a finished run."""
        cell = run.cell
        flags = [*outcome.flags, *ended.flags, *samples.flags]
        flags += [f"composition: {mismatch}" for mismatch in self.obtained.mismatches]
        flags += self.link_flags
        if self.emulated_links is not None and self.emulated_links["emulated"] is None:
            flags.append(NOT_EMULATED)
        paced = "pace_lost_pct" in outcome.metrics  # then ranks do not wait for each other's cores
        if not paced and run.runs_on == "cpu" and cell.configuration.ranks > len(os.sched_getaffinity(0)):
            flags.append("oversubscribed: more ranks than cores")
        return Record(
            cell_id=cell.id,
            repetition=run.repetition,
            cell=RecordedCell.of(cell),
            specification=self.plan.specification(cell),
            status=outcome.status,
            failure=self._without_secrets(outcome.failure),
            started=ended.started,
            ended=ended.ended,
            lease_id=self.obtained.use,
            hosts=tuple(host.name for host in run.composition.hosts),
            devices=tuple(device.fabric_id for device in run.devices),
            numa=outcome.numa,
            composition=self.composition,
            environment=self.environment,
            campaign=self.plan.campaign_hash,
            throughput_per_s=outcome.throughput_per_s,
            step_times_s=outcome.step_times_s,
            warmup_steps=outcome.warmup_steps,
            window_s=outcome.window_s,
            metrics={**samples.metrics, **outcome.metrics},
            phases_s=dict(outcome.phases_s),
            ran_on=outcome.ran_on,
            in_force=dict(outcome.in_force),
            links=self.links,
            software=self._software(cell) if ended.codes else "",
            telemetry=str(samples.written.relative_to(self.results.directory)) if samples.written else "",
            flags=tuple(flags),
            log=str(log.relative_to(self.results.directory)) if ended.codes else "",
        )
