"""What one rank leaves behind: `<out>/rank<r>.json`, schema rank/1. Imports without torch: the driver reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.documents.record import Status
from campaign.errors import RecordError
from campaign.files import write_once


class RankResult(BaseModel):
    """One rank of one run. A field that does not exist on the device is absent from the file.

    step_times_s: one entry a measured step; window_s: all of them by the wall clock, between two device synchronisations;
    process_time_s: processor time of the window. The rate of a run is batch_global x steps / the largest window_s.
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
    window_started: float | None = Field(default=None, description="Unix seconds by this host's clock")
    window_s: float | None = None
    process_time_s: float | None = None
    phases_s: dict[str, float] = Field(
        default_factory=dict, description="import, group, model, dataset, input, wrap, warmup"
    )
    loss_first: float | None = Field(default=None, description="before the first step; absent when not a number")
    loss_last: float | None = Field(default=None, description="of the last measured step; absent when not a number")
    samples_per_step: int = Field(default=0, description="batch of this rank")
    input_bytes_per_step: int | None = None
    input_read_s: float | None = Field(
        default=None, description="of the window, reading from storage or waiting for it"
    )
    flops_per_step: float | None = Field(
        default=None, description="of this rank's samples, by the model; left by rank 0"
    )
    warmup_steps: int = Field(default=0, description="steps done before the window")
    skipped_steps: int = Field(default=0, description="measured steps whose update the gradient scaler dropped")
    parameters: int | None = None
    gradient_bytes: int | None = Field(default=None, description="in the type that gradients have in the backward pass")
    allreduce_bytes_per_step: int | None = Field(
        default=None, description="S: what this rank hands to all-reduces of gradients"
    )
    communication_bytes_per_step: int | None = Field(
        default=None,
        description="what this rank sends in a step where every collective is a ring; see train.strategies.Traffic",
    )
    exposed_communication_s: float | None = Field(default=None, description="median step less that without all-reduce")
    allreduce_s: float | None = Field(default=None, description="bare all-reduces of as many bytes, median")
    host_memory_peak_bytes: int | None = None
    device_memory_allocated_peak_bytes: int | None = None
    device_memory_reserved_peak_bytes: int | None = None
    device_name: str = ""
    device_uuid: str | None = None
    torch_version: str = ""
    precision: str = Field(default="", description="found by computing, not by asking for it")
    flags: tuple[str, ...] = ()


def result_path(out: Path, rank: int) -> Path:
    return out / f"rank{rank}.json"


def write_result(out: Path, result: RankResult) -> None:
    """Write the file whole or not at all."""
    content = result.model_dump_json(by_alias=True, exclude_none=True)
    write_once(result_path(out, result.rank), content.encode() + b"\n")


def read_results(out: Path, world_size: int) -> tuple[RankResult | None, ...]:
    """Results by rank, None for a rank that left none; RecordError names a damaged file."""
    results: list[RankResult | None] = []
    for rank in range(world_size):
        path = result_path(out, rank)
        try:
            results.append(RankResult.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            results.append(None)
        except (OSError, ValidationError) as error:
            raise RecordError(f"{path}: not a whole rank/1 result ({error})") from error
    return tuple(results)
