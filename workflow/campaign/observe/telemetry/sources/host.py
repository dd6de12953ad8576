"""Processors by socket, memory, disks, network cards and energy of the host, from /proc and /sys.

The files are kept open and parsed directly. psutil would take eight times the processor time (217 instead of 27 us per sample on a
host with two cores), and it does not distinguish sockets. Sources: proc(5), Documentation/admin-guide/iostats and power/powercap
of the kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from campaign.observe.telemetry.sources import Probe, SamplerOptions, SensorReading

_SECTOR_BYTES = 512
"""Sector size in /proc/diskstats, which is the same for all disks."""
_WORD_BYTES = 4
"""Size of the words that InfiniBand counts."""
_SYS = Path("/sys")


class _ProcFile:
    """Probe of a file in /proc that is kept open and parsed anew at each reading."""

    def __init__(self, path: str, parse: Callable[[str], Iterator[SensorReading]]) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._parse = parse

    def read(self) -> Iterator[SensorReading]:
        text = b""
        while part := os.pread(self._descriptor, 1 << 18, len(text)):
            text += part
        return self._parse(text.decode())


def parse_processors(text: str, sockets: Mapping[str, int], ticks_per_s: float) -> Iterator[SensorReading]:
    """Parse /proc/stat into processor time (seconds since boot): busy, taken by other guests, and total.

    Args:
        text: content of the file.
        sockets: socket of each processor by name (`cpu0`). If there are several sockets, each is a part `socket:N`.
        ticks_per_s: clock ticks per second.
    """
    has_several_sockets = len(set(sockets.values())) > 1
    sums: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu"):
            break  # The rest of the file is long and does not concern processors.
        part = "host" if name == "cpu" else f"socket:{sockets[name]}" if has_several_sockets and name in sockets else ""
        if part:
            user, nice, system, idle, waiting, irq, softirq, stolen_s = (
                float(tick) / ticks_per_s for tick in ticks[:8]
            )
            busy = user + nice + system + irq + softirq
            seconds = {"cpu_busy_s": busy, "cpu_stolen_s": stolen_s, "cpu_all_s": busy + idle + waiting + stolen_s}
            for quantity, value in seconds.items():
                sums[part, quantity] = sums.get((part, quantity), 0.0) + value
    yield from ((part, quantity, value) for (part, quantity), value in sums.items())


def parse_memory(text: str) -> Iterator[SensorReading]:
    """Parse /proc/meminfo into the amount of memory that is in use, i.e. not available to programs."""
    kib = {line.split(":")[0]: float(line.split()[1]) for line in text.splitlines() if line}
    if {"MemTotal", "MemAvailable"} <= kib.keys():
        yield "host", "memory_used_mib", (kib["MemTotal"] - kib["MemAvailable"]) / 1024


def parse_disks(text: str, is_disk: Callable[[str], bool]) -> Iterator[SensorReading]:
    """Parse /proc/diskstats into the bytes read and written of each whole disk.

    Stacked devices (RAID, LVM, partitions, loop devices) are left out, because their bytes would count twice.
    """
    for line in text.splitlines():
        words = line.split()
        if len(words) > 9 and is_disk(words[2]):
            yield f"disk:{words[2]}", "disk_read_bytes", float(words[5]) * _SECTOR_BYTES
            yield f"disk:{words[2]}", "disk_written_bytes", float(words[9]) * _SECTOR_BYTES


def parse_networks(text: str, is_card: Callable[[str], bool]) -> Iterator[SensorReading]:
    """Parse /proc/net/dev into the bytes received and sent by each network interface.

    An interface is of the kind `loopback`, `nic` if it carries traffic, or `virtual` if its traffic is that of another interface
    (such as a bond). If no interface is a card, as in a container or on an emulated host, each counts as a `nic`.
    """
    words = {
        name.strip(): counts.split() for name, _, counts in (line.partition(":") for line in text.splitlines()[2:])
    }
    cards = {name for name in words if is_card(name)}
    for name, counts in words.items():
        if len(counts) > 8:
            kind = "loopback" if name == "lo" else "nic" if not cards or name in cards else "virtual"
            yield f"{kind}:{name}", "received_bytes", float(counts[0])
            yield f"{kind}:{name}", "sent_bytes", float(counts[8])


def parse_load(text: str) -> Iterator[SensorReading]:
    """Parse /proc/loadavg into the load average over one minute."""
    yield "host", "load_1min", float(text.split()[0])


@dataclass
class _InfiniBand:
    """Probe of InfiniBand ports, which are not network interfaces of the kernel. Unverified on hardware."""

    counters: Mapping[str, Path]

    def read(self) -> Iterator[SensorReading]:
        for part, directory in self.counters.items():
            for quantity, name in (("received_bytes", "port_rcv_data"), ("sent_bytes", "port_xmit_data")):
                yield part, quantity, float((directory / name).read_text(encoding="utf-8")) * _WORD_BYTES


@dataclass
class _PackageEnergy:
    """Probe of the energy counters of processor packages (RAPL). Each wraps at its own limit. Unverified on hardware."""

    packages: Mapping[str, Path]
    ranges_uj: Mapping[str, float]
    last_uj: dict[str, float] = field(default_factory=dict)
    wrapped_uj: dict[str, float] = field(default_factory=dict)

    def read(self) -> Iterator[SensorReading]:
        for part, directory in self.packages.items():
            now_uj = float((directory / "energy_uj").read_text(encoding="utf-8"))
            if now_uj < self.last_uj.get(part, now_uj):
                self.wrapped_uj[part] = self.wrapped_uj.get(part, 0.0) + self.ranges_uj[part]
            self.last_uj[part] = now_uj
            yield part, "package_energy_j", (now_uj + self.wrapped_uj.get(part, 0.0)) / 1e6


def read_sockets_by_processor(cpus: Path = _SYS / "devices/system/cpu") -> dict[str, int]:
    """Read from /sys which socket each processor belongs to, by name of the processor (`cpu0`)."""
    sockets = {}
    for file in cpus.glob("cpu[0-9]*/topology/physical_package_id"):
        with suppress(OSError, ValueError):
            sockets[file.parents[1].name] = int(file.read_text(encoding="utf-8"))
    return sockets


def open_energy_probe(powercap: Path = _SYS / "class/powercap") -> Probe | None:
    """Open a probe of the energy counters of processor packages. Returns None if this user may read none."""
    packages, ranges_uj = {}, {}
    for directory in sorted(powercap.glob("intel-rapl:*")):
        if directory.name.count(":") > 1:
            continue  # This is a part of a package.
        with suppress(OSError, ValueError):
            float((directory / "energy_uj").read_text(encoding="utf-8"))
            part = f"socket:{directory.name.rpartition(':')[2]}"
            ranges_uj[part] = float((directory / "max_energy_range_uj").read_text(encoding="utf-8"))
            packages[part] = directory
    return _PackageEnergy(packages, ranges_uj) if packages else None


def open_infiniband_probe(adapters: Path = _SYS / "class/infiniband") -> Probe | None:
    """Open a probe of all InfiniBand ports that have byte counters. Returns None if there are none."""
    counters = {
        f"port:{ports.parents[2].name}/{ports.parent.name}": ports
        for ports in sorted(adapters.glob("*/ports/*/counters"))
        if (ports / "port_rcv_data").exists()
    }
    return _InfiniBand(counters) if counters else None


def _build_device_predicate(directory: Path) -> Callable[[str], bool]:
    """Build a cached predicate that tells whether a device of this name in the directory is real hardware."""
    return cache(lambda name: (directory / name / "device").exists())


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    """Open the probes of this host's processors, memory, disks, networks and energy, and of the sampler itself."""
    ticks_per_s, sockets = os.sysconf("SC_CLK_TCK"), read_sockets_by_processor()
    is_disk, is_card = _build_device_predicate(_SYS / "block"), _build_device_predicate(_SYS / "class/net")
    files: dict[str, Callable[[str], Iterator[SensorReading]]] = {
        "stat": lambda text: parse_processors(text, sockets, ticks_per_s),
        "meminfo": parse_memory,
        "net/dev": lambda text: parse_networks(text, is_card),
        "diskstats": lambda text: parse_disks(text, is_disk),
        "loadavg": parse_load,
    }
    probes: list[Probe] = []
    for name, parse in files.items():
        with suppress(OSError):
            probes.append(_ProcFile(f"/proc/{name}", parse))
    if options.load_only:
        return probes[:1]
    return [
        *probes,
        *(probe for probe in (open_energy_probe(), open_infiniband_probe(), SamplerOverhead()) if probe is not None),
    ]


class SamplerOverhead:
    """Probe that measures the processor time used by the sampler itself."""

    def read(self) -> Iterator[SensorReading]:
        yield "sampler", "cpu_used_s", time.process_time()
