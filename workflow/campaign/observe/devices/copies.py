"""Copies within a device's memory, and between it and its host. Needs torch."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from campaign.observe.devices.bench import Bench, middle
from campaign.observe.devices.document import StepResult
from campaign.observe.devices.state import pcie_of
from campaign.observe.links.transfer_timing import copies_s

_COPY_BYTES, _COPY_ON_CPU_BYTES, _SHARE = 8 * 10**9, 2**25, 0.25
_HOST_BYTES, _HOST_ON_CPU_BYTES, _REPEATS = 2**30, 2**24, 7


def measure_memory(bench: Bench) -> StepResult:
    """GB/s of a copy, what is read and what is written counted both."""
    size = _COPY_ON_CPU_BYTES
    if not bench.on_cpu:
        size = min(_COPY_BYTES, int(_SHARE * bench.gpus.mem_get_info(bench.device)[0]))
    source = torch.randint(-128, 127, (size,), device=bench.device, dtype=torch.int8)
    target, name = torch.empty_like(source), "memory_gb_per_s"
    rate, spread = bench.rate(lambda: target.copy_(source), 2e-9 * size)
    return StepResult(step="memory", values={name: rate}, spread_pct={name: spread}, facts={"size_bytes": size})


def measure_host_link(bench: Bench) -> StepResult:
    """GB/s of pinned copies both ways, and the PCIe link as it is under them."""
    size = _HOST_ON_CPU_BYTES if bench.on_cpu else _HOST_BYTES
    values, spreads = {}, {}
    for name, times_s in zip(("h2d_gb_per_s", "d2h_gb_per_s"), copies_s(bench.device, size, 2, _REPEATS), strict=True):
        values[name] = size / (min(times_s) if bench.on_cpu else median(times_s)) / 1e9
        spreads[name] = middle(times_s)[1]
    facts = {"what": "copies within main memory"} if bench.on_cpu else _under_load(bench, size)
    return StepResult(step="host link", values=values, spread_pct=spreads, facts={"size_bytes": size, **facts})


def _under_load(bench: Bench, size: int) -> dict[str, Any]:
    """Generation and width while copies are on their way: an idle link sleeps in the first generation."""
    host = torch.zeros(size, dtype=torch.int8, pin_memory=True)
    there = torch.empty(size, dtype=torch.int8, device=bench.device)
    for _ in range(8):
        there.copy_(host, non_blocking=True)
    facts = pcie_of(bench.uuid)
    bench.gpus.synchronize(bench.device)
    return facts
