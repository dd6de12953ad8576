"""What a sampler reads. One table says which sources there are; each opens probes for what it finds on its host.

A counter that a host or a device does not have is absent from what a probe reads, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

SOURCES: dict[str, str] = {
    "host": "campaign.observe.telemetry.sources.host",
    "nvidia": "campaign.observe.telemetry.sources.nvidia",
    "amd": "campaign.observe.telemetry.sources.amd",
    "intel": "campaign.observe.telemetry.sources.intel",
    "gauges": "campaign.observe.telemetry.sources.program_gauges",
}

SensorReading = tuple[str, str, float] | tuple[str, str, float, float]
"""Part of the host (`host`, `socket:0`, `gpu:UUID`, `nic:eth0` ..), quantity with its unit as suffix, value; and when that was, in
Unix seconds, of a sample that others have taken before.

Counters end in `_s`, `_j`, `_bytes` or `_count` and only ever grow; everything else is a value of the moment.
"""


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """interval_s: between samples; gauges: directory in which programs publish values of their own, where there is one."""

    interval_s: float
    gauges: Path | None = None


class Probe(Protocol):
    """Some values that are read together.

    One that has `needed_every_s()` is also read between samples where that is less than the interval.
    """

    def read(self) -> Iterable[SensorReading]:
        """The values of now. An exception ends this probe, and no other."""


class NotRead(Exception):
    """Devices of this host cannot be read; the message says why."""


def open_probes(asked: SamplerOptions) -> tuple[list[Probe], list[str]]:
    """Probes of all sources for what there is on this host, and why some of it cannot be read."""
    probes: list[Probe] = []
    problems = []
    for name in SOURCES.values():
        module: Any = import_module(name)
        try:
            probes += module.open_probes(asked)
        except NotRead as error:
            problems.append(str(error))
    return probes, problems
