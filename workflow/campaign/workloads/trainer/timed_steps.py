"""Training steps, and the measured window in which they are timed."""

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

from campaign.workloads.steady_warmup import extend_warmup
from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.cpu_data_parallel import CpuDataParallel
from campaign.workloads.trainer.input_pipeline import Feed
from campaign.workloads.trainer.kernels_seen import record_kernels
from campaign.workloads.trainer.paced_modules import PacedDevices
from campaign.workloads.trainer.parallel_strategies import make_strategy
from campaign.workloads.trainer.rank_device import get_device_module
from campaign.workloads.trainer.rank_interface import TrainSpec

_MAX_SETTLE_STEPS = 24  # the gradient scaler starts at 2^16 and halves, so it settles within fewer steps
_MIN_APPLIED_STEPS = 3
_MIN_REPEATS, _MAX_REPEATS = 3, 20
_RECENT_STEPS = 20  # last warm-up steps, from which the duration of the next ones is estimated
_MIN_STEP_S = 1e-4
_WINDOW_MARGIN_FACTOR = 1.05  # keeps the window long enough if steps get slightly faster


@dataclass(frozen=True, slots=True)
class WarmupResult:
    """Result of the warm-up of a training run.

    Attributes:
        loss_first: loss before the first step; None if there were no steps.
        steps: number of steps that were done.
        is_steady: true if the last steps showed no trend; None if that was not tested.
        step_s: median duration of the last steps on rank 0 in seconds; None if there were no steps.
    """

    loss_first: float | None
    steps: int
    is_steady: bool | None
    step_s: float | None = None


