"""Pipeline parallelism of the built-in transformers, by `torch.distributed.pipelining`: consecutive layers on devices of their own.

The embeddings stand before the first layers, the output and the loss after the last ones. Where the output is tied to the
embeddings, the first and the last stage both have that weight, and add up its gradients after the backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from campaign.workloads.trainer import models

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

    def __init__(self, trainable: models.Trainable, context: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.trainable = trainable
        self._context = context

    def forward(self, *inputs: Tensor, **targets: Tensor) -> Tensor:
        network: Any = self.trainable.network
        with self._context():
            x = network.layers(network.embed(*inputs) if network.has_entry else inputs[0])
            return self.trainable.loss(network.head(x), *targets.values()) if network.has_exit else x


class Pipeline:
    """A step's passes through all stages. Call it with a batch: it gives the mean loss on the last stage, 0 on the others.

    example: microbatch of this replica; activations: what goes from stage to stage.
    """

    def __init__(
        self,
        module: nn.Module,
        network: Any,
        place: tuple[int, int],
        schedule: str,
        microbatches: int,
        example: tuple[Tensor, ...],
        activations: Tensor,
        device: torch.device,
        group: Any,
    ) -> None:
        stage, stages = place
        self._network, self._parts, self._device = network, microbatches, device
        loss = torch.empty((), device="meta", requires_grad=True)
        inputs = tuple(tensor.to("meta") for tensor in example) if network.has_entry else (activations,)
        held = PipelineStage(
            module, stage, stages, device, inputs, loss if network.has_exit else activations, group=group
        )
        self._schedule = _SCHEDULES[schedule](
            held, microbatches, loss_fn=lambda output, _: output / microbatches, scale_grads=False
        )
        self._no_target = torch.empty(microbatches)

    def __call__(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        losses: list[Tensor] = []
        named: dict[str, Any] = {}
        if self._network.has_exit:
            named = {f"target{index}": tensor for index, tensor in enumerate(targets)}
        given = inputs if self._network.has_entry else ()
        self._schedule.step(*given, target=self._no_target, losses=losses, return_outputs=False, **named)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self._device)
