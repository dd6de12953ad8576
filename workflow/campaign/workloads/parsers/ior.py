"""Parser of IOR 3 and 4: the printed table, or the document of -O summaryFormat=JSON.

Rates are in MiB/s. The mean over repetitions is read, although IOR prints the largest first. One run of the
program may make several tests (`Test#`). A host may read from its own page cache what it has just written:
unless tasks read what another host wrote (-C), the read rate can be that of memory. `Finished` is the end mark.
IOR inside IO500 may print no summary. Then the rows of its only table count, provided that each operation of
the command line has one row per repetition, or that its `Max Write` and `Max Read` are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict, agree, number, size_bytes

_MIB = 2**20 / 1e9
_ROW = re.compile(rf"(write|read)((?:\s+(?:{F}|-|NA)){{7,12}})\s+(\d{{1,6}})\s*$")
_MAX = re.compile(rf"Max (Write|Read): +({F}) MiB/sec \(")
_COMMAND = re.compile(r"Command line(?: used)? *:(.*)")
_OPTION = re.compile(
    r"\s*(tasks|clients|repetitions|nodes|xfersize|blocksize|ordering inter file) *[:=] *(.{1,60}?)\s*$"
)
_BEGIN = re.compile(r"IOR-\d[\w.+-]*: MPI Coordinated Test")
_WRONG = re.compile(r"incorrect data on|data check error", re.IGNORECASE)


class Ior(LogReader):
    """Reader of one test of IOR."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = False
        self.ended = 0
        self.number: float | None = None
        self.columns: list[str] = []
        self.tables: list[dict[str, list[float]]] = []  # rates of the repetitions, one table per test
        self.means: dict[str, tuple[float, float, float | None]] = {}
        self.options: dict[str, str] = {}
        self.wrong = False
        self.maxima: dict[str, float] = {}  # largest rates of the last table
        self.command: list[str] = []

    def line(self, line: str) -> None:
        """Store a rate, a summary, an option or the end mark of a test. A second header begins the next test."""
        if _BEGIN.match(line):
            if self.begun:
                return self.another(line)
            self.begun = True
        elif line.startswith("Operation "):
            self.columns = line.split()
        elif line.startswith("access ") and "bw(MiB/s)" in line:
            self.tables.append({})
            self.maxima = {}
        elif self.columns and line.startswith(("write ", "read ")):
            values = dict(zip(self.columns, line.split(), strict=False))
            numbers = [number(values.get(name)) for name in ("Test#", "Mean(MiB)", "Max(MiB)", "Mean(OPs)")]
            if (after := self.mean(values["Operation"], *numbers)) is not self:
                self.others.append(after)
        elif found := _ROW.match(line):
            rate = number(found[2].split()[0])
            if rate is None:
                self.leave_out(f"a row of {found[1]}", found[2].split()[0])
            elif self.tables:
                self.tables[-1].setdefault(found[1], []).append(rate)
        elif found := _COMMAND.match(line):
            self.command = found[1].split()
        elif found := _MAX.match(line):
            self.maxima[found[1].lower()] = float(found[2])
        elif found := _OPTION.match(line):
            self.options[found[1].replace("clients", "tasks")] = found[2]
        elif _WRONG.search(line):
            self.wrong = True
        elif line.startswith("Finished"):
            self.ended += 1

    def mean(
        self, operation: str, test: float | None, mean: float | None, most: float | None, operations: float | None
    ) -> Ior:
        """Store a line of the summary in the reader of its test, and return that reader.

        Args:
            operation: `write` or `read`.
            test_number: number of the test in this run of IOR.
            mean: mean rate (MiB/s) of the repetitions.
            maximum: largest rate (MiB/s).
            operations_per_s: mean number of operations per second.
        """
        if test is None or mean is None or most is None:
            self.leave_out(f"the summary of {operation}", "a mean, a maximum or a test without a number")
            return self
        # A repeated operation belongs to another test, whatever its number.
        if self.number is None or (self.number == test and operation not in self.means):
            self.number = test
            self.means[operation] = mean, most, operations
            return self
        after = Ior()
        after.begun, after.ended, self.ended = True, self.ended, max(self.ended, 1)
        after.columns, after.tables, after.options = self.columns, self.tables, self.options
        return after.mean(operation, test, mean, most, operations)

    @property
    def rates(self) -> dict[str, list[float]]:
        """Rates (MiB/s) of the repetitions by operation; empty if the table of this test is unknown."""
        at = int(self.number or 0)
        return self.tables[at] if at < len(self.tables) else {}

    @property
    def only_table(self) -> dict[str, list[float]]:
        """Rates (MiB/s) of the only table by operation; empty if the run has, or as a script may have, several tests."""
        return self.tables[0] if len(self.tables) == 1 and "-f" not in self.command else {}

    def document(self, document: Any) -> None:
        """Store the summaries of a JSON document if it is a result of IOR, each test in its own reader."""
        if not isinstance(document, dict) or not isinstance(document.get("summary"), list):
            return
        latest = first = self.fresh(self.begun)
        first.begun, first.ended = True, 1
        try:
            options = document["tests"][-1].get("Options") or {}
            first.options = {str(name): str(value) for name, value in options.items()}
        except (LookupError, TypeError, AttributeError):
            pass  # only the summary is needed
        for one in document["summary"]:
            if isinstance(one, dict) and one.get("operation") in ("read", "write"):
                values = [number(one.get(name)) for name in ("TestID", "bwMeanMIB", "bwMaxMIB", "OPsMean")]
                if (after := latest.mean(one["operation"], values[0] or 0.0, *values[1:])) is not latest:
                    self.others.append(latest := after)

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the mean and largest bandwidth and the operation rate per operation. The mean must match its repetitions."""
        means = self.means or self.means_of_rows(verdict)
        if not means:
            verdict.incomplete(
                "no summary of IOR's reading or writing, and no table that came to its end, in the output"
            )
        elif not self.ended and (self.only_table.keys() != means.keys() or not self.command):
            verdict.incomplete("the output ends before 'Finished'")
        elif not self.ended:
            verdict.no_end()
        if self.ended > 1:
            verdict.invalid("several tests ran at once in place of one: IOR was built without MPI")
        if self.wrong:
            verdict.invalid("IOR read other data than was written")
        for name, (mean, most, operations) in means.items():
            rows = self.rates.get(name, [])
            if not all(math.isfinite(value) for value in (mean, most, operations or 0.0, *rows)):
                verdict.nan(f"a rate of {name} is not a number")
                continue
            # Rows have four digits, and whole numbers above 10,000.
            if mean <= 0 or mean > most * 1.001 or (rows and not agree(sum(rows) / len(rows), mean, 0.002, 0.5)):
                verdict.invalid(
                    f"the mean rate of {name}, {mean:g} MiB/s, is not that of its repetitions; a line is torn"
                )
            verdict.metrics[f"{name}_bandwidth_gb_per_s"] = mean * _MIB
            verdict.metrics[f"{name}_bandwidth_max_gb_per_s"] = most * _MIB
            verdict.metrics[f"{name}_operations_per_s"] = operations
        self.remarks(scope, verdict, means)
        self.program = "" if self.number is None else f"test {self.number:g}"

    def means_of_rows(self, verdict: Verdict) -> dict[str, tuple[float, float, float | None]]:
        """Return mean and maximum (MiB/s) by operation, computed from the rows of the only table.

        Returns an empty dict unless all rows are known to be there.
        """
        table, repetitions = self.only_table, number(self.options.get("repetitions"))
        planned = {name for name, option in (("write", "-w"), ("read", "-r")) if option in self.command}
        planned = planned or {"write", "read"}
        stated = table.keys() == self.maxima.keys()
        all_rows = table.keys() == planned and all(len(rates) == repetitions for rates in table.values())
        if not table or not (stated or self.ended or all_rows):
            return {}
        for name, most in self.maxima.items():
            if not agree(max(table.get(name, [math.nan])), most, 0.001, 0.5):
                verdict.invalid(f"IOR says that the largest rate of {name} is {most:g} MiB/s; a row is torn or missing")
        return {name: (math.fsum(rates) / len(rates), max(rates), None) for name, rates in table.items()}

    def remarks(self, scope: Scope, verdict: Verdict, means: Mapping[str, object]) -> None:
        """Add settings, and flags for another number of processes and for reads that may come from the page cache."""
        verdict.settings |= {
            "hosts": number(self.options.get("nodes")),
            "transfer_size": size_bytes(self.options.get("xfersize", "")),
            "block_size": size_bytes(self.options.get("blocksize", "")),
        }
        verdict.processes("IOR", number(self.options.get("tasks", "").partition(" ")[0]), scope)
        if len(means) == 2 and self.options.get("ordering inter file") == "no tasks offsets":
            verdict.flag("tasks read what they wrote themselves: the rate of reading may be that of the page cache")


FORMAT = Format(
    Ior,
    needles=(
        b"MPI Coordinated Test",
        b"Finished",
        b"tasks ",
        b"nodes ",
        b"xfersize ",
        b"blocksize ",
        b"clients ",
        b"Operation ",
        b"access ",
        b"repetitions ",
        b"Command line",
        b"Max ",
        b"ordering inter file",
        b"incorrect data",
        b"ata check error",
    ),
    rows=re.compile(rb"\n" + LABEL + rb"(?:write|read)[ \t]+[-+\d.naiN]"),
    document=b'"bwMeanMIB"',
    line_max=4 << 10,
)
