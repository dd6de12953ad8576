"""Specification and result (`<out>/rank<r>.json`, schema links-rank/1) of a rank that measures links. Does not need torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from campaign.common.accelerators import AcceleratorKind
from campaign.common.errors import ConfigError, RecordError
from campaign.common.files import read_bytes, write_once
from campaign.spec.fields import ClosedModel
from campaign.workloads.trainer.rank_interface import result_path

_NUMBER_BYTES = 4
"""Size of an fp32 number in bytes."""


class LinkSpec(ClosedModel):
    """Specification of one link measurement. `hosts` lists the host of each rank."""

    hosts: tuple[str, ...] = Field(min_length=1)
    sizes_bytes: tuple[int, ...] = Field(min_length=1)
    repeats: int = Field(ge=1)
    warmup: int = Field(ge=0)
    budget_s: float = Field(gt=0)
    device: AcceleratorKind
    time_out_s: float = Field(gt=0, description="time limit of one operation between ranks, such as waiting for a turn")

    @field_validator("sizes_bytes")
    @classmethod
    def _whole_numbers(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({size // _NUMBER_BYTES * _NUMBER_BYTES for size in sizes}))


class CollectiveTimes(ClosedModel):
    """Times of one collective operation over all ranks by this rank's clock, one entry per repetition."""

    size_bytes: int = Field(gt=0)
    times_s: tuple[float, ...]


class PairTimes(CollectiveTimes):
    """Times of messages of one size between this rank and one peer."""

    peer: int = Field(ge=0)


class LeftOut(ClosedModel):
    """Message size that was not measured for any pair, with the reason."""

    size_bytes: int
    why: str


class RankLinks(ClosedModel):
    """Measurements of one rank. Measurements that its kind of device does not support are absent.

    latency: half of the round-trip times of the ping-pongs that this rank began; unidirectional: messages that it sent, timed
    until the receiver confirmed their arrival; bidirectional: messages in both directions at once, timed by the lower rank
    until both had arrived.
    """

    schema_version: Literal["links-rank/1"] = "links-rank/1"
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    error: str = ""
    backend: str = ""
    torch_version: str = ""
    device_name: str = ""
    took_s: float = 0.0
    latency: tuple[PairTimes, ...] = ()
    unidirectional: tuple[PairTimes, ...] = ()
    bidirectional: tuple[PairTimes, ...] = ()
    allreduce: tuple[CollectiveTimes, ...] = ()
    to_device: CollectiveTimes | None = None
    from_device: CollectiveTimes | None = None
    p2p: dict[int, bool] = Field(
        default_factory=dict, description="whether this device can access the memory of another, by rank"
    )
    left_out: tuple[LeftOut, ...] = Field(default=(), description="sizes that were not measured, as decided by rank 0")


def read_spec(path: Path) -> LinkSpec:
    """Read the specification of a link measurement from a file. Raises ConfigError if it is unreadable or invalid."""
    try:
        return LinkSpec.model_validate_json(read_bytes(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def write_links(out: Path, links: RankLinks) -> None:
    """Write the measurements of one rank to its result file in the directory `out`."""
    write_once(result_path(out, links.rank), links.model_dump_json(exclude_none=True).encode() + b"\n")


def read_links(out: Path, world_size: int) -> tuple[RankLinks | None, ...]:
    """Read the results of all ranks in rank order, with None for a rank without a result.

    Raises RecordError if a file is damaged.
    """
    results: list[RankLinks | None] = []
    for rank in range(world_size):
        path = result_path(out, rank)
        try:
            results.append(RankLinks.model_validate_json(read_bytes(path)))
        except FileNotFoundError:
            results.append(None)
        except (OSError, ValidationError) as error:
            raise RecordError(f"{path} is not a complete links-rank/1 result ({error})") from error
    return tuple(results)