class Training:
    """Training of a model on one device. `run_step` runs one complete step and returns its loss, still on the device."""

    def __init__(
        self,
        spec: TrainSpec,
        trainable: models.Trainable,
        feed: Feed,
        device: torch.device,
        world_size: int,
        paced_devices: PacedDevices | None = None,
    ) -> None:
        self.spec = spec
        self.device = device
        self._world_size = world_size
        self.feed = feed
        self.scaler: GradScaler | None = precision.make_scaler(spec.precision, device)
        self.applied_steps = 0
        self.kernels: dict[str, str] = {}
        """Kernels that torch chose in the first warm-up step."""
        self.paced_devices = paced_devices
        if paced_devices is not None and spec.replicas == 1:
            paced_devices.pace_network(trainable.network)
        self.strategy = make_strategy(spec, trainable, device, world_size)
        if paced_devices is not None and isinstance(self.strategy.model, CpuDataParallel):
            paced_devices.pace_replicas(self.strategy.model)
        self.strategy.optimizer.register_step_post_hook(self._count_applied_step)
        # Cached, because collecting them takes one percent of a small network's step.
        self._parameters = tuple(trainable.parameters())
        self._micro_steps = int(spec.resolve_options()["accumulation"])

    @property
    def model(self) -> nn.Module:
        """Model, wrapped by its parallel strategy."""
        return self.strategy.model

    def _count_applied_step(self, *_: object) -> None:
        """Count a step whose update was really applied by the optimizer."""
        # The scaler skips optimizer.step(), and thus this hook, if a gradient is not finite.
        self.applied_steps += 1

    def run_step(self, communicate: bool = True) -> Tensor:
        """Run one training step, and return the loss before its update, detached.

        The call does not wait for the device, unless fp16's gradient scaler is used.

        Args:
            communicate: false to leave out the reduction of gradients, after which the weights of the ranks differ.
        """
        if self.paced_devices is not None:
            self.paced_devices.begin_step()
        batch = self.feed()
        for parameter in self._parameters:
            parameter.grad = None
        if self._micro_steps == 1:
            with nullcontext() if communicate else self.strategy.without_communication():
                loss = self._run_passes(batch)
        else:
            loss = self._run_micro_steps(batch, communicate)
        if self.paced_devices is not None:
            self.paced_devices.record_gradients_ready()
        if communicate:
            self.strategy.reduce_gradients()
        self.strategy.before_step()
        if self.scaler is None:
            self.strategy.optimizer.step()
        else:
            self.scaler.step(self.strategy.optimizer)
            self.scaler.update()
        if self.paced_devices is not None:
            self.paced_devices.end_step()
        return loss

    def _run_micro_steps(self, batch: models.Sample, communicate: bool) -> Tensor:
        """Run all micro-steps of a step, and return their mean loss. Only the last one may communicate."""
        steps = self._micro_steps
        parts = list(zip(*(tensor.chunk(steps) for tensor in batch), strict=True))
        with self.strategy.without_communication():
            losses = [self._run_passes(part) for part in parts[:-1]]
        with nullcontext() if communicate else self.strategy.without_communication():
            losses.append(self._run_passes(parts[-1]))
        return torch.stack(losses).mean()

    def _run_passes(self, batch: models.Sample) -> Tensor:
        """Run the forward and backward pass of one micro-step, and return its loss, detached."""
        loss: Tensor = self.model(*batch)
        share = loss if self._micro_steps == 1 else loss / self._micro_steps
        torch.autograd.backward(share if self.scaler is None else self.scaler.scale(share))
        return loss.detach()

    def warm_up(self) -> WarmupResult:
        """Run the warm-up steps that precede the window. This is collective: every rank of the run has to call it.

        With fp16, the warm-up continues until three successive steps were applied, because a step that the scaler drops is faster
        than a real one. With warmup_min_s, it continues until the steps of rank 0, except the first, have taken that long. With
        warmup_steps_max, it continues until step times show no trend.
        """
        spec, losses = self.spec, list[Tensor]()

        def take_steps(steps: int) -> list[float]:
            clock = make_clock(self.device)
            clock.mark()
            for _ in range(steps):
                loss = self.run_step()
                clock.mark()
                if not losses:
                    losses.append(loss)
            clock.synchronize()
            return clock.step_times_s()

        times_s = []
        if spec.warmup_steps and not spec.resolve_options()["compile"]:
            with record_kernels() as self.kernels:
                times_s = take_steps(1)
        times_s += take_steps(spec.warmup_steps - len(times_s))
        if self.scaler is not None:
            applied_in_row, extra_steps = 0, 0
            while applied_in_row < _MIN_APPLIED_STEPS and extra_steps < _MAX_SETTLE_STEPS:
                applied_before = self.applied_steps
                times_s += take_steps(1)
                applied_in_row = applied_in_row + 1 if self.applied_steps > applied_before else 0
                extra_steps += 1
            precision.lower_settled_scale(self.scaler)
        if spec.warmup_min_s or spec.measured_min_s:
            # The first step is not representative, and the estimate needs at least one step.
            while further_steps := self._adopt_rank_0_decision(_estimate_steps_for(spec.warmup_min_s, times_s[1:])):
                times_s += take_steps(further_steps)
        steady = None
        if spec.warmup_steps_max is not None:
            steady = extend_warmup(
                times_s, take_steps, spec.warmup_steps, spec.warmup_steps_max, self._adopt_rank_0_decision
            )
        return WarmupResult(
            losses[0].item() if losses else None,
            len(times_s),
            steady,
            _compute_recent_step_s(times_s) if times_s else None,
        )

    def count_steps_to_measure(self, warmup: WarmupResult) -> int:
        """Return the number of steps to measure: the configured number, or more if the minimum duration requires it.

        Collective; must be called after the warm-up.
        """
        min_steps = self.spec.measured_steps
        if not self.spec.measured_min_s or warmup.step_s is None:
            return min_steps
        return self._adopt_rank_0_decision(
            max(min_steps, math.ceil(_WINDOW_MARGIN_FACTOR * self.spec.measured_min_s / warmup.step_s))
        )

    def _adopt_rank_0_decision(self, decision: int) -> int:
        """Return rank 0's decision on every rank. torch raises an exception if a rank is lost."""
        if self._world_size == 1:
            return decision
        shared_decision = torch.tensor(decision, device=self.device)
        dist.broadcast(shared_decision, src=0)
        return int(shared_decision.item())


def _estimate_steps_for(min_s: float, times_s: list[float]) -> int:
    """Estimate how many more steps to run before checking their total duration again; 0 if it is long enough.

    Args:
        min_s: minimum total duration in seconds.
        times_s: durations of the steps so far in seconds.
    """
    if not times_s:
        return 2
    missing_s = min_s - sum(times_s)
    # At most twice as many as were done, because the estimate from a few steps is uncertain.
    return max(0, min(math.ceil(missing_s / _compute_recent_step_s(times_s)), 2 * len(times_s)))


def _compute_recent_step_s(times_s: Sequence[float]) -> float:
    """Return the typical duration of recent steps in seconds, never 0."""
    return max(statistics.median(times_s[-_RECENT_STEPS:]), _MIN_STEP_S)


