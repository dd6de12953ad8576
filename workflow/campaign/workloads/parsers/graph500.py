"""Graph500's reference code: rates of breadth-first search (BFS) and shortest paths (SSSP).

The score is the harmonic mean of the rates over all roots, marked by `!`; other means are larger. It counts only where the
results were validated: with SKIP_VALIDATION the times of validation are -1, and the run is flagged. A TEPS is an edge traversed
per second. Rates of different scales or edge factors cannot be compared.
"""

from __future__ import annotations

import math
import re

from campaign.workloads.parsers.reading import F, Format, LogReader, Scope, Verdict

_VALUE = re.compile(rf"(?:(bfs|sssp) +)?([A-Za-z_]{{3,40}}): +(?:! +)?({F})\s*$")
_NUMBERS = frozenset(
    {"scale", "num_mpi_processes", "construction_time", "min_teps", "max_teps", "harmonic_mean_teps", "mean_validate"}
)
_INVALID = "No results printed for invalid run"


class Graph500(LogReader):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, str], float] = {}
        self.invalid = False

    def line(self, line: str) -> None:
        if _INVALID in line:
            if self.values:
                return self.another(line)
            self.invalid = True
        elif found := _VALUE.match(line):
            name = found[2].lower()
            if name == "scale" and (self.values or self.invalid):
                return self.another(line)
            if name in _NUMBERS:
                self.values[found[1] or "bfs", name] = float(found[3])

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        if self.invalid:
            verdict.invalid("the validation failed")
        elif ("bfs", "harmonic_mean_teps") not in self.values:
            verdict.incomplete("no harmonic mean of TEPS in the output")
        elif ("bfs", "mean_validate") not in self.values:
            verdict.incomplete("the output ends before the times of validation")
        for kind in ("bfs", "sssp"):
            self.check(verdict, kind)
        processes = self.values.get(("bfs", "num_mpi_processes"))
        if scope.ranks is not None and processes is not None and processes != scope.ranks:
            verdict.flag(f"Graph500 used {processes:g} processes, the run {scope.ranks} devices")
        verdict.metrics["construction_time_s"] = self.values.get(("bfs", "construction_time"))
        verdict.metrics["scale"] = self.values.get(("bfs", "scale"))

    def check(self, verdict: Verdict, kind: str) -> None:
        least, mean, most = (self.values.get((kind, f"{name}_teps")) for name in ("min", "harmonic_mean", "max"))
        if mean is None:
            return
        if not math.isfinite(mean):
            verdict.nan(f"the rate of {kind} is not a number")
        elif least is None or most is None or not 0 < least * (1 - 1e-5) <= mean <= most * (1 + 1e-5):
            verdict.invalid(f"the mean rate of {kind} lies outside of its smallest and largest; a line is torn")
        else:
            verdict.metrics[f"{kind}_gteps"] = mean / 1e9
        if (validated := self.values.get((kind, "mean_validate"))) is not None and validated < 0:
            verdict.flag(f"the results of {kind} were not validated")


FORMAT = Format(
    Graph500,
    needles=(b"_TEPS:", b"SCALE:", b"num_mpi_processes:", b"construction_time:", b"mean_validate:", _INVALID.encode()),
    line_max=1 << 10,
)
