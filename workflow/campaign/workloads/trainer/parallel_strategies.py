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
from campaign.workloads.trainer.cpu_data_parallel import CpuDataParallel
from campaign.workloads.trainer.rank_interface import Parallel, TrainSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DEFAULT_BUCKET_MIB = 25.0  # of DistributedDataParallel


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Bytes communicated in one optimizer step, according to the inputs of its collectives. None if there are none.

    Attributes:
        gradient_bytes: size of all gradients of the model, in the number type that they have in the backward pass.
        allreduce_bytes: bytes S that one rank passes to all-reduces of gradients.
        communication_bytes: bytes that one rank (for `dp`, one device on average) sends if every collective is a ring:
            2(N-1)/N of S for an all-reduce, and (N-1)/N of the total for an all-gather, a reduce-scatter or a broadcast.
    """

    gradient_bytes: int
    allreduce_bytes: int | None = None
    communication_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ParallelStrategy:
    """Model and optimizer of a parallel strategy. `model(*batch)` is the mean loss over this process's samples, a scalar.

    Attributes:
        reduce_gradients: function called after the backward pass, which reduces the gradients unless the pass has done so.
        before_step: function called between `reduce_gradients` and the optimizer's step.
        without_communication: function that returns a context in which gradients are not communicated.
        traffic: bytes that are communicated in each step.
    """

    name: Parallel
    model: nn.Module
    optimizer: torch.optim.Optimizer
    reduce_gradients: Callable[[], None]
    before_step: Callable[[], None]
    without_communication: Callable[[], AbstractContextManager[Any]]
    traffic: StepTraffic


def choose_strategy_name(spec: TrainSpec, world_size: int) -> Parallel:
    """Return the name of the strategy that a run actually uses, which for a single device is always `single`."""
    if spec.replicas > 1:
        return "dp"
    name = str(spec.resolve_options()["parallel"])
    return "single" if world_size == 1 else name  # type: ignore[return-value]  # one of the option's choices


def make_strategy(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int
) -> ParallelStrategy:
    """Wrap the model in its parallel strategy, and create its optimizer.

    The process group must already exist. The model must be on its device, and is changed in place.
    """
    options = spec.resolve_options()
    if options["activation_checkpointing"]:
        for layer in trainable.find_layers():
            enable_recomputation(layer)
    if not spec.is_mixed_precision:
        precision.enable_autocast_in_forward(trainable, spec.precision, device)
    make = _make_sharded_strategy if choose_strategy_name(spec, world_size) == "fsdp" else _make_replicated_strategy
    strategy = make(spec, trainable, device, world_size, estimate_traffic(spec, trainable, world_size))
    if options["compile"]:
        from torch._inductor import config

        config.compile_threads = 1  # a rank uses one core, and must not leave processes of a pool behind
        strategy.model.compile()  # in place: names of parameters stay
    return strategy


def _make_replicated_strategy(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int, traffic: StepTraffic
) -> ParallelStrategy:
    """Create a strategy in which every device holds all weights of the model."""
    options, name = spec.resolve_options(), choose_strategy_name(spec, world_size)
    masters = None
    if spec.precision == "fp16-o2":
        precision.convert_to_fp16(trainable)
        masters = precision.MasterWeights(trainable)
    trained_parameters = [p for p in trainable.parameters() if p.requires_grad]
    parameters = masters.parameters if masters else trained_parameters
    optimizer_class, settings = choose_optimizer(spec, trainable, device)
    optimizer: torch.optim.Optimizer
    if name == "zero1":
        # Imported here, because the import takes 0.2 s and only zero1 needs it.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class, **settings)
    else:
        optimizer = optimizer_class(parameters, **settings)
    if masters:
        masters.register_weight_copy_hook(optimizer)
    model: nn.Module = trainable
    without_communication: Callable[[], AbstractContextManager[Any]] = nullcontext
    reduce_gradients = do_nothing
    if name == "dp":
        model = _wrap_data_parallel(trainable, device, spec)
    elif name != "single" and not options["overlap"]:
        reduce_gradients = partial(_all_reduce_gradients, trained_parameters)
    elif name != "single":
        model = distributed_model = DistributedDataParallel(
            trainable,
            device_ids=None if device.type == "cpu" else [device],
            **_make_bucket_arguments(float(options["bucket_mib"])),
        )
        without_communication = distributed_model.no_sync
    return ParallelStrategy(
        name,
        model,
        optimizer,
        reduce_gradients,
        masters.copy_gradients if masters else do_nothing,
        without_communication,
        traffic,
    )


FUSED_ADAMW_DEVICE_TYPES = frozenset({"cuda", "xpu"})
"""Device types for which the fused AdamW kernel is used. CPUs have one, too, but processes on CPUs only emulate devices."""


def choose_optimizer(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Choose the optimizer class for a model on a device, and return it with its settings.

    The fused AdamW is used if the device supports it and the precision is not fp16.
    """
    optimizer_class, settings = trainable.choose_optimizer(float(spec.resolve_options()["learning_rate"]))
    # A fused optimizer is called even for steps that the fp16 scaler drops, so dropped steps could not be counted.
    if (
        optimizer_class is torch.optim.AdamW
        and device.type in FUSED_ADAMW_DEVICE_TYPES
        and not spec.precision.startswith("fp16")
    ):
        settings["fused"] = True
    return optimizer_class, settings


