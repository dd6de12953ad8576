"""Driver session on one composition: its links are measured first, then its runs one after the other."""

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
from campaign.observe.links.lease_links import LinkStage, MeasurementTime, list_measurement_times
from campaign.observe.telemetry.run_telemetry import Telemetry, TelemetrySummary
from campaign.plan.campaign.workload_inputs import check_unedited, select_inputs
from campaign.plan.lease_plans import build_lease_frontier, campaign_part_from_lease_plan
from campaign.plan.missing_runs import is_measured, read_recorded_runs
from campaign.plan.oom_frontier import CONTRADICTS, build_implied_record
from campaign.plan.order import order_runs
from campaign.plan.requirements import describe_shortfall, list_required_cells
from campaign.run.adaptive_repetitions import RepetitionTracker
from campaign.run.environment import describe_environment
from campaign.run.failed_devices import DeviceFaultHandler
from campaign.run.launched_run import LaunchedRun, RunLaunch, repeat_until_undisturbed
from campaign.run.launchers import open_launcher
from campaign.run.local_devices import verify_local_devices
from campaign.run.progress import append_progress
from campaign.slurm.cut_short import FirstRunFile
from campaign.spec.cell import Cell
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.hardware import Composition
from campaign.spec.lease_plan import read_lease_plan
from campaign.spec.record import Failure, Record, RecordedCell, RecordStore, is_disk_full
from campaign.spec.run_numbers import format_run_number
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Run, RunStorage, StepEnd, Workload

_WRITE_RETRY_TIMEOUT_S = 60.0


def invalidate_if_devices_idle(outcome: Outcome, samples: TelemetrySummary) -> Outcome:
    """Return the outcome of a run, changed to invalid if the telemetry shows that its devices did no work."""
    if outcome.status != "ok" or not samples.unused_device_messages:
        return outcome
    failure = Failure(reason="devices of the run did no work", evidence="; ".join(samples.unused_device_messages))
    return replace(outcome, status="invalid", failure=failure)


class _FinishedRun(NamedTuple):
    """Finished run, with its outcome and telemetry."""

    run: Run
    ended: StepEnd
    outcome: Outcome
    log: Path
    samples: TelemetrySummary


