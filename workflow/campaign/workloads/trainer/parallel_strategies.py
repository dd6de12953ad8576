"""How the devices of a run share the work: each strategy as a model to call, an optimizer to step and what both communicate.

`single`, `ddp` (Li et al. 2020), `dp` (one process for the devices of a host), `zero1` and `fsdp` (stages 1 and 3 of Rajbhandari et
al. 2020; fsdp is `fully_shard` of PyTorch). The result of training does not depend on the strategy but for rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.cpu_data_parallel import CpuReplicas
from campaign.workloads.trainer.rank_interface import Parallel, TrainSpec

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
    make = _sharded if name_of(spec, world_size) == "fsdp" else _replicated
    strategy = make(spec, trainable, device, world_size)
    if options["compile"]:
        from torch._inductor import config

        config.compile_threads = 1  # a rank stands for one core, and leaves no process of a pool behind
        strategy.model.compile()  # in place: names of parameters stay
    return strategy


def _replicated(spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int) -> Strategy:
    """Every device has all weights."""
    options, name = spec.resolved_options(), name_of(spec, world_size)
    masters = None
    if spec.precision == "fp16-o2":
        precision.to_half(trainable)
        masters = precision.Masters(trainable)
    trained = [p for p in trainable.parameters() if p.requires_grad]
    parameters = masters.parameters if masters else trained
    kind, settings = models.optimizer_of(trainable, float(options["learning_rate"]))
    if name == "zero1":
        # Here, not above: this import takes 0.2 s and only zero1 needs it.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(parameters, kind, **settings)
    else:
        optimizer = kind(parameters, **settings)
    if masters:
        masters.follow(optimizer)
    model: nn.Module = trainable
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext
    gradients = _size(trained)
    traffic = Traffic(gradients)
    if name == "dp":
        model = _data_parallel(trainable, device, spec)
        # In each micro-step the root sends its weights to every other device, and gets their gradients back.
        moved = int(options["accumulation"]) * (_size(trainable.parameters()) + gradients)
        traffic = Traffic(gradients, None, round((1 - 1 / spec.replicas) * moved))
    elif name != "single":
        bucket_mib = float(options["bucket_mib"])
        model = wrapped = DistributedDataParallel(
            trainable,
            device_ids=[device] if device.type == "cuda" else None,
            # A number switches the smaller first bucket off, the default one too.
            bucket_cap_mb=None if bucket_mib == _DEFAULT_BUCKET_MIB else bucket_mib,
        )
        alone = wrapped.no_sync
        updated = _size(parameters) if name == "zero1" else 0
        traffic = Traffic(gradients, gradients, round((1 - 1 / world_size) * (2 * gradients + updated)))
    return Strategy(name, model, optimizer, masters.take_gradients if masters else lambda: None, alone, traffic)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _data_parallel(trainable: models.Trainable, device: torch.device, spec: TrainSpec) -> nn.Module:
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


def recompute(layer: nn.Module) -> None:
    """From now on the layer keeps its inputs only, and runs again in the backward pass (Chen et al. 2016)."""
    layer.__class__ = _recomputed(type(layer))  # type: ignore[arg-type]  # a class is hashable


@cache
def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    # A class, not a changed object: DataParallel copies a module's attributes, and a method among them would stay the original's.
    def forward(self: nn.Module, *arguments: Any) -> Any:
        return checkpoint(partial(kind.forward, self), *arguments, use_reentrant=False)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _sharded(spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int) -> Strategy:
    """Every device has its share of all weights; the optimizer updates fp32 shards, also with fp16-o2."""
    options, half = spec.resolved_options(), spec.precision == "fp16-o2"
    gradients, gathered = _fsdp_bytes(trainable, half, int(options["accumulation"]))
    _shard(trainable, device, world_size, half)
    kind, settings = models.optimizer_of(trainable, float(options["learning_rate"]))

    @contextmanager
    def gradients_kept() -> Iterator[None]:
        trainable.set_requires_gradient_sync(False)  # type: ignore[operator]  # fully_shard changes the module's class
        try:
            yield
        finally:
            trainable.set_requires_gradient_sync(True)  # type: ignore[operator]

    traffic = Traffic(gradients, None, round((1 - 1 / world_size) * (gathered + gradients)))
    return Strategy("fsdp", trainable, kind(trainable.parameters(), **settings), lambda: None, gradients_kept, traffic)


def _shard(trainable: models.Trainable, device: torch.device, world_size: int, half: bool) -> None:
    """Shard in place over all ranks, each layer as a unit of its own. half: units compute and communicate in fp16.

    Layers give their weights back after their forward pass; the rest, which the backward pass begins and ends with, does not.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.float16 if half else None, cast_forward_inputs=False)
    if half:
        norms = precision.norms_of(trainable)
        for norm in norms:
            precision.compute_in_fp32(norm)
        if norms:
            # One unit for all norms: they are computed in fp32, and a unit has one type.
            own = MixedPrecisionPolicy(cast_forward_inputs=False)
            fully_shard(norms, mesh=mesh, reshard_after_forward=False, mp_policy=own)
        precision.cast_inputs(trainable)
    for layer in layers_of(trainable.network):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(trainable, mesh=mesh, reshard_after_forward=False, mp_policy=policy)


def _fsdp_bytes(trainable: models.Trainable, half: bool, micro_steps: int) -> tuple[int, int]:
    """Of the model before it is sharded: bytes of its gradients, and of all that is gathered in a step.

    A layer is gathered for its forward and again for its backward pass, everything else once, in each micro-step.
    """
    norms = {id(p) for norm in (precision.norms_of(trainable) if half else ()) for p in norm.parameters()}
    in_layers = {id(p) for layer in layers_of(trainable.network) for p in layer.parameters()}
    gradients = gathered = 0
    for weight in trainable.parameters():
        in_half = half and id(weight) not in norms
        size = weight.numel() * (2 if in_half else weight.element_size())
        gradients += size if weight.requires_grad else 0
        gathered += micro_steps * size * (2 if id(weight) in in_layers - norms else 1)
    return gradients, gathered


def layers_of(network: nn.Module) -> list[nn.Module]:
    """The outermost modules with parameters whose class is the model's own and occurs more than once, in the order of the network.

    Transformer layers, residual blocks, convolution units: whatever the model calls them; none in one of torch's modules.
    """
    kinds = Counter(
        type(module)
        for module in network.modules()
        if not type(module).__module__.startswith("torch.") and next(module.parameters(), None) is not None
    )

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            yield from [child] if kinds[type(child)] > 1 else search(child)

    return list(dict.fromkeys(search(network)))
