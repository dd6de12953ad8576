"""Training steps and the window they are timed in."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler

from campaign.workloads.steady_warmup import lengthened
from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.cpu_data_parallel import CpuReplicas
from campaign.workloads.trainer.input_pipeline import Feed
from campaign.workloads.trainer.kernels_seen import kernels_seen
from campaign.workloads.trainer.paced_modules import PacedDevices
from campaign.workloads.trainer.parallel_strategies import make_strategy
from campaign.workloads.trainer.rank_device import device_module
from campaign.workloads.trainer.rank_interface import TrainSpec

_SETTLE_STEPS = 24  # the gradient scaler starts at 2^16 and halves: it has settled long before
_SETTLED_AFTER = 3
_FEWEST_STEPS, _MOST_STEPS = 3, 20
_LATEST = 20  # steps of a warm-up that tell how long the next ones take
_SHORTEST_STEP_S = 1e-4
_MARGIN = 1.05  # of a window counted in steps, so that it is no shorter than asked where steps get a little faster


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What a warm-up was. loss_first: before the first step, None without any; steps: how many were made; steady: whether the
    last ones showed no trend, None where nobody looked; step_s: the median of the last ones on rank 0, None without any."""

    loss_first: float | None
    steps: int
    steady: bool | None
    step_s: float | None = None


class Training:
    """A model in training on one device: `step` does one whole step and gives its loss, still on the device."""

    def __init__(
        self,
        spec: TrainSpec,
        trainable: models.Trainable,
        feed: Feed,
        device: torch.device,
        world_size: int,
        paced: PacedDevices | None = None,
    ) -> None:
        self.spec = spec
        self.device = device
        self._world_size = world_size
        self.feed = feed
        self.scaler: GradScaler | None = precision.make_scaler(spec.precision, device)
        self.applied_steps = 0
        self.kernels: dict[str, str] = {}
        """Chosen by torch, as the first step of the warm-up has shown."""
        self.paced = paced
        if paced is not None and spec.replicas == 1:
            paced.hold(trainable.network)
        self.strategy = make_strategy(spec, trainable, device, world_size)
        if paced is not None and isinstance(self.strategy.model, CpuReplicas):
            paced.hold_replicas(self.strategy.model)
        self.strategy.optimizer.register_step_post_hook(self._count)
        # Kept: walking a network's modules for them takes a percent of a small network's step.
        self._parameters = tuple(trainable.parameters())
        self._micro_steps = int(spec.resolved_options()["accumulation"])

    @property
    def model(self) -> nn.Module:
        return self.strategy.model

    def _count(self, *_: object) -> None:
        # The scaler leaves out optimizer.step() when a gradient is not finite; this hook is then not called.
        self.applied_steps += 1

    def step(self, communicate: bool = True) -> Tensor:
        """One step; the loss before it, detached. Never waits for the device (fp16's scaler does, inherently).

        communicate: False leaves out the reduction of gradients, after which the ranks no longer have the same weights.
        """
        if self.paced is not None:
            self.paced.begin()
        batch = self.feed()
        for parameter in self._parameters:
            parameter.grad = None
        if self._micro_steps == 1:
            with nullcontext() if communicate else self.strategy.alone():
                loss = self._learn(batch)
        else:
            loss = self._accumulate(batch, communicate)
        if self.paced is not None:
            self.paced.note_gradients()
        if communicate:
            self.strategy.reduce()
        self.strategy.before_step()
        if self.scaler is None:
            self.strategy.optimizer.step()
        else:
            self.scaler.step(self.strategy.optimizer)
            self.scaler.update()
        if self.paced is not None:
            self.paced.end()
        return loss

    def _accumulate(self, batch: models.Sample, communicate: bool) -> Tensor:
        steps = self._micro_steps
        parts = list(zip(*(tensor.chunk(steps) for tensor in batch), strict=True))
        with self.strategy.alone():
            losses = [self._learn(part) for part in parts[:-1]]
        with nullcontext() if communicate else self.strategy.alone():
            losses.append(self._learn(parts[-1]))
        return torch.stack(losses).mean()

    def _learn(self, batch: models.Sample) -> Tensor:
        """Forward and backward pass of one micro-step; its loss, detached."""
        loss: Tensor = self.model(*batch)
        share = loss if self._micro_steps == 1 else loss / self._micro_steps
        torch.autograd.backward(share if self.scaler is None else self.scaler.scale(share))
        return loss.detach()

    def warm_up(self) -> WarmUp:
        """Make the steps before the window. Collective: every rank of the run has to call it.

        fp16 goes on until three steps in a row were applied: a step that the scaler drops is faster than a real one. With
        warmup_min_s, all go on until the steps of rank 0 but the first have taken so long; with warmup_steps_max, until they show
        no trend.
        """
        spec, losses = self.spec, list[Tensor]()

        def take(steps: int) -> list[float]:
            clock = make_clock(self.device)
            clock.mark()
            for _ in range(steps):
                loss = self.step()
                clock.mark()
                if not losses:
                    losses.append(loss)
            clock.synchronize()
            return clock.step_times_s()

        times_s = []
        if spec.warmup_steps and not spec.resolved_options()["compile"]:
            with kernels_seen() as self.kernels:
                times_s = take(1)
        times_s += take(spec.warmup_steps - len(times_s))
        if self.scaler is not None:
            settled, extra = 0, 0
            while settled < _SETTLED_AFTER and extra < _SETTLE_STEPS:
                before = self.applied_steps
                times_s += take(1)
                settled = settled + 1 if self.applied_steps > before else 0
                extra += 1
            precision.leave_headroom(self.scaler)
        if spec.warmup_min_s or spec.measured_min_s:
            # The first step is like no other, and at least one is needed to count with.
            while more := self._as_rank_0(_steps_to(spec.warmup_min_s, times_s[1:])):
                times_s += take(more)
        steady = None
        if spec.warmup_steps_max is not None:
            steady = lengthened(times_s, take, spec.warmup_steps, spec.warmup_steps_max, self._as_rank_0)
        return WarmUp(losses[0].item() if losses else None, len(times_s), steady, _step_s(times_s) if times_s else None)

    def steps_to_measure(self, warmup: WarmUp) -> int:
        """How many steps the window has: those asked for, or as many as its least time takes. Collective, after the warm-up."""
        asked = self.spec.measured_steps
        if not self.spec.measured_min_s or warmup.step_s is None:
            return asked
        return self._as_rank_0(max(asked, math.ceil(_MARGIN * self.spec.measured_min_s / warmup.step_s)))

    def _as_rank_0(self, decision: int) -> int:
        """What rank 0 has decided, on every rank; raises what torch raises where a rank is lost."""
        if self._world_size == 1:
            return decision
        decided = torch.tensor(decision, device=self.device)
        dist.broadcast(decided, src=0)
        return int(decided.item())


