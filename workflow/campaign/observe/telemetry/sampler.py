"""The process beside the runs of one host: `python -m campaign.observe.telemetry.sampler --host NAME --interval S --out FILE`.

FILE gets a line of JSON a sample, each written at once, so that whatever ends this process tears at most the last one; the first
line says what is sampled, how often, and what a look costs. It ends by SIGTERM, as anything does, and when its parent has ended.
What a look costs is measured at the start, and the interval follows: looks take no more than `SHARE` of a core, and as much again
for each device. On a host of eight GPUs that is one core in twenty.
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
from campaign.observe.telemetry.sources.program_gauges import machine

SCHEMA = "telemetry/1"
SHARE = 0.006
"""Of one core, for looks; with what comes around them, sampling a host without devices stays under 0.01."""
_SHOWN_S = 1.0  # a shared file system shows what was written when the file is closed
_MOST_WALL_SHARE = 0.5  # calls that wait, as for PCIe rates of older drivers, shall not fill the interval


class Looks:
    """Reader of all probes.

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

    def sample(self) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, list[tuple[float, float]]]]]:
        """Return the current values, and times and values of earlier samples, both by part and quantity."""
        read: dict[str, dict[str, float]] = {}
        sampled: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for probe in tuple(self._probes):
            for part, quantity, value, *at in self._read(probe):
                if at:
                    sampled.setdefault(part, {}).setdefault(quantity, []).append((at[0], value))
                else:
                    read.setdefault(part, {})[quantity] = value
        return read, sampled

    def between(self, interval_s: float) -> None:
        """Read the probes that must be read more often than the sampling interval."""
        for probe in tuple(self._probes):
            if hasattr(probe, "needed_every_s") and probe.needed_every_s() < interval_s:
                self._read(probe)

    def needed_every_s(self) -> float:
        """Return the longest interval (seconds) at which such probes lose no counts."""
        every_s = (probe.needed_every_s() for probe in self._probes if hasattr(probe, "needed_every_s"))
        return min(every_s, default=math.inf)

    def cost_s(self) -> tuple[float, float]:
        """Measure processor time and wall time of reading all probes (seconds), as medians of three after a warm-up."""
        looks = []
        for _ in range(4):
            now, used = self._clock(), self._cpu()
            found = self.sample()
            looks.append((self._cpu() - used, self._clock() - now))
        self.devices = sum(part.startswith("gpu:") for part in found[0])
        cpu_s, wall_s = zip(*looks[1:], strict=True)
        return median(cpu_s), median(wall_s)

    def _read(self, probe: Probe) -> list[SensorReading]:
        try:
            return list(probe.read())
        except Exception as error:  # one that breaks must not cost the others
            words = f"{type(probe).__name__} is not read any more: {type(error).__name__}: {error}"
            print(words, file=sys.stderr, flush=True)
            self._probes.remove(probe)
            return []


def interval_in_force(asked_s: float, cpu_s: float, wall_s: float, devices: int) -> float:
    """Return the requested interval, or the shortest one at which sampling stays within its share of processor time.

    Args:
        asked_s: requested interval in seconds.
        cpu_s: processor time of one sample.
        wall_s: wall time of one sample.
        devices: number of devices.
    """
    return max(asked_s, cpu_s / (SHARE * (1 + devices)), wall_s / _MOST_WALL_SHARE)


class SampleOutput:
    """File to which lines are appended, each by one write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False
        self._opened = time.monotonic()
        self._descriptor = self._open()

    def line(self, document: dict[str, Any]) -> None:
        """Append a document as one line.

        A line that cannot be written (full disk) is left out, and a torn line is ended before the next one.
        """
        text = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        if self._torn:
            text = b"\n" + text
        try:
            if time.monotonic() > self._opened + _SHOWN_S:
                os.close(self._descriptor)
                self._opened = time.monotonic()
                self._descriptor = self._open()
            self._torn = os.write(self._descriptor, text) < len(text)
        except OSError:
            self._torn = True

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


class Parent:
    """Process that started this one."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._poll = select.poll()
        self._watched = False
        with suppress(OSError):  # a parent that is in another namespace of pids
            self._poll.register(os.pidfd_open(self._pid), select.POLLIN)
            self._watched = True

    def ended_within(self, wait_s: float) -> bool:
        """Wait for this many seconds or until the parent has ended, and return whether it has ended."""
        until = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            if self._watched:
                return bool(self._poll.poll(1e3 * left_s)) or os.getppid() != self._pid
            time.sleep(min(1.0, left_s))
            if os.getppid() != self._pid:
                return True
            if left_s <= 1.0:
                return False


def next_tick(started: float, interval_s: float, now: float) -> float:
    """Return the next time on the grid that begins at `started`; missed ticks are skipped."""
    return started + (int((now - started) / interval_s) + 1) * interval_s


def run(host: str, asked: SamplerOptions, out: Path) -> None:
    """Sample the host until the parent process has ended."""
    parent, output = Parent(), SampleOutput(out)
    # What tells this host's network from those of others on the same machine.
    network = Path("/proc/self/ns/net").stat().st_ino
    probes, problems = open_probes(asked)
    looks = Looks(probes)
    cpu_s, wall_s = looks.cost_s()
    interval_s = interval_in_force(asked.interval_s, cpu_s, wall_s, looks.devices)
    header = {"schema_version": SCHEMA, "host": host, "machine": machine(), "network": network}
    output.line({**header, "interval_s": interval_s, "look_s": cpu_s, "problems": problems})
    started = time.monotonic()
    while True:
        read, sampled = looks.sample()
        if read or sampled:
            samples = {"sampled": sampled} if sampled else {}
            output.line({"time": time.time(), "monotonic": time.monotonic(), "read": read, **samples})
        tick = next_tick(started, interval_s, time.monotonic())
        while (left_s := tick - time.monotonic()) > 0:
            needed_s = looks.needed_every_s()
            if parent.ended_within(min(left_s, needed_s)):
                return
            if needed_s < left_s:
                looks.between(interval_s)


def main() -> None:
    """Parse the command line and run the sampler."""
    parser = argparse.ArgumentParser(prog="python -m campaign.observe.telemetry.sampler", description=__doc__)
    parser.add_argument("--host", required=True, help="its name in the samples")
    parser.add_argument("--interval", required=True, type=float, help="seconds between samples, from 0.1 on")
    parser.add_argument("--out", required=True, type=Path, help="file that samples are appended to")
    parser.add_argument("--gauges", type=Path, help="directory in which programs publish values of their own")
    asked = parser.parse_args()
    if asked.interval < 0.1:
        parser.error(
            f"--interval {asked.interval:g} is too short: from 0.1 s on, sampling takes less than 1 % of a core"
        )
    run(asked.host, SamplerOptions(asked.interval, asked.gauges), asked.out)


if __name__ == "__main__":
    main()
