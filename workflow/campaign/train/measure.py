"""Training steps and the window they are timed in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from campaign.train import models, precision
from campaign.train.feed import Feed
from campaign.train.spec import TrainSpec

_SETTLE_STEPS = 24  # the gradient scaler starts at 2^16 and halves: it has settled long before
_SETTLED_AFTER = 3


class Training:
    """A model in training on one device: `step` does one whole step and gives its loss, still on the device."""

    def __init__(
        self, spec: TrainSpec, trainable: models.Trainable, feed: Feed, device: torch.device, world_size: int
    ) -> None:
        self.spec = spec
        self.device = device
        self.feed = feed
        self.optimizer = models.make_optimizer(trainable, float(spec.resolved_options()["learning_rate"]))
        self.scaler: GradScaler | None = precision.make_scaler(spec.precision, device)
        self.applied_steps = 0
        self.optimizer.register_step_post_hook(self._count)
        self.model: nn.Module = trainable
        if world_size > 1:
            self.model = DistributedDataParallel(trainable, device_ids=[device] if device.type == "cuda" else None)

    def _count(self, *_: object) -> None:
        # The scaler leaves out optimizer.step() when a gradient is not finite; this hook is then not called.
        self.applied_steps += 1

    def step(self) -> Tensor:
        """One step; the loss before it, detached. Never waits for the device (fp16's scaler does, inherently)."""
        batch = self.feed()
        self.optimizer.zero_grad(set_to_none=True)
        with precision.autocast(self.spec.precision, self.device):
            loss: Tensor = self.model(*batch)
        if self.scaler is None:
            torch.autograd.backward(loss)
            self.optimizer.step()
        else:
            torch.autograd.backward(self.scaler.scale(loss))
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def warm_up(self) -> tuple[float | None, int]:
        """The loss before the first step (None without warm-up) and the steps done.

        fp16 goes on until three steps in a row were applied: a step that the scaler drops is faster than a real one.
        """
        losses = [self.step() for _ in range(self.spec.warmup_steps)]
        if self.scaler is not None:
            settled, extra = 0, 0
            while settled < _SETTLED_AFTER and extra < _SETTLE_STEPS:
                before = self.applied_steps
                losses.append(self.step())
                settled = settled + 1 if self.applied_steps > before else 0
                extra += 1
            precision.leave_headroom(self.scaler)
        return (losses[0].item() if losses else None), len(losses)


class Clock(Protocol):
    """Times step boundaries on one kind of device."""

    def synchronize(self) -> None: ...
    def mark(self) -> None: ...
    def step_times_s(self) -> list[float]: ...


class CpuClock:
    """A CPU has done a step when the call returns."""

    def __init__(self) -> None:
        self._marks_s: list[float] = []

    def synchronize(self) -> None:
        return

    def mark(self) -> None:
        self._marks_s.append(time.perf_counter())

    def step_times_s(self) -> list[float]:
        return [after - before for before, after in zip(self._marks_s, self._marks_s[1:], strict=False)]


class CudaClock:
    """Events in the device's queue, read after the window: timing a step does not wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def step_times_s(self) -> list[float]:
        pairs = zip(self._events, self._events[1:], strict=False)
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


def make_clock(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else CpuClock()


@dataclass(frozen=True, slots=True)
class Window:
    """The measured steps: each one's time, all together by the wall clock and by processor time, and each one's loss."""

    step_times_s: tuple[float, ...]
    window_s: float
    process_time_s: float
    losses: tuple[float, ...]

    @property
    def finite(self) -> bool:
        return all(math.isfinite(loss) for loss in self.losses)


def measure(step: Callable[[], Tensor], steps: int, clock: Clock, barrier: Callable[[], None]) -> Window:
    """Barrier, synchronise, `steps` steps, synchronise, barrier. Inside the window nothing waits and no loss is read."""
    barrier()
    clock.synchronize()
    process_start_s, start_s = time.process_time(), time.perf_counter()
    clock.mark()
    losses = []
    for _ in range(steps):
        losses.append(step())
        clock.mark()
    clock.synchronize()
    window_s = time.perf_counter() - start_s
    process_time_s = time.process_time() - process_start_s
    barrier()
    read = torch.stack(losses).double().cpu().tolist()
    return Window(tuple(clock.step_times_s()), window_s, process_time_s, tuple(read))
