"""Any program: started with the cell's values filled in, measured by what it prints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from campaign.cell import Cell, Scalar
from campaign.config.template import fill
from campaign.config.workload_file import CommandWorkload
from campaign.failures import classify
from campaign.record import Failure
from campaign.workloads.parsing import parse
from campaign.workloads.protocol import Ended, Outcome, Run, Step


@dataclass(frozen=True)
class Command:
    file: CommandWorkload

    def objection(self, cell: Cell, runs_on: str) -> str | None:
        return None

    def step(self, run: Run) -> Step:
        values = self.values(run.cell, run.repetition)
        where = f"workload {self.file.name}"
        return Step(
            argv=tuple(fill(part, values, f"{where}: command") for part in self.file.command),
            environment={
                name: fill(text, values, f"{where}: environment.{name}") for name, text in self.file.environment.items()
            },
            ranks_by_host=run.ranks_by_host,
            per_rank=self.file.launch == "per_rank",
        )

    def read(self, run: Run, ended: Ended, log: str) -> Outcome:
        verdict = classify(
            log,
            ended.codes,
            timed_out=ended.timed_out,
            killed_by_us=ended.timed_out or ended.memory_limit_hit,
            memory_limit_hit=ended.memory_limit_hit,
        )
        if verdict:
            return Outcome(*verdict)
        ranks = run.cell.configuration.ranks
        numbers, series, absent = parse(self.file.parsers, log, ranks)
        if absent:
            tail = log.strip()[-400:]
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


def open_workload(file: CommandWorkload) -> Command:
    return Command(file)
