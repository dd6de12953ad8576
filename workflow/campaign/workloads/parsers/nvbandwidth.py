"""Parser of nvbandwidth: its printed matrices, or the document of -j.

A waived test was not run: it is absent, not zero. The diagonal between devices is not measured (N/A today, 0.00
in old releases). Bidirectional tests by copy engine (`_ce`) give one of the two directions, about half of what
p2pBandwidthLatencyTest gives for the same link. The title of a test defines its rows and columns. Cells are
medians of a few samples. The NOTE that newer releases print is the end mark; older releases have none.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from campaign.workloads.parsers.reading import (
    LABEL,
    F,
    Format,
    LogReader,
    MatrixRows,
    Scope,
    Verdict,
    agree,
    number,
    pairs,
)

_RUNNING = re.compile(r"\s*Running (\w{3,100})\.?\s*$")
_TITLE = re.compile(r"\s*\S.*\((GB/s|ns)\)\s*$")
_HEAD = re.compile(r"\s*\d{1,4}(?:\s+\d{1,4})*\s*$")
_CELL = rf"(?:{F}|N/A)"
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+{_CELL})+)\s*$")
_SUM = re.compile(rf"\s*SUM (\w{{3,100}}) ({F})\s*$")
_WAIVED = re.compile(r"\s*Waived\b")
_NOTE = "NOTE: The reported results may not reflect"
_TESTS_MAX = 1_000
_UNITS = {"GB/s": "gb_per_s", "ns": "ns"}


@dataclass
class _Test(MatrixRows):
    """Matrix of one test, with its state and the sum that nvbandwidth prints."""

    unit: str = "gb_per_s"
    total: float | None = None
    state: str = "running"


def _not_measured(diagonal: bool, value: float) -> bool:
    """Return True for a zero between a device and itself, which old releases print."""
    return diagonal and value == 0


class NvBandwidth(LogReader):
    """Reader of one run of nvbandwidth."""

    def __init__(self) -> None:
        super().__init__()
        self.tests: dict[str, _Test] = {}
        self.test: _Test | None = None
        self.whole = False

    def line(self, line: str) -> None:
        """Store a line of a test, or its end. A test that was read already begins the next run."""
        if found := _RUNNING.match(line):
            if found[1] in self.tests:
                return self.another(line)
            self.test = None
            if len(self.tests) < _TESTS_MAX:
                self.test = self.tests[found[1]] = _Test()
        elif found := _SUM.match(line):
            if test := self.tests.get(found[1]):
                test.total, test.state = float(found[2]), "done"
            self.test = None
        elif _WAIVED.match(line):
            if self.test is not None:
                self.test.state = "waived"
            self.test = None
        elif self.test is not None:
            self.inside(self.test, line)
        elif line.lstrip().startswith(_NOTE):
            self.whole = True

    def inside(self, test: _Test, line: str) -> None:
        """Store the unit, the columns or a row of a test."""
        if found := _TITLE.match(line):
            test.unit = _UNITS[found[1]]
        elif not test.columns:
            if _HEAD.match(line):
                test.columns = tuple(line.split())
        elif found := _ROW.match(line):
            cells = tuple(None if text == "N/A" else float(text) for text in found[2].split())
            test.add(found[1], cells)

    def document(self, document: Any) -> None:
        """Store the tests of a JSON document if it is a result of `nvbandwidth -j`, whose cells are strings."""
        try:
            cases = [(str(case["name"]), self.case(case)) for case in document["nvbandwidth"]["testcases"]]
        except (LookupError, TypeError, AttributeError):
            return  # another document
        after = self
        for name, test in cases:
            if name in after.tests:  # of the next repetition
                after = self.fresh(True)
            after.tests[name] = test
            after.whole = True

    def case(self, case: dict[str, Any]) -> _Test:
        """Convert a test case of the document of -j to a test."""
        state = {"Passed": "done", "Waived": "waived"}.get(str(case.get("status")), "failed")
        test = _Test(state=state, total=number(case.get("sum")))
        if "(ns)" in str(case.get("bandwidth_description", "")) or "latency" in str(case["name"]):
            test.unit = "ns"
        rows = case.get("bandwidth_matrix")
        if isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows):
            test.rows = [tuple(number(cell) for cell in row) for row in rows]
            test.columns = tuple(str(column) for column in range(len(rows[0])))
            test.labels = [str(row) for row in range(len(rows))]
            if len({len(row) for row in rows}) > 1:
                test.torn, test.state = True, "running"
        return test

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the matrix of each finished test, and flags for waived tests and one-way results."""
        for name, test in self.tests.items():
            self.check(verdict, name, test)
            if test.state == "done":
                between_devices = "device_to_device" in name
                verdict.matrix(name, test.matrix(_not_measured if between_devices else None))
        if waived := [name for name, test in self.tests.items() if test.state == "waived"]:
            verdict.flag(f"not run on this machine: {', '.join(waived[:20])}")
        if any("bidirectional" in name and name.endswith("_ce") for name in verdict.matrices):
            verdict.flag("bidirectional tests by copy engine give one direction, not the sum")
        if verdict.matrices and not self.whole:
            verdict.no_end()
        if not verdict.matrices and all(test.state != "failed" for test in self.tests.values()):
            verdict.incomplete("no test with a matrix in the output")

    def check(self, verdict: Verdict, name: str, test: _Test) -> None:
        """Record the problems of one test, such as a missing end, a failure, or cells that do not add up to its sum."""
        if test.state == "running":
            verdict.incomplete(f"the matrix of {name} is torn" if test.torn else f"{name} has no end")
        elif test.state == "failed":
            verdict.invalid(f"{name} failed, says nvbandwidth")
        elif test.state == "done" and test.rows:
            cells = pairs(test.rows)
            if not all(map(math.isfinite, cells)):
                verdict.nan(f"{name} has cells that are not a number")
            elif test.total is not None and not agree(math.fsum(cells), test.total, 0.001, 0.006 * (len(cells) + 1)):
                verdict.incomplete(
                    f"the cells of {name} add up to {math.fsum(cells):g}, nvbandwidth says {test.total:g}: rows are missing"
                )


FORMAT = Format(
    NvBandwidth,
    needles=(b"Running ", b"(GB/s)", b"(ns)", b"SUM ", b"Waived", b"NOTE: "),
    rows=re.compile(rb"\n" + LABEL + rb"\d{1,4}(?=[ \t]*\n|[ \t]+(?:[-+\d.]+|N/A|nan|inf)[ \t\n])"),
    document=b'"nvbandwidth"',
    line_max=64 << 10,
)
