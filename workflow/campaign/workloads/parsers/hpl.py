"""Parser of High-Performance Linpack (netlib, vendors', NVIDIA's containers) and HPL-MxP.

A result counts only if its residual check PASSED and its rate matches its size and time: (2/3 N^3 + 3/2 N^2) /
time, as the program computes it (netlib HPL 2.3, HPL_pdtest). Of several results of one HPL.dat the best that
passed counts, as in the TOP500. One that FAILED makes the run invalid, since something was computed wrongly.
The columns of NVIDIA's newest containers are unverified. HPL-MxP prints neither size nor time in such a row:
its rate counts if its own check PASSED.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict, agree

_RESULT = re.compile(
    rf"\s*(W[A-Z]\w{{2,20}})\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+({F})\s+({F})(?:\s+\(\s*({F})\s*\))?\s*$"
)
_BEGIN = re.compile(r"\s*HPL\S* +\S+ +-- .*benchmark", re.IGNORECASE)
_CHECK = re.compile(rf"\s*\|\|Ax-b\|\|.*?=\s*({F})\s+\.\.\.\.\.\.\s+(PASSED|FAILED)")
_COUNT = re.compile(
    r"\s*(\d{1,9}) tests completed (and passed residual checks|and failed residual checks|without checking)"
)
_MXP = re.compile(rf"\s*GFLOPS = ({F}), per GPU =\s*({F})")
_RESIDUAL_MAX = 16.0
_ROUNDING = 0.005


@dataclass
class _HplTest:
    """Result of one problem size and process grid, with its residual checks."""

    n: int
    nb: int
    p: int
    q: int
    time_s: float
    gflops: float
    residuals: list[float] = field(default_factory=list)
    failed: bool = False

    @property
    def ranks(self) -> int:
        """Number of processes in the grid."""
        return self.p * self.q

    @property
    def passed(self) -> bool:
        """True if the result has residual checks and none failed."""
        return bool(self.residuals) and not self.failed

    @property
    def contradicts(self) -> bool:
        """True if the printed rate differs from that of size and time by more than their rounding."""
        if not self.time_s > 0 or self.n > 10**9:
            return True
        expected = (2 / 3 * self.n**3 + 3 / 2 * self.n**2) / self.time_s / 1e9
        return not agree(expected, self.gflops, 0.002 + _ROUNDING / self.time_s)


class Hpl(LogReader):
    """Reader of one run of HPL or HPL-MxP."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[_HplTest] = []
        self.passed: int | None = None
        self.failed = 0
        self.unchecked = 0
        self.mixed: float | None = None
        self.mixed_passed: bool | None = None
        self.ended = False
        self.too_large = False

    def line(self, line: str) -> None:
        """Store a result, a residual check or the number of passed tests. A line after the last number begins the next test."""
        if found := _RESULT.match(line):
            if self.over:
                return self.another(line)
            n, nb, p, q = (int(found[group][:20]) for group in (2, 3, 4, 5))
            self.results.append(_HplTest(n, nb, p, q, float(found[6]), float(found[7])))
        elif found := _CHECK.match(line):
            if self.over:
                return self.another(line)
            if not self.results:
                self.mixed_passed = found[2] == "PASSED"
            else:
                residual = float(found[1])
                self.results[-1].residuals.append(residual)
                if found[2] == "FAILED" or not residual < _RESIDUAL_MAX:
                    self.results[-1].failed = True
        elif found := _COUNT.match(line):
            self.ended, kind = True, found[2]
            if "passed" in kind:
                self.passed = int(found[1])
            elif "failed" in kind:
                self.failed = int(found[1])
            else:
                self.unchecked = int(found[1])
        elif found := _MXP.match(line):
            if self.mixed is not None or self.results:
                return self.another(line)
            self.mixed = float(found[1])
        elif _BEGIN.match(line):
            if self.results or self.over:
                return self.another(line)
        elif "Memory allocation failed" in line:
            self.too_large = True

    @property
    def over(self) -> bool:
        """True if HPL or HPL-MxP has printed its last number."""
        return self.ended or self.mixed is not None

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add rate, time, size and residual of the best result that passed, and the rate of HPL-MxP."""
        passed = [result for result in self.results if result.passed]
        self.check(verdict)
        best = max(passed, key=lambda result: result.gflops, default=None)
        verdict.metrics["hpl_mxp_gflops"] = self.mixed
        if best is not None:
            verdict.metrics |= {
                "hpl_gflops": best.gflops,
                "hpl_time_s": best.time_s,
                "hpl_n": float(best.n),
                "hpl_residual": max(best.residuals),
            }
            if not math.isfinite(best.gflops):
                verdict.nan("the rate is not a number")
            if len(self.results) == 1:
                stated = {"problem_size": best.n, "matrix_block": best.nb, "grid_rows": best.p, "grid_columns": best.q}
                verdict.settings |= {name: float(value) for name, value in stated.items()}
            else:
                verdict.flag(f"the best of {len(self.results)} results of one HPL.dat counts")
            verdict.processes("HPL", best.ranks, scope)

    def check(self, verdict: Verdict) -> None:
        """Record the problems of the results, such as failed residual checks, inconsistent rates and a missing end."""
        if failed := max(self.failed, sum(result.failed for result in self.results)):
            verdict.invalid(f"{failed} of {len(self.results)} results failed the residual check")
        for result in self.results:
            if result.contradicts:
                verdict.invalid(
                    f"{result.gflops:g} Gflops are not those of N = {result.n} in {result.time_s:g} s; the line is torn"
                )
        if not self.results and self.mixed is not None:
            if self.mixed_passed is None:
                verdict.incomplete("no residual check of HPL-MxP in the output")
            elif not self.mixed_passed:
                verdict.invalid("the result of HPL-MxP failed the residual check")
        elif not self.results and self.too_large:
            verdict.incomplete("HPL had not the memory for its matrix: N is too large")
        elif not self.results:
            verdict.incomplete("no result of HPL (a line that begins with WR or WC) in the output")
        elif self.unchecked or (self.ended and not failed and not any(result.passed for result in self.results)):
            verdict.invalid("the results were not checked: the threshold of HPL.dat is negative")
        elif not self.ended:
            verdict.incomplete("the output ends before HPL said how many tests passed their residual check")
        elif self.passed is not None and self.passed != sum(result.passed for result in self.results):
            verdict.invalid(f"HPL says that {self.passed} results passed; {len(self.results)} could be read")


FORMAT = Format(
    Hpl,
    needles=(b"||Ax-b||", b"HPL", b"Memory allocation failed", b" tests completed ", b"GFLOPS = "),
    rows=re.compile(rb"\n" + LABEL + rb"W[A-Z]\w{2,20}[ \t]+\d+[ \t]+\d+[ \t]+\d+[ \t]+\d+[ \t]"),
    line_max=4 << 10,
)