def _steps_to(least_s: float, times_s: list[float]) -> int:
    """Steps to make before looking again whether they took so long together; 0 when they have, and are any."""
    if not times_s:
        return 2
    missing_s = least_s - sum(times_s)
    # At most twice as many as were made: what they say of the next ones may be chance.
    return max(0, min(math.ceil(missing_s / _step_s(times_s)), 2 * len(times_s)))


def _step_s(times_s: Sequence[float]) -> float:
    """How long a step takes by now; never 0."""
    return max(statistics.median(times_s[-_LATEST:]), _SHORTEST_STEP_S)


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


class DeviceClock:
    """Events in the device's queue, read after the window: timing a step does not wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, device_module(device.type)
        self._events: list[Any] = []

    def synchronize(self) -> None:
        self._module.synchronize(self._device)

    def mark(self) -> None:
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self._device))
        self._events.append(event)

    def step_times_s(self) -> list[float]:
        pairs = zip(self._events, self._events[1:], strict=False)
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


Clock = CpuClock | DeviceClock


def make_clock(device: torch.device) -> Clock:
    return CpuClock() if device.type == "cpu" else DeviceClock(device)


@dataclass(frozen=True, slots=True)
class Window:
    """The measured steps: each one's time, all together by the wall clock and by processor time, each one's loss, and the devices
    that losses were on.

    started: Unix seconds at its begin, by this host's clock.
    """

    started: float
    step_times_s: tuple[float, ...]
    window_s: float
    process_time_s: float
    losses: tuple[float, ...]
    losses_on: tuple[str, ...] = ()


def measure(step: Callable[[], Tensor], steps: int, clock: Clock, barrier: Callable[[], None]) -> Window:
    """Barrier, synchronise, `steps` steps, synchronise, barrier. Inside the window nothing waits and no loss is read."""
    barrier()
    clock.synchronize()
    started = time.time()
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
    read, losses_on = torch.stack(losses).double().cpu().tolist(), tuple(sorted({str(loss.device) for loss in losses}))
    return Window(started, tuple(clock.step_times_s()), window_s, process_time_s, tuple(read), losses_on)


def measure_communication(training: Training, step_times_s: tuple[float, ...]) -> tuple[float, float]:
    """(exposed_s, allreduce_s): what communication costs a step of `ddp`, and as many bytes cost with nothing else going on.

    exposed_s is the median step of the window, whose times are given, less the median step without all-reduce: about zero where
    all of it is hidden. Collective: every rank has to call it, after the window, for the ranks no longer agree about their weights.
    """
    repeats = min(max(len(step_times_s), _FEWEST_STEPS), _MOST_STEPS)
    numbers: Counter[tuple[torch.dtype, torch.device]] = Counter()
    for parameter in training.model.parameters():
        if parameter.requires_grad:
            numbers[parameter.dtype, parameter.device] += parameter.numel()
    buffers = [torch.zeros(count, dtype=kind, device=device) for (kind, device), count in numbers.items()]

    def reduce() -> None:
        for buffer in buffers:
            dist.all_reduce(buffer)

    alone_s = _median_s(lambda: training.step(communicate=False), make_clock(training.device), repeats)
    return statistics.median(step_times_s) - alone_s, _median_s(reduce, make_clock(training.device), repeats)


def _median_s(action: Callable[[], object], clock: Clock, repeats: int) -> float:
    dist.barrier()
    action()  # a warm-up
    clock.synchronize()
    clock.mark()
    for _ in range(repeats):
        action()
        clock.mark()
    clock.synchronize()
    return statistics.median(clock.step_times_s())