def do_nothing() -> None:
    """Do nothing, as the default for optional actions of a strategy."""
    pass


def _make_bucket_arguments(bucket_mib: float) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel that select gradient buckets of this size (MiB)."""
    # Any given number, even the default, disables the smaller first bucket.
    return {} if bucket_mib == _DEFAULT_BUCKET_MIB else {"bucket_cap_mb": bucket_mib}


def _all_reduce_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Average the gradients over all ranks, with one all-reduce per number type."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
        parts = [gradient for gradient in gradients if gradient.dtype == kind]
        flat_gradients = torch.cat([part.flatten() for part in parts]).div_(dist.get_world_size())
        dist.all_reduce(flat_gradients)
        reduced_parts = torch.split(flat_gradients, [part.numel() for part in parts])
        torch._foreach_copy_(parts, [new.view_as(part) for new, part in zip(reduced_parts, parts, strict=True)])


def estimate_traffic(spec: TrainSpec, trainable: models.Trainable, world_size: int) -> StepTraffic:
    """Calculate how many bytes are communicated in a step.

    Args:
        spec: specification of the run.
        trainable: the model, before it is wrapped.
        world_size: number of processes.
    """
    options, name, is_half_precision = (
        spec.resolve_options(),
        choose_strategy_name(spec, world_size),
        spec.precision == "fp16-o2",
    )
    micro_steps, ranks = int(options["accumulation"]), max(world_size, spec.replicas)
    norms = {
        id(p)
        for norm in (precision.find_weighted_norms(trainable) if is_half_precision else ())
        for p in norm.parameters()
    }
    in_layers = {id(p) for layer in trainable.find_layers() for p in layer.parameters()}
    gradient_bytes = weight_bytes = gathered_bytes = scattered_bytes = updated_bytes = 0
    for weight in trainable.parameters():
        in_half = is_half_precision and id(weight) not in norms
        elements = weight.numel()
        size = elements * (2 if in_half or spec.is_mixed_precision else weight.element_size())
        weight_bytes += size
        # In each micro-step a layer is gathered for its forward and its backward pass, other weights once.
        gathered_bytes += micro_steps * size * (2 if id(weight) in in_layers - norms else 1)
        if weight.requires_grad:
            gradient_bytes += size
            scattered_bytes += elements * 4 if spec.is_mixed_precision else size  # a policy that reduces in fp32
            updated_bytes += elements * (4 if in_half else weight.element_size())  # the optimizer's weights are fp32
    match name:
        case "single":
            return StepTraffic(gradient_bytes)
        case "dp":
            # In each micro-step the root sends its weights to every other device and receives their gradients.
            sent_bytes, allreduce_bytes = micro_steps * (weight_bytes + gradient_bytes), None
        case "fsdp":
            sent_bytes, allreduce_bytes = gathered_bytes + scattered_bytes, None
        case _:
            sent_bytes, allreduce_bytes = 2 * gradient_bytes + (updated_bytes if name == "zero1" else 0), gradient_bytes
    return StepTraffic(gradient_bytes, allreduce_bytes, round((1 - 1 / ranks) * sent_bytes))


def _wrap_data_parallel(trainable: models.Trainable, device: torch.device, spec: TrainSpec) -> nn.Module:
    """Wrap a model in DataParallel or, on a CPU, in its equivalent with threads."""
    if device.type == "cpu":
        return CpuDataParallel(trainable, spec.replicas)
    return _MeanLoss(nn.DataParallel(trainable, device_ids=list(range(spec.replicas))))


class _MeanLoss(nn.Module):
    """Wrapper that averages the losses gathered by DataParallel from all devices."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.module(*batch)
        return loss.mean()


