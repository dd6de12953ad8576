"""What every workload offers: the step that measures one run, and what is read from the run's remains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from campaign.documents.cell import Cell
from campaign.documents.record import Failure, Status
from campaign.fabrics.protocol import Composition
from campaign.workloads.logs import Log


@dataclass(frozen=True)
class Storage:
    """A directory on the configuration's kind of storage; gb_per_s: the rate of a host's link to it, where emulated."""

    path: Path
    gb_per_s: float | None = None


@dataclass(frozen=True)
class Run:
    """One run about to be launched. `directory` is the run's own and empty; `runs_on`: what the devices are.

    storage: of the configuration's kind, where the system file says where that is; peak_tflops: of a device in the cell's
    precision; launcher: who starts it.
    """

    cell: Cell
    repetition: int
    composition: Composition
    directory: Path
    runs_on: Literal["cuda", "cpu"]
    storage: Storage | None = None
    peak_tflops: float | None = None
    launcher: Literal["local", "slurm"] = "local"

    @property
    def ranks_by_host(self) -> Mapping[str, int]:
        """How many of each host's devices the run uses, one rank each."""
        return {host.name: self.cell.configuration.devices_used for host in self.composition.hosts}


@dataclass(frozen=True)
class Step:
    """What a launcher starts: one process, or one a rank.

    preload: a module whose `parent` forks ranks cheaply; a launcher that cannot use it starts `argv`. takes_devices: False for a
    program that only stands for devices, and is given nothing for them; srun: further words for an srun that starts the ranks.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ranks_by_host: Mapping[str, int]
    per_rank: bool = True
    preload: str | None = None
    takes_devices: bool = True
    srun: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a step ended. codes: by rank (or of the one process), negative for a signal, None when it never ended by itself.

    flags: what a reader of the run's numbers should know of how it was launched.
    """

    codes: tuple[int | None, ...]
    started: float
    ended: float
    timed_out: bool = False
    memory_limit_hit: bool = False
    exit_hang: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a run gave. Rates are per second over all ranks.

    steady: Unix seconds between which all ranks were measured, by the clocks of their hosts; None where that is not known.
    """

    status: Status
    failure: Failure | None = None
    throughput_per_s: float | None = None
    step_times_s: tuple[tuple[float, ...], ...] = ()
    window_s: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    steady: tuple[float, float] | None = None
    flags: tuple[str, ...] = ()


class Workload(Protocol):
    """One kind of workload."""

    def objection(self, cell: Cell, runs_on: str) -> str | None:
        """Why this cell cannot be run at all on such a device (`unsupported`), or None."""

    def step(self, run: Run) -> Step:
        """The step that measures the run; may write what it needs into `run.directory`."""

    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        """What came out; failures of the subject are outcomes, not exceptions."""