class CpuClock:
    """Clock for steps on a CPU, where a step is finished when the call returns."""

    def __init__(self) -> None:
        self._marks_s: list[float] = []

    def synchronize(self) -> None:
        """Do nothing, because work on a CPU is finished when the call returns."""
        return

    def mark(self) -> None:
        """Record the current time as the end of one step and the start of the next."""
        self._marks_s.append(time.perf_counter())

    def step_times_s(self) -> list[float]:
        """Return the seconds between successive marks."""
        return [after - before for before, after in zip(self._marks_s, self._marks_s[1:], strict=False)]


class DeviceClock:
    """Clock for steps on a device, based on events in the device's queue.

    The events are read after the window, so that timing a step does not require waiting for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, get_device_module(device.type)
        self._events: list[Any] = []

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        self._module.synchronize(self._device)

    def mark(self) -> None:
        """Queue an event on the device that marks the end of one step and the start of the next."""
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self._device))
        self._events.append(event)

    def step_times_s(self) -> list[float]:
        """Return the seconds between successive marks. The device must have been synchronised."""
        pairs = zip(self._events, self._events[1:], strict=False)
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


Clock = CpuClock | DeviceClock


def make_clock(device: torch.device) -> Clock:
    """Create the clock that suits a device."""
    return CpuClock() if device.type == "cpu" else DeviceClock(device)


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """Measurements of the timed steps of one rank.

    Attributes:
        started_at: start in Unix seconds by the clock of this host.
        step_times_s: duration of each step in seconds.
        window_s: wall-clock time of all steps in seconds.
        process_time_s: processor time of all steps in seconds.
        losses: loss of each step.
        loss_devices: devices that held the losses.
    """

    started_at: float
    step_times_s: tuple[float, ...]
    window_s: float
    process_time_s: float
    losses: tuple[float, ...]
    loss_devices: tuple[str, ...] = ()


def measure_steps(
    run_step: Callable[[], Tensor], steps: int, clock: Clock, barrier: Callable[[], None]
) -> MeasuredWindow:
    """Time a number of steps, with a barrier and a synchronisation of the device before and after them.

    Steps in between do not wait for the device, and their losses are not read.
    """
    barrier()
    clock.synchronize()
    started_at = time.time()
    process_start_s, start_s = time.process_time(), time.perf_counter()
    clock.mark()
    losses = []
    for _ in range(steps):
        losses.append(run_step())
        clock.mark()
    clock.synchronize()
    window_s = time.perf_counter() - start_s
    process_time_s = time.process_time() - process_start_s
    barrier()
    loss_values, loss_devices = (
        torch.stack(losses).double().cpu().tolist(),
        tuple(sorted({str(loss.device) for loss in losses})),
    )
    return MeasuredWindow(
        started_at, tuple(clock.step_times_s()), window_s, process_time_s, tuple(loss_values), loss_devices
    )


def measure_communication(training: Training, step_times_s: tuple[float, ...]) -> tuple[float, float]:
    """Measure the communication in a step of `ddp`: its exposed time, and the time of the all-reduces alone, in seconds.

    The exposed time is the median step of the window minus the median step without all-reduce. It is about zero if communication
    is completely hidden. The second number is the time that all-reduces of as many bytes take without other work. This is
    collective: every rank has to call it, and only after the window, because it makes the weights of the ranks differ.

    Args:
        training: the training, after its window.
        step_times_s: durations of the steps in the window, in seconds.
    """
    repeats = min(max(len(step_times_s), _MIN_REPEATS), _MAX_REPEATS)
    element_counts: Counter[tuple[torch.dtype, torch.device]] = Counter()
    for parameter in training.model.parameters():
        if parameter.requires_grad:
            element_counts[parameter.dtype, parameter.device] += parameter.numel()
    buffers = [torch.zeros(count, dtype=kind, device=device) for (kind, device), count in element_counts.items()]

    def all_reduce_buffers() -> None:
        for buffer in buffers:
            dist.all_reduce(buffer)

    no_reduction_s = _measure_median_duration_s(
        lambda: training.run_step(communicate=False), make_clock(training.device), repeats
    )
    return statistics.median(step_times_s) - no_reduction_s, _measure_median_duration_s(
        all_reduce_buffers, make_clock(training.device), repeats
    )


def _measure_median_duration_s(action: Callable[[], object], clock: Clock, repeats: int) -> float:
    """Return an action's median duration (seconds) over repeated calls, after one warm-up call. Collective."""
    dist.barrier()
    action()  # a warm-up
    clock.synchronize()
    clock.mark()
    for _ in range(repeats):
        action()
        clock.mark()
    clock.synchronize()
    return statistics.median(clock.step_times_s())
