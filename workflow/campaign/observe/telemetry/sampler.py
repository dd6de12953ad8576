"""Sampler process of one host: `python -m campaign.observe.telemetry.sampler --host NAME --interval S --out FILE`.

The sampler appends one line of JSON per sample to FILE. Each line is written by one call, so that only the last line can be torn
when the process ends. The first line holds the host, the interval and the cost of a sample. The sampler ends on SIGTERM, and when
its parent has ended. It measures the cost of a sample at the start and chooses the interval so that sampling takes at most
`MAX_CPU_SHARE` of a core, and the same again for each device. On a host with eight GPUs, this is a twentieth of a core.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from campaign.observe.telemetry.sources import Probe, SamplerOptions, SensorReading, open_probes
from campaign.observe.telemetry.sources.program_gauges import read_machine_id

SCHEMA = "telemetry/1"
MAX_CPU_SHARE = 0.006
"""Maximum share of one core for reading samples. Including all other work, sampling a host without devices takes less than
0.01."""
_REOPEN_INTERVAL_S = 1.0
"""Interval (seconds) at which the file is closed and reopened. On a shared file system, other hosts see only what was written
before a file was closed."""
_MAX_WALL_SHARE = 0.5
"""Maximum share of the sampling interval that reading may take. Some calls wait, e.g. those for PCIe rates with older drivers."""


class ProbeReader:
    """Reader of all probes of a host. Probes that fail are no longer read.

    Args:
        probes: probes to read.
        clock: clock in seconds.
        cpu: processor-time clock in seconds.
    """

    def __init__(
        self,
        probes: Iterable[Probe],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._probes = list(probes)
        self._clock, self._cpu = clock, cpu

    def read_all(self) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, list[tuple[float, float]]]]]:
        """Read all probes. Return current values, and times and values of earlier samples, each by part and quantity."""
        current_values: dict[str, dict[str, float]] = {}
        earlier_samples: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for probe in tuple(self._probes):
            for part, quantity, value, *sample_times in self._read_probe(probe):
                if sample_times:
                    earlier_samples.setdefault(part, {}).setdefault(quantity, []).append((sample_times[0], value))
                else:
                    current_values.setdefault(part, {})[quantity] = value
        return current_values, earlier_samples

    def read_frequent_probes(self, interval_s: float) -> None:
        """Read those probes that must be read more often than once per sampling interval, so that they lose no counts."""
        for probe in tuple(self._probes):
            if hasattr(probe, "max_read_interval_s") and probe.max_read_interval_s() < interval_s:
                self._read_probe(probe)

    def max_read_interval_s(self) -> float:
        """Return the longest interval (seconds) between readings at which none of the probes loses counts."""
        intervals_s = (probe.max_read_interval_s() for probe in self._probes if hasattr(probe, "max_read_interval_s"))
        return min(intervals_s, default=math.inf)

    def measure_cost_s(self) -> tuple[float, float]:
        """Measure the processor time and wall time (seconds) of reading all probes, as medians of three readings."""
        costs = []
        for _ in range(4):
            start_s, start_cpu_s = self._clock(), self._cpu()
            values = self.read_all()
            costs.append((self._cpu() - start_cpu_s, self._clock() - start_s))
        self.devices = sum(part.startswith("gpu:") for part in values[0])
        cpu_s, wall_s = zip(*costs[1:], strict=True)
        return median(cpu_s), median(wall_s)

    def _read_probe(self, probe: Probe) -> list[SensorReading]:
        try:
            return list(probe.read())
        except Exception as error:  # A failing probe must not stop the others.
            message = f"{type(probe).__name__} is no longer read: {type(error).__name__}: {error}"
            print(message, file=sys.stderr, flush=True)
            self._probes.remove(probe)
            return []


def choose_interval(requested_s: float, cpu_s: float, wall_s: float, devices: int) -> float:
    """Return the requested interval, or a longer one if sampling would otherwise exceed its share of processor time.

    Args:
        requested_s: requested interval in seconds.
        cpu_s: processor time of one sample in seconds.
        wall_s: wall time of one sample in seconds.
        devices: number of devices.
    """
    return max(requested_s, cpu_s / (MAX_CPU_SHARE * (1 + devices)), wall_s / _MAX_WALL_SHARE)


class SampleOutput:
    """Output file of the sampler, to which each line is appended by a single write call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_torn_line = False
        self._opened_s = time.monotonic()
        self._descriptor = self._open()

    def write_line(self, document: dict[str, Any]) -> None:
        """Append a document to the file as one line of JSON.

        A line that cannot be written, e.g. because the disk is full, is dropped. An incomplete line is terminated before the next
        one.
        """
        text = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        if self._has_torn_line:
            text = b"\n" + text
        try:
            if time.monotonic() > self._opened_s + _REOPEN_INTERVAL_S:
                os.close(self._descriptor)
                self._opened_s = time.monotonic()
                self._descriptor = self._open()
            self._has_torn_line = os.write(self._descriptor, text) < len(text)
        except OSError:
            self._has_torn_line = True

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


