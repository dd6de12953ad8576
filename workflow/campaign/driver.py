"""The driver: inside an allocation, measures every run of a lease that has no record, and writes each record once.

It is what submitit submits. It can be killed at any moment: the next driver of the lease goes on with what is missing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from campaign import locks
from campaign.cell import Cell, content_hash
from campaign.compose import Obtained, obtained_on_demand
from campaign.config.resolve import Campaign, from_document
from campaign.environment import environment_document
from campaign.errors import CampaignError, LaunchError, RecordError, unwritable
from campaign.fabrics.protocol import Composition
from campaign.launchers import open_launcher
from campaign.launchers.links import NOT_EMULATED
from campaign.launchers.processes import kill_marked
from campaign.launchers.protocol import Launcher, Limits
from campaign.matrix import expand, specification
from campaign.paths import Results
from campaign.plan import lease_name, missing_runs
from campaign.record import Failure, Record, RecordedCell, Store
from campaign.signals import deferred
from campaign.slurm import restarts
from campaign.slurm.options import is_pinned
from campaign.workloads import open_workload
from campaign.workloads.protocol import Ended, Outcome, Run

_UNWRITABLE_S = 60.0
_FULL_BYTES = 64 * 1024  # more than a program prints at once


class Stopped(BaseException):
    """The driver was told to stop; the run under way leaves no record."""


@dataclass(frozen=True)
class Driven:
    """How a driver ended. error: what stopped it before every run had a record; measured: runs that got one; use: of the lease."""

    error: CampaignError | None = None
    measured: tuple[tuple[str, int], ...] = ()
    use: str = ""


@dataclass(frozen=True)
class Driver:
    """All runs of one lease. Picklable; paths are absolute.

    campaign: hash of the campaign as used; lease_id: of this use of the lease; mismatches: how the composition differs
    from what was requested, which every record of it says. Without lease_id and composition, Slurm had the hosts composed for the
    driver, which finds out.
    """

    results: Results
    campaign: str
    lease: str
    where: str | None
    lease_id: str | None
    composition: Composition | None
    mismatches: tuple[str, ...]

    def __call__(self) -> Driven:
        """Measure what is missing; returns when all runs have a record or something stops it."""
        _leave_terminal()
        done = Done()
        error: CampaignError | None = None
        try:
            restarts.check(self.results, self.lease)
            with locks.held(self.results.work(self.lease) / "driver.lock"):
                _Session(self, done).run()
        except CampaignError as failure:
            error = failure
        except OSError as failure:
            error = unwritable(failure, self.results.directory)
        except Stopped:
            if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
                # Cancelled, or to be started again? Slurm knows; a result would say that the job is over.
                raise
            error = LaunchError(f"the driver of {self.lease} was told to stop")
        return Driven(error, tuple(done.measured), done.use)

    def checkpoint(self, *_: Any) -> Any:
        """submitit's hook for a time limit or preemption: the same driver again goes on with what has no record."""
        from submitit.helpers import DelayedSubmission

        # submitit counts the time limits of a job; preemptions without end are not for it to stop.
        restarts.check_another()
        return DelayedSubmission(self)


@dataclass
class Done:
    """What a session has done by now, whatever ends it."""

    measured: list[tuple[str, int]] = field(default_factory=list)
    use: str = ""


