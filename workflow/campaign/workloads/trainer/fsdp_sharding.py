"""`parallel: fsdp`: weights, gradients and optimizer state sharded by `fully_shard`, each layer as a unit of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from campaign.workloads.trainer import precision
from campaign.workloads.trainer.repeated_layers import layers_of

if TYPE_CHECKING:
    from campaign.workloads.trainer.models import Trainable


def shard(trainable: Trainable, device: torch.device, world_size: int, half: bool) -> None:
    """Shard in place over all ranks. half: fp16-o2; units then compute and communicate in fp16, and their shards stay fp32.

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


@contextmanager
def gradients_kept(trainable: nn.Module) -> Iterator[None]:
    """A context whose backward passes add gradients up on each rank and reduce none."""
    trainable.set_requires_gradient_sync(False)  # type: ignore[operator]  # fully_shard changes the module's class
    try:
        yield
    finally:
        trainable.set_requires_gradient_sync(True)  # type: ignore[operator]


def sizes(trainable: Trainable, half: bool, micro_steps: int) -> tuple[int, int]:
    """Of the model before it is sharded: bytes of its gradients, and of all that is gathered in a step.

    A layer is gathered for its forward and again for its backward pass, everything else once, in each micro-step.
    """
    norms = {id(p) for norm in (precision.norms_of(trainable) if half else ()) for p in norm.parameters()}
    in_layers = {id(p) for layer in layers_of(trainable.network) for p in layer.parameters()}

    def size(parameters: Iterable[nn.Parameter]) -> int:
        return sum(p.numel() * (2 if half and id(p) not in norms else p.element_size()) for p in parameters)

    everything = list(trainable.parameters())
    twice = [p for p in everything if id(p) in in_layers and id(p) not in norms]
    return size(p for p in everything if p.requires_grad), micro_steps * (size(everything) + size(twice))
