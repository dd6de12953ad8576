"""A model divided over several ranks: tensor and pipeline parallelism, with data parallelism over the rest of the ranks.

Tensor parallelism divides as Megatron-LM does (Shoeybi et al. 2019): attention by heads, feed-forward and vocabulary by columns;
with sequence parallelism (Korthikanti et al. 2022), norms and shortcuts by tokens. Pipeline stages are consecutive layers: the
embeddings stand before the first ones, the output and the loss after the last ones. Where the output is tied to the embeddings, the
first and the last stage both have that weight, and add up its gradients after the backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.parallel_strategies import (
    Strategy,
    Traffic,
    bucket_caps,
    nothing,
    optimizer_of,
    recompute,
    shard,
    traffic_of,
)
from campaign.workloads.trainer.rank_interface import TrainSpec
from campaign.workloads.trainer.rank_mesh import (
    Dimension,
    RankMesh,
    data_passes,
    microbatches,
    pipeline_bytes,
    tensor_bytes,
)
from campaign.workloads.trainer.transformer_sizes import TRANSFORMER_SIZES


def divided(spec: TrainSpec, trainable: models.Trainable, device: torch.device, world_size: int) -> Strategy:
    """Leave this rank its part of the model, in place, and wrap it. Collective."""
    options = spec.resolved_options()
    shape = RankMesh.of(options, world_size)
    place = shape.coordinates(dist.get_rank())
    if options["activation_checkpointing"]:
        for layer in trainable.layers():
            recompute(layer)
    mesh = DeviceMesh(device.type, torch.tensor(shape.table()), mesh_dim_names=("pp", "dp", "tp"))
    if shape.pipeline > 1:
        cut(trainable.network, place["pp"], shape.pipeline)
    if shape.tensor > 1:
        divide(trainable, mesh["tp"], bool(options["sequence_parallel"]))
    models.materialise(trainable, device, spec.seed)  # not before: the whole model may not fit
    traffic = _traffic(spec, trainable, shape, place)
    module: nn.Module = Stage(trainable) if shape.pipeline > 1 else trainable
    precision.compute_inside(module, spec.precision, device)
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext
    sharded = options["parallel"] == "fsdp" and shape.data > 1
    if sharded:
        alone = shard(trainable, mesh["dp"], half=False)
    elif shape.data > 1:
        module = wrapped = DistributedDataParallel(
            module,
            device_ids=None if device.type == "cpu" else [device],
            device_mesh=mesh["dp"],
            **bucket_caps(float(options["bucket_mib"]), 1.0),
        )
        alone = wrapped.no_sync
    trained = [parameter for parameter in trainable.parameters() if parameter.requires_grad]
    kind, settings = optimizer_of(spec, trainable, device)
    after: list[Callable[[], None]] = []
    if shape.tensor > 1 and shape.data == 1:
        after.append(partial(divide_gradients, trained))
    if shape.pipeline > 1 and (tied := _tied(trainable.network, shape, place)):
        after.append(tied)
    pipeline = _pipeline(spec, trainable, module, shape, mesh, device) if shape.pipeline > 1 else None
    return Strategy(
        "fsdp" if sharded else "ddp",
        module,
        kind(trained, **settings),
        partial(_one_after_the_other, after),
        nothing,
        alone,
        traffic,
        learn=pipeline,
        losses=partial(_of_last_stage, mesh["pp"], device) if shape.pipeline > 1 else tuple,
    )


def _pipeline(
    spec: TrainSpec,
    trainable: models.Trainable,
    module: nn.Module,
    shape: RankMesh,
    mesh: DeviceMesh,
    device: torch.device,
) -> Callable[[models.Sample], Tensor]:
    """A step's passes through all stages, to be called with a batch: the mean loss on the last stage, 0 on the others."""
    options, network, inputs = spec.resolved_options(), cast(Any, trainable.network), trainable.inputs
    parts = microbatches(options)
    samples, tokens = spec.batch * shape.replica // parts, int(options["seq_len"])
    tokens = tokens // shape.tensor if options["sequence_parallel"] else tokens
    width = TRANSFORMER_SIZES[spec.model].width
    activations = torch.empty(
        samples, tokens, width, device="meta", requires_grad=True
    )  # what goes from stage to stage
    example = models.batch_of(trainable, range(samples), spec.seed)[:inputs]
    stage = PipelineStage(
        module,
        mesh["pp"].get_local_rank(),
        shape.pipeline,
        device,
        tuple(tensor.to("meta") for tensor in example) if network.has_entry else (activations,),
        torch.empty((), device="meta", requires_grad=True) if network.has_exit else activations,
        group=mesh["pp"].get_group(),
    )
    kind = _SCHEDULES[str(options["pipeline_schedule"])]
    schedule = kind(stage, parts, loss_fn=lambda output, _: output / parts, scale_grads=False)
    no_target = torch.empty(parts)

    def learn(batch: models.Sample) -> Tensor:
        losses: list[Tensor] = []
        targets = batch[inputs:] if network.has_exit else ()
        named: dict[str, Any] = {f"target{index}": tensor for index, tensor in enumerate(targets)}
        given = batch[:inputs] if network.has_entry else ()
        schedule.step(*given, target=no_target, losses=losses, return_outputs=False, **named)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=device)

    return learn


