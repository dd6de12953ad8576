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

Reading = tuple[str, str, float]
"""Part of the host (`host`, `socket:0`, `gpu:UUID`, `nic:eth0` ..), quantity with its unit as suffix, value.

Counters end in `_s`, `_j`, `_bytes` or `_count` and only ever grow; everything else is a value of the moment.
"""


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """interval_s: between samples; gauges: directory in which programs publish values of their own, where there is one."""

    interval_s: float
    gauges: Path | None = None


class Probe(Protocol):
    """Some values that are read together, at one price."""

    def read(self) -> Iterable[Reading]:
        """The values of now. An exception ends this probe, and no other."""


def open_probes(asked: SamplerOptions) -> list[Probe]:
    """Probes of all sources for what there is on this host."""
    modules: list[Any] = [import_module(module) for module in SOURCES.values()]
    return [probe for module in modules for probe in module.open_probes(asked)]
