"""A model that is replayed: layers that wait for as long as a device computes, and gradients of zeros that are really communicated.

A layer's backward pass hands back all of its gradients at its end, so that whatever listens to them, a bucket of
DistributedDataParallel or a unit of fully_shard, communicates when it would on the device.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from campaign.workloads.trainer.models import Sample, Trainable
from campaign.workloads.trainer.rank_interface import Replay, ReplayedLayer

_PIECES = 64  # of what DataParallel passes along the ranks
_Work = Callable[[float], None]
"""To be called with the seconds that the device has worked since."""


class ReplayedModel(Trainable):
    """The layers of a replay; its sample is a number for each micro-step, and so is its loss, always 0."""

    def __init__(self, replay: Replay, work: _Work, device: torch.device | str = "cpu") -> None:
        thinning = 1.0 if torch.device(device).type == "meta" else replay.thinning
        with torch.device(device):
            network = nn.Sequential(*(_Layer(layer, thinning, work) for layer in replay.layers))
        super().__init__(network, torch.sum, 1, lambda _: (torch.zeros(()),), "sgd")
        self.replay = replay
        self._work = work

    def full_size(self) -> Trainable:
        return ReplayedModel(self.replay, self._work, "meta")

    def layers(self) -> Sequence[nn.Module]:
        return [part for part, layer in zip(self.network, self.replay.layers, strict=True) if layer.unit]  # type: ignore[call-overload]  # it is a Sequential

    def optimizer_of(self, learning_rate: float) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        elements = sum(parameter.numel() for parameter in self.parameters())
        return _WaitingOptimizer, {"work": self._work, "element_s": self.replay.optimizer_s / elements}

    def forward(self, *batch: Tensor) -> Tensor:
        # The first layer has a backward pass of its own although nothing comes before it.
        return super().forward(*(tensor.requires_grad_() for tensor in batch))


class _Layer(nn.Module):
    def __init__(self, layer: ReplayedLayer, thinning: float, work: _Work) -> None:
        super().__init__()
        self.layer = layer
        self.work = work
        for number, elements in enumerate(layer.tensors):
            self.register_parameter(str(number), nn.Parameter(torch.zeros(max(1, round(elements * thinning)))))

    def forward(self, signal: Tensor) -> Tensor:
        passed: Tensor = _Passes.apply(self, signal, *self._parameters.values())  # type: ignore[no-untyped-call]
        return passed


class _Passes(torch.autograd.Function):
    """The two passes of a layer."""

    @staticmethod
    def forward(ctx: Any, layer: _Layer, signal: Tensor, *tensors: Tensor) -> Tensor:
        ctx.layer, ctx.kinds = layer, [(tensor.shape, tensor.dtype) for tensor in tensors]
        layer.work(layer.layer.forward_s)
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.layer.work(ctx.layer.layer.backward_s)
        return None, *gradient, *(torch.zeros(shape, dtype=kind) for shape, kind in ctx.kinds)


class _WaitingOptimizer(torch.optim.Optimizer):
    """Waits for as long as a device takes to update the elements that this rank updates."""

    def __init__(self, parameters: Any, work: _Work, element_s: float) -> None:
        super().__init__(parameters, {})
        self._work = work
        self._element_s = element_s

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._work(self._element_s * sum(own_elements(p) for group in self.param_groups for p in group["params"]))


def sharing_optimizer(parameters: Sequence[Tensor], settings: dict[str, Any]) -> torch.optim.Optimizer:
    """ZeRO stage 1: each rank updates its share of the elements, and a ring gathers them.

    ZeroRedundancyOptimizer broadcasts instead, from each rank after the other. Broadcasts of gloo are trees, which pass a rank's
    link several times; those of NCCL are rings.
    """
    ranks = dist.get_world_size()
    share = torch.zeros(-(-sum(p.numel() * p.element_size() for p in parameters) // ranks), dtype=torch.uint8)
    whole = share.new_empty(ranks * len(share))
    optimizer = _WaitingOptimizer(parameters, settings["work"], settings["element_s"] / ranks)

    def gather(*_: object) -> None:
        _gather(whole, share)

    optimizer.register_step_post_hook(gather)
    return optimizer


def _gather(whole: Tensor, share: Tensor, **settings: Any) -> Any:
    # torch 2.13 has renamed it.
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    return gather(whole, share, **settings)


def own_elements(parameter: Tensor) -> int:
    """The elements of this rank's part or shard."""
    return parameter.to_local().numel() if hasattr(parameter, "to_local") else parameter.numel()


