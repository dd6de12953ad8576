"""How long each layer of a model in training takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from campaign.workloads.trainer.models import Trainable
from campaign.workloads.trainer.network_layers import Layer, Phase, in_order, network_layers, watched
from campaign.workloads.trainer.rank_interface import LayerTime, LayerTimes
from campaign.workloads.trainer.timed_steps import Training, make_clock

_Part = tuple[Layer, Phase] | None  # None: the optimizer


def measure_layers(training: Training, trainable: Trainable, step_times_s: Sequence[float]) -> LayerTimes:
    """The median measured step by its parts: as they are divided in as many further steps, on the mean of the middle half of these.

    Of a device that communicates with no other. On a GPU by events, which is not verified yet.
    """
    layers = network_layers(trainable)
    found = _middle([_step_by_part(training, trainable, layers) for _ in step_times_s])
    # Taking the time of parts takes a few percent of the step of a very small model.
    scale = median(step_times_s) / sum(found.values())
    passed = {part[0]: None for part in found if part is not None}
    return LayerTimes(
        optimizer_s=scale * found[None],
        layers=tuple(
            LayerTime(
                name=layer.name,
                kind=layer.kind,
                tensors=tuple(layer.tensors),
                forward_s=scale * found.get((layer, "forward"), 0.0),
                backward_s=scale * found.get((layer, "backward"), 0.0),
                unit=layer.unit,
            )
            for layer, _ in in_order(layers, passed, None)
        ),
    )


def _middle(steps: list[Mapping[_Part, float]]) -> Mapping[_Part, float]:
    """The mean by part of the steps that are neither among the shortest nor among the longest quarter."""
    ordered, out = sorted(steps, key=lambda step: sum(step.values())), len(steps) // 4
    middle = ordered[out : len(ordered) - out]
    return {part: fmean(step.get(part, 0.0) for step in middle) for part in dict.fromkeys(p for s in middle for p in s)}


def _step_by_part(training: Training, trainable: Trainable, layers: list[Layer]) -> Mapping[_Part, float]:
    """Seconds of one step. What is in no layer counts with the one before; with the first, what a step begins with."""
    clock = make_clock(training.device)
    ended: list[_Part] = []  # by mark but the first: what the time since the one before belongs to
    learning: list[Layer] = []  # those whose backward pass has begun
    strategy = training.strategy

    def note(layer: Layer, phase: Phase) -> None:
        clock.mark()
        ended.append((layer, "forward") if phase == "forward" else ((learning or [layer])[-1], "backward"))
        if phase == "backward":
            learning.append(layer)

    def begin_optimizer() -> None:
        note(learning[-1], "backward")
        strategy.before_step()

    with watched(layers, note):
        # The loss, after the last layer.
        loss = trainable.register_forward_hook(lambda *_: note(ended[-1][0], "forward") if ended[-1] else None)
        training.strategy = replace(strategy, before_step=begin_optimizer)
        clock.mark()
        try:
            training.step()
        finally:
            loss.remove()
            training.strategy = strategy
        clock.mark()
    clock.synchronize()
    found: dict[_Part, float] = defaultdict(float)
    for part, seconds in zip((*ended, None), clock.step_times_s(), strict=True):
        found[part] += seconds
    return found
