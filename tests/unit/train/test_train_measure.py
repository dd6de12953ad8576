"""Steps, warm-up and window; and that distribution changes the speed and not the result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from campaign.train import models
from campaign.train.feed import make_feed
from campaign.train.measure import CpuClock, Training, measure
from campaign.train.models import batch_of, build
from campaign.train.spec import TrainSpec

CPU = torch.device("cpu")


def nano(**changes: object) -> TrainSpec:
    document = {"model": "bert-nano", "batch": 2, "measured_steps": 4, "options": {"seq_len": 8}, **changes}
    return TrainSpec.model_validate(document)


def make(spec: TrainSpec) -> Training:
    torch.manual_seed(spec.seed)
    trainable = build(spec.model, spec.resolved_options())
    feed, _ = make_feed(spec, trainable, 0, 1, CPU)
    return Training(spec, trainable, feed, CPU, 1)


def test_training_lowers_the_loss_and_repeats_bit_for_bit() -> None:
    first, again = make(nano()), make(nano())
    losses = [first.step().item() for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert losses == [again.step().item() for _ in range(20)]
    assert first.applied_steps == 20


def test_the_window_holds_the_steps_and_the_barriers_are_outside() -> None:
    events: list[str] = []

    def step() -> torch.Tensor:
        events.append("step")
        return torch.tensor(1.5)

    window = measure(step, 3, CpuClock(), lambda: events.append("barrier"))
    assert events == ["barrier", "step", "step", "step", "barrier"]
    assert len(window.step_times_s) == 3
    assert sum(window.step_times_s) <= window.window_s
    assert window.losses == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_loss_that_is_not_finite_is_seen(bad: float) -> None:
    losses = iter([1.0, bad, 1.0])
    window = measure(lambda: torch.tensor(next(losses)), 3, CpuClock(), lambda: None)
    assert not window.finite


def test_fp16_warms_up_until_updates_are_applied_and_a_dropped_one_is_counted() -> None:
    training = make(nano(precision="fp16", warmup_steps=1))
    assert training.scaler is not None
    training.scaler.scale(torch.ones(()))
    training.scaler.update(2.0**24)  # far too large: the first steps have to be dropped
    _, done = training.warm_up()
    assert training.applied_steps >= 3
    assert done > training.applied_steps
    before = training.applied_steps
    training.scaler.update(2.0**60)
    training.step()
    assert training.applied_steps == before


@pytest.mark.parametrize("asked", ["fp32", "bf16", "fp16"])
def test_parameters_and_gradients_stay_fp32(asked: str) -> None:
    training = make(nano(precision=asked))
    training.step()
    kinds = {parameter.grad.dtype for parameter in training.model.parameters() if parameter.grad is not None}
    assert kinds == {torch.float32}


def test_a_batch_from_storage_is_the_batch_that_was_made(tmp_path: Path) -> None:
    spec = TrainSpec(model="mobilenetv2-32px", batch=2, measured_steps=1, storage_dir=tmp_path)
    trainable = build(spec.model, spec.resolved_options(), "meta")
    feed, size_bytes = make_feed(spec, trainable, rank=1, world_size=2, device=CPU)
    assert size_bytes == 2 * (3 * 32 * 32 + 8)
    for step in range(2):
        image, target = feed()
        first = (step * 2 + 1) * 2
        made = batch_of(trainable, range(first, first + 2), spec.seed)
        assert torch.equal(image, (made[0].float() - 127.5) / 73.9)
        assert torch.equal(target, made[1])
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nothing is left behind


def test_optimizers_are_those_of_the_family() -> None:
    for name, kind in (("bert-nano", torch.optim.AdamW), ("cspn", torch.optim.SGD)):
        trainable = build(name, TrainSpec(model=name, batch=1, measured_steps=1).resolved_options())
        assert isinstance(models.make_optimizer(trainable, 0.1), kind)
