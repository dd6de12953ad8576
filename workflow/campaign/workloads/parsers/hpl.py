"""Parser of High-Performance Linpack (netlib, vendors', NVIDIA's containers) and HPL-MxP.

A result counts only if its residual check PASSED and its rate matches its size and time: (2/3 N^3 + 3/2 N^2) /
time, as the program computes it (netlib HPL 2.3, HPL_pdtest). Of several results of one HPL.dat, the best that
passed counts, as in the TOP500. A result that FAILED makes the run invalid, because a computation was wrong.
The columns of NVIDIA's newest containers are unverified. HPL-MxP prints no row with size and time; its rate counts
if its check PASSED.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from campaign.workloads.parsers.reading import (
    LINE_PREFIX,
    F,
    LogFormat,
    LogReader,
    ReadingBuilder,
    RunContext,
    is_close,
)

_RESULT = re.compile(
    rf"\s*(W[A-Z]\w{{2,20}})\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+({F})\s+({F})(?:\s+\(\s*({F})\s*\))?\s*$"
)
_BEGIN = re.compile(r"\s*HPL\S* +\S+ +-- .*benchmark", re.IGNORECASE)
_CHECK = re.compile(rf"\s*\|\|Ax-b\|\|.*?=\s*({F})\s+\.\.\.\.\.\.\s+(PASSED|FAILED)")
_TEST_COUNT = re.compile(
    r"\s*(\d{1,9}) tests completed (and passed residual checks|and failed residual checks|without checking)"
)
_MXP = re.compile(rf"\s*GFLOPS = ({F}), per GPU =\s*({F})")
_RESIDUAL_MAX = 16.0
_TIME_ROUNDING_S = 0.005


@dataclass
class _HplTest:
    """Result for one problem size and process grid, with its residual checks."""

    n: int
    nb: int
    p: int
    q: int
    time_s: float
    gflops: float
    residuals: list[float] = field(default_factory=list)
    has_failed: bool = False

    @property
    def ranks(self) -> int:
        """Number of processes in the process grid."""
        return self.p * self.q

    @property
    def has_passed(self) -> bool:
        """True if the result has residual checks and none failed."""
        return bool(self.residuals) and not self.has_failed

    @property
    def is_inconsistent(self) -> bool:
        """True if the printed rate differs from the rate computed from size and time by more than rounding explains."""
        if not self.time_s > 0 or self.n > 10**9:
            return True
        expected_gflops = (2 / 3 * self.n**3 + 3 / 2 * self.n**2) / self.time_s / 1e9
        return not is_close(expected_gflops, self.gflops, 0.002 + _TIME_ROUNDING_S / self.time_s)


class HplReader(LogReader):
    """Reader of one run of HPL or HPL-MxP."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[_HplTest] = []
        self.passed_count: int | None = None
        self.failed_count = 0
        self.unchecked_count = 0
        self.mxp_gflops: float | None = None
        self.mxp_passed: bool | None = None
        self.has_end_mark = False
        self.is_out_of_memory = False

    def read_line(self, line: str) -> None:
        """Store a result, a residual check or the number of passed tests. Lines after the last number begin the next test."""
        if match := _RESULT.match(line):
            if self.is_complete:
                return self.start_next_test(line)
            n, nb, p, q = (int(match[group][:20]) for group in (2, 3, 4, 5))
            self.results.append(_HplTest(n, nb, p, q, float(match[6]), float(match[7])))
        elif match := _CHECK.match(line):
            if self.is_complete:
                return self.start_next_test(line)
            if not self.results:
                self.mxp_passed = match[2] == "PASSED"
            else:
                residual = float(match[1])
                self.results[-1].residuals.append(residual)
                if match[2] == "FAILED" or not residual < _RESIDUAL_MAX:
                    self.results[-1].has_failed = True
        elif match := _TEST_COUNT.match(line):
            self.has_end_mark, kind = True, match[2]
            if "passed" in kind:
                self.passed_count = int(match[1])
            elif "failed" in kind:
                self.failed_count = int(match[1])
            else:
                self.unchecked_count = int(match[1])
        elif match := _MXP.match(line):
            if self.mxp_gflops is not None or self.results:
                return self.start_next_test(line)
            self.mxp_gflops = float(match[1])
        elif _BEGIN.match(line):
            if self.results or self.is_complete:
                return self.start_next_test(line)
        elif "Memory allocation failed" in line:
            self.is_out_of_memory = True

    @property
    def is_complete(self) -> bool:
        """True if HPL or HPL-MxP has printed its last number."""
        return self.has_end_mark or self.mxp_gflops is not None

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the rate, time, size and residual of the best result that passed its checks, and the rate of HPL-MxP."""
        passed_results = [result for result in self.results if result.has_passed]
        self.check_results(builder)
        best = max(passed_results, key=lambda result: result.gflops, default=None)
        builder.metrics["hpl_mxp_gflops"] = self.mxp_gflops
        if best is not None:
            builder.metrics |= {
                "hpl_gflops": best.gflops,
                "hpl_time_s": best.time_s,
                "hpl_n": float(best.n),
                "hpl_residual": max(best.residuals),
            }
            if not math.isfinite(best.gflops):
                builder.mark_nan("the rate is not a number")
            if len(self.results) == 1:
                settings = {
                    "problem_size": best.n,
                    "matrix_block": best.nb,
                    "grid_rows": best.p,
                    "grid_columns": best.q,
                }
                builder.settings |= {name: float(value) for name, value in settings.items()}
            else:
                builder.add_flag(f"the best of the {len(self.results)} results of HPL.dat counts")
            builder.check_process_count("HPL", best.ranks, context)

    def check_results(self, builder: ReadingBuilder) -> None:
        """Record problems with the results, such as failed residual checks, inconsistent rates and a missing end."""
        if failed_count := max(self.failed_count, sum(result.has_failed for result in self.results)):
            builder.mark_invalid(f"{failed_count} of {len(self.results)} results failed the residual check")
        for result in self.results:
            if result.is_inconsistent:
                builder.mark_invalid(
                    f"{result.gflops:g} Gflops does not match N = {result.n} in {result.time_s:g} s, so the line is damaged"
                )
        if not self.results and self.mxp_gflops is not None:
            if self.mxp_passed is None:
                builder.mark_incomplete("the output has no residual check of HPL-MxP")
            elif not self.mxp_passed:
                builder.mark_invalid("the result of HPL-MxP failed the residual check")
        elif not self.results and self.is_out_of_memory:
            builder.mark_incomplete("HPL had too little memory for its matrix; reduce N")
        elif not self.results:
            builder.mark_incomplete("the output has no result of HPL (a line that begins with WR or WC)")
        elif self.unchecked_count or (
            self.has_end_mark and not failed_count and not any(result.has_passed for result in self.results)
        ):
            builder.mark_invalid("the results were not checked, because the threshold in HPL.dat is negative")
        elif not self.has_end_mark:
            builder.mark_incomplete("the output ends before the number of tests that passed their residual check")
        elif self.passed_count is not None and self.passed_count != sum(result.has_passed for result in self.results):
            builder.mark_invalid(
                f"HPL reports {self.passed_count} passed results, but the output has {len(self.results)}"
            )


FORMAT = LogFormat(
    HplReader,
    needles=(b"||Ax-b||", b"HPL", b"Memory allocation failed", b" tests completed ", b"GFLOPS = "),
    row_pattern=re.compile(rb"\n" + LINE_PREFIX + rb"W[A-Z]\w{2,20}[ \t]+\d+[ \t]+\d+[ \t]+\d+[ \t]+\d+[ \t]"),
    max_line_chars=4 << 10,
)
