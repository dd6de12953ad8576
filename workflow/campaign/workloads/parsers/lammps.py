"""LAMMPS: log.lammps, or what it prints.

The rate is in ns/day for `units real` and `metal`, in tau/day for `lj`; the unit of atom steps changes with their number
(atom-step/s, katom-step/s, Matom-step/s), so that they are computed anew from the loop time. A script may run several times,
such as to reach equilibrium: each run is a test of its own. A LAMMPS without MPI under mpirun simulates the whole system once
for each rank, each `on 1 procs`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict, agree

_BEGIN = re.compile(r"LAMMPS \(\d{1,2} [A-Z][a-z]{2} \d{4}")
_LOOP = re.compile(rf"Loop time of ({F}) on (\d{{1,9}}) procs for (\d{{1,15}}) steps with (\d{{1,15}}) atoms\s*$")
_RATE = re.compile(
    rf"Performance: ({F}) (ns|tau|fs|ps|sec)/day, (?:({F}) hours/ns, )?({F}) timesteps/s(?:, ({F}) [kMGT]?atom-step/s)?\s*$"
)
_NAMES = {"ns": "simulated_ns_per_day", "tau": "simulated_tau_per_day"}


@dataclass
class _Loop:
    time_s: float
    ranks: int
    steps: int
    atoms: int
    rate: float | None = None
    unit: str = ""
    steps_per_s: float | None = None


class Lammps(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.begun = False
        self.ended = 0
        self.loop: _Loop | None = None

    def line(self, line: str) -> None:
        if _BEGIN.match(line):
            if self.begun:
                return self.another(line)
            self.begun = True
        elif found := _LOOP.match(line):
            if self.loop is not None:  # the script goes on: this run came to its end
                self.ended = self.ended or 1
                return self.another(line)
            self.loop = _Loop(float(found[1]), int(found[2]), int(found[3]), int(found[4]))
            self.begun = True
        elif (found := _RATE.match(line)) and self.loop is not None:
            loop = self.loop
            loop.rate, loop.unit, loop.steps_per_s = float(found[1]), found[2], float(found[4])
        elif line.startswith("Total wall time:"):
            self.ended += 1

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        loop = self.loop
        if loop is None:
            verdict.incomplete("no 'Loop time of' in the output")
            return
        if not self.ended:
            verdict.incomplete("the output ends before 'Total wall time'")
        if self.ended > 1:
            verdict.invalid("several simulations ran at once in place of one: LAMMPS was built without MPI")
        if scope.ranks is not None and loop.ranks != scope.ranks:
            verdict.flag(f"LAMMPS used {loop.ranks} processes, the run {scope.ranks} devices")
        self.rates(verdict, loop)

    def rates(self, verdict: Verdict, loop: _Loop) -> None:
        if not math.isfinite(loop.time_s) or not all(
            math.isfinite(rate or 0.0) for rate in (loop.rate, loop.steps_per_s)
        ):
            verdict.nan("a time or rate is not a number")
            return
        steps_per_s = loop.steps / loop.time_s if loop.time_s > 0 else 0.0
        if not steps_per_s:
            verdict.invalid(f"{loop.steps} steps in {loop.time_s:g} s are no run")
            return
        if loop.steps_per_s is not None and not agree(steps_per_s, loop.steps_per_s, 1e-3, 0.002):
            verdict.invalid(
                f"{loop.steps} steps in {loop.time_s:g} s are not {loop.steps_per_s:g} timesteps/s; a line is torn"
            )
        verdict.metrics |= {
            "timesteps_per_s": steps_per_s,
            "atom_steps_per_s": steps_per_s * loop.atoms,
            "loop_time_s": loop.time_s,
        }
        if loop.unit in _NAMES:
            verdict.metrics[_NAMES[loop.unit]] = loop.rate


FORMAT = Format(
    Lammps, needles=(b"LAMMPS (", b"Loop time of ", b"Performance: ", b"Total wall time:"), line_max=1 << 10
)
