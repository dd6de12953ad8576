"""What communication costs a step of `ddp`, measured after the window: its ranks no longer agree about their weights then."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from campaign.workloads.trainer.timed_steps import Clock, Training, make_clock

_FEWEST_STEPS, _MOST_STEPS = 3, 20


@dataclass(frozen=True, slots=True)
class Communication:
    """exposed_s: median step of the window less the median step without all-reduce, about zero where all of it is hidden;
    allreduce_s: median of bare all-reduces of as many bytes as the gradients have, nothing else going on."""

    exposed_s: float
    allreduce_s: float


def measure_communication(training: Training, step_times_s: tuple[float, ...]) -> Communication:
    """Collective: every rank has to call it. step_times_s: of this rank's window."""
    steps = min(max(len(step_times_s), _FEWEST_STEPS), _MOST_STEPS)
    dist.barrier()
    training.step(communicate=False)
    alone = _timed(training, steps)
    buffers = _as_large_as_gradients(training.model)
    reduce = _reductions(training, buffers, steps)
    exposed_s = statistics.median(step_times_s) - statistics.median(alone)
    return Communication(exposed_s, statistics.median(reduce))


def _timed(training: Training, steps: int) -> list[float]:
    clock = make_clock(training.device)
    clock.synchronize()
    clock.mark()
    for _ in range(steps):
        training.step(communicate=False)
        clock.mark()
    clock.synchronize()
    return clock.step_times_s()


def _reductions(training: Training, buffers: list[torch.Tensor], repeats: int) -> list[float]:
    clock: Clock = make_clock(training.device)
    dist.barrier()
    for repeat in range(repeats + 1):
        if repeat == 1:  # the first is a warm-up
            clock.synchronize()
            clock.mark()
        for buffer in buffers:
            dist.all_reduce(buffer)
        if repeat:
            clock.mark()
    clock.synchronize()
    return clock.step_times_s()


def _as_large_as_gradients(model: nn.Module) -> list[torch.Tensor]:
    numbers: Counter[tuple[torch.dtype, torch.device]] = Counter()
    for parameter in model.parameters():
        if parameter.requires_grad:
            numbers[parameter.dtype, parameter.device] += parameter.numel()
    return [torch.zeros(count, dtype=kind, device=device) for (kind, device), count in numbers.items()]
