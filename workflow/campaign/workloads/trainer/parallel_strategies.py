"""How the devices of a run share the work: each strategy as a model to call, an optimizer to step and what both communicate.

`single`, `ddp` (Li et al. 2020), `dp` (one process for the devices of a host), `zero1` and `fsdp` (stages 1 and 3 of Rajbhandari et
al. 2020; fsdp is `fully_shard` of PyTorch). The result of training does not depend on the strategy but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from campaign.workloads.trainer import fsdp_sharding, models, precision
from campaign.workloads.trainer.cpu_data_parallel import CpuReplicas
from campaign.workloads.trainer.repeated_layers import layers_of
from campaign.workloads.trainer.run_spec import Parallel, TrainSpec

_DEFAULT_BUCKET_MIB = 25.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one optimizer step, by what the collectives are given; None where nothing is communicated.

    gradient_bytes: all gradients of the model in the type that they have in the backward pass. allreduce_bytes: S, what one rank
    hands to the all-reduces of gradients. communication_bytes: what one rank sends (of `dp`: one device, on average) when every
    collective is a ring: 2(N-1)/N of an all-reduce's S, (N-1)/N of the whole of an all-gather, a reduce-scatter or a broadcast.
    """

    gradient_bytes: int
    allreduce_bytes: int | None = None
    communication_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """A model in its strategy. `model(*batch)` is the mean loss of this process's samples, a scalar.

    before_step: called between the backward pass and the optimizer's step; alone: a context without communication of gradients.
    """

    name: Parallel
    model: nn.Module
    optimizer: torch.optim.Optimizer
    before_step: Callable[[], None]
    alone: Callable[[], AbstractContextManager[Any]]
    traffic: Traffic


def name_of(spec: TrainSpec, world_size: int) -> Parallel:
    """What the run really is: one device shares its work with nobody."""
    if spec.replicas > 1:
        return "dp"
    asked = str(spec.resolved_options()["parallel"])
    return "single" if world_size == 1 else asked  # type: ignore[return-value]  # one of the option's choices


def make_strategy(spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int) -> Strategy:
    """Wrap the model and make its optimizer. The process group stands; `trainable` is on its device and is changed in place."""
    options = spec.resolved_options()
    if options["activation_checkpointing"]:
        for layer in layers_of(trainable.network):
            recompute(layer)
    name = name_of(spec, world_size)
    if name == "fsdp":
        strategy = _fsdp(spec, trainable, device, world_size)
    else:
        strategy = _replicated(spec, name, trainable, device, world_size)
    if options["compile"]:
        from torch._inductor import config

        config.compile_threads = 1  # a rank stands for one core, and leaves no process of a pool behind
        strategy.model.compile()  # in place: names of parameters stay
    return strategy


def _replicated(
    spec: TrainSpec, name: Parallel, trainable: models.Trainable, device: torch.device, world_size: int
) -> Strategy:
    """Every device has all weights."""
    options = spec.resolved_options()
    masters = None
    if spec.precision == "fp16-o2":
        precision.to_half(trainable)
        masters = precision.Masters(trainable)
    parameters = masters.parameters if masters else [p for p in trainable.parameters() if p.requires_grad]
    rate = float(options["learning_rate"])
    if name == "zero1":
        optimizer = _sharded_optimizer(trainable, parameters, rate)
    else:
        optimizer = models.make_optimizer(trainable, rate, parameters)
    if masters:
        masters.follow(optimizer)
    model: nn.Module = trainable
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext
    if name in ("ddp", "zero1"):
        model = wrapped = _ddp(trainable, device, float(options["bucket_mib"]))
        alone = wrapped.no_sync
    elif name == "dp":
        model = _dp(trainable, device, spec)
    devices = spec.replicas if name == "dp" else world_size
    gradients = _size(p for p in trainable.parameters() if p.requires_grad)
    micro_steps = int(options["accumulation"])
    traffic = _traffic(name, devices, micro_steps, gradients, _size(parameters), _size(trainable.parameters()))
    return Strategy(name, model, optimizer, masters.take_gradients if masters else _nothing, alone, traffic)


def _fsdp(spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int) -> Strategy:
    """Every device has its share of all weights; the optimizer updates fp32 shards, also with fp16-o2."""
    options = spec.resolved_options()
    half = spec.precision == "fp16-o2"
    gradients, gathered = fsdp_sharding.sizes(trainable, half, int(options["accumulation"]))
    fsdp_sharding.shard(trainable, device, world_size, half)
    optimizer = models.make_optimizer(trainable, float(options["learning_rate"]))
    traffic = Traffic(gradients, None, round((world_size - 1) / world_size * (gathered + gradients)))
    return Strategy("fsdp", trainable, optimizer, _nothing, lambda: fsdp_sharding.gradients_kept(trainable), traffic)


def recompute(layer: nn.Module) -> None:
    """From now on the layer keeps its inputs only, and runs again in the backward pass (Chen et al. 2016)."""
    kind = type(layer)
    if kind not in _RECOMPUTED:
        _RECOMPUTED[kind] = _recomputed(kind)
    layer.__class__ = _RECOMPUTED[kind]


_RECOMPUTED: dict[type[nn.Module], type[nn.Module]] = {}


def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    # A class, not a changed object: DataParallel copies a module's attributes, and a method among them would stay the original's.
    def forward(self: nn.Module, *arguments: Any) -> Any:
        return checkpoint(partial(kind.forward, self), *arguments, use_reentrant=False)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _nothing() -> None:
    return


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _traffic(name: Parallel, devices: int, micro_steps: int, gradients: int, updated: int, weights: int) -> Traffic:
    """updated: bytes of what the optimizer updates; weights: of what the forward pass uses."""
    if devices == 1:
        return Traffic(gradients)
    share = (devices - 1) / devices
    if (
        name == "dp"
    ):  # in each micro-step the root sends its weights to every other device, and gets their gradients back
        return Traffic(gradients, None, round(micro_steps * share * (weights + gradients)))
    sent = 2 * share * gradients + (share * updated if name == "zero1" else 0)
    return Traffic(gradients, gradients, round(sent))


def _ddp(trainable: nn.Module, device: torch.device, bucket_mib: float) -> DistributedDataParallel:
    return DistributedDataParallel(
        trainable,
        device_ids=[device] if device.type == "cuda" else None,
        # A number switches the smaller first bucket off, the default one too.
        bucket_cap_mb=None if bucket_mib == _DEFAULT_BUCKET_MIB else bucket_mib,
    )


def _dp(trainable: models.Trainable, device: torch.device, spec: TrainSpec) -> nn.Module:
    if device.type == "cpu":
        return CpuReplicas(trainable, spec.replicas, lambda: precision.autocast(spec.precision, device))
    return _MeanLoss(nn.DataParallel(trainable, device_ids=list(range(spec.replicas))))


class _MeanLoss(nn.Module):
    """DataParallel gathers the loss of every device; one step needs one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.module(*batch)
        return loss.mean()


def _sharded_optimizer(
    trainable: models.Trainable, parameters: list[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    # Here, not above: this import takes 0.2 s and only zero1 needs it.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind, settings = models.optimizer_of(trainable, rate)
    return ZeroRedundancyOptimizer(parameters, kind, **settings)
