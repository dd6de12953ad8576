"""Strategies by which the devices of a run share the work, each with a model, an optimizer and its traffic.

`single`, `ddp` (Li et al. 2020), `dp` (one process for the devices of a host), `zero1` and `fsdp` (stages 1 and 3 of Rajbhandari
et al. 2020; fsdp is `fully_shard` of PyTorch). Except for rounding, the result of training does not depend on the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.cpu_data_parallel import CpuReplicas
from campaign.workloads.trainer.rank_interface import Parallel, TrainSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DEFAULT_BUCKET_MIB = 25.0  # of DistributedDataParallel


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one optimizer step, by the input of its collectives. None if nothing is communicated.

    Attributes:
        gradient_bytes: all gradients of the model, in their type in the backward pass.
        allreduce_bytes: bytes S that one rank passes to all-reduces of gradients.
        communication_bytes: bytes that one rank (for `dp`, one device on average) sends if every collective is a ring - 2(N-1)/N
            of
            S for an all-reduce, (N-1)/N of the total for an all-gather, a reduce-scatter or a broadcast.
    """

    gradient_bytes: int
    allreduce_bytes: int | None = None
    communication_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """Model and optimizer in a parallel strategy. `model(*batch)` is the mean loss of this process's samples, a scalar.

    Attributes:
        reduce_gradients: called after the backward pass; reduces the gradients if the backward pass has not done so.
        before_step: called between `reduce_gradients` and the step of the optimizer.
        without_communication: context in which gradients are not communicated.
        traffic: bytes that a step communicates.
    """

    name: Parallel
    model: nn.Module
    optimizer: torch.optim.Optimizer
    reduce: Callable[[], None]
    before_step: Callable[[], None]
    alone: Callable[[], AbstractContextManager[Any]]
    traffic: Traffic


def name_of(spec: TrainSpec, world_size: int) -> Parallel:
    """Return the name of the strategy that a run really uses. A single device always has the strategy `single`."""
    if spec.replicas > 1:
        return "dp"
    asked = str(spec.resolved_options()["parallel"])
    return "single" if world_size == 1 else asked  # type: ignore[return-value]  # one of the option's choices


def make_strategy(spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int) -> Strategy:
    """Wrap the model in its parallel strategy, and create its optimizer.

    The process group must exist. The model is on its device and is changed in place.
    """
    options = spec.resolved_options()
    if options["activation_checkpointing"]:
        for layer in trainable.layers():
            recompute(layer)
    if not spec.mixed:
        precision.compute_inside(trainable, spec.precision, device)
    make = _sharded if name_of(spec, world_size) == "fsdp" else _replicated
    strategy = make(spec, trainable, device, world_size, traffic_of(spec, trainable, world_size))
    if options["compile"]:
        from torch._inductor import config

        config.compile_threads = 1  # a rank uses one core, and must not leave processes of a pool behind
        strategy.model.compile()  # in place: names of parameters stay
    return strategy


def _replicated(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int, traffic: Traffic
) -> Strategy:
    """Create a strategy in which every device has all weights."""
    options, name = spec.resolved_options(), name_of(spec, world_size)
    masters = None
    if spec.precision == "fp16-o2":
        precision.to_half(trainable)
        masters = precision.Masters(trainable)
    trained = [p for p in trainable.parameters() if p.requires_grad]
    parameters = masters.parameters if masters else trained
    kind, settings = optimizer_of(spec, trainable, device)
    optimizer: torch.optim.Optimizer
    if name == "zero1":
        # Imported here, because the import takes 0.2 s and only zero1 needs it.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(parameters, kind, **settings)
    else:
        optimizer = kind(parameters, **settings)
    if masters:
        masters.follow(optimizer)
    model: nn.Module = trainable
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext
    reduce = nothing
    if name == "dp":
        model = _data_parallel(trainable, device, spec)
    elif name != "single" and not options["overlap"]:
        reduce = partial(_reduce_all, trained)
    elif name != "single":
        model = wrapped = DistributedDataParallel(
            trainable,
            device_ids=None if device.type == "cpu" else [device],
            **_bucket_caps(float(options["bucket_mib"])),
        )
        alone = wrapped.no_sync
    return Strategy(name, model, optimizer, reduce, masters.take_gradients if masters else nothing, alone, traffic)


FUSED_ON = frozenset({"cuda", "xpu"})
"""Device types with a fused AdamW kernel. CPUs have one, too, but processes on CPUs only emulate devices."""


