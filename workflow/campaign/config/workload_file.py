"""What a workload file may say, by kind. Every key has a description: config/README.md and the JSON Schema are made from them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from campaign.cell import Scalar
from campaign.config.fields import Argument, AxisName, Model, Name, Precision, VariableName


class _Workload(Model):
    schema_version: Literal["workload/1"] = "workload/1"
    """Version of this format."""
    name: Name
    """Equal to the file's name."""
    description: str = ""
    """Shown in the report."""
    precisions: tuple[Precision, ...] = Field(min_length=1)
    """Precisions that it supports; cells with others are excluded by the plan."""
    options: dict[AxisName, Scalar] = Field(default_factory=dict)
    """Options with their default values; an axis of the campaign may vary them."""


class TrainWorkload(_Workload):
    """Built-in PyTorch training on synthetic data."""

    kind: Literal["train"]
    """Built-in training."""
    model: str
    """Built-in model (`campaign workload list`), or `transformers:NAME` / `torchvision:NAME` where installed."""


class FailureByRequest(Model):
    """A failure that the reference workload produces on purpose."""

    when: str
    """Predicate over the axes."""
    status: Literal["oom_device", "oom_host", "time_limit", "nan", "crashed", "incomplete", "comm_timeout"]
    """How the run fails."""


class SyntheticWorkload(_Workload):
    """Reference workload with known ground truth, for checking the chain from run to report.

    A step takes `overhead_ms + batch * sample_ms + (hosts - 1) * host_ms + fabric share of devices * fabric_ms`, times
    normal noise.
    """

    kind: Literal["synthetic"]
    """Reference workload."""
    sample_ms: Annotated[float, Field(ge=0)] = 1.0
    """Time a sample."""
    overhead_ms: Annotated[float, Field(ge=0)] = 0.0
    """Time a step, whatever the batch."""
    host_ms: Annotated[float, Field(ge=0)] = 0.0
    """Time that every further host costs."""
    fabric_ms: Annotated[float, Field(ge=0)] = 0.0
    """Time that devices behind the fabric cost, by their share."""
    noise_pct: Annotated[float, Field(ge=0, le=50)] = 0.0
    """Standard deviation of a step's time, in percent."""
    real_time: bool = True
    """Whether steps really take their time, or are only reported."""
    failures: tuple[FailureByRequest, ...] = ()
    """Failures on purpose."""

    @model_validator(mode="after")
    def _takes_time(self) -> SyntheticWorkload:
        if self.sample_ms + self.overhead_ms == 0:
            raise ValueError("a step has to take time: give 'sample_ms' or 'overhead_ms' more than 0")
        return self


class Parser(Model):
    """One number read from what a program prints."""

    metric: AxisName
    """`throughput_per_s`, `step_time_s` (every match is a step), `loss`, or a name of one's own that ends in its unit."""
    regex: str | None = None
    """Regular expression with one group, matched line by line."""
    json_key: str | None = None
    """Instead of `regex`: key (dots for nesting) in lines that are JSON objects."""
    take: Literal["last", "first", "min", "max", "mean", "sum", "all"] = "last"
    """Which of several matches counts; `all` for step times."""
    scale: float = 1.0
    """Factor to the metric's unit."""
    scope: Literal["total", "per_device"] = "total"
    """Whether the program prints the rate of all devices together or of one."""
    required: bool = True
    """Whether a run without it is `incomplete`."""

    @model_validator(mode="after")
    def _one_way(self) -> Parser:
        if (self.regex is None) == (self.json_key is None):
            raise ValueError("give either 'regex' or 'json_key'")
        if self.regex is not None:
            try:
                groups = re.compile(self.regex).groups
            except re.error as error:
                raise ValueError(f"'{self.regex}' is not a regular expression: {error}") from error
            if groups != 1:
                raise ValueError(f"'{self.regex}' has {groups} groups; exactly one must hold the number")
        return self


class CommandWorkload(_Workload):
    """Any program. Names in braces in its command and environment are filled in with the run's values."""

    kind: Literal["command"]
    """Foreign program."""
    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments; no shell is involved."""
    launch: Literal["once", "per_rank"] = "once"
    """`once`: the program starts its own ranks; `per_rank`: one process a device, with RANK, WORLD_SIZE, MASTER_ADDR..."""
    environment: dict[VariableName, Argument] = Field(default_factory=dict)
    """Environment variables, filled in like the command."""
    parsers: tuple[Parser, ...] = ()
    """What is read from its output."""


WorkloadFile = Annotated[TrainWorkload | SyntheticWorkload | CommandWorkload, Field(discriminator="kind")]
