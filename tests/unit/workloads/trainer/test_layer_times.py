"""Layers of a network and their times: every tensor in one layer, and planted times found where they are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from campaign.workloads.trainer import models, timed_steps, training_session
from campaign.workloads.trainer import network_layers as timed_layers
from campaign.workloads.trainer.model_catalog import MODELS, resolve_options
from campaign.workloads.trainer.models import Trainable
from campaign.workloads.trainer.network_layers import network_layers
from campaign.workloads.trainer.rank_interface import RankEnvironment, TrainSpec


class Clock:
    """Time passes only in planted work."""

    now_s = 0.0
    dilation = 1.0

    def __init__(self, *_: object) -> None:
        self._marks_s: list[float] = []

    def synchronize(self) -> None:
        return

    def mark(self) -> None:
        self._marks_s.append(Clock.now_s)

    def step_times_s(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self._marks_s)]


class _Work(torch.autograd.Function):
    """Takes its time in the forward pass, and twice as long in the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        context.seconds = seconds
        Clock.now_s += seconds
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        Clock.now_s += 2 * context.seconds
        return gradient * 1, None


class Block(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        work: Tensor = _Work.apply(x * self.weight, self.seconds)  # type: ignore[no-untyped-call]
        return work


class Network(nn.Module):
    """A layer, two blocks and a head, which is registered first; some work and the loss are in none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)
        self.first = nn.Linear(3, 3)
        self.change = nn.ReLU(inplace=True)
        self.blocks = nn.Sequential(Block(1.0), Block(10.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.change(self.first(x)))
        logits: Tensor = self.head(_Work.apply(x, 100.0))  # type: ignore[no-untyped-call]
        return logits


class Optimizer(torch.optim.SGD):
    def step(self, *arguments: Any) -> None:
        Clock.now_s += 0.5
        super().step(*arguments)


class Planted(Trainable):
    def __init__(self, *_: object) -> None:
        def loss(logits: Tensor) -> Tensor:
            work: Tensor = _Work.apply(logits.mean(), 1000.0)  # type: ignore[no-untyped-call]
            return work

        super().__init__(Network(), loss, 1, lambda rng: (torch.rand(3, generator=rng),), "sgd")

    def optimizer_of(self, learning_rate: float) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        return Optimizer, {"lr": learning_rate}


def test_planted_times_are_found_in_their_layers_and_add_up_to_the_measured_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[Planted] = []
    monkeypatch.setattr(models, "build", lambda *_: built.append(Planted()) or built[-1])
    for module in (timed_layers, timed_steps, training_session):
        monkeypatch.setattr(module, "make_clock", Clock)
    spec = TrainSpec(model="bert-nano", batch=2, warmup_steps=1, measured_steps=4, times_layers=True)
    result = training_session.TrainingSession(spec, RankEnvironment(0, 1, 0, Path("spec"), Path("out")), 0.0).run()
    times = result.layer_times
    assert times is not None
    # What is in no layer goes to the one after it in the forward pass; in the backward pass, where its time comes first, too.
    assert [(layer.name, layer.forward_s, layer.backward_s, layer.unit) for layer in times.layers] == [
        ("first", 0.0, 0.0, False),
        ("blocks.0", 1.0, 2.0, True),
        ("blocks.1", 10.0, 20.0, True),
        ("head", 1100.0, 2200.0, False),
    ]
    assert (times.layers[0].tensors, times.optimizer_s) == ((9, 3), 0.5)
    assert set(result.step_times_s) == {3333.5}
    assert sum(len(module._forward_hooks) for module in built[0].modules()) == 1  # that of SeenTypes


@pytest.mark.parametrize("model", ["mobilenetv2", "resnet50", "yolov5s", "bert-base", "gpt2"])
def test_every_tensor_is_in_exactly_one_layer(model: str) -> None:
    trainable = models.build(model, resolve_options(model, {}), "meta")
    layers = network_layers(trainable)
    # A weight that two modules share is one.
    assert sorted(size for layer in layers for size in layer.tensors) == sorted(
        p.numel() for p in trainable.parameters()
    )
    assert sum(sum(layer.tensors) for layer in layers) == MODELS[model].parameters
    assert len({layer.name for layer in layers}) == len(layers)
    assert sum(layer.unit for layer in layers) == len(trainable.layers())