def optimizer_of(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Choose the optimizer class of a model, and return it with its settings.

    AdamW is fused if the device supports it and the precision is not fp16.
    """
    kind, settings = trainable.optimizer_of(float(spec.resolved_options()["learning_rate"]))
    # A fused optimizer is called even for steps that the fp16 scaler drops, so dropped steps could not be counted.
    if kind is torch.optim.AdamW and device.type in FUSED_ON and not spec.precision.startswith("fp16"):
        settings["fused"] = True
    return kind, settings


def nothing() -> None:
    """Do nothing, in place of an optional action of a strategy."""
    pass


def _bucket_caps(bucket_mib: float) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel for buckets of this size (MiB)."""
    # Any given number, even the default, disables the smaller first bucket.
    return {} if bucket_mib == _DEFAULT_BUCKET_MIB else {"bucket_cap_mb": bucket_mib}


def _reduce_all(trained: Sequence[nn.Parameter]) -> None:
    """Average the gradients over all ranks, with one all-reduce per type of gradient."""
    gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
    for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
        parts = [gradient for gradient in gradients if gradient.dtype == kind]
        whole = torch.cat([part.flatten() for part in parts]).div_(dist.get_world_size())
        dist.all_reduce(whole)
        reduced = torch.split(whole, [part.numel() for part in parts])
        torch._foreach_copy_(parts, [new.view_as(part) for new, part in zip(reduced, parts, strict=True)])


def traffic_of(spec: TrainSpec, trainable: models.Trainable, world_size: int) -> Traffic:
    """Calculate the traffic of a step.

    Args:
        spec: specification of the run.
        trainable: the model before it is wrapped.
        world_size: number of processes.
    """
    options, name, half = spec.resolved_options(), name_of(spec, world_size), spec.precision == "fp16-o2"
    micro_steps, ranks = int(options["accumulation"]), max(world_size, spec.replicas)
    norms = {id(p) for norm in (precision.norms_of(trainable) if half else ()) for p in norm.parameters()}
    in_layers = {id(p) for layer in trainable.layers() for p in layer.parameters()}
    gradients = weights = gathered = scattered = updated = 0
    for weight in trainable.parameters():
        in_half = half and id(weight) not in norms
        elements = weight.numel()
        size = elements * (2 if in_half or spec.mixed else weight.element_size())
        weights += size
        # In each micro-step a layer is gathered for its forward and its backward pass, other weights once.
        gathered += micro_steps * size * (2 if id(weight) in in_layers - norms else 1)
        if weight.requires_grad:
            gradients += size
            scattered += elements * 4 if spec.mixed else size  # a policy that reduces in fp32
            updated += elements * (4 if in_half else weight.element_size())  # the optimizer's weights are fp32
    match name:
        case "single":
            return Traffic(gradients)
        case "dp":
            # In each micro-step the root sends its weights to every other device and receives their gradients.
            sent, reduced = micro_steps * (weights + gradients), None
        case "fsdp":
            sent, reduced = gathered + scattered, None
        case _:
            sent, reduced = 2 * gradients + (updated if name == "zero1" else 0), gradients
    return Traffic(gradients, reduced, round((1 - 1 / ranks) * sent))


def _data_parallel(trainable: models.Trainable, device: torch.device, spec: TrainSpec) -> nn.Module:
    """Wrap a model in DataParallel, or in its equivalent for CPUs."""
    if device.type == "cpu":
        return CpuReplicas(trainable, spec.replicas)
    return _MeanLoss(nn.DataParallel(trainable, device_ids=list(range(spec.replicas))))


class _MeanLoss(nn.Module):
    """Wrapper that averages the losses which DataParallel gathers from the devices."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.module(*batch)
        return loss.mean()


def recompute(layer: nn.Module) -> None:
    """Have a layer keep only its inputs, and run it again in the backward pass (Chen et al. 2016)."""
    layer.__class__ = _recomputed(type(layer))  # type: ignore[arg-type]  # a class is hashable


@cache
def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    # A class, not a changed object: DataParallel copies a module's attributes, and a method among them would stay the original's.
    """Derive a class of layers whose forward pass is recomputed in the backward pass."""

    def forward(self: nn.Module, *arguments: Any) -> Any:
        return checkpoint(partial(kind.forward, self), *arguments, use_reentrant=False)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _sharded(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int, traffic: Traffic
) -> Strategy:
    """Create a strategy in which every device has a share of all weights. The optimizer always updates fp32 shards."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (world_size,))
    late = next(trainable.parameters()).is_meta
    gradients_kept = shard(trainable, mesh, spec.precision == "fp16-o2", spec.mixed)
    if late:
        models.materialise(trainable, device, spec.seed)
    kind, settings = optimizer_of(spec, trainable, device)
    optimizer = kind(trainable.parameters(), **settings)
    return Strategy("fsdp", trainable, optimizer, nothing, nothing, gradients_kept, traffic)


def shard(
    trainable: models.Trainable, mesh: DeviceMesh, half: bool, mixed: bool
) -> Callable[[], AbstractContextManager[Any]]:
    """Shard a model in place over a mesh, each layer as a unit, and return a context in which gradients are not reduced.

    Layers release their gathered weights after the forward pass. The other weights are kept, because the backward pass begins
    and
    ends with them.

    Args:
        trainable: the model.
        mesh: mesh of all devices.
        use_fp16: true if units compute and communicate in fp16.
        use_mixed_bf16: true if units compute entirely in bf16 and reduce gradients in fp32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.float16 if half else None, cast_forward_inputs=False)
    if mixed:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if half:
        norms = precision.norms_of(trainable)
        for norm in norms:
            precision.compute_in_fp32(norm)
        if norms:
            # All norms form one unit, because they are computed in fp32 and a unit has one type.
            own = MixedPrecisionPolicy(cast_forward_inputs=False)
            fully_shard(norms, mesh=mesh, reshard_after_forward=False, mp_policy=own)
        precision.cast_inputs(trainable)
    for layer in trainable.layers():
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(trainable, mesh=mesh, reshard_after_forward=False, mp_policy=policy)

    @contextmanager
    def gradients_kept() -> Iterator[None]:
        trainable.set_requires_gradient_sync(False)  # type: ignore[operator]  # fully_shard changes the module's class
        try:
            yield
        finally:
            trainable.set_requires_gradient_sync(True)  # type: ignore[operator]

    return gradients_kept
