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

Counters end in `_s`, `_j`, `_bytes` or `_count_applied_step` and only ever grow; everything else is a value of the moment.
"""


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """Options of a sampler.

    Args:
        interval_s: sampling interval in seconds.
        gauges: directory in which programs publish values of their own; None if there is none.
    """

    interval_s: float
    gauges: Path | None = None


class Probe(Protocol):
    """Values that are read together.

    A probe with `max_read_interval_s()` is also read between samples if that is shorter than the interval.
    """

    def read(self) -> Iterable[SensorReading]:
        """Read the current values. An exception ends only this probe."""


class DevicesUnreadableError(Exception):
    """Error for devices of this host that cannot be read; the message gives the reason."""


def open_probes(options: SamplerOptions) -> tuple[list[Probe], list[str]]:
    """Open the probes of all sources on this host, and return them with the reasons why devices cannot be read."""
    probes: list[Probe] = []
    problems = []
    for name in SOURCES.values():
        module: Any = import_module(name)
        try:
            probes += module.open_probes(options)
        except DevicesUnreadableError as error:
            problems.append(str(error))
    return probes, problems
