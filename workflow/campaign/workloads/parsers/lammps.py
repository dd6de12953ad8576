"""LAMMPS: log.lammps, or what it prints.

The rate is in ns/day for `units real` and `metal`, in tau/day for `lj`; the unit of atom steps changes with their number
(atom-step/s, katom-step/s, Matom-step/s), so that they are computed anew from the loop time. A script may run several times:
the last run counts. A LAMMPS without MPI under mpirun simulates the whole system once for each rank, each `on 1 procs`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from campaign.workloads.parsers.reading import F, Format, Reading, Scope, Verdict, agree

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


class Lammps:
    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.at_once = False
        self.loops: list[_Loop] = []
        self.count = 0

    def feed(self, line: str) -> None:
        if _BEGIN.match(line):
            self.at_once = self.at_once or self.begun > self.ended
            self.begun += 1
            self.count, self.loops = 0, []  # another start: the last counts
        elif found := _LOOP.match(line):
            self.loops = [_Loop(float(found[1]), int(found[2]), int(found[3]), int(found[4]))]
            self.count += 1
        elif (found := _RATE.match(line)) and self.loops:
            loop = self.loops[-1]
            loop.rate, loop.unit, loop.steps_per_s = float(found[1]), found[2], float(found[4])
        elif line.startswith("Total wall time:"):
            self.ended += 1

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if not self.loops:
            verdict.incomplete("no 'Loop time of' in the output")
            return verdict.reading()
        loop = self.loops[-1]
        if self.ended < self.begun or not self.ended:
            verdict.incomplete("the output ends before 'Total wall time'")
        if self.at_once:
            verdict.invalid("several simulations ran at once in place of one: LAMMPS was built without MPI")
        if self.count > 1:
            verdict.flag(f"{self.count} runs in the output: the last counts")
        if scope.ranks is not None and loop.ranks != scope.ranks:
            verdict.flag(f"LAMMPS used {loop.ranks} processes, the run {scope.ranks} devices")
        self.rates(verdict, loop)
        return verdict.reading()

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
