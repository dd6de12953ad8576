"""The process beside the runs of one host: `python -m campaign.observe.telemetry.sampler --host NAME --interval S --out FILE`.

FILE gets a line of JSON a sample, each written at once, so that whatever ends this process tears at most the last one; the first
line says what is sampled. It ends by SIGTERM, as anything does, and when its parent has ended. It takes no more than `SHARE` of a
core: where reading everything costs more, what has not been read for longest comes first, and the rest waits for the next sample.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from campaign.observe.telemetry.sources import Probe, SamplerOptions, open_probes
from campaign.observe.telemetry.sources.program_gauges import machine

SCHEMA = "telemetry/1"
SHARE = 0.006
"""Of one core, for reading; with what comes around it, sampling stays under 0.01."""
_SHOWN_S = 1.0  # a shared file system shows what was written when the file is closed


class Turns:
    """Reads all probes if that is cheap, otherwise those that were not read for longest. clock, cpu: seconds."""

    def __init__(
        self,
        probes: Iterable[Probe],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self._waiting = deque(probes)
        self._clock, self._cpu = clock, cpu
        # Opening, and the first sample of all, are not counted: every sampler pays for them once.
        self._since: tuple[float, float] | None = None

    def sample(self) -> dict[str, dict[str, float]]:
        """Values by part and quantity, of the probes whose turn it is."""
        found: dict[str, dict[str, float]] = {}
        for _ in range(len(self._waiting)):
            if not self._affordable():
                break
            probe = self._waiting.popleft()
            try:
                for part, quantity, value in probe.read():
                    found.setdefault(part, {})[quantity] = value
            except Exception as error:  # one that breaks must not cost the others
                words = f"{type(probe).__name__} is not read any more: {type(error).__name__}: {error}"
                print(words, file=sys.stderr, flush=True)
            else:
                self._waiting.append(probe)
        self._since = self._since or (self._clock(), self._cpu())
        return found

    def _affordable(self) -> bool:
        started, used_s = self._since or (0.0, float("inf"))
        return self._cpu() - used_s <= SHARE * (self._clock() - started)


class SampleOutput:
    """A file that lines are appended to, each by one write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False
        self._opened = time.monotonic()
        self._descriptor = self._open()

    def line(self, document: dict[str, Any]) -> None:
        """Append a line. Where that is not possible (a full disk), it is left out; what was torn ends before the next."""
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
    """The process that has started this one."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._poll = select.poll()
        self._watched = False
        with suppress(OSError):  # a parent that is in another namespace of pids
            self._poll.register(os.pidfd_open(self._pid), select.POLLIN)
            self._watched = True

    def ended_within(self, wait_s: float) -> bool:
        """Wait for so long, or until the parent has ended."""
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
    """The next time of the grid that begins at `started`; ticks that were missed are not made up for."""
    return started + (int((now - started) / interval_s) + 1) * interval_s


def run(host: str, asked: SamplerOptions, out: Path) -> None:
    """Sample until the parent has ended."""
    parent, output = Parent(), SampleOutput(out)
    # What tells this host's network from those of others on the same machine.
    network = Path("/proc/self/ns/net").stat().st_ino
    header = {"schema_version": SCHEMA, "host": host, "machine": machine(), "network": network}
    output.line({**header, "interval_s": asked.interval_s})
    turns = Turns(open_probes(asked))
    started = time.monotonic()
    while True:
        if found := turns.sample():
            output.line({"time": time.time(), "monotonic": time.monotonic(), "read": found})
        now = time.monotonic()
        if parent.ended_within(next_tick(started, asked.interval_s, now) - now):
            return


def main() -> None:
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