class _Session:
    """One driver at work."""

    def __init__(self, driver: Driver, done: Done) -> None:
        self.driver = driver
        self.done = done
        self.results = driver.results
        self.store = Store(driver.results.directory)
        self.campaign = from_document(self.store.shared_document(driver.campaign))
        self.work = driver.results.work(driver.lease)
        self.mark = run_mark(driver.results, driver.lease)
        self.environment = self.store.share(environment_document())
        self.workloads = {name: open_workload(file) for name, file in self.campaign.workloads.items()}

    def run(self) -> None:
        # A killed driver may have left processes that would disturb what is measured now.
        kill_marked(self.mark)
        cells = lease_cells(self.campaign, self.driver.lease, self.driver.where)
        todo = ordered(missing_runs(cells, self.store.index()), self.campaign, self.driver.lease)
        left = Counter(cell.id for cell, _ in todo)
        self.obtained = self.arrive()
        self.done.use = self.obtained.use
        launcher = open_launcher(self.campaign.system.launcher, self.campaign.system, self.obtained.composition)
        self.links = launcher.links
        links = {} if self.links is None else {"links": self.links}
        document = {"schema_version": "composition/1", **self.obtained.composition.document(), **links}
        self.composition = self.store.share(document)
        try:
            for cell, repetition in todo:
                record = self.measure(launcher, cell, repetition)
                with deferred():  # what has been measured shall also have its record
                    self.keep(record)
                self.done.measured.append(record.key)
                left[cell.id] -= 1
                self.tell(record, cell_done=left[cell.id] == 0)
        finally:
            launcher.close()

    def arrive(self) -> Obtained:
        """The composition that the driver stands on. In an allocation, its devices are looked at before anything runs on them."""
        driver, system = self.driver, self.campaign.system
        if driver.lease_id is None or driver.composition is None:
            obtained = obtained_on_demand(self.results, system.name, os.environ.get("SLURM_JOB_ID", ""))
        else:
            obtained = Obtained(driver.lease_id, driver.composition, driver.mismatches)
        if system.launcher != "slurm":
            return obtained
        from campaign.slurm.allocation import hosts_of_allocation, placed
        from campaign.slurm.verify import verify

        if not is_pinned(system):
            obtained = replace(obtained, composition=placed(obtained.composition, hosts_of_allocation()))
        verify(system, obtained.composition, self.work)
        return obtained

    def measure(self, launcher: Launcher, cell: Cell, repetition: int) -> Record:
        """One run, from nothing to its record."""
        name = f"{cell.id}.{repetition}"
        runs_on = self.campaign.device(cell.configuration.device).runs_on
        workload = self.workloads[cell.workload]
        log = self.results.logs / self.driver.lease / f"{name}.log"
        directory = self.work / "runs" / name
        directory.mkdir(parents=True, exist_ok=True)
        run = Run(cell, repetition, self.obtained.composition, directory, runs_on)
        try:
            objection = self._device_objection(cell) or workload.objection(cell, runs_on)
            if objection:
                now = time.time()
                ended, outcome = Ended((), now, now), Outcome("unsupported", Failure(reason=objection))
            else:
                log.unlink(missing_ok=True)  # of an attempt that left no record
                limits = Limits(cell.settings.time_limit_s, self.campaign.protocol.memory_limit_mib)
                ended = launcher.run(workload.step(run), f"{self.mark}{name}", log, directory, limits)
                outcome = workload.read(run, ended, log.read_text(errors="replace"))
        except LaunchError as error:
            if log.exists():
                error.with_log(log)
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        if outcome.status != "ok" and is_full(self.results.directory):
            raise RecordError(
                f"{self.results.directory}: the disk is full, so that a run could not write what it has to say; free space, "
                "then run the same command again: finished records are kept"
            )
        return self._record(run, ended, outcome, log)

    def keep(self, record: Record) -> None:
        """Write a record. A shared file system that is away for a moment shall cost no measurement."""
        patience_s = _UNWRITABLE_S if self.campaign.system.launcher == "slurm" else 0.0
        until = time.monotonic() + patience_s
        while True:
            try:
                return self.store.write(record)
            except RecordError as error:
                if time.monotonic() >= until:
                    raise
                print(f"trying again for {patience_s:g} s: {error}", flush=True)
                time.sleep(1.0)

    def _device_objection(self, cell: Cell) -> str | None:
        device = self.campaign.device(cell.configuration.device)
        if device.precisions is None or cell.precision in device.precisions:
            return None
        return f"{cell.configuration.device} does {', '.join(device.precisions)} only, says the system file"

    def _record(self, run: Run, ended: Ended, outcome: Outcome, log: Path) -> Record:
        cell = run.cell
        flags = [*outcome.flags, *ended.flags, *(f"composition: {mismatch}" for mismatch in self.obtained.mismatches)]
        if self.links is not None and self.links["emulated"] is None:
            flags.append(NOT_EMULATED)
        if run.runs_on == "cpu" and cell.configuration.ranks > len(os.sched_getaffinity(0)):
            flags.append("oversubscribed: more ranks than cores")
        return Record(
            cell_id=cell.id,
            repetition=run.repetition,
            cell=RecordedCell(
                configuration=cell.configuration.name,
                **cell.configuration.shape(),
                workload=cell.workload,
                batch=cell.batch,
                precision=cell.precision,
                options=dict(cell.options),
            ),
            specification=specification(self.campaign, cell),
            status=outcome.status,
            failure=outcome.failure,
            started=ended.started,
            ended=ended.ended,
            lease_id=self.obtained.use,
            hosts=tuple(host.name for host in run.composition.hosts),
            composition=self.composition,
            environment=self.environment,
            campaign=self.driver.campaign,
            throughput_per_s=outcome.throughput_per_s,
            step_times_s=outcome.step_times_s,
            window_s=outcome.window_s,
            metrics=dict(outcome.metrics),
            phases_s=dict(outcome.phases_s),
            flags=tuple(flags),
            log=str(log.relative_to(self.results.directory)) if ended.codes else "",
        )

    def tell(self, record: Record, *, cell_done: bool) -> None:
        """One line for whoever shows progress; a lost line is no harm, so it is not forced to disk."""
        line = {
            "time_s": record.ended,
            "lease": self.driver.lease,
            "cell": record.cell_id,
            "repetition": record.repetition,
            "what": f"{record.cell.workload} · batch {record.cell.batch} · {record.cell.precision}",
            "status": record.status,
            "throughput_per_s": record.throughput_per_s,
            "wall_s": record.ended - record.started,
            "workload": record.cell.workload,
            "cell_done": cell_done,
        }
        with suppress(OSError), self.results.progress.open("a") as file:
            file.write(json.dumps(line) + "\n")


