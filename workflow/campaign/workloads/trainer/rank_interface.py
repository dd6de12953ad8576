"""Interface of a rank's process: its place in the run, its specification and its result. The module needs no torch."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import ConfigError, RecordError
from campaign.common.files import write_once
from campaign.spec.cell import Scalar
from campaign.spec.fields import Precision
from campaign.spec.record import Status
from campaign.workloads.trainer.model_catalog import resolve_options

Parallel = Literal["single", "ddp", "dp", "zero1", "fsdp"]


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """Place of a rank in its run, and the paths of its input and output.

    Attributes:
        spec_path: file that contains the TrainSpec.
        results_directory: directory for the results.
        local_ranks: number of ranks on this host, or None if unknown.
    """

    rank: int
    world_size: int
    local_rank: int
    spec_path: Path
    results_directory: Path
    local_ranks: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> RankEnvironment:
        """Read the place of a rank from environment variables.

        Raises ConfigError if a variable is missing or not a whole number.
        """
        try:
            rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            local_rank = int(environment["LOCAL_RANK"])
            spec, out = Path(environment["CAMPAIGN_SPEC"]), Path(environment["CAMPAIGN_OUT"])
            if world_size > 1:
                int(environment["MASTER_PORT"])
            address = environment["MASTER_ADDR"] if world_size > 1 else "localhost"
        except KeyError as error:
            raise ConfigError(f"the environment variable {error.args[0]} of the rank is not set") from error
        except ValueError as error:
            raise ConfigError(
                f"RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT must be whole numbers ({error})"
            ) from error
        if not 0 <= rank < world_size:
            raise ConfigError(f"RANK must be from 0 to WORLD_SIZE - 1 = {world_size - 1}, not {rank}")
        is_one_host = re.match(r"127\.|localhost$|::1$", address) is not None
        return cls(rank, world_size, local_rank, spec, out, world_size if is_one_host else None)


def run_rank_process(run: Callable[[Mapping[str, str]], int]) -> NoReturn:
    """Run this process as one rank, and end it with the exit code that `run` returns. Never returns.

    The exit code is 2 after a ConfigError, and 1 after any other exception. The stack is not unwound, because threads of a process
    group can make a process hang while it unwinds.

    Args:
        run: function that runs the rank in the given environment, and returns the exit code.
    """
    code = 1
    try:
        code = run(os.environ)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def unsupported_mixed_reason(options: Mapping[str, Scalar], precision: str, ranks: int) -> str | None:
    """Return the reason why `fsdp_precision: mixed` cannot be combined with these options, or None if it can.

    Args:
        options: options of the model, including defaults.
        precision: precision of the run.
        ranks: number of ranks.
    """
    if options["fsdp_precision"] != "mixed":
        return None
    if options["parallel"] != "fsdp" or precision != "bf16":
        return (
            "option 'fsdp_precision: mixed' is supported with 'parallel: fsdp' in bf16 only, not with "
            f"'parallel: {options['parallel']}' in {precision}"
        )
    return "option 'fsdp_precision: mixed' needs at least two devices" if ranks == 1 else None


class TrainSpec(BaseModel):
    """Specification of a training run. Every rank of the run reads the same file.

    Attributes:
        model: name of a built-in or external model.
        batch: samples per device and optimizer step.
        replicas: devices per process; more than 1 for `parallel: dp`.
        warmup_steps: number of steps before the measured window.
        warmup_steps_max: maximum number of warm-up steps if the warm-up is extended until step times show no trend.
        measured_steps: number of steps in the window.
        warmup_min_s: minimum duration of the warm-up in seconds; steps are added if needed.
        measured_min_s: minimum duration of the window in seconds; steps are added if needed.
        time_out_s: duration in seconds of a collective operation after which the run counts as stuck.
        storage_dir: directory of the dataset with `input: storage`.
        storage_gb_per_s: maximum read rate per host (GB/s), to emulate a link to the storage.
        storage_ranks: number of ranks per host that share this rate.
        pace_gflops: rates of the emulated devices by rank (GFLOP/s), to which computing is slowed down; empty without emulation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    batch: int = Field(ge=1)
    replicas: int = Field(default=1, ge=1)
    precision: Precision = "fp32"
    warmup_steps: int = Field(default=5, ge=0)
    warmup_steps_max: int | None = Field(default=None, ge=1)
    measured_steps: int = Field(ge=1)
    warmup_min_s: float = Field(default=0.0, ge=0)
    measured_min_s: float = Field(default=0.0, ge=0)
    seed: int = Field(default=1234, ge=0)
    options: dict[str, Scalar] = Field(default_factory=dict)
    device: AcceleratorKind = "cpu"
    storage_dir: Path | None = None
    storage_gb_per_s: float | None = Field(default=None, gt=0)
    storage_ranks: int = Field(default=1, ge=1)
    pace_gflops: tuple[Annotated[float, Field(gt=0)], ...] = ()
    time_out_s: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _check_options(self) -> TrainSpec:
        try:
            options = self.resolve_options()
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if self.batch % int(options["accumulation"]):
            raise ValueError(
                f"batch {self.batch} cannot be divided into {options['accumulation']} micro-steps (option 'accumulation')"
            )
        if options["input"] == "storage" and self.storage_dir is None:
            raise ValueError("option 'input: storage' needs storage_dir, the directory of the dataset")
        if self.pace_gflops and self.device != "cpu":
            raise ValueError("pace_gflops is allowed for emulated devices on a CPU only")
        return self

    @property
    def uses_channels_last(self) -> bool:
        """True if images and convolutions use the channels-last memory format.

        `fully_shard` does not support weights in this format.
        """
        options = self.resolve_options()
        return bool(options.get("channels_last", self.device != "cpu" and options["parallel"] != "fsdp"))

    def resolve_options(self) -> dict[str, Scalar]:
        """Return the default values of all options of the model, overridden by those of this run."""
        return resolve_options(self.model, self.options)

    @property
    def is_mixed_precision(self) -> bool:
        """True if fsdp computes entirely in bf16, without autocast."""
        return self.resolve_options()["fsdp_precision"] == "mixed"


