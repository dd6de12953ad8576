"""What is simulated: a network on devices that are joined by links and share the work of a step. Pure.

Sizes are in elements where a precision decides how many bytes an element has, else in bytes. Times are in seconds, rates in bytes
per second and direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

MIB = 2**20


@dataclass(frozen=True, slots=True)
class NetworkLayer:
    """tensors: elements of each trained tensor; forward, backward: shares of the compute time, in any common unit; unit: whether
    FSDP shards the layer by itself. gradual: gradients are ready one after the other during the layer's backward pass, the last
    tensor first, in proportion to their elements; else all at its end, as in a replay.

    activations: elements that a sample keeps from the forward to the backward pass; masks: the same of one byte each, in every
    precision (dropout); boundary: elements that a sample keeps of it with activation checkpointing. None: not known.
    """

    tensors: tuple[int, ...]
    forward: float
    backward: float
    unit: bool = False
    activations: float | None = None
    masks: float = 0.0
    boundary: float = 0.0
    gradual: bool = False


@dataclass(frozen=True)
class Network:
    """layers: in the order of the forward pass; optimizer: its share of the compute time, in their unit.

    input_bytes: of a sample in storage; copied_bytes: of a sample, to its device in each step; decode_s: seconds that one core
    takes for a sample. optimizer_states: fp32 numbers that the optimizer keeps of an element.
    """

    layers: tuple[NetworkLayer, ...]
    optimizer: float = 0.0
    input_bytes: float = 0.0
    copied_bytes: float = 0.0
    decode_s: float = 0.0
    optimizer_states: int = 2

    @cached_property
    def elements(self) -> int:
        return sum(sum(layer.tensors) for layer in self.layers)

    @cached_property
    def total_share(self) -> float:
        return self.optimizer + sum(layer.forward + layer.backward for layer in self.layers)


class ElementBytes(NamedTuple):
    """Bytes of an element. gradient: as it is communicated; weight: on the device, with copies for computing and for the optimizer
    where a precision has them; activation: as it is kept for the backward pass."""

    gradient: int
    weight: int
    activation: int


ELEMENT_BYTES: Mapping[str, ElementBytes] = {
    "fp32": ElementBytes(4, 4, 4),
    "tf32": ElementBytes(4, 4, 4),
    "fp16": ElementBytes(4, 6, 2),  # autocast keeps its copies of the weights
    "bf16": ElementBytes(4, 6, 2),
    "fp16-o2": ElementBytes(2, 6, 2),  # and the optimizer's own in fp32
}


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of a step of one device that communicates with nobody, by batch.

    key: whose it is, such as `v100-16gb fp16`; parameters `compute[KEY]` (a factor) and `start[KEY]` may have a value of its own.
    Batches between two rows are interpolated. A single row is divided into a share `start` that every batch takes and a rest in
    proportion to the batch. factor: by which all of them may be off, where nobody measured them; None where somebody did.
    """

    key: str
    seconds: Mapping[int, float]
    factor: float | None = None


class RankPlace(NamedTuple):
    """Where a rank's device is. host: its number; fabric: whether it is behind the fabric; switch: its PCIe switch on the host."""

    host: int
    fabric: bool = False
    switch: int = 0


Algorithm = Literal["nccl", "ring", "gloo"]


@dataclass(frozen=True)
class Topology:
    """Devices by rank, and the kinds of links between them. A link has the rate `rate[KIND]` and messages the latency of their
    longest kind; a kind without a rate does not limit.

    Kinds: `local` (a host's own device and its host, or NVLink: `local` on both ends), `fabric` (a device's port on the fabric),
    `mixed` (limits what goes between a local and a fabric device of a host), `uplink` (a host's port on the fabric: between its
    local and fabric devices, and of fabric devices without `p2p`), `bridge` (between the PCIe switches of a host, or between
    drawers of the fabric), `network` (a NIC of a host).
    """

    ranks: tuple[RankPlace, ...]
    p2p: bool = True
    algorithm: Algorithm = "nccl"
    """`nccl`: the faster of a ring and a tree where ranks are on several hosts; `ring`: always a ring; `gloo`: the same, FSDP waits
    for each collective and scatters gradients by an all-reduce, and ZeRO broadcasts weights from one rank after the other."""

    @property
    def hosts(self) -> int:
        return len({place.host for place in self.ranks})

    @property
    def on_host(self) -> int:
        """The most ranks of any host."""
        hosts = [place.host for place in self.ranks]
        return max(hosts.count(host) for host in set(hosts))


