"""The device under a step's hands, and how its work is timed. Needs torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils.benchmark import Timer
from torch.utils.benchmark.utils.timer import timer as device_timer

from campaign.observe.devices.document import CheckedDevice, CheckSpec
from campaign.workloads.trainer import rank_device
from campaign.workloads.trainer.rank_interface import RankEnvironment

_IQR_OF_NORMAL = 1.349
Rate = tuple[float, float]
"""A rate, and the spread of its repeats in percent."""


@dataclass(frozen=True)
class Bench:
    """One device, and what is asked of it. gpus: torch's module of the device."""

    spec: CheckSpec
    place: RankEnvironment
    device: torch.device
    gpus: Any

    @property
    def own(self) -> CheckedDevice:
        return self.spec.devices[self.place.rank]

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @cached_property
    def identity(self) -> dict[str, str]:
        """As a CheckedDevice has it."""
        found = rank_device.identity(self.device)
        told = {"reported": found["device_name"], "torch_version": torch.__version__}
        return {**told, **({"uuid": found["device_uuid"]} if "device_uuid" in found else {})}

    @property
    def uuid(self) -> str:
        return self.identity.get("uuid", "")

    def rate(self, work: Callable[[], object], amount: float) -> Rate:
        """Amount per second of work that is done over and over, in the median.

        On a CPU core that is shared with others: per second of processor time, at best. What else runs there only ever takes time.
        """
        timer = Timer("work()", globals={"work": work}, timer=time.thread_time if self.on_cpu else device_timer)
        found = timer.blocked_autorange(min_run_time=self.spec.seconds / (5 if self.on_cpu else 1))
        seconds = min(found.times) if self.on_cpu else found.median
        return amount / seconds, 100 * found.iqr / _IQR_OF_NORMAL / found.median

    def busy_for(self, seconds: float, work: Callable[[], object]) -> tuple[int, float]:
        """Do work for so long; gives how often it was done, and the seconds that it took."""
        count, started_s = 0, time.perf_counter()
        while (took_s := time.perf_counter() - started_s) < seconds:
            work()
            count += 1
            if not self.on_cpu:
                self.gpus.synchronize(self.device)
        return count, took_s


def open_bench(spec: CheckSpec, place: RankEnvironment) -> Bench:
    """ConfigError: the device is not there."""
    torch.set_num_threads(1)
    device = rank_device.choose_device(spec.devices[place.rank].kind, place.local_rank)
    return Bench(spec, place, device, None if device.type == "cpu" else rank_device.device_module(device.type))


def middle(values: Sequence[float]) -> Rate:
    """Median, and the spread of the values."""
    usual = statistics.median(values)
    return usual, 100 * statistics.stdev(values) / usual if len(values) > 1 and usual else 0.0