def _tied(network: Any, shape: RankMesh, place: dict[Dimension, int]) -> Callable[[], None] | None:
    """Adds up the gradients of a weight that the first and the last stage have. Collective: all ranks make the groups."""
    ends = [[stages[0], stages[-1]] for stages in shape.groups("pp")]
    if not network.ties_output:
        return None
    group, _ = dist.new_subgroups_by_enumeration(ends)  # type: ignore[no-untyped-call]
    if place["pp"] not in (0, shape.pipeline - 1):
        return None
    weight = network.tokens.weight  # now, because DistributedDataParallel changes what the module has
    return lambda: dist.all_reduce(own_part(weight.grad), group=group)


def _one_after_the_other(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _of_last_stage(mesh: DeviceMesh, device: torch.device, losses: Sequence[float]) -> Sequence[float]:
    """The losses of the stage that has them, on every stage."""
    shared = torch.tensor(losses, dtype=torch.float64, device=device)
    dist.broadcast(shared, group=mesh.get_group(), group_src=mesh.size() - 1)
    found: list[float] = shared.tolist()
    return found


def _traffic(spec: TrainSpec, trainable: models.Trainable, shape: RankMesh, place: dict[Dimension, int]) -> Traffic:
    options, samples = spec.resolved_options(), spec.batch * shape.replica
    found = traffic_of(spec, trainable, shape.data)
    data = found.communication_bytes or 0
    passes = data_passes(options, shape)
    tensor = tensor_bytes(spec.model, options, samples, shape, place, spec.precision, passes)
    pipeline = pipeline_bytes(spec.model, options, samples, shape, place)
    return Traffic(found.gradient_bytes, None, data + tensor + pipeline, tensor, pipeline, data)


_TOKENS = 1  # axis of activations


def divide(trainable: models.Trainable, mesh: DeviceMesh, by_tokens: bool) -> None:
    """Divide the layers, the vocabulary and the loss over a one-dimensional mesh, in place; a stage has some of them."""
    network: Any = trainable.network
    for layer in network.layers:
        if not isinstance(layer, nn.Identity):
            parallelize_module(layer, mesh, _layer_plan(layer, by_tokens))
    if not isinstance(network.tokens, nn.Identity):
        parallelize_module(network, mesh, {"tokens": RowwiseParallel(input_layouts=Replicate())})
    if by_tokens and network.has_entry:
        style: ParallelStyle = PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(_TOKENS), use_local_output=True
        )
        parallelize_module(network, mesh, {"layers": style})
    if by_tokens and network.has_exit:
        style = PrepareModuleOutput(
            output_layouts=Shard(_TOKENS), desired_output_layouts=Replicate(), use_local_output=True
        )
        parallelize_module(network, mesh, {"layers": style})
    if network.has_exit and network.ties_output:
        # The product with the tokens' weights follows the norm; it gives each device its part of the vocabulary.
        whole = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
        )
        parallelize_module(network, mesh, {"norm": whole})
        # For good: a rank trains one model, and the backward pass needs it, too.
        loss_parallel().__enter__()
        loss = trainable.loss
        trainable.loss = lambda *arguments: _whole(loss(*arguments))


def _whole(loss: Tensor) -> Tensor:
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


def _layer_plan(layer: Any, by_tokens: bool) -> dict[str, ParallelStyle]:
    whole = Shard(_TOKENS) if by_tokens else Replicate()
    first, last = layer.feed_forward_ends
    plan: dict[str, ParallelStyle] = {
        "query_key_value": ColwiseParallel(input_layouts=whole),
        "attention_out": RowwiseParallel(output_layouts=whole),
        first: ColwiseParallel(input_layouts=whole),
        last: RowwiseParallel(output_layouts=whole),
    }
    if by_tokens:
        plan |= {name: SequenceParallel(use_local_output=True) for name in ("attention_norm", "feed_forward_norm")}
    return plan


def divide_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Each gradient is divided as its weight is: those of norms, which saw some of the tokens, are summed; those of the vocabulary,
    which every device has as a whole, are cut."""
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
            parameter.grad = gradient.redistribute(placements=parameter.placements)


def own_part(weight: Tensor) -> Tensor:
    """What this rank has of a weight."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def cut(network: Any, stage: int, stages: int) -> None:
    """Leave of a transformer what a stage has, in place and under the same names. Earlier stages have one layer more."""
    layers = network.layers
    own = torch.arange(len(layers)).tensor_split(stages)[stage].tolist()
    for index in range(len(layers)):
        if index not in own:
            layers[index] = nn.Identity()
    network.has_entry, network.has_exit = stage == 0, stage == stages - 1
    kept = {*(network.ENTRY if network.has_entry else ()), *(network.EXIT if network.has_exit else ())}
    for name in {*network.ENTRY, *network.EXIT} - kept:
        setattr(network, name, nn.Identity())


class Stage(nn.Module):
    """What a device does with a microbatch: from samples or activations to activations or the mean loss."""

    def __init__(self, trainable: models.Trainable) -> None:
        super().__init__()
        self.trainable = trainable

    def forward(self, *inputs: Tensor, **targets: Tensor) -> Tensor:
        network: Any = self.trainable.network
        x = network.layers(network.embed(*inputs) if network.has_entry else inputs[0])
        return self.trainable.loss(network.head(x), *targets.values()) if network.has_exit else x
