"""What a workload file may say, by kind. Every key has a description: the reference and the JSON Schema are made from them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints, field_validator, model_validator

from campaign.documents.cell import Scalar
from campaign.documents.fields import (
    AXIS_PATTERN,
    MODULE_PATTERN,
    OPERAND_PATTERN,
    Argument,
    AxisName,
    Model,
    Name,
    Precision,
    VariableName,
)

Filled = Annotated[str, StringConstraints(pattern=OPERAND_PATTERN)]
ModuleName = Annotated[str, StringConstraints(pattern=MODULE_PATTERN, max_length=200)]


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
    power_w: Annotated[float, Field(ge=0)] | None = None
    """Power that telemetry shall find for each device while a run is on."""
    memory_mib: Annotated[float, Field(ge=0)] | None = None
    """Memory that telemetry shall find for each device."""
    utilisation_pct: Annotated[float, Field(ge=0, le=100)] | None = None
    """Utilisation that telemetry shall find for each device."""
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


class Container(Model):
    """An Apptainer image that a program runs in."""

    image: Filled
    """Image file. Names of the workload's options can stand in braces, here and in the rest of `software`."""
    nv: bool = True
    """Give it the host's NVIDIA driver (`--nv`), where the devices are GPUs."""
    binds: tuple[Filled, ...] = ()
    """Directories of the host to be seen in it, as `--bind` takes them."""
    program: Literal["apptainer", "singularity"] = "apptainer"
    """What starts it."""


class Software(Model):
    """Where a program has its software from; exactly one of these. Every record says what was found there."""

    conda: Filled | None = None
    """Conda environment: its name, or its directory."""
    apptainer: Container | None = None
    """Apptainer or Singularity image."""
    modules: tuple[ModuleName, ...] | None = Field(default=None, min_length=1)
    """Environment modules (Lmod or Tcl), loaded in this order."""
    venv: Filled | None = None
    """Python virtual environment: its directory."""

    @model_validator(mode="after")
    def _one(self) -> Software:
        if sum(value is not None for value in (self.conda, self.apptainer, self.modules, self.venv)) != 1:
            raise ValueError("give exactly one of 'conda', 'apptainer', 'modules' and 'venv'")
        return self


Launch = Literal["once", "per_rank", "srun", "mpirun", "horovodrun", "torchrun"]
ParserName = Literal[
    "tf_cnn_benchmarks",
    "horovod_synthetic",
    "nvidia_bert",
    "yolov5",
    "mlperf",
    "hpl",
    "nccl_tests",
    "p2p_bandwidth_latency",
    "nvbandwidth",
    "osu",
    "perftest",
]
"""The table of `campaign.workloads.parsers`, which stands right of this; a test keeps them equal."""


class CommandWorkload(_Workload):
    """Any program. Names in braces in its command and environment are filled in with the run's values."""

    kind: Literal["command"]
    """Foreign program."""
    command: tuple[Argument, ...] = Field(min_length=1)
    """Program and arguments; no shell is involved."""
    launch: Launch = "once"
    """`once`: the program starts its own ranks; `per_rank`: one process a device, with RANK, WORLD_SIZE, MASTER_ADDR...; `srun`:
    the same as tasks of Slurm, for programs that find each other through it; `mpirun`, `horovodrun`, `torchrun`: one of these
    starts the ranks (over several hosts tried on emulated ones only, and horovodrun not at all)."""
    launch_options: tuple[Argument, ...] = ()
    """Further words for `srun`, `mpirun`, `horovodrun` or `torchrun`, filled in like the command."""
    mpi: Annotated[str, StringConstraints(pattern=AXIS_PATTERN)] | None = None
    """With `srun`: how MPI ranks find each other, as in `srun --mpi=pmix`. With `mpirun`: whose it is, `openmpi` (default) or
    `mpich`."""
    environment: dict[VariableName, Argument] = Field(default_factory=dict)
    """Environment variables, filled in like the command."""
    precision_arguments: dict[Precision, tuple[Argument, ...]] = Field(default_factory=dict)
    """Further arguments at the end of the command, by precision."""
    precision_environment: dict[Precision, dict[VariableName, Argument]] = Field(default_factory=dict)
    """Further environment variables, by precision."""
    software: Software | None = None
    """Where its software comes from. Default: what is on the PATH."""
    parser: ParserName | None = None
    """Who reads its output: one of the built-in parsers, which know their program's traps. `campaign workload parse` tries it."""
    parsers: tuple[Parser, ...] = ()
    """Instead of `parser`: what is read from its output."""
    at_least: dict[AxisName, AxisName] = Field(default_factory=dict)
    """Metric -> the option that says the least that is expected of it a rank. A run below it is flagged; 0 expects nothing."""

    @field_validator("parser", mode="before")
    @classmethod
    def _known_parser(cls, value: Any) -> Any:
        known = get_args(ParserName)
        if isinstance(value, str) and value not in known:
            from campaign.errors import nearest

            raise ValueError(f"'{value}' is no parser; {nearest(value, known)}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> CommandWorkload:
        if self.parser is not None and self.parsers:
            raise ValueError("give either 'parser' or 'parsers'")
        if self.launch_options and self.launch in ("once", "per_rank"):
            raise ValueError(
                f"'launch_options' are words for a launcher, and 'launch: {self.launch}' has none; remove them"
            )
        if self.mpi is not None and self.launch not in ("srun", "mpirun"):
            raise ValueError("'mpi' goes with 'launch: srun' or 'launch: mpirun'; remove it")
        if self.launch == "mpirun" and self.mpi not in (None, "openmpi", "mpich"):
            raise ValueError(f"'mpi: {self.mpi}' is no mpirun that is known; use openmpi or mpich")
        if self.launch == "horovodrun" and self.software is not None and self.software.apptainer is not None:
            raise ValueError("horovodrun starts no containers on other hosts; use 'launch: mpirun' with an image")
        for key in ("precision_arguments", "precision_environment"):
            if more := [precision for precision in getattr(self, key) if precision not in self.precisions]:
                raise ValueError(f"'{key}' names {more[0]}, which is none of 'precisions'; add it there or remove it")
        if unknown := [option for option in self.at_least.values() if option not in self.options]:
            raise ValueError(
                f"'at_least' names '{unknown[0]}', which is no option; add it to 'options' with its number"
            )
        if words := [option for option in self.at_least.values() if isinstance(self.options[option], str | bool)]:
            raise ValueError(f"'at_least' names the option '{words[0]}', which is no number; give it one")
        return self


WorkloadFile = Annotated[TrainWorkload | SyntheticWorkload | CommandWorkload, Field(discriminator="kind")]
