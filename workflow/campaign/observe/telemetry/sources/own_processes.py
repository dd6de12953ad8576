"""Processor time of the processes of a campaign on this host, to distinguish it from the load by other programs.

The processes of a campaign are the driver that measures (with the sampler and all its other descendants), and all processes with
the mark of the results directory or the token of the same Snakemake in their environment (`campaign.common.processes.marked`), with
their descendants. Snakemake itself does not have its token, but starts processes that do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from campaign.common.processes.marked import INVOCATION_VARIABLE, MARK_VARIABLE, list_pids, read_process_words
from campaign.observe.telemetry.sources import Probe, SamplerOptions, SensorReading

OWN_CPU_QUANTITY = "cpu_own_s"


class ProcessTimes(NamedTuple):
    """Parent and processor time of a process.

    Attributes:
        parent: pid of the parent.
        cpu_s: processor time in seconds of the process and of its ended children.
    """

    parent: int
    cpu_s: float


def parse_process_times(text: str, ticks_per_s: float) -> ProcessTimes:
    """Parse the content of `/proc/PID/stat`. The name of the program in it may contain spaces and parentheses."""
    words = text.rpartition(")")[2].split()
    return ProcessTimes(int(words[1]), sum(map(int, words[11:15])) / ticks_per_s)


@dataclass
class OwnProcesses:
    """Probe of the processor time (seconds) of all processes of a campaign on this host.

    A process that has ended is included in the time of its parent. A process without a parent in the campaign is a root, whose
    time is kept after its end. Only new processes are examined for their mark.

    Args:
        root: pid of a process whose descendants belong to the campaign.
        mark: beginning of the mark of the campaign's processes; empty if they have none.
        invocation: token of the Snakemake that started the campaign's processes; empty if there is none.
    """

    root: int
    mark: str = ""
    invocation: str = ""
    _roots_by_pid: dict[int, int] = field(default_factory=dict)
    _previous_pids: set[int] = field(default_factory=set)
    _examined_pids: set[int] = field(default_factory=set)
    _ended_s: float = 0.0
    _root_times_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def read(self) -> Iterator[SensorReading]:
        pids = set(list_pids())
        self._find_new_processes(sorted(pids - self._examined_pids))
        # A process is examined twice, because it may get its mark after the first time, when it starts its program.
        self._examined_pids, self._previous_pids = self._previous_pids & pids, pids
        times_s = dict.fromkeys(self._roots_by_pid.values(), 0.0)
        for pid, root in list(self._roots_by_pid.items()):
            if (times := self._read_times(pid)) is None:
                del self._roots_by_pid[pid]
            else:
                times_s[root] += times.cpu_s
        ended_roots = self._root_times_s.keys() - self._roots_by_pid.keys()
        self._ended_s += sum(self._root_times_s[root] for root in ended_roots)
        self._root_times_s = {root: seconds for root, seconds in times_s.items() if root in self._roots_by_pid}
        # The time that a root used between the last reading and its end is unknown, so no value is given then.
        if not ended_roots:
            yield "host", OWN_CPU_QUANTITY, self._ended_s + sum(self._root_times_s.values())

    def _find_new_processes(self, pids: Sequence[int]) -> None:
        """Find the processes of the campaign among new ones. In the second round, parents with larger pids are known."""
        for _ in range(2):
            for pid in pids:
                if pid in self._roots_by_pid or (times := self._read_times(pid)) is None:
                    continue
                if times.parent in self._roots_by_pid:
                    self._roots_by_pid[pid] = self._roots_by_pid[times.parent]
                elif pid == self.root or self._has_variable(pid, MARK_VARIABLE, self.mark):
                    self._roots_by_pid[pid] = pid
                elif self._has_variable(pid, INVOCATION_VARIABLE, self.invocation):
                    self._roots_by_pid[pid] = times.parent if self._add_snakemake(times.parent) else pid

    def _add_snakemake(self, pid: int) -> bool:
        """Add the parent of a process with the token, in the first reading. Return whether it was added.

        Snakemake runs before any sampler. Later, the time that it and its descendants used so far would seem to be used at once.
        """
        if self._previous_pids or pid <= 1 or self._read_times(pid) is None:
            return False
        self._roots_by_pid[pid] = pid
        return True

    def _has_variable(self, pid: int, name: str, prefix: str) -> bool:
        """Return whether an environment variable of a process begins with a prefix, which is not empty."""
        assignment = f"{name}={prefix}".encode()
        return bool(prefix) and any(variable.startswith(assignment) for variable in read_process_words(pid, "environ"))

    def _read_times(self, pid: int) -> ProcessTimes | None:
        """Return the times of a process, or None if it has ended."""
        try:
            return parse_process_times(
                Path(f"/proc/{pid}/stat").read_text(errors="replace", encoding="utf-8"), self._ticks_per_s
            )
        except OSError:
            return None


def open_probes(options: SamplerOptions) -> Sequence[Probe]:
    """Open the probe of the campaign's processes, including this sampler and the process that started it."""
    return [OwnProcesses(os.getppid(), options.mark, os.environ.get(INVOCATION_VARIABLE, ""))]
