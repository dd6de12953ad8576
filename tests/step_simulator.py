"""The time of a training step, simulated exactly: a truth for campaigns whose answer has to be known beforehand. Pure, and fast.

A `Trace` says what the layers of a network compute and hold; `step_s` steps many cells of one trace at once (arrays over cells, a
loop over buckets or layers, so that 500 cells take milliseconds); `Machine.step_s` does so for the cells of a plan, by the links
that their configurations use. What is simulated, event by event:

- `ddp`: buckets of 25 MiB in the order in which gradients become ready, a first one of 1 MiB; a ring reduces one after the other,
  from the moment its last gradient is there; the optimizer waits for the last one.
- `zero1`: the same; then every rank broadcasts the weights that it has updated.
- `dp`: weights are broadcast before the forward pass (a tree), gradients reduced after the backward pass (a ring, then the root).
- `fsdp`: layers are gathered one ahead, forward and backward; gradients of a layer are scattered behind its backward pass.
- Accumulation splits the batch; only the last part communicates gradients (`dp`: every part).
- Input from storage is shared by the ranks of a host, and prefetched: a step takes at least as long as reading its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from campaign.documents.cell import Cell
from campaign.insight.recommend.observations import way_of

Floats = npt.NDArray[np.float64]

MIB = 2**20
HALF = ("fp16-o2",)
"""Precisions whose gradients have two bytes."""


@dataclass(frozen=True)
class Layer:
    """forward, backward: shares of the compute time; tensors: elements of each."""

    forward: float
    backward: float
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """A network: layers in the order of the forward pass; optimizer: its share of the compute time, as those of layers."""

    name: str
    layers: tuple[Layer, ...]
    optimizer: float
    input_bytes: float = 0.0

    @cached_property
    def elements(self) -> int:
        return sum(sum(layer.tensors) for layer in self.layers)

    @cached_property
    def whole(self) -> float:
        return self.optimizer + sum(layer.forward + layer.backward for layer in self.layers)

    def buckets(self, element_bytes: int, bucket_mib: float = 25.0) -> list[tuple[float, float]]:
        """(share of the backward pass after which it is ready, bytes) of each bucket, in the order of their reduction."""
        backward = sum(layer.backward for layer in self.layers)
        found, size, done = [], 0.0, 0.0
        cap = MIB if bucket_mib == 25.0 else bucket_mib * MIB  # a size that was asked for has no smaller first bucket
        for layer in reversed(self.layers):
            done += layer.backward / backward
            for tensor in reversed(layer.tensors):
                size += tensor * element_bytes
                if size >= cap:
                    found.append((done, size))
                    size, cap = 0.0, bucket_mib * MIB
        return [*found, (1.0, size)] if size else found


@dataclass(frozen=True)
class How:
    """Options of a run, as workloads of kind `train` and `replay` have them."""

    parallel: str = "ddp"
    accumulation: int = 1
    bucket_mib: float = 25.0
    overlap: bool = True


DDP = How()


@dataclass(frozen=True)
class Ring:
    """Of every cell: ranks, and the slowest link between them."""

    ranks: Floats
    alpha_s: Floats
    bytes_per_s: Floats

    def all_reduce(self, size: float) -> Floats:
        return 2 * self.gather(size)

    def gather(self, size: float) -> Floats:
        """Seconds of an all-gather or a reduce-scatter of the whole; of nothing where there is one rank."""
        return (self.ranks - 1) * (self.alpha_s + size / self.ranks / self.bytes_per_s)

    def broadcast(self, size: float) -> Floats:
        return np.ceil(np.log2(self.ranks)) * (self.alpha_s + size / self.bytes_per_s)


def step_s(trace: Trace, compute_s: Floats, ring: Ring, element_bytes: int, how: How = DDP) -> Floats:
    """Seconds of a step of every cell. compute_s: of one device that communicates with nobody."""
    unit = compute_s / trace.whole
    forward = unit * sum(layer.forward for layer in trace.layers) / how.accumulation
    backward = unit * sum(layer.backward for layer in trace.layers) / how.accumulation
    optimizer = unit * trace.optimizer
    alone = (how.accumulation - 1) * (forward + backward)
    size = float(trace.elements * element_bytes)
    several = ring.ranks > 1
    if how.parallel == "dp":
        moved = ring.broadcast(size) + ring.all_reduce(size)
        return compute_s + np.where(several, how.accumulation * moved, 0.0)
    if how.parallel == "fsdp":
        part = _sharded(trace, unit / how.accumulation, ring, element_bytes, last=False)
        last = _sharded(trace, unit / how.accumulation, ring, element_bytes, last=True)
        return np.where(several, (how.accumulation - 1) * part + last + optimizer, compute_s)
    end = np.zeros_like(compute_s)
    for ready, bucket in trace.buckets(element_bytes, how.bucket_mib):
        there = backward * (ready if how.overlap else 1.0)
        end = np.maximum(end, there) + ring.all_reduce(bucket)
    after = ring.gather(trace.elements * 4.0) if how.parallel == "zero1" else 0.0
    return np.where(several, alone + forward + np.maximum(backward, end) + optimizer + after, compute_s)


def _sharded(trace: Trace, unit: Floats, ring: Ring, element_bytes: int, *, last: bool) -> Floats:
    """Forward and backward pass of fully sharded layers, each gathered while the one before it computes."""
    sizes = [float(sum(layer.tensors) * element_bytes) for layer in trace.layers]
    now, link = np.zeros_like(unit), np.zeros_like(unit)
    places = range(len(sizes))
    passes = [(place, trace.layers[place].forward, False) for place in places]
    passes += [(place, trace.layers[place].backward, last) for place in reversed(places)]
    began = np.zeros_like(unit)
    scattered: list[tuple[Floats, float]] = []
    for place, share, scatters in passes:
        link = there = np.maximum(link, began) + ring.gather(sizes[place])
        for ready, size in scattered:  # behind the gather that was asked for before
            link = np.maximum(link, ready) + ring.gather(size)
        scattered = []
        began = np.maximum(now, there)
        now = began + unit * share
        if scatters:
            scattered.append((now, sizes[place]))
    for ready, size in scattered:
        link = np.maximum(link, ready) + ring.gather(size)
    return np.maximum(now, link)


@dataclass(frozen=True)
class Machine:
    """What a plan's cells run on.

    compute: (t0, t1) seconds of a step and a sample by (workload, device, precision); links: (latency in s, bytes/s) by `local`,
    `fabric` and `network`, of which the slowest on the way counts; storage: bytes/s of a host by kind of storage.
    """

    traces: Mapping[str, Trace]
    compute: Mapping[tuple[str, str, str], tuple[float, float]]
    links: Mapping[str, tuple[float, float]]
    storage: Mapping[str, float] = field(default_factory=dict)

    def step_s(self, cells: Sequence[Cell]) -> Floats:
        """Seconds of a step of each cell."""
        found = np.empty(len(cells))
        alike: dict[tuple[str, int, How], list[int]] = {}
        for place, cell in enumerate(cells):
            options = {name: cell.options[name] for name in How.__dataclass_fields__ if name in cell.options}
            element = 2 if cell.precision in HALF else 4
            alike.setdefault((cell.workload, element, How(**options)), []).append(place)
        for (workload, element, how), places in alike.items():
            own = [cells[place] for place in places]
            found[places] = step_s(self.traces[workload], self._compute_s(own), self._ring(own), element, how)
        return np.maximum(found, self._input_s(cells))

    def bytes_of(self, cell: Cell) -> float:
        """Of all gradients."""
        return self.traces[cell.workload].elements * (2.0 if cell.precision in HALF else 4.0)

    def _compute_s(self, cells: Sequence[Cell]) -> Floats:
        lines = [self.compute[cell.workload, cell.configuration.device, cell.precision] for cell in cells]
        return np.array([t0 + t1 * cell.batch for (t0, t1), cell in zip(lines, cells, strict=True)])

    def _ring(self, cells: Sequence[Cell]) -> Ring:
        ways = [
            [
                self.links[link]
                for link in way_of(at.hosts, at.attach, at.ranks).removesuffix("-p2p").split(" + ")
                if link
            ]
            for at in (cell.configuration for cell in cells)
        ]
        return Ring(
            np.array([float(cell.configuration.ranks) for cell in cells]),
            np.array([sum(alpha for alpha, _ in way) for way in ways]),
            np.array([min((rate for _, rate in way), default=np.inf) for way in ways]),
        )

    def _input_s(self, cells: Sequence[Cell]) -> Floats:
        """Seconds that reading takes where a cell reads from storage."""
        return np.array(
            [
                self.traces[cell.workload].input_bytes
                * cell.batch
                * cell.configuration.devices_used
                / self.storage[kind]
                if cell.options.get("input") == "storage" and (kind := cell.configuration.storage) in self.storage
                else 0.0
                for cell in cells
            ]
        )


def _repeated(count: int, tensors: Sequence[int], forward: float, backward: float | None = None) -> tuple[Layer, ...]:
    return (Layer(forward, 2 * forward if backward is None else backward, tuple(tensors)),) * count


def transformer(name: str, width: int, depth: int, vocabulary: int, positions: int, optimizer: float = 0.03) -> Trace:
    """An encoder like BERT with its head tied to the embeddings."""
    inner = (
        (width * width, width) * 4
        + (width, width)
        + (4 * width * width, 4 * width, 4 * width * width, width)
        + (width,) * 2
    )
    body = _repeated(depth, inner, 1.0)
    first = Layer(0.02 * depth, 0.04 * depth, (vocabulary * width, positions * width, 2 * width, width, width))
    head = Layer(0.03 * depth, 0.06 * depth, (width * width, width, width, width, vocabulary))
    return Trace(name, (first, *body, head), optimizer * 3 * depth, input_bytes=positions * 24.0)


def convolutional(name: str, stages: Sequence[tuple[int, int, float]], optimizer: float = 0.02) -> Trace:
    """stages: (blocks, elements of a block, its forward share)."""
    blocks = [Layer(share, 2 * share, (size,)) for count, size, share in stages for _ in range(count)]
    return Trace(name, tuple(blocks), optimizer * 3 * sum(layer.forward for layer in blocks), input_bytes=150_528.0)


TRACES: Mapping[str, Trace] = {
    trace.name: trace
    for trace in (
        transformer("bert-large", 1024, 24, 30522, 512),
        transformer("bert-base", 768, 12, 30522, 512),
        transformer("bert-nano", 128, 2, 2048, 64),
        convolutional(
            "resnet50",
            [
                (1, 9_408, 0.5),
                (3, 72_000, 1.0),
                (4, 300_000, 1.0),
                (6, 1_150_000, 1.0),
                (3, 4_990_000, 1.0),
                (1, 2_049_000, 0.1),
            ],
        ),
        convolutional("mobilenetv2", [(4, 6_000, 1.0), (7, 40_000, 1.0), (6, 230_000, 0.8), (2, 850_000, 0.4)]),
        convolutional("yolov5l", [(3, 90_000, 1.5), (6, 500_000, 1.5), (9, 1_600_000, 1.0), (6, 4_800_000, 0.7)]),
        convolutional("resnet50w16", [(4, 5_000, 1.0), (4, 20_000, 1.0), (6, 75_000, 1.0), (3, 310_000, 1.0)]),
    )
}
