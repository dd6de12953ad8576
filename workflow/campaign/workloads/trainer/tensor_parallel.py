"""Tensor and sequence parallelism of the built-in transformers, by `torch.distributed.tensor.parallel`.

The plan is that of Megatron-LM (Shoeybi et al. 2019): attention by heads, feed-forward and vocabulary by columns; with sequence
parallelism (Korthikanti et al. 2022), norms and shortcuts by tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
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

from campaign.workloads.trainer import models

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
