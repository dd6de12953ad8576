"""Copies between a host's memory and one device. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

LARGEST_BYTES = 2**28
LARGEST_ON_CPU_BYTES = 2**26
"""Beyond every cache; a larger copy within main memory says nothing more."""


def copies_s(device: torch.device, size_bytes: int, warmup: int, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of copies to the device and from it. Host memory is pinned; for a CPU process both are copies within main memory."""
    host = torch.zeros(size_bytes // 4, pin_memory=device.type == "cuda")
    there = torch.zeros(size_bytes // 4, device=device)
    timed = _by_events if device.type == "cuda" else _by_clock
    to_device = [timed(lambda: there.copy_(host, non_blocking=True)) for _ in range(warmup + repeats)]
    from_device = [timed(lambda: host.copy_(there, non_blocking=True)) for _ in range(warmup + repeats)]
    return to_device[warmup:], from_device[warmup:]


def _by_events(copy: Callable[[], object]) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    before.record()
    copy()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e-3


def _by_clock(copy: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    copy()
    return time.perf_counter() - started_s
