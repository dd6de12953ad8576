"""Parser of nvbandwidth: its printed matrices, or the document of -j.

A waived test was not run, so it is absent and not zero. The diagonal between devices is not measured (N/A in new
releases, 0.00 in old ones). Bidirectional tests by copy engine (`_ce`) report one of the two directions, about half
of the value of p2pBandwidthLatencyTest for the same link. The title of a test defines its rows and columns. Cells
are medians of a few samples. The NOTE that newer releases print is the end mark; older releases have none.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from campaign.workloads.parsers.reading import (
    LINE_PREFIX,
    F,
    LogFormat,
    LogReader,
    MatrixBuilder,
    ReadingBuilder,
    RunContext,
    is_close,
    list_measured_values,
    parse_number,
)

_TEST_START = re.compile(r"\s*Running (\w{3,100})\.?\s*$")
_TITLE = re.compile(r"\s*\S.*\((GB/s|ns)\)\s*$")
_COLUMN_HEADER = re.compile(r"\s*\d{1,4}(?:\s+\d{1,4})*\s*$")
_CELL = rf"(?:{F}|N/A)"
_ROW = re.compile(rf"\s*(\d{{1,4}})((?:\s+{_CELL})+)\s*$")
_SUM_LINE = re.compile(rf"\s*SUM (\w{{3,100}}) ({F})\s*$")
_WAIVED_LINE = re.compile(r"\s*Waived\b")
_END_NOTE = "NOTE: The reported results may not reflect"
_MAX_TESTS = 1_000
_UNITS = {"GB/s": "gb_per_s", "ns": "ns"}


@dataclass
class _MatrixTest(MatrixBuilder):
    """Matrix of one test, with the state of the test and the sum that nvbandwidth prints."""

    unit: str = "gb_per_s"
    total: float | None = None
    state: str = "running"


def _is_unmeasured(is_diagonal: bool, value: float) -> bool:
    """Return True if a cell was not measured: old releases print zero between a device and itself."""
    return is_diagonal and value == 0


class NvBandwidthReader(LogReader):
    """Reader of one run of nvbandwidth."""

    def __init__(self) -> None:
        super().__init__()
        self.tests: dict[str, _MatrixTest] = {}
        self.test: _MatrixTest | None = None
        self.has_end_mark = False

    def read_line(self, line: str) -> None:
        """Store a line of a test, or the end of the test. A test that was already read begins the next run."""
        if match := _TEST_START.match(line):
            if match[1] in self.tests:
                return self.start_next_test(line)
            self.test = None
            if len(self.tests) < _MAX_TESTS:
                self.test = self.tests[match[1]] = _MatrixTest()
        elif match := _SUM_LINE.match(line):
            if test := self.tests.get(match[1]):
                test.total, test.state = float(match[2]), "done"
            self.test = None
        elif _WAIVED_LINE.match(line):
            if self.test is not None:
                self.test.state = "waived"
            self.test = None
        elif self.test is not None:
            self.read_matrix_line(self.test, line)
        elif line.lstrip().startswith(_END_NOTE):
            self.has_end_mark = True

    def read_matrix_line(self, test: _MatrixTest, line: str) -> None:
        """Store the unit, column labels or row that a line contains for a test."""
        if match := _TITLE.match(line):
            test.unit = _UNITS[match[1]]
        elif not test.columns:
            if _COLUMN_HEADER.match(line):
                test.columns = tuple(line.split())
        elif match := _ROW.match(line):
            cells = tuple(None if text == "N/A" else float(text) for text in match[2].split())
            test.add_row(match[1], cells)

    def read_document(self, document: Any) -> None:
        """Store the tests in a JSON document if it is a result of `nvbandwidth -j`, in which cells are strings."""
        try:
            cases = [(str(case["name"]), self.build_test(case)) for case in document["nvbandwidth"]["testcases"]]
        except (LookupError, TypeError, AttributeError):
            return  # another document
        reader = self
        for name, test in cases:
            if name in reader.tests:  # of the next repetition
                reader = self.select_reader(True)
            reader.tests[name] = test
            reader.has_end_mark = True

    def build_test(self, case: dict[str, Any]) -> _MatrixTest:
        """Convert a test case from the JSON document of `-j` to a test."""
        state = {"Passed": "done", "Waived": "waived"}.get(str(case.get("status")), "failed")
        test = _MatrixTest(state=state, total=parse_number(case.get("sum")))
        if "(ns)" in str(case.get("bandwidth_description", "")) or "latency" in str(case["name"]):
            test.unit = "ns"
        rows = case.get("bandwidth_matrix")
        if isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows):
            test.rows = [tuple(parse_number(cell) for cell in row) for row in rows]
            test.columns = tuple(str(column) for column in range(len(rows[0])))
            test.row_labels = [str(row) for row in range(len(rows))]
            if len({len(row) for row in rows}) > 1:
                test.is_damaged, test.state = True, "running"
        return test

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the matrix of each finished test, and flags for waived tests and one-way results."""
        for name, test in self.tests.items():
            self.check_test(builder, name, test)
            if test.state == "done":
                between_devices = "device_to_device" in name
                builder.add_matrix(name, test.build(_is_unmeasured if between_devices else None))
        if waived_tests := [name for name, test in self.tests.items() if test.state == "waived"]:
            builder.add_flag(f"nvbandwidth did not run these tests on this machine: {', '.join(waived_tests[:20])}")
        if any("bidirectional" in name and name.endswith("_ce") for name in builder.matrices):
            builder.add_flag("bidirectional tests by copy engine report one direction, not the sum of both")
        if builder.matrices and not self.has_end_mark:
            builder.flag_missing_end_mark()
        if not builder.matrices and all(test.state != "failed" for test in self.tests.values()):
            builder.mark_incomplete("the output has no test with a matrix")

    def check_test(self, builder: ReadingBuilder, name: str, test: _MatrixTest) -> None:
        """Record problems with one test, such as a missing end, a failure, or cells that do not add up to the printed sum."""
        if test.state == "running":
            builder.mark_incomplete(
                f"the matrix of {name} is damaged" if test.is_damaged else f"the output of {name} is incomplete"
            )
        elif test.state == "failed":
            builder.mark_invalid(f"nvbandwidth reports that {name} failed")
        elif test.state == "done" and test.rows:
            cells = list_measured_values(test.rows)
            if not all(map(math.isfinite, cells)):
                builder.mark_nan(f"the matrix of {name} has cells that are not numbers")
            elif test.total is not None and not is_close(math.fsum(cells), test.total, 0.001, 0.006 * (len(cells) + 1)):
                builder.mark_incomplete(
                    f"rows of {name} are missing: the sum of the cells is {math.fsum(cells):g} instead of {test.total:g}"
                )


FORMAT = LogFormat(
    NvBandwidthReader,
    needles=(b"Running ", b"(GB/s)", b"(ns)", b"SUM ", b"Waived", b"NOTE: "),
    row_pattern=re.compile(rb"\n" + LINE_PREFIX + rb"\d{1,4}(?=[ \t]*\n|[ \t]+(?:[-+\d.]+|N/A|nan|inf)[ \t\n])"),
    document_marker=b'"nvbandwidth"',
    max_line_chars=64 << 10,
)
