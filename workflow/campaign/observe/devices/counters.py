"""What telemetry tells of a device that does nothing, computes, and copies, against what is known of it. Needs torch.

Unverified on hardware.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from campaign.fabrics.host_agents.protocol import normal
from campaign.observe.devices.bench import Bench
from campaign.observe.devices.document import StepResult
from campaign.observe.devices.products import product
from campaign.observe.telemetry.samples import Tick, TimeWindow, series_of
from campaign.observe.telemetry.sources import Probe, SamplerOptions, open_probes

_EVERY_S, _WINDOW_S, _SETTLE_S = 0.1, 3.0, 1.0
_SIZE, _COPY_BYTES = 8192, 2**28


def measure(bench: Bench) -> StepResult:
    """Processor milliseconds of a look; by how many percent the counter of energy is off the integrated power, and that of PCIe off
    the bytes that were copied."""
    probes, problems = open_probes(SamplerOptions(_EVERY_S))
    _read(probes)
    started_s = time.thread_time()
    _read(probes)
    values = {"look_ms": 1e3 * (time.thread_time() - started_s)}
    if bench.on_cpu:
        facts = {"not compared": "a process on a CPU core has no counters of its own"}
        return StepResult(step="telemetry", values=values, facts=facts)
    host = torch.zeros(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=bench.device)
    loads = {
        "idle": lambda: time.sleep(_EVERY_S),
        "product": product(bench, _SIZE, "fp16"),
        "copy": lambda: there.copy_(host, non_blocking=True),
    }
    windows = {}
    with _watched(probes) as ticks:
        for name, work in loads.items():
            bench.busy_for(_SETTLE_S, work)
            started = time.time()
            count, took_s = bench.busy_for(_WINDOW_S, work)
            windows[name] = TimeWindow(started, started + took_s)
            copied = count * _COPY_BYTES  # the last is the copy
    own = {what: each for (part, what), each in series_of(ticks)[0].items() if normal(part[4:]) == normal(bench.uuid)}
    if "utilisation_pct" in own:
        values |= {f"utilisation_{name}_pct": own["utilisation_pct"].mean(window) for name, window in windows.items()}
    known = {"pcie_received_bytes": (windows["copy"], float(copied))}
    if "power_w" in own:
        known["energy_j"] = windows["product"], own["power_w"].integral(windows["product"])
    for counter, (window, expected) in known.items():
        if counter in own and (rate := own[counter].rate(window)) is not None:
            values[f"{counter.partition('_')[0]}_off_pct"] = 100 * (rate * window.length_s / expected - 1)
    return StepResult(
        step="telemetry",
        values=values,
        facts={} if own else {"not compared": "; ".join(problems) or "nothing reads this device here"},
    )


@contextmanager
def _watched(probes: Sequence[Probe]) -> Iterator[list[Tick]]:
    ticks: list[Tick] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(_EVERY_S):
            ticks.append(Tick(time=time.time(), monotonic=time.monotonic(), read=_read(probes)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield ticks
    finally:
        over.set()
        thread.join()


def _read(probes: Sequence[Probe]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for probe in probes:
        with suppress(Exception):  # one that breaks must not cost the others
            for part, quantity, value, *_ in probe.read():
                found.setdefault(part, {})[quantity] = value
    return found
