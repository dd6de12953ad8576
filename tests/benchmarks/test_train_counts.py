"""Operations of a measured step of `train` and of a loop that is written by hand: counts that no busy machine can change."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from campaign.workloads.trainer import models, training_session
from campaign.workloads.trainer.input_pipeline import make_feed
from campaign.workloads.trainer.rank_interface import RankEnvironment, TrainSpec
from campaign.workloads.trainer.timed_steps import CpuClock

STEPS = 3


class Counted(TorchDispatchMode):
    """Counts every operation that reaches a tensor, those of the backward pass and of the optimizer too."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Marks for a profiler are no operations on tensors.
        self.counts[str(function)] += not str(function).startswith("profiler")
        return function(*args, **(kwargs or {}))


class CountedClock(CpuClock):
    """Notes at every mark what was counted so far."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.counted = counted
        self.marks: list[Counter[str]] = []

    def mark(self) -> None:
        super().mark()
        self.marks.append(Counter(self.counted.counts))


class BareLoop:
    """Training step of a specification, as one writes it by hand on the CPU."""

    def __init__(self, spec: TrainSpec) -> None:
        torch.manual_seed(spec.seed)
        self.model = models.build_model(spec.model, spec.resolve_options())
        self.model.train()
        self.batch = make_feed(spec, self.model, 0, 1, torch.device("cpu"))[0]()
        kind, settings = self.model.choose_optimizer(float(spec.resolve_options()["learning_rate"]))
        self.optimizer = kind(self.model.parameters(), **settings)
        self.step = self._step_bf16 if spec.precision == "bf16" else self._step_fp32

    def _step_fp32(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss: Tensor = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _step_bf16(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Stop(Exception):
    """The window is what is looked at; what comes after it does not matter."""


def window(
    monkeypatch: pytest.MonkeyPatch, directory: Path, spec: TrainSpec, look: Callable[..., list[Any]]
) -> list[Any]:
    """What `look` makes of a session's window, which it is given the function and the arguments of."""
    found: list[Any] = []
    original = training_session.measure_steps

    def measure(step: Callable[[], torch.Tensor], steps: int, clock: Any, barrier: Callable[[], None]) -> Any:
        found.extend(look(original, step, steps, barrier))
        raise Stop

    monkeypatch.setattr(training_session, "measure_steps", measure)
    place = RankEnvironment(0, 1, 0, directory / "spec.json", directory, 1)
    threads = torch.get_num_threads()
    try:
        with pytest.raises(Stop):
            training_session.TrainingSession(spec, place, 0.0).run()
    finally:
        torch.set_num_threads(threads)
    return found


def operations_by_step(original: Any, step: Any, steps: int, barrier: Any) -> list[Counter[str]]:
    with Counted() as counted:
        clock = CountedClock(counted)
        original(step, steps, clock, barrier)
    return [after - before for before, after in zip(clock.marks, clock.marks[1:], strict=False)]


def python_calls(original: Any, step: Any, steps: int, barrier: Any) -> list[int]:
    return [calls_of(step)]


def calls_of(step: Callable[[], object]) -> int:
    """Calls of Python functions in one step."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    # What is collected in between is called in this thread, too.
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.parametrize(
    ("model", "precision"), [("bert-nano", "fp32"), ("bert-nano", "bf16"), ("resnet50w16", "fp32")]
)
def test_a_measured_step_is_the_operations_of_a_loop_written_by_hand(
    model: str, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing is copied, read back or waited for: AdamW itself reads its own counts of steps, no loss is read."""
    options = {"emulation": "allow"} if precision == "bf16" else {}
    spec = TrainSpec(model=model, batch=2, precision=precision, warmup_steps=1, measured_steps=STEPS, options=options)
    ours = window(monkeypatch, tmp_path, spec, operations_by_step)
    bare = BareLoop(spec)
    bare.step()
    with Counted() as counted:
        bare.step()
    assert counted.counts.total() > 100
    assert ours == [counted.counts] * STEPS


def test_a_measured_step_calls_little_of_ours_around_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many calls whatever the size of the network: a walk through its modules would be a call for each of 160."""
    beyond = {}
    for model in ("bert-nano", "resnet50w16"):
        spec = TrainSpec(model=model, batch=2, warmup_steps=1, measured_steps=1)
        (ours,) = window(monkeypatch, tmp_path, spec, python_calls)
        bare = BareLoop(spec)
        bare.step()
        beyond[model] = ours - calls_of(bare.step)
    # What other tests of this process have loaded of torch adds a few.
    assert abs(beyond["bert-nano"] - beyond["resnet50w16"]) <= 4
    assert beyond["bert-nano"] < 20