class RootParallel(nn.Module):
    """DataParallel with a rank for each device: rank 0 sends its weights before the forward pass and gets the sum of all gradients
    after the backward pass, as pipelines along the ranks, which is what NCCL's rings do."""

    def __init__(self, trainable: Trainable) -> None:
        super().__init__()
        self.module = trainable
        size_bytes = sum(p.numel() * p.element_size() for p in trainable.parameters())
        self._pieces = torch.zeros(size_bytes, dtype=torch.uint8).chunk(_PIECES)

    def forward(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.module(*(_Exchange.apply(self._pieces, tensor.requires_grad_()) for tensor in batch))  # type: ignore[no-untyped-call]
        return loss


class _Exchange(torch.autograd.Function):
    """Stands before the first layer, so that it is the first of the forward pass and the last of the backward pass."""

    @staticmethod
    def forward(ctx: Any, pieces: Sequence[Tensor], signal: Tensor) -> Tensor:
        ctx.pieces = pieces
        _passed_along(pieces, range(dist.get_world_size()))
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        _passed_along(ctx.pieces, range(dist.get_world_size() - 1, -1, -1))
        return None, *gradient


def _passed_along(pieces: Sequence[Tensor], ranks: Sequence[int]) -> None:
    """Each rank gets all pieces from the one before it, and hands each to the one after it while it gets the next."""
    own = ranks.index(dist.get_rank())
    # All at once: a rank sends what the other has asked for.
    coming = [dist.irecv(piece, ranks[own - 1]) for piece in pieces] if own > 0 else [None] * len(pieces)
    sent = []
    for piece, received in zip(pieces, coming, strict=True):
        if received is not None:
            received.wait()
        if own + 1 < len(ranks):
            sent.append(dist.isend(piece, ranks[own + 1]))
    for work in sent:
        if work is not None:
            work.wait()


class _Scatter:
    """Reduce-scatters that move the bytes of a ring and are waited for at the end of the backward pass.

    That of gloo is an all-reduce, of twice the bytes, and waited for at once. A ring's all-gather moves as much on the same links.
    """

    def __init__(self) -> None:
        self._begun: list[Any] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        self._begun.append(_gather(input_tensor, output_tensor, group=group, async_op=True))

    def wait(self) -> None:
        for work in self._begun:
            work.wait()
        self._begun.clear()


def overlapped(trainable: Trainable) -> Callable[[], None]:
    """Have a model that fully_shard has sharded communicate as on a GPU, whose streams a CPU has not; gives what waits for it.

    A unit is gathered while the one before it computes, and reduced while the next ones do.
    """
    scatter, units = _Scatter(), trainable.layers()
    for unit in (*units, trainable):
        unit.set_custom_reduce_scatter(scatter)  # type: ignore[operator]  # fully_shard changes the module's class
    for unit, following in itertools.pairwise(units):
        unit.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
    trainable._set_unshard_async_op(True)  # type: ignore[operator]
    return scatter.wait


class ReplayedFeed:
    """Batches that are there when storage, at a given time for a batch, has given them.

    Without workers a step reads by itself; n of them read up to 2n batches ahead, one after the other.
    """

    written_s: float | None = None
    flags: tuple[str, ...] = ()

    def __init__(self, read_s: float | None, dilation: float, workers: int, micro_steps: int) -> None:
        self.waited_s: float | None = None if read_s is None else 0.0
        self._dilation = dilation
        self._micro_steps = micro_steps
        self._ready = ready_times(read_s * dilation, 2 * workers) if read_s is not None else None
        if self._ready is not None:
            next(self._ready)

    def __call__(self) -> Sample:
        if self._ready is not None:
            called_s = time.perf_counter()
            wait_s = max(0.0, self._ready.send(called_s) - called_s)
            time.sleep(wait_s)
            self.waited_s = (self.waited_s or 0.0) + (time.perf_counter() - called_s) / self._dilation
        return (torch.zeros(self._micro_steps),)


def ready_times(read_s: float, ahead: int) -> Generator[float, float, None]:
    """Send the time of a call, get the time at which its batch is ready.

    Batches are read one after the other, each in read_s, from the first call on; up to `ahead` beyond the one that was given.
    """
    coming: deque[float] = deque()
    last = yield 0.0
    for _ in range(ahead + 1):
        last += read_s
        coming.append(last)
    while True:
        called_s = yield coming.popleft()
        last = max(last, called_s) + read_s
        coming.append(last)
