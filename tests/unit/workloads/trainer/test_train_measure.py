"""Steps, warm-up and window; and that distribution changes the speed and not the result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.workloads.trainer import timed_steps
from campaign.workloads.trainer.input_pipeline import make_feed
from campaign.workloads.trainer.models import build_model
from campaign.workloads.trainer.rank_interface import RankEnvironment, TrainSpec
from campaign.workloads.trainer.timed_steps import CpuClock, Training, measure_steps
from campaign.workloads.trainer.training_session import TrainingSession

CPU = torch.device("cpu")


def nano(**changes: object) -> TrainSpec:
    document = {"model": "bert-nano", "batch": 2, "measured_steps": 4, "options": {"seq_len": 8}, **changes}
    return TrainSpec.model_validate(document)


def make(spec: TrainSpec) -> Training:
    torch.manual_seed(spec.seed)
    trainable = build_model(spec.model, spec.resolve_options())
    feed, _ = make_feed(spec, trainable, 0, 1, CPU)
    return Training(spec, trainable, feed, CPU, 1)


def test_another_seed_trains_other_parameters() -> None:
    one, other = make(nano(seed=1)), make(nano(seed=2))
    assert one.run_step().item() != other.run_step().item()


def saved_bytes(spec: TrainSpec) -> tuple[int, float]:
    """What the forward pass of a step keeps for the backward pass, and the step's loss."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    training = make(spec)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = training.model(*training.feed())
    return sum(kept.values()), loss.item()


@pytest.mark.parametrize("model", ["bert-nano", "gpt-nano", "cspn", "mobilenetv2-32px", "resnet50w16"])
def test_activation_checkpointing_keeps_less_for_the_same_loss(model: str) -> None:
    def spec(checkpointing: bool) -> TrainSpec:
        options = {"activation_checkpointing": checkpointing}
        return TrainSpec(model=model, batch=2, measured_steps=1, options=options)

    kept, loss = saved_bytes(spec(False))
    kept_less, same = saved_bytes(spec(True))
    assert kept_less < 0.75 * kept
    assert same == loss


@pytest.mark.parametrize(("given", "expected"), [({}, False), ({"channels_last": True}, True)])
def test_images_and_convolutions_have_the_memory_format_that_is_asked_for(given: Any, expected: bool) -> None:
    spec = TrainSpec(model="resnet50w16", batch=2, measured_steps=1, options=given)
    assert spec.uses_channels_last is expected
    assert spec.model_copy(update={"device": "cuda"}).uses_channels_last is True
    session = TrainingSession(spec, RankEnvironment(0, 1, 0, Path(), Path(), 1), 0.0)
    trainable = session._build_model()
    assert trainable.network.features[0].weight.is_contiguous(memory_format=torch.channels_last) is expected
    image, _ = make_feed(spec, trainable, 0, 1, CPU)[0]()
    assert image.is_contiguous(memory_format=torch.channels_last) is expected
    assert ("channels_last" in session.flags) is expected


