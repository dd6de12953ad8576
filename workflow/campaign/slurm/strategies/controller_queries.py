"""Hosts, jobs and reservations as the controller reports them: the commands, and parsers of their output. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from campaign.slurm.parse import NOTHING, expand_hosts, rows

_WIDTHS = {"NodeList": 64, "StateComplete": 128, "Gres": 256, "Reason": 256}

NODES = ("sinfo", "--Node", "--noheader", f"--Format={','.join(f'{name}:{width}' for name, width in _WIDTHS.items())}")
JOBS = (
    "squeue",
    "--noheader",
    "--states=RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,SIGNALING,STAGE_OUT",
    "--format=%A|%u|%v|%T",
)
RESERVATIONS = ("scontrol", "show", "reservation", "--oneliner")

_USABLE = frozenset({"idle", "mixed", "allocated"})
_SILENT = "not_responding"
_BROKEN = frozenset({"down", _SILENT, "invalid_reg", "fail", "error", "future", "unknown"})
_ASLEEP = frozenset({"powered_down", "powering_down", "powering_up", "power_down", "power_up"})


@dataclass(frozen=True, slots=True)
class Node:
    """A host as Slurm knows it. state: in Slurm's own words; reason: why it is drained or down, empty for none."""

    name: str
    state: frozenset[str]
    gres: str
    reason: str

    @property
    def drained(self) -> bool:
        return "drain" in self.state

    @property
    def silent(self) -> bool:
        """Whether its slurmd has not answered yet, as for a moment after it was drained and taken back."""
        return _SILENT in self.state

    @property
    def broken(self) -> bool:
        """Whether no job will ever start there by itself; a host that Slurm has put to sleep is not broken."""
        return self.drained or bool(self.state & _BROKEN)

    @property
    def serves(self) -> bool:
        """Whether its slurmd is registered and answers; a host that is only drained serves."""
        return bool(self.state & _USABLE) and not self.state & (_BROKEN | _ASLEEP)

    @property
    def words(self) -> str:
        said = f"{'+'.join(sorted(self.state))}, Gres {self.gres or 'none'}"
        return f"{said}, {self.reason}" if self.reason else said

    def devices(self, gres: str) -> int:
        """How many of a generic resource it registered with; `gres` with its type (`gpu:a100`) counts that type only."""
        return count_gres(self.gres, gres)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that holds hosts. reservation: whose hosts it runs on, empty for none."""

    id: str
    user: str
    reservation: str
    state: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """Hosts that are kept for somebody. start: as Slurm writes times; active: it has begun."""

    name: str
    hosts: frozenset[str]
    start: str
    active: bool


def parse_nodes(text: str) -> dict[str, Node]:
    """Hosts by name from the answer to NODES. A host of several partitions stands there several times."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        if len(line) < sum(_WIDTHS.values()):
            continue  # a warning
        cells, start = [], 0
        for width in _WIDTHS.values():
            cells.append(line[start : start + width].strip())
            start += width
        name, state, gres, reason = ("" if cell in NOTHING else cell for cell in cells)
        found[name] = Node(name, frozenset(state.lower().split("+")), gres, reason)
    return found


def parse_jobs(text: str) -> tuple[Job, ...]:
    """Jobs from the answer to JOBS."""
    return tuple(Job(*row) for row in rows(text, 4))


def parse_reservations(text: str) -> dict[str, Reservation]:
    """Reservations by name from the answer to RESERVATIONS."""
    found: dict[str, Reservation] = {}
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if name := words.get("ReservationName"):
            hosts = frozenset(expand_hosts(words.get("Nodes", "")))
            found[name] = Reservation(name, hosts, words.get("StartTime", ""), words.get("State") == "ACTIVE")
    return found


def count_gres(text: str, gres: str) -> int:
    """Number of one generic resource in Slurm's words: 2 of `gpu` in `gpu:a100:2(S:0-1),nvme:1`."""
    name, _, kind = gres.partition(":")
    count = 0
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = entry.strip().split(":")
        if parts[0] != name or (kind and (len(parts) < 3 or parts[1] != kind)):
            continue
        count += int(parts[-1]) if parts[-1].isdigit() else 1
    return count
