"""Sources of a sampler. Each source opens probes for the devices and counters of its host.

If a host or a device lacks a counter, a probe returns no value for it, never zero.
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
    "own": "campaign.observe.telemetry.sources.own_processes",
}

SensorReading = tuple[str, str, float] | tuple[str, str, float, float]
"""Part of the host (`host`, `socket:0`, `gpu:UUID`, `nic:eth0` ..), quantity with its unit as suffix, and value. The fourth item is
the Unix time of a sample that the device driver has taken earlier.

Quantities that end in `_s`, `_j`, `_bytes` or `_count` are counters, which only grow. All others are momentary values.
"""


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """Options of a sampler.

    Attributes:
        interval_s: sampling interval in seconds.
        gauges: directory in which programs publish their own values, or None if there is none.
        mark: beginning of the mark of the campaign's processes, or an empty string if they are not marked.
        load_only: read only what the load of the host is computed from.
    """

    interval_s: float
    gauges: Path | None = None
    mark: str = ""
    load_only: bool = False


class Probe(Protocol):
    """Source of values that are read together, such as all values of one device.

    If a probe has a method `max_read_interval_s()` whose result is shorter than the sampling interval, it is also read between
    samples.
    """

    def read(self) -> Iterable[SensorReading]:
        """Read the current values. If this raises an exception, the probe is not read again."""


class DevicesUnreadableError(Exception):
    """Error raised if devices of this host exist but cannot be read. The message states the reason."""


def open_probes(options: SamplerOptions) -> tuple[list[Probe], list[str]]:
    """Open the probes of all sources on this host. Return them and the reasons why some devices cannot be read."""
    probes: list[Probe] = []
    problems = []
    for source in ("host", "own") if options.load_only else SOURCES:
        module: Any = import_module(SOURCES[source])
        try:
            probes += module.open_probes(options)
        except DevicesUnreadableError as error:
            problems.append(str(error))
    return probes, problems
