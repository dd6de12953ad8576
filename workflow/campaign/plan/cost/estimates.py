"""The time of leases and what they hold meanwhile, as it is expected: by part, with intervals, or unknown. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from campaign.documents.cell import Cell, Configuration
from campaign.fabrics.operations import Operations
from campaign.wording import plural, some

Part = Literal["composing", "queue", "start", "runs", "between", "release"]
"""What a lease's time is made of: until its composition is ready; until its driver begins; up to the first run; runs; between them;
from the last one until everything is released."""
PARTS: tuple[Part, ...] = get_args(Part)

NEEDED: frozenset[Part] = frozenset({"composing", "runs"})
"""Parts without which the whole is unknown; without the others, it is what is known of it."""

Kind = tuple[str, str]
"""Workload, and model of device."""


def kind_of(cell: Cell) -> Kind:
    return cell.workload, cell.configuration.device


def needs_fabric(configuration: Configuration) -> bool:
    return configuration.fabric_devices_per_host > 0 or configuration.storage == "fabric-nvme"


@dataclass(frozen=True)
class HeldResources:
    """Devices and hosts held in each part of a lease's time. idle: devices that no run uses; donors: hosts that lend one."""

    devices: Mapping[Part, float]
    hosts: Mapping[Part, float]
    idle: float = 0.0
    donors: int = 0


@dataclass(frozen=True)
class Work:
    """What one lease is to do: how many runs of which cells. held: by default what the configuration names, all the time.

    operations: of the fabric, to compose it; None where they are not known before.
    """

    lease: str
    configuration: Configuration
    runs: Sequence[tuple[Cell, int]]
    needs_fabric: bool
    held: HeldResources | None = None
    operations: Operations | None = None

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)

    def devices(self, part: Part) -> float:
        return self.held.devices[part] if self.held else float(self.configuration.devices)

    def hosts(self, part: Part) -> float:
        return self.held.hosts[part] if self.held else float(self.configuration.hosts)


@dataclass(frozen=True)
class Estimate:
    """Seconds, and their 95 % interval. expected_s: None where they are unknown; low_s and high_s: where they are assumed, too."""

    expected_s: float | None
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True)
class Expected(Estimate):
    """A duration as a whole and by part, and what it rests on. Parts that are unknown and not `NEEDED` count as nothing."""

    parts: Mapping[Part, Estimate] = field(default_factory=lambda: dict.fromkeys(PARTS, Estimate(None)))
    basis: str = ""

    @property
    def runs_s(self) -> float | None:
        """Duration of the runs and of what lies between them."""
        runs_s = self.parts["runs"].expected_s
        return None if runs_s is None else runs_s + (self.parts["between"].expected_s or 0.0)


NOTHING = Expected(0.0, 0.0, 0.0, dict.fromkeys(PARTS, Estimate(0.0, 0.0, 0.0)), "nothing to do")


@dataclass(frozen=True)
class Unknown:
    """What of some works nothing is known of: runs by workload and model of device, and how many leases are composed."""

    runs: Mapping[Kind, int]
    composed: int

    def __bool__(self) -> bool:
        return bool(self.runs or self.composed)

    @property
    def run_count(self) -> int:
        return sum(self.runs.values())

    def words(self) -> str:
        """'960 runs of unknown duration (no earlier run of bert-large on a100 with this kind of fabric)'."""
        names = [f"{workload} on {device}" for workload, device in sorted(self.runs)]
        kinds = f"no earlier run of {some(names)} with this kind of fabric"
        runs = f"{plural(self.run_count, 'run')} of unknown duration ({kinds})"
        composed = f"{plural(self.composed, 'lease')} of unknown composition time"
        return " and ".join(words for words, there in ((runs, self.runs), (composed, self.composed)) if there)

    def advice(self) -> str:
        """What a person can do to know more."""
        times = (("10 min a run", self.runs), ("1 min to compose", self.composed))
        assumed = ", ".join(time for time, there in times if there)
        return (
            f"assume a time (--assume '{assumed}'), learn from other results (--learn-from), or measure a few cells first "
            "(--where)"
        )


@dataclass(frozen=True)
class Prices:
    """What each part of some works costs, in seconds or device-seconds: once a lease, and each run of each of its cells; not a
    number where it is unknown."""

    once_s: tuple[float, ...]
    run_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Forecast:
    """What some works will take. total: all leases one after the other; device_s, host_s: the same in device- and host-seconds."""

    leases: tuple[Expected, ...]
    total: Expected
    device_s: Estimate
    host_s: Estimate
    unknown: Unknown
    composing_from: str = ""
    """What times of operations of the fabric rest on; empty where there is none to make."""


def nothing_known(works: Sequence[Work]) -> Forecast:
    """The forecast where no time is known; it needs no NumPy."""
    runs: Counter[Kind] = Counter()
    for work in works:
        for cell, count in work.runs:
            runs[kind_of(cell)] += count
    leases = tuple(Expected(None, basis="nothing is known") if work.count else NOTHING for work in works)
    whole = Expected(None) if runs else NOTHING
    return Forecast(leases, whole, whole, whole, Unknown(runs, sum(w.needs_fabric for w in works if w.count)))
