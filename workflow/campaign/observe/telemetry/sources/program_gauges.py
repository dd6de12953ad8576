"""What programs publish of themselves: files `<machine>.<pid>.json` in the directory of CAMPAIGN_GAUGES, while they run.

A file is `{"started": N, "devices": {"host1/0": {"power_w": 250.0, "memory_mib": 1024.0, "utilisation_pct": 90.0}}}`: values of
the moment by device, written at once (a temporary file, renamed). machine: /proc/sys/kernel/random/boot_id; started: the process's
start in ticks since boot (field 22 of /proc/PID/stat), so that another process with its pid is not taken for it. A file whose
process has ended counts no longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.observe.telemetry.sources import Probe, SamplerOptions, SensorReading

QUANTITIES = {"power_w": "power_w", "memory_mib": "memory_used_mib", "utilisation_pct": "utilisation_pct"}


def read_machine_id() -> str:
    """Return the boot id of this machine; emulated hosts share it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def read_start_ticks(pid: int) -> int | None:
    """Return the start time of a live process in clock ticks since boot, or None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *words = stat.rpartition(b")")[2].split()
    return None if state in (b"Z", b"X") else int(words[18])


@dataclass
class _GaugeFiles:
    directory: Path
    prefix: str
    documents: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)

    def read(self) -> Iterator[SensorReading]:
        try:
            names = [entry.name for entry in os.scandir(self.directory)]
        except OSError:
            return
        for name in names:
            pid = name.removeprefix(self.prefix).removesuffix(".json")
            if not (name.startswith(self.prefix) and pid.isdigit()):
                continue
            try:
                document = self._read_document(name)
                if read_start_ticks(int(pid)) != document["started"]:
                    continue
                readings = [
                    (f"gauge:{device}", quantity, float(values[name]))
                    for device, values in document["devices"].items()
                    for name, quantity in QUANTITIES.items()
                    if isinstance(values.get(name), int | float)
                ]
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # gone meanwhile, or not of a program that keeps to the format
            yield from readings

    def _read_document(self, name: str) -> Mapping[str, Any]:
        path = self.directory / name
        changed = path.stat().st_mtime_ns
        if self.documents.get(name, (None, {}))[0] != changed:
            self.documents[name] = (changed, json.loads(path.read_bytes()))
        return self.documents[name][1]


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    return [_GaugeFiles(options.gauges, f"{read_machine_id()}.")] if options.gauges else []