def is_full(directory: Path) -> bool:
    """Whether so little space is left that what programs print may be lost."""
    return shutil.disk_usage(directory).free < _FULL_BYTES


def run_mark(results: Results, lease: str) -> str:
    """Beginning of CAMPAIGN_RUN of every process of a lease."""
    return f"{content_hash(str(results.directory.resolve()), 8)}/{lease}/"


def lease_cells(campaign: Campaign, lease: str, where: str | None) -> list[Cell]:
    """The cells of one lease, without expanding the others' configurations."""
    names = {c.name for c in campaign.configurations if lease == c.name or lease.startswith(f"{c.name}--")}
    matrix = expand(campaign, where, configurations=names)
    return [cell for cell in matrix.cells if lease_name(campaign.protocol, cell) == lease]


def ordered(runs: Collection[tuple[Cell, int]], campaign: Campaign, lease: str) -> list[tuple[Cell, int]]:
    """The order of runs: block by block (a block is a repetition of all cells), at random inside a block.

    The order of a block follows from seed, lease and repetition alone, so what is missing keeps its relative place.
    """
    if campaign.protocol.order == "sequential":
        return sorted(runs, key=lambda run: (run[0].id, run[1]))
    blocks: dict[int, list[Cell]] = {}
    for cell, repetition in runs:
        blocks.setdefault(repetition, []).append(cell)
    result: list[tuple[Cell, int]] = []
    for repetition, cells in sorted(blocks.items()):
        draw = {
            cell.id: random.Random(f"{campaign.protocol.seed}/{lease}/{repetition}/{cell.id}").random()
            for cell in cells
        }
        result += [(cell, repetition) for cell in sorted(cells, key=lambda cell: (draw[cell.id], cell.id))]
    return result


def _leave_terminal() -> None:
    """A session of its own: the terminal's Ctrl-C and hang-up are not for the driver; SIGTERM ends it in good order."""
    if os.getpgid(0) != os.getpid():
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _stop)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; the ranks are ended on the way out
    raise Stopped


def progress_since(path: Path, offset: int) -> tuple[list[Mapping[str, Any]], int]:
    """Whole lines of a progress file from `offset` on, and the offset behind them."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return [], offset
    whole = content[: content.rfind(b"\n") + 1]
    lines = []
    for line in whole.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # torn by a crash: progress is for the eye only
    return lines, offset + len(whole)