class ParentProcess:
    """Parent process of this process, watched for its end."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._poll = select.poll()
        self._is_watched = False
        with suppress(OSError):  # The parent may be in another PID namespace.
            self._poll.register(os.pidfd_open(self._pid), select.POLLIN)
            self._is_watched = True

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the parent ends or the timeout (seconds) expires, and return whether the parent has ended."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            remaining_s = max(0.0, deadline_s - time.monotonic())
            if self._is_watched:
                return bool(self._poll.poll(1e3 * remaining_s)) or os.getppid() != self._pid
            time.sleep(min(1.0, remaining_s))
            if os.getppid() != self._pid:
                return True
            if remaining_s <= 1.0:
                return False


def compute_next_tick(started_s: float, interval_s: float, now_s: float) -> float:
    """Return the next sampling time: `started_s` plus a multiple of the interval. Times already missed are skipped."""
    return started_s + (int((now_s - started_s) / interval_s) + 1) * interval_s


def sample_until_parent_ends(host: str, options: SamplerOptions, path: Path) -> None:
    """Sample the host at regular intervals and write the samples to a file, until the parent process ends."""
    parent, output = ParentProcess(), SampleOutput(path)
    # The number of the network namespace distinguishes hosts that are emulated on the same machine.
    network = Path("/proc/self/ns/net").stat().st_ino
    probes, problems = open_probes(options)
    reader = ProbeReader(probes)
    cpu_s, wall_s = reader.measure_cost_s()
    interval_s = choose_interval(options.interval_s, cpu_s, wall_s, reader.devices)
    header = {"schema_version": SCHEMA, "host": host, "machine": read_machine_id(), "network": network}
    output.write_line({**header, "interval_s": interval_s, "look_s": cpu_s, "problems": problems})
    started_s = time.monotonic()
    while True:
        current_values, earlier_samples = reader.read_all()
        if current_values or earlier_samples:
            samples = {"sampled": earlier_samples} if earlier_samples else {}
            output.write_line({"time": time.time(), "monotonic": time.monotonic(), "read": current_values, **samples})
        tick = compute_next_tick(started_s, interval_s, time.monotonic())
        while (remaining_s := tick - time.monotonic()) > 0:
            needed_s = reader.max_read_interval_s()
            if parent.wait_for_end(min(remaining_s, needed_s)):
                return
            if needed_s < remaining_s:
                reader.read_frequent_probes(interval_s)


def main() -> None:
    """Parse the command line and run the sampler."""
    parser = argparse.ArgumentParser(prog="python -m campaign.observe.telemetry.sampler", description=__doc__)
    parser.add_argument("--host", required=True, help="name of the host in the samples")
    parser.add_argument("--interval", required=True, type=float, help="seconds between samples, at least 0.1")
    parser.add_argument("--out", required=True, type=Path, help="file to which samples are appended")
    parser.add_argument("--gauges", type=Path, help="directory in which programs publish their own values")
    parser.add_argument("--mark", default="", help="beginning of the mark of the campaign's processes")
    parser.add_argument("--load-only", action="store_true", help="sample only processor time")
    arguments = parser.parse_args()
    if arguments.interval < 0.1:
        parser.error(
            f"--interval {arguments.interval:g} is too short; give at least 0.1 s, so that sampling takes less than 1 % of a core"
        )
    options = SamplerOptions(arguments.interval, arguments.gauges, arguments.mark, arguments.load_only)
    sample_until_parent_ends(arguments.host, options, arguments.out)


if __name__ == "__main__":
    main()
