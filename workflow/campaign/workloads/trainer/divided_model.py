"""A model divided over several ranks: tensor and pipeline parallelism, with data parallelism over the rest of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.activation_traffic import data_passes, pipeline_bytes, tensor_bytes
from campaign.workloads.trainer.parallel_strategies import (
    Strategy,
    Traffic,
    bucket_caps,
    nothing,
    recompute,
    shard,
    traffic_of,
)
from campaign.workloads.trainer.pipeline_stages import Pipeline, Stage, cut
from campaign.workloads.trainer.rank_interface import TrainSpec
from campaign.workloads.trainer.rank_mesh import Dimension, RankMesh, microbatches
from campaign.workloads.trainer.tensor_parallel import divide, divide_gradients, own_part
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
    trainable.to(device)  # not before: the whole model may not fit
    traffic = _traffic(spec, trainable, shape, place)
    context = partial(precision.autocast, spec.precision, device)
    module: nn.Module = Stage(trainable, context) if shape.pipeline > 1 else trainable
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
    kind, settings = trainable.optimizer_of(float(options["learning_rate"]))
    after: list[Callable[[], None]] = []
    if shape.tensor > 1 and shape.data == 1:
        after.append(partial(divide_gradients, trained))
    if shape.pipeline > 1 and (tied := _tied(trainable.network, shape, place)):
        after.append(tied)
    pipeline = _pipeline(spec, trainable, module, shape, place, mesh, device) if shape.pipeline > 1 else None
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
    place: dict[Dimension, int],
    mesh: DeviceMesh,
    device: torch.device,
) -> Callable[[models.Sample], Tensor]:
    options, inputs = spec.resolved_options(), trainable.inputs
    parts = microbatches(options)
    samples, tokens = spec.batch * shape.replica // parts, int(options["seq_len"])
    width = TRANSFORMER_SIZES[spec.model].width
    own_tokens = tokens // shape.tensor if options["sequence_parallel"] else tokens
    activations = torch.empty(samples, own_tokens, width, device="meta", requires_grad=True)
    example = models.batch_of(trainable, range(samples), spec.seed)[:inputs]
    at, schedule = (place["pp"], shape.pipeline), str(options["pipeline_schedule"])
    group = mesh["pp"].get_group()
    run = Pipeline(module, trainable.network, at, schedule, parts, example, activations, device, group)
    return lambda batch: run(batch[:inputs], batch[inputs:])


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