class RankResult(BaseModel):
    """Result of one rank of a training run. Fields that do not apply to the device are absent from the file.

    The rate of a run is batch_global x steps / the largest window_s.

    Attributes:
        step_times_s: one entry per measured step.
        window_s: wall-clock time of all measured steps in seconds, between two synchronisations of the device.
        process_time_s: processor time used in the window, in seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_version: Literal["rank/1"] = Field(default="rank/1", alias="schema")
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    host: str
    status: Status
    reason: str = ""
    evidence: str = ""
    step_times_s: tuple[float, ...] = ()
    window_started: float | None = None  # Unix seconds by this host's clock
    window_s: float | None = None
    process_time_s: float | None = None
    # Time per measured step that the rank lost behind the pace of its device; absent if the device has no pace.
    pace_lost_s: tuple[float, ...] | None = None
    phases_s: dict[str, float] = {}  # import, group, model, dataset, input, wrap, warmup
    loss_first: float | None = None  # before the first step; absent if it is not a number
    loss_last: float | None = None  # of the last measured step; absent if it is not a number
    samples_per_step: int = 0  # batch of this rank
    input_bytes_per_step: int | None = None
    input_read_s: float | None = None  # time in the window for reads from storage, or waits for them
    flops_per_step: float | None = None  # operations for this rank's samples, by the model; from rank 0 only
    warmup_steps: int = 0  # steps done before the window
    skipped_steps: int = 0  # measured steps whose update the gradient scaler dropped
    parameters: int | None = None
    gradient_bytes: int | None = None  # in the type that gradients have in the backward pass
    allreduce_bytes_per_step: int | None = None  # S: bytes that this rank passes to all-reduces of gradients
    # Bytes that this rank sends in a step if every collective is a ring; see parallel_strategies.StepTraffic.
    communication_bytes_per_step: int | None = None
    exposed_communication_s: float | None = None  # median step time minus that without all-reduce
    allreduce_s: float | None = None  # median time of all-reduces of as many bytes alone
    host_memory_peak_bytes: int | None = None
    device_memory_allocated_peak_bytes: int | None = None
    device_memory_reserved_peak_bytes: int | None = None
    work_on: tuple[str, ...] = ()  # torch's devices of parameters and gradients at start and end, and of all losses
    device_name: str = ""
    device_uuid: str | None = None
    replica_uuids: tuple[str, ...] = ()  # of further devices of this process
    numa: str = ""  # NUMA node of the device, and nodes of the processors that the rank is bound to
    torch_version: str = ""
    precision: str = ""  # as measured by a computation, not as configured
    in_force: dict[str, str] = {}  # see `Record.in_force`
    flags: tuple[str, ...] = ()


def result_path(directory: Path, rank: int) -> Path:
    """Return the path of the result file of a rank in a directory."""
    return directory / f"rank{rank}.json"


def write_result(directory: Path, result: RankResult) -> None:
    """Write the result file of a rank atomically."""
    content = result.model_dump_json(by_alias=True, exclude_none=True)
    write_once(result_path(directory, result.rank), content.encode() + b"\n")


def read_results(directory: Path, world_size: int) -> tuple[RankResult | None, ...]:
    """Read the results of all ranks in rank order, with None for ranks without a result.

    Raises RecordError, which names the path, if a file is damaged.
    """

    def read_result(path: Path) -> RankResult | None:
        try:
            return RankResult.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise RecordError(f"{path} is not a complete rank/1 result ({error})") from error

    return tuple(read_result(result_path(directory, rank)) for rank in range(world_size))
