"""Values that running programs publish in files `<machine>.<pid>.json` in the directory of CAMPAIGN_GAUGES.

A file is `{"started": N, "devices": {"host1/0": {"power_w": 250.0, "memory_mib": 1024.0, "utilisation_pct": 90.0}}}`. It holds
momentary values by device, and is replaced as a whole (a temporary file is renamed). `machine` is
/proc/sys/kernel/random/boot_id. `started` is the start of the process in ticks since boot (field 22 of /proc/PID/stat), which
distinguishes it from a later process with the same pid. The file of a process that has ended is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.observe.telemetry.sources import Probe, SamplerOptions, SensorReading

QUANTITY_BY_GAUGE = {"power_w": "power_w", "memory_mib": "memory_used_mib", "utilisation_pct": "utilisation_pct"}


def read_machine_id() -> str:
    """Read the boot id of this machine. Hosts that are emulated on one machine share it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def read_start_ticks(pid: int) -> int | None:
    """Read when a process was started, in clock ticks since boot. Returns None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, *words = stat.rpartition(b")")[2].split()
    return None if state in (b"Z", b"X") else int(words[18])


@dataclass
class _GaugeFiles:
    """Probe of the gauge values that programs on this machine publish in files.

    Attributes:
        directory: directory of the files.
        prefix: start of the file names of this machine.
        documents: modification time and content of each file read so far, by file name.
    """

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
                    for name, quantity in QUANTITY_BY_GAUGE.items()
                    if isinstance(values.get(name), int | float)
                ]
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # The file was deleted meanwhile, or its program does not follow the format.
            yield from readings

    def _read_document(self, name: str) -> Mapping[str, Any]:
        """Return the content of a gauge file. The file is read again only if it has changed."""
        path = self.directory / name
        changed_ns = path.stat().st_mtime_ns
        if self.documents.get(name, (None, {}))[0] != changed_ns:
            self.documents[name] = (changed_ns, json.loads(path.read_bytes()))
        return self.documents[name][1]


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    """Open a probe of the directory in which programs publish their own values, if one is configured."""
    return [_GaugeFiles(options.gauges, f"{read_machine_id()}.")] if options.gauges else []