def test_training_lowers_the_loss_and_repeats_bit_for_bit() -> None:
    first, again = make(nano()), make(nano())
    losses = [first.run_step().item() for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert losses == [again.run_step().item() for _ in range(20)]
    assert first.applied_steps == 20


def test_the_window_holds_the_steps_and_the_barriers_are_outside() -> None:
    events: list[str] = []

    def step() -> torch.Tensor:
        events.append("step")
        return torch.tensor(1.5)

    window = measure_steps(step, 3, CpuClock(), lambda: events.append("barrier"))
    assert events == ["barrier", "step", "step", "step", "barrier"]
    assert len(window.step_times_s) == 3
    assert sum(window.step_times_s) <= window.window_s
    assert window.losses == (1.5, 1.5, 1.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_loss_that_is_not_finite_is_seen(bad: float) -> None:
    losses = iter([1.0, bad, 1.0])
    window = measure_steps(lambda: torch.tensor(next(losses)), 3, CpuClock(), lambda: None)
    assert not all(map(math.isfinite, window.losses))


def test_fp16_warms_up_until_updates_are_applied_and_a_dropped_one_is_counted() -> None:
    training = make(nano(precision="fp16", warmup_steps=1))
    assert training.scaler is not None
    training.scaler.scale(torch.ones(()))
    training.scaler.update(2.0**24)  # far too large: the first steps have to be dropped
    warmup = training.warm_up()
    assert training.applied_steps >= 3
    assert warmup.steps > training.applied_steps
    assert warmup.is_steady is None
    before = training.applied_steps
    training.scaler.update(2.0**60)
    training.run_step()
    assert training.applied_steps == before


def test_fp16_is_lengthened_after_its_scaler_has_settled() -> None:
    training = make(nano(precision="fp16", warmup_steps=4, warmup_steps_max=40))
    assert training.scaler is not None
    training.scaler.scale(torch.ones(()))
    training.scaler.update(2.0**24)
    warmup = training.warm_up()
    assert 20 <= warmup.steps <= 40
    assert warmup.is_steady == (warmup.steps < 40) or warmup.is_steady
    before = training.applied_steps
    training.run_step()
    assert training.applied_steps == before + 1


class PlantedClock:
    """Each step takes what was planted: the first one the first time, and so on, the last one for ever."""

    def __init__(self, times_s: list[float]) -> None:
        self.times_s, self._marks = times_s, 0

    def synchronize(self) -> None:
        return

    def mark(self) -> None:
        self._marks += 1

    def step_times_s(self) -> list[float]:
        taken = [self.times_s.pop(0) if len(self.times_s) > 1 else self.times_s[0] for _ in range(self._marks - 1)]
        return taken


def planted(monkeypatch: pytest.MonkeyPatch, times_s: list[float], **changes: object) -> Training:
    training, left = make(nano(**changes)), list(times_s)
    monkeypatch.setattr(timed_steps, "make_clock", lambda *_: PlantedClock(left))
    monkeypatch.setattr(training, "run_step", lambda: torch.zeros(()))
    return training


@given(
    st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=50),
    st.floats(0.0, 3.0),
    st.floats(0.0, 3.0),
    st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_steps_are_made_for_as_long_as_is_asked(
    times_s: list[float], warmup_min_s: float, measured_min_s: float, warmup_steps: int
) -> None:
    asked = {"warmup_min_s": warmup_min_s, "measured_min_s": measured_min_s, "warmup_steps": warmup_steps}
    with pytest.MonkeyPatch.context() as monkeypatch:
        training = planted(monkeypatch, times_s, **asked)
        warmup = training.warm_up()
        steps = training.count_steps_to_measure(warmup)
    made_s = [times_s[min(index, len(times_s) - 1)] for index in range(warmup.steps)]
    assert sum(made_s[1:]) >= warmup_min_s or math.isclose(sum(made_s[1:]), warmup_min_s)
    assert warmup.steps >= warmup_steps
    if warmup_min_s == 0:
        assert warmup.steps <= max(warmup_steps, 2)
    if warmup.step_s is not None:
        assert steps >= max(4, measured_min_s / warmup.step_s)
    assert measured_min_s or steps == 4


def test_a_first_step_that_compiles_is_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = [60.0, 0.05]
    training = planted(monkeypatch, times_s, warmup_steps=1, warmup_min_s=1.0, measured_min_s=2.0)
    warmup = training.warm_up()
    assert 21 <= warmup.steps <= 22
    assert training.count_steps_to_measure(warmup) == math.ceil(1.05 * 2.0 / 0.05)


@pytest.mark.parametrize("asked", ["fp32", "bf16", "fp16"])
def test_parameters_and_gradients_stay_fp32(asked: str) -> None:
    training = make(nano(precision=asked))
    training.run_step()
    kinds = {parameter.grad.dtype for parameter in training.model.parameters() if parameter.grad is not None}
    assert kinds == {torch.float32}


def test_optimizers_are_those_of_the_family() -> None:
    for name, kind in (("bert-nano", torch.optim.AdamW), ("cspn", torch.optim.SGD)):
        trainable = build_model(name, TrainSpec(model=name, batch=1, measured_steps=1).resolve_options())
        assert trainable.choose_optimizer(0.1)[0] is kind