@dataclass(frozen=True, slots=True)
class Division:
    """A replica of the model that is divided over `tensor` x `pipeline` ranks. groups: of ranks that communicate, along tensors and
    stages and between replicas.

    microbatches, schedule: of the pipeline; boundary_bytes: that one microbatch sends from a stage to the next. tensor_bytes: that
    the busiest rank sends in a step along tensors, when every collective is a ring; tensor_calls: in so many collectives.
    tied_bytes: gradients that the first and the last stage add up after their backward passes.
    """

    tensor: int
    pipeline: int
    tensor_groups: tuple[tuple[int, ...], ...]
    pipeline_groups: tuple[tuple[int, ...], ...]
    data_groups: tuple[tuple[int, ...], ...]
    microbatches: int = 1
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    boundary_bytes: float = 0.0
    tensor_bytes: float = 0.0
    tensor_calls: int = 0
    tied_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkSharing:
    """How ranks share the work of a step.

    parallel: `ddp`, `dp` (one process), `zero1`, `fsdp` (FSDP2) or `horovod`; overlap: gradients are reduced during the backward
    pass; bucket_bytes: what is reduced together, the first time first_bucket_bytes; accumulation: micro-steps, of which only the
    last one communicates gradients; recompute: activations inside of units are computed again in the backward pass.
    gathered_bytes: of a weight as FSDP gathers it, None: as many as of a gradient.
    """

    parallel: Literal["ddp", "dp", "zero1", "fsdp", "horovod"] = "ddp"
    overlap: bool = True
    bucket_bytes: float = 25 * MIB
    first_bucket_bytes: float = 1 * MIB
    accumulation: int = 1
    recompute: bool = False
    division: Division | None = None
    gathered_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class InputPath:
    """Samples that are read from storage and decoded by the cores of their host. storage: key of the rate `read[STORAGE]`, which
    the ranks of a host share (without it, storage does not limit); workers: of each rank, 0 for reading in the step itself;
    cores: of a host."""

    storage: str
    workers: int
    cores: int


@dataclass(frozen=True)
class StepCase:
    """A cell in terms of the model. batch: samples of a device in a step; compute: of each device model that takes part, of which
    the slowest counts; memory_mib: of a device, None where it is not known; input: None where samples are on the devices."""

    network: Network
    compute: tuple[ComputeTime, ...]
    batch: int
    precision: str
    topology: Topology
    sharing: WorkSharing = WorkSharing()
    input: InputPath | None = None
    memory_mib: float | None = None


@dataclass(frozen=True)
class StepFacts:
    """What a workload knows of a cell; the system knows the rest of a case.

    seconds: of a step by device model and batch, where they were measured; flops: of a sample, both passes, where they were
    counted; workers: that read samples for each rank, None where samples are on the devices.
    """

    network: Network
    sharing: WorkSharing
    seconds: Mapping[str, Mapping[int, float]]
    flops: float | None = None
    workers: int | None = None


def transformer_layer(width: int, tokens: int, heads: int, *, fused: bool) -> tuple[float, float]:
    """(activations, masks) that a sample keeps of a transformer layer (Korthikanti et al. 2022, arXiv 2205.05198, equation 2, with
    elements and masks counted apart): 16 and 2 for each token and unit of width; 2 and 1 for each pair of tokens and head, which a
    fused attention does not keep."""
    pairs = 0 if fused else heads * tokens**2
    return 16.0 * tokens * width + 2.0 * pairs, 2.0 * tokens * width + pairs


def interpolated(seconds: Mapping[int, float], batch: float) -> float:
    """Seconds of a step of this batch from those of others: piecewise linear, outside of them along the nearest segment.

    A single one is proportional to the batch. A smaller batch never takes less than its proportion of the smallest known one, and
    a larger one never less than the largest. KeyError: there are none.
    """
    if not seconds:
        raise KeyError("no batch with known seconds")
    batches = sorted(seconds)
    least, most = batches[0], batches[-1]
    proportional = seconds[least] * batch / least
    if len(batches) == 1:
        return proportional
    right = next((index for index, known in enumerate(batches[1:], 1) if batch <= known), len(batches) - 1)
    low, high = batches[right - 1], batches[right]
    line = seconds[low] + (seconds[high] - seconds[low]) * (batch - low) / (high - low)
    if batch < least:
        return max(line, proportional)
    return max(line, seconds[most]) if batch > most else line