class DriverSession:
    """Session in which one driver works on a lease.

    Args:
        request: request of the driver.
        result: result, which is kept up to date however the session ends.
    """

    def __init__(self, request: DriverRequest, result: DriverResult) -> None:
        self.request = request
        self.result = result
        self.plan = read_lease_plan(Path(request.lease_plan))
        self.campaign = campaign_part_from_lease_plan(self.plan)
        self.lease = request.lease
        self.results = request.results
        self.store = RecordStore(self.results.directory)
        self.work = self.results.work_directory(self.lease)
        self.first_run = FirstRunFile(self.work)
        self.uses_slurm = self.is_first_start_pending = self.campaign.system.launcher == "slurm"
        self.journals = self.results.journals_directory(self.campaign.system.name)
        self.mark = self.results.run_mark_prefix(self.lease)
        self.environment = self.store.share_document(describe_environment())
        self.software_hashes: dict[str, str] = {}
        self.lasting_disturbances: set[str] = set()
        skip_implied = self.campaign.protocol.skip_implied
        self.frontier = build_lease_frontier(self.plan, self.store, skip=skip_implied)
        self.repetitions = RepetitionTracker(self.store, implied=skip_implied, metric=self.campaign.metric)

    def measure_missing_runs(self) -> None:
        """Measure all missing runs of the lease on its composition, and write their records."""
        # A killed driver may have left processes that would disturb the measurement.
        kill_marked_processes(self.mark)
        known_runs = read_recorded_runs(self.store, skip_implied=self.frontier.skip, cells=self.plan.work_cells)
        todo = order_runs(known_runs.list_missing_runs(self.plan.work_cells), self.campaign.protocol, self.lease)
        remaining_runs = Counter(cell.id for cell, _ in todo)
        self.obtained = self.obtain_composition()
        self.obtained.require_held(self.journals)
        self.result.use = self.obtained.use
        system = self.campaign.system
        fenced_devices = Site(system, self.results.root).fenced_devices
        self.fault_handler = DeviceFaultHandler(
            system, self.obtained.composition, fenced_devices, self.campaign.name, self.work
        )
        launcher = open_launcher(system.launcher, system, self.obtained.composition)
        self.emulated_links = launcher.links
        links = {} if self.emulated_links is None else {"links": self.emulated_links}
        document = {"schema_version": "composition/1", **self.obtained.composition.document(), **links}
        self.composition = self.store.share_document(document)
        try:
            interval_s, directory = self.campaign.protocol.telemetry_s, self.work / "telemetry"
            mark = f"{self.mark.partition('/')[0]}/"
            with Telemetry(launcher, self.obtained.composition, interval_s, directory, mark) as self.telemetry:
                finished_runs = self.check_requirements(launcher, todo)
                self.links, self.link_flags = self.measure_links(launcher, "before", todo)
                for cell, repetition in todo:
                    if self.repetitions.is_over(cell):
                        continue
                    if (finished_run := finished_runs.pop((cell.id, repetition), None)) is not None:
                        record = self._build_record(*finished_run)
                    else:
                        record = self.build_implied_record(cell, repetition) or self.measure_run(
                            launcher, cell, repetition
                        )
                    with defer_ending_signals():  # a measured run must also get its record
                        record = self.write_record(cell, record)
                    self.result.measured.append(record.key)
                    remaining_runs[cell.id] -= 1
                    is_last = self.repetitions.is_over(cell, record) or remaining_runs[cell.id] == 0
                    cell_done = (
                        is_last and not cell.reference and is_measured(self.store, cell, implied=self.frontier.skip)
                    )
                    append_progress(
                        self.results, self.lease, cell, record, cell_done=cell_done, metric=self.campaign.metric
                    )
                self.measure_links(launcher, "after", todo)
        finally:
            launcher.close()

    def check_requirements(
        self, launcher: Launcher, todo: Sequence[tuple[Cell, int]]
    ) -> dict[tuple[str, int], _FinishedRun]:
        """Run the cells that verify the composition against the campaign's requirements.

        Returns:
            The finished runs of `todo` among them, by cell and run number.

        Raises:
            LaunchError: The composition does not meet a requirement. Nothing is recorded then.
        """
        finished_runs: dict[tuple[str, int], _FinishedRun] = {}
        by_cell: dict[str, _FinishedRun] = {}
        for requirement, cell in list_required_cells(self.campaign, self.plan.configuration.name) if todo else ():
            # A cell without a missing run is tried under number 0 and not recorded again.
            repetition = next((number for todo_cell, number in todo if todo_cell.id == cell.id), 0)
            if cell.id not in by_cell:
                by_cell[cell.id] = self.execute_run(launcher, cell, repetition)
                if repetition:
                    finished_runs[cell.id, repetition] = by_cell[cell.id]
            finished_run = by_cell[cell.id]
            if reason := describe_shortfall(requirement, cell, finished_run.outcome):
                hosts = ", ".join(host.name for host in self.obtained.composition.hosts)
                raise LaunchError(f"{reason}; nothing was measured on {hosts}").with_log(finished_run.log)
        return finished_runs

    def measure_links(
        self, launcher: Launcher, when: MeasurementTime, todo: Sequence[object]
    ) -> tuple[str, tuple[str, ...]]:
        """Measure the composition's links if the campaign requests it and they have not been measured yet.

        Returns:
            The hash of the links document and the flags for runs over these links; both empty if nothing was measured.
        """
        is_already_measured = self.campaign.protocol.links.compositions == "first" and self.plan.composition > 1
        if is_already_measured or not todo or when not in list_measurement_times(self.campaign):
            return "", ()
        stage = LinkStage(
            self.campaign, self.results, self.store, self.obtained.use, self.obtained.composition, self.lease
        )
        return stage.ensure_measured(launcher, when, self.work / "links" / when, f"{self.mark}links.{when}")

    def obtain_composition(self) -> ObtainedComposition:
        """Return the composition that this driver runs on.

        Inside an allocation, its devices are verified before anything runs on them.
        """
        request, system = self.request, self.campaign.system
        if request.use is None or request.composition is None:
            composition_in_use = read_on_demand_composition(
                self.results, system.name, os.environ.get("SLURM_JOB_ID", "")
            )
        else:
            composition = Composition.from_document(request.composition)
            composition_in_use = ObtainedComposition(request.use, composition, request.mismatches, request.holding)
        if not self.uses_slurm:
            return replace(
                composition_in_use, composition=verify_local_devices(system, composition_in_use.composition, self.work)
            )
        from campaign.slurm.run_on_hosts import place_on_hosts, read_allocation_hosts
        from campaign.slurm.verify_devices import verify_devices_of_hosts

        if not system.are_hosts_pinned:
            composition_in_use = replace(
                composition_in_use, composition=place_on_hosts(composition_in_use.composition, read_allocation_hosts())
            )
        verify_devices_of_hosts(system, composition_in_use.composition, self.work)
        return composition_in_use

    def build_implied_record(self, cell: Cell, repetition: int) -> Record | None:
        """Build the record of a run that is skipped because a smaller batch ran out of memory, or None if it is not skipped."""
        evidence = self.frontier.read_evidence(cell)
        if evidence is None:
            return None
        return build_implied_record(self.plan.specification(cell), self.plan.campaign_hash, cell, repetition, evidence)

    def measure_run(self, launcher: Launcher, cell: Cell, repetition: int) -> Record:
        """Execute one run and return its record."""
        return self._build_record(*self.execute_run(launcher, cell, repetition))

    def execute_run(self, launcher: Launcher, cell: Cell, repetition: int) -> _FinishedRun:
        """Execute one run and return its outcome and telemetry.

        A run that was disturbed from outside is repeated. Raises RecordError if the disk is full.
        """
        workload, name = self.campaign.workloads[cell.workload], f"{cell.id}.{repetition}"
        log = self.results.logs / self.lease / f"{name}.log"
        run = self._build_run(cell, repetition, workload)
        if objection := self._find_objection(cell, workload, run.runs_on):
            now_s = time.time()
            launch = RunLaunch(StepEnd((), now_s, now_s), Outcome("unsupported", Failure(reason=objection)))
        elif self.uses_slurm and (reason := self.first_run.explain_no_retry(name)):
            now_s = time.time()
            launch = RunLaunch(StepEnd((), now_s, now_s), Outcome("time_limit", Failure(reason=reason)))
            self.first_run.remove()
        else:
            # The file is kept after an exception, so that a run that the time limit ended stays recorded in it.
            if is_first := self.is_first_start_pending:
                self.is_first_start_pending = False
                self.first_run.record_start(name)
            launch = repeat_until_undisturbed(
                f"{cell.id}, {format_run_number(repetition)}",
                lambda: self._launch_once(launcher, workload, run, log),
                self.campaign.protocol.attempts,
                self.lasting_disturbances,
            )
            self.lasting_disturbances.update(launch.telemetry.disturbances)
            if is_first:
                self.first_run.remove()
        step_end, outcome, telemetry = launch
        if outcome.status != "ok" and is_disk_full(self.results.directory):
            raise RecordError(
                f"{self.results.directory}: the disk is full, so a run could not write its output; free some space, then run the "
                "same command again (finished records are kept)"
            )
        return _FinishedRun(run, step_end, invalidate_if_devices_idle(outcome, telemetry), log, telemetry)

    def _build_run(self, cell: Cell, repetition: int, workload: Workload) -> Run:
        """Build the run of a cell with its composition, inputs and storage."""
        storage_kind, system = cell.configuration.storage, self.campaign.system
        storage = system.storage.get(storage_kind)
        inputs = select_inputs(workload, {**workload.options, **cell.options}, self.campaign.inputs)
        composition, emulation = self.obtained.composition, self.campaign.system.emulation
        return Run(
            cell,
            repetition,
            replace(composition, hosts=composition.hosts[:1]) if cell.reference else composition,
            self.work / "runs" / f"{cell.id}.{repetition}",
            self.campaign.device_model(cell.configuration).runs_on,
            storage=RunStorage(Path(storage.path), system.get_storage_limit_gb_per_s(storage_kind))
            if storage
            else None,
            peak_tflops=self._find_peak_tflops(cell),
            launcher="slurm" if self.uses_slurm else "local",
            files={text: file.path for text, file in inputs.items()},
            pace={} if emulation is None else emulation.get_paces(cell.precision),
            workload_dir=self.campaign.workload_dirs.get(cell.workload, ""),
        )

    def _find_objection(self, cell: Cell, workload: Workload, runs_on: AcceleratorKind) -> str | None:
        """Return the reason why the cell cannot run on its device, or None if it can."""
        device = self.campaign.device_model(cell.configuration)
        if device.precisions is not None and cell.precision not in device.precisions:
            precisions = ", ".join(device.precisions)
            return f"according to the system file, {cell.configuration.device} supports only {precisions}"
        return workload.unsupported_reason(cell, runs_on)

    def _launch_once(self, launcher: Launcher, workload: Workload, run: Run, log: Path) -> RunLaunch:
        """Launch a run once and return how it ended, its outcome, judged for device faults, and its telemetry."""
        make_directory(run.directory)
        try:
            log.unlink(missing_ok=True)  # log of an earlier attempt that left no record
            self._store_software(run.cell)
            files = select_inputs(workload, {**workload.options, **run.cell.options}, self.campaign.inputs)
            check_unedited(files, in_container=workload.runs_in_container)
            limits = StepLimits(run.cell.settings.time_limit_s, self.campaign.protocol.memory_limit_mib)
            step = workload.step(run)
            step = replace(step, environment={**self.telemetry.environment, **step.environment})
            mark = f"{self.mark}{run.directory.name}"
            step_result = LaunchedRun(launcher, workload, run, mark, log, limits).execute(step)
            # An unchanged token proves that the lease was held throughout. A released lease has another token or none.
            self.obtained.require_held(self.journals)
            outcome = workload.judge_run(run, step_result, Log(log))
            outcome = self.fault_handler.judge_outcome(run, step, step_result, outcome, Log(log))
            return RunLaunch(step_result, outcome, self._store_telemetry(run, step_result, outcome))
        except LaunchError as error:
            if log.exists():
                error.with_log(log)
            raise
        finally:
            shutil.rmtree(run.directory, ignore_errors=True)

    def _store_software(self, cell: Cell) -> str:
        """Return the hash of the software document of a workload's own environment, examined before its first run.

        Raises LaunchError if the environment is missing.
        """
        software_key = hash_document([cell.workload, dict(cell.options)])
        if software_key not in self.software_hashes:
            document = self.campaign.workloads[cell.workload].software_document(
                cell.options, self.results.image_digests
            )
            self.software_hashes[software_key] = "" if document is None else self.store.share_document(document)
        return self.software_hashes[software_key]

    def _find_peak_tflops(self, cell: Cell) -> float | None:
        """Return the peak rate of a cell's device at its precision in TFLOP/s, or None if it is unknown."""
        model = cell.configuration.device
        device = self.campaign.device_model(cell.configuration)
        declared_peaks: dict[str, float] = {str(name): peak for name, peak in device.peak_tflops.items()}
        # An emulated device only has the name of a real device, so the published rate does not apply.
        if cell.precision in declared_peaks or device.runs_on == "cpu":
            return declared_peaks.get(cell.precision)
        return get_peak_tflops(model, device.reported_as, cell.precision)

    def _store_telemetry(self, run: Run, step_result: StepEnd, outcome: Outcome) -> TelemetrySummary:
        """Return the telemetry summary of a run, and store the samples next to the record."""
        if not step_result.codes:
            return TelemetrySummary()
        rate = outcome.throughput_per_s if outcome.status == "ok" else None
        sample_count = rate * (outcome.steady[1] - outcome.steady[0]) if rate and outcome.steady else None
        path = self.results.telemetry_file(run.cell.id, run.repetition)
        # The host may have real devices in addition to the cores that represent devices.
        devices = {} if run.runs_on == "cpu" else run.ranks_by_host
        return self.telemetry.store_run(
            step_result.started, step_result.ended, outcome.steady, sample_count, path, devices, outcome.ran_on
        )

    def _mask_secrets(self, failure: Failure | None) -> Failure | None:
        """Return the failure with all secrets of the environment masked, because the program may have printed them."""
        if failure is None:
            return None
        documents = [*self.campaign.workloads.values(), self.campaign.system]
        variable_names = [
            name for document in documents for _, name in find_environment_references(document.model_dump(mode="json"))
        ]
        secrets = {*collect_secrets(os.environ), *(os.environ[name] for name in variable_names if os.environ.get(name))}
        texts = {"reason": mask_secrets(failure.reason, secrets), "evidence": mask_secrets(failure.evidence, secrets)}
        return failure.model_copy(update=texts)

    def write_record(self, cell: Cell, record: Record) -> Record:
        """Write a record with its flags, and return it.

        Under Slurm, writing is retried for one minute, so that a short outage of a shared file system costs no measurement.
        """
        if record.status == "ok" and self.frontier.contradicts_limit(cell):
            record = record.model_copy(update={"flags": (*record.flags, CONTRADICTS)})
        record = record.model_copy(update={"stopped": self.repetitions.format_stop_reason(cell, record)})
        timeout_s = _WRITE_RETRY_TIMEOUT_S if self.uses_slurm else 0.0
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self.frontier.add_record(cell, record)
                self.repetitions.withdraw_stop(cell)
                self.store.write(record)
                return record
            except RecordError as error:
                if time.monotonic() >= deadline_s:
                    raise
                print(f"writing the record is retried for {timeout_s:g} s: {error}", flush=True)
                time.sleep(1.0)

    def _build_record(
        self, run: Run, step_result: StepEnd, outcome: Outcome, log: Path, samples: TelemetrySummary
    ) -> Record:
        """Build the record of a finished run."""
        cell = run.cell
        flags = [*outcome.flags, *step_result.flags, *samples.flags]
        flags += [f"composition: {mismatch}" for mismatch in self.obtained.mismatches]
        flags += self.link_flags
        if self.emulated_links is not None and self.emulated_links["emulated"] is None:
            flags.append(NOT_EMULATED)
        keeps_pace = "pace_lost_pct" in outcome.metrics  # Ranks that keep a pace do not wait for each other's cores.
        if not keeps_pace and run.runs_on == "cpu" and cell.configuration.ranks > len(os.sched_getaffinity(0)):
            flags.append("oversubscribed: more ranks than cores")
        return Record(
            cell_id=cell.id,
            repetition=run.repetition,
            cell=RecordedCell.from_cell(cell),
            specification=self.plan.specification(cell),
            status=outcome.status,
            failure=self._mask_secrets(outcome.failure),
            started=step_result.started,
            ended=step_result.ended,
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
            software=self._store_software(cell) if step_result.codes else "",
            telemetry=str(samples.samples_file.relative_to(self.results.directory)) if samples.samples_file else "",
            flags=tuple(flags),
            loads=samples.loads,
            log=str(log.relative_to(self.results.directory)) if step_result.codes else "",
        )
