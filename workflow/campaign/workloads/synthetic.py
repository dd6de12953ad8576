"""Synthetic workload with known step times, for checks of the whole chain from run to report."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from campaign.common.errors import collect_problems
from campaign.spec.cell import AXES, Cell
from campaign.spec.expression import parse_expression
from campaign.spec.fields import FileModel
from campaign.spec.record import Failure
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Run, Step, StepEnd, ValidationContext, Workload
from campaign.workloads.steady_warmup import NOT_STEADY


class RequestedFailure(FileModel):
    """Failure that the synthetic workload simulates."""

    when: str
    """Condition on the axes under which the run fails."""
    status: Literal["oom_device", "oom_host", "time_limit", "nan", "crashed", "incomplete", "comm_timeout"]
    """Status with which the run fails."""


class SyntheticWorkload(Workload):
    """Reference workload with known step times, to check the chain from run to report.

    A step takes `overhead_ms + batch * sample_ms + (hosts - 1) * host_ms + fabric share of devices * fabric_ms`, times
    normal noise. At the start of a run it takes longer: by `cold_pct` at the first step. This excess decays exponentially
    with the constant `cold_steps`.
    """

    extends_warmup: ClassVar[bool] = True
    introduction: ClassVar[str] = (
        "A reference workload with known step times. It checks the whole chain from run to report without special hardware."
    )
    example: ClassVar[str] = """\
name: known
kind: synthetic
precisions: [fp32]
sample_ms: 1.5
overhead_ms: 4
fabric_ms: 2
noise_pct: 1
"""

    kind: Literal["synthetic"]
    """Synthetic reference."""
    sample_ms: Annotated[float, Field(ge=0)] = 1.0
    """Time per sample, in milliseconds."""
    overhead_ms: Annotated[float, Field(ge=0)] = 0.0
    """Time per step that is independent of the batch, in milliseconds."""
    host_ms: Annotated[float, Field(ge=0)] = 0.0
    """Additional time per step for each host after the first, in milliseconds."""
    fabric_ms: Annotated[float, Field(ge=0)] = 0.0
    """Additional time per step if all devices are attached through the fabric, in milliseconds; proportional if only some are."""
    noise_pct: Annotated[float, Field(ge=0, le=50)] = 0.0
    """Standard deviation of the step time, in percent."""
    cold_pct: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Excess time of the first step of a run, in percent."""
    cold_steps: Annotated[float, Field(gt=0)] = 10.0
    """Number of steps after which the excess of `cold_pct` has decreased to 37 %."""
    real_time: bool = True
    """If true, steps really take their time. If false, they only report it."""
    power_w: Annotated[float, Field(ge=0)] | None = None
    """Power of each device (W) that telemetry reads during a run."""
    memory_mib: Annotated[float, Field(ge=0)] | None = None
    """Used memory of each device (MiB) that telemetry reads during a run."""
    utilisation_pct: Annotated[float, Field(ge=0, le=100)] | None = None
    """Utilisation of each device (%) that telemetry reads during a run."""
    failures: tuple[RequestedFailure, ...] = ()
    """Failures to simulate."""

    @model_validator(mode="after")
    def _check_duration(self) -> SyntheticWorkload:
        if self.sample_ms + self.overhead_ms == 0:
            raise ValueError("the duration of a step is 0; set 'sample_ms' or 'overhead_ms' to more than 0")
        return self

    def problems(self, context: ValidationContext) -> Iterator[str]:
        """Yield an error message for each invalid condition in `failures`."""
        for index, failure in enumerate(self.failures):
            yield from collect_problems(
                parse_expression,
                failure.when,
                {*AXES, *self.options},
                context.format_location("failures", index, "when"),
            )

    def step(self, run: Run) -> Step:
        """Write the specification of a synthetic run, and build the step that starts its program."""
        axes = run.cell.axes()
        location = f"workload {self.name}"
        fail = next((f.status for f in self.failures if parse_expression(f.when, axes.keys(), location)(axes)), None)
        gauges = {"power_w": self.power_w, "memory_mib": self.memory_mib, "utilisation_pct": self.utilisation_pct}
        gauge_values = {name: value for name, value in gauges.items() if value is not None}
        devices = [f"{host}/{number}" for host, count in run.ranks_by_host.items() for number in range(count)]
        specification = {
            "step_s": compute_step_s(self, run.cell),
            "noise_pct": self.noise_pct,
            "cold_pct": self.cold_pct,
            "cold_steps": self.cold_steps,
            "real_time": self.real_time,
            "warmup_steps": run.cell.settings.warmup_steps,
            "warmup_steps_max": run.cell.settings.warmup_steps_max,
            "measured_steps": run.cell.settings.measured_steps,
            "seed": f"{run.cell.settings.seed}/{run.cell.id}/{run.repetition}",
            "fail": fail,
            "gauges": dict.fromkeys(devices, gauge_values) if gauge_values else {},
        }
        path = run.directory / "spec.json"
        path.write_text(json.dumps(specification), encoding="utf-8")
        # Started as a file, not as a module. Only the standard library is imported, so a run costs 20 ms.
        argv = (sys.executable, "-I", "-S", str(Path(__file__).with_name("synthetic_program.py")), str(path))
        return Step(argv, {}, run.ranks_by_host, per_rank=False, takes_devices=False)

    def read(self, run: Run, step_end: StepEnd, log: Log) -> Outcome:
        """Determine the outcome of a synthetic run from the line of JSON that its program printed."""
        if failure_outcome := step_end.failure_outcome(log):
            return failure_outcome
        result_line = ""
        for line in log.read_lines([b"{"]):
            result_line = line if line.startswith("{") else result_line
        try:
            result: dict[str, Any] = json.loads(result_line)
        except ValueError:  # no output, or incomplete output
            return Outcome("incomplete", Failure(reason="the output has no result", evidence=log.read_tail()))
        steps = tuple(result["step_times_s"])
        nan = result["loss"] is None
        return Outcome(
            status="nan" if nan else "ok",
            failure=Failure(reason="the loss is not a number", evidence=result_line[:400]) if nan else None,
            throughput_per_s=run.cell.batch_global * len(steps) / sum(steps),
            step_times_s=(steps,),
            warmup_steps=result["warmup_steps"],
            window_s=(sum(steps),),
            steady=tuple(result["window"]) if result["window"] else None,
            flags=(NOT_STEADY,) if result["warmup_is_steady"] is False else (),
        )


def compute_step_s(workload: SyntheticWorkload, cell: Cell) -> float:
    """Compute the expected duration (seconds) of one step of a cell by the formula at SyntheticWorkload."""
    configuration = cell.configuration
    share = configuration.fabric_devices / configuration.devices
    return (
        workload.overhead_ms
        + cell.batch * workload.sample_ms
        + (configuration.hosts - 1) * workload.host_ms
        + share * workload.fabric_ms
    ) / 1e3
