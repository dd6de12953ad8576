"""Any program: started with the cell's values filled in, measured by what it prints."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from campaign.documents.cell import Cell, Scalar
from campaign.documents.fields import Precision
from campaign.documents.record import Failure
from campaign.workloads.failures import classify
from campaign.workloads.launching import Job, command_line, exported, filled, search_path
from campaign.workloads.logs import Log
from campaign.workloads.parsers import Reading, Scope, read_log
from campaign.workloads.parsing import parse
from campaign.workloads.protocol import Ended, Outcome, Run, Step
from campaign.workloads.template import fill
from campaign.workloads.workload_file import CommandWorkload


@dataclass(frozen=True)
class Command:
    file: CommandWorkload

    def objection(self, cell: Cell, runs_on: str) -> str | None:
        return None

    def step(self, run: Run) -> Step:
        file, cell = self.file, run.cell
        values = self.values(cell, run.repetition)
        where = f"workload {file.name}"
        environment = self._environment(run, values, where)
        software = filled(file.software, {**file.options, **cell.options}, where) if file.software else None
        if path := search_path(software, environment.get("PATH", os.environ.get("PATH", os.defpath))):
            environment |= {"PATH": path, "VIRTUAL_ENV": path.split("/bin:", 1)[0]}
        job = Job(
            ranks_by_host=run.ranks_by_host,
            launcher=run.launcher,
            cuda=run.runs_on == "cuda",
            exported=exported(software, environment, run.launcher),
            port=_free_port() if file.launch == "torchrun" else 0,
            name=f"{cell.id}.{run.repetition}",
        )
        words = (*file.command, *file.precision_arguments.get(cast(Precision, cell.precision), ()))
        options = [fill(part, values, f"{where}: launch_options") for part in file.launch_options]
        return Step(
            argv=command_line(
                file, software, options, [fill(part, values, f"{where}: command") for part in words], job
            ),
            environment=environment,
            ranks_by_host=run.ranks_by_host,
            per_rank=file.launch in ("per_rank", "srun"),
            srun=(*([f"--mpi={file.mpi}"] if file.mpi else []), *options) if file.launch == "srun" else (),
        )

    def _environment(self, run: Run, values: Mapping[str, Scalar], where: str) -> dict[str, str]:
        file = self.file
        said = {**file.environment, **file.precision_environment.get(cast(Precision, run.cell.precision), {})}
        # A launcher does so for ranks that it starts itself: on a CPU a device is a core.
        one_thread = run.runs_on == "cpu" and file.launch in ("mpirun", "horovodrun", "torchrun")
        threads = {"OMP_NUM_THREADS": "1"} if one_thread else {}
        return threads | {name: fill(text, values, f"{where}: environment.{name}") for name, text in said.items()}

    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        verdict = classify(
            log,
            ended.codes,
            timed_out=ended.timed_out,
            killed_by_us=ended.timed_out or ended.memory_limit_hit,
            memory_limit_hit=ended.memory_limit_hit,
        )
        if verdict:
            return Outcome(*verdict)
        if self.file.parser is not None:
            return self._outcome(read_log(self.file.parser, log, scope_of(run)), run, log)
        ranks = run.cell.configuration.ranks
        numbers, series, absent = parse(self.file.parsers, log, ranks)
        if absent:
            tail = log.tail()
            return Outcome("incomplete", Failure(reason=f"not found in the output: {', '.join(absent)}", evidence=tail))
        steps = tuple(series.pop("step_time_s", ()))
        throughput = numbers.pop("throughput_per_s", None)
        if throughput is None and steps:
            duration_s = math.fsum(steps) if all(map(math.isfinite, steps)) else math.nan
            throughput = run.cell.batch_global * len(steps) / duration_s if duration_s else math.inf
        wrong = [
            name
            for name, value in {**numbers, "throughput_per_s": throughput or 0.0}.items()
            if not math.isfinite(value)
        ]
        more = {name: values[-1] for name, values in series.items()}
        return Outcome(
            status="nan" if wrong else "ok",
            failure=Failure(reason=f"not a finite number: {', '.join(wrong)}") if wrong else None,
            throughput_per_s=throughput if throughput is not None and math.isfinite(throughput) else None,
            step_times_s=(steps,) if all(map(math.isfinite, steps)) and steps else (),
            window_s=(math.fsum(steps),) if steps and not wrong else (),
            metrics={name: value for name, value in {**numbers, **more}.items() if math.isfinite(value)},
        )

    def _outcome(self, reading: Reading, run: Run, log: Log) -> Outcome:
        failure = None if reading.status == "ok" else Failure(reason=reading.problem, evidence=log.tail())
        return Outcome(
            status=reading.status,
            failure=failure,
            throughput_per_s=reading.throughput_per_s,
            step_times_s=reading.step_times_s,
            window_s=tuple(map(math.fsum, reading.step_times_s)) if failure is None else (),
            metrics=dict(reading.metrics),
            steady=reading.steady,
            flags=(*reading.flags, *self._short_of(reading.metrics, run.cell)),
        )

    def _short_of(self, metrics: Mapping[str, float], cell: Cell) -> Iterator[str]:
        values = {**self.file.options, **cell.options}
        for metric, option in self.file.at_least.items():
            least = float(values[option]) * cell.configuration.ranks
            if metric in metrics and metrics[metric] < least:
                yield f"less than expected: {metric} is {metrics[metric]:.6g}, and {option} asks for {least:.6g}"

    def values(self, cell: Cell, repetition: int) -> dict[str, Scalar]:
        """What may stand in braces in the command (see `config.template`)."""
        settings = cell.settings
        return {
            **self.file.options,
            **cell.axes(),
            "repetition": repetition,
            "seed": settings.seed,
            "warmup_steps": settings.warmup_steps,
            "measured_steps": settings.measured_steps,
        }


def scope_of(run: Run) -> Scope:
    """What a parser is told of a run."""
    cell = run.cell
    return Scope(
        ranks=cell.configuration.ranks,
        hosts=cell.configuration.hosts,
        batch=cell.batch,
        batch_global=cell.batch_global,
        warmup_steps=cell.settings.warmup_steps,
        measured_steps=cell.settings.measured_steps,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def open_workload(file: CommandWorkload) -> Command:
    return Command(file)