def enable_recomputation(layer: nn.Module) -> None:
    """Make a layer keep only its inputs, and recompute it in the backward pass (Chen et al. 2016)."""
    layer.__class__ = _make_recomputing_class(type(layer))  # type: ignore[arg-type]  # a class is hashable


@cache
def _make_recomputing_class(kind: type[nn.Module]) -> type[nn.Module]:
    """Derive a class of layers whose forward pass is recomputed in the backward pass."""
    # The class is changed, not the object, because DataParallel copies a module's attributes, and a copied method would stay bound
    # to the original.

    def forward(self: nn.Module, *arguments: Any) -> Any:
        return checkpoint(partial(kind.forward, self), *arguments, use_reentrant=False)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _make_sharded_strategy(
    spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int, traffic: StepTraffic
) -> ParallelStrategy:
    """Create a strategy in which every device holds a shard of each weight. The optimizer always updates fp32 shards."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (world_size,))
    is_on_meta_device = next(trainable.parameters()).is_meta
    without_communication = shard_model(trainable, mesh, spec.precision == "fp16-o2", spec.is_mixed_precision)
    if is_on_meta_device:
        models.materialise_weights(trainable, device, spec.seed)
    optimizer_class, settings = choose_optimizer(spec, trainable, device)
    optimizer = optimizer_class(trainable.parameters(), **settings)
    return ParallelStrategy("fsdp", trainable, optimizer, do_nothing, do_nothing, without_communication, traffic)


def shard_model(
    trainable: models.Trainable, mesh: DeviceMesh, use_fp16: bool, use_mixed_bf16: bool
) -> Callable[[], AbstractContextManager[Any]]:
    """Shard a model in place over a mesh, with each layer as a unit.

    Returns a function that creates a context without gradient reduction. Layers release their gathered weights after the
    forward pass. All other weights are kept, because the backward pass begins and ends with them.

    Args:
        trainable: the model.
        mesh: mesh of all devices.
        use_fp16: true if units compute and communicate in fp16.
        use_mixed_bf16: true if units compute entirely in bf16 and reduce gradients in fp32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.float16 if use_fp16 else None, cast_forward_inputs=False)
    if use_mixed_bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if use_fp16:
        norms = precision.find_weighted_norms(trainable)
        for norm in norms:
            precision.compute_norm_in_fp32(norm)
        if norms:
            # All norms form one unit, because they are computed in fp32 and a unit has one type.
            norm_policy = MixedPrecisionPolicy(cast_forward_inputs=False)
            fully_shard(norms, mesh=mesh, reshard_after_forward=False, mp_policy=norm_policy)
        precision.cast_inputs_to_fp16(trainable)
    for layer in trainable.find_layers():
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    fully_shard(trainable, mesh=mesh, reshard_after_forward=False, mp_policy=policy)

    @contextmanager
    def without_gradient_sync() -> Iterator[None]:
        trainable.set_requires_gradient_sync(False)  # type: ignore[operator]  # fully_shard changes the module's class
        try:
            yield
        finally:
            trainable.set_requires_gradient_sync(True)  # type: ignore[operator]

    return without_gradient_sync
