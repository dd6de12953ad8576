"""IOR 3 and 4: its printed table, or its document (-O summaryFormat=JSON).

Rates are in MiB/s, and the mean over repetitions is read: IOR names the largest first. One run of the program may make several
tests (`Test#`). What a host has just written it may read from its own page cache: unless tasks read what another host wrote
(-C), the rate of reading can be that of memory. `Finished` is the end. IOR inside IO500 may print no summary: then the rows of its
one table count, if each operation of its command line has as many as there are repetitions, or its `Max Write` and `Max Read`.
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
    def __init__(self) -> None:
        super().__init__()
        self.begun = False
        self.ended = 0
        self.number: float | None = None
        self.columns: list[str] = []
        self.tables: list[dict[str, list[float]]] = []  # of repetitions, in the order of the tests
        self.means: dict[str, tuple[float, float, float | None]] = {}
        self.options: dict[str, str] = {}
        self.wrong = False
        self.maxima: dict[str, float] = {}  # of the last table
        self.command: list[str] = []

    def line(self, line: str) -> None:
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
        """Take a line of the summary, or hand it to the test that it is of; the reader of that."""
        if test is None or mean is None or most is None:
            self.leave_out(f"the summary of {operation}", "a mean, a maximum or a test without a number")
            return self
        # An operation that is there already is of another test, whatever number that has.
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
        """Rates of the repetitions, by operation; empty where it is not known which table is this test's."""
        at = int(self.number or 0)
        return self.tables[at] if at < len(self.tables) else {}

    @property
    def only_table(self) -> dict[str, list[float]]:
        """Rates of the only table, by operation; empty if there are several tests, or may be, as of a script."""
        return self.tables[0] if len(self.tables) == 1 and "-f" not in self.command else {}

    def document(self, document: Any) -> None:
        if not isinstance(document, dict) or not isinstance(document.get("summary"), list):
            return
        latest = first = self.fresh(self.begun)
        first.begun, first.ended = True, 1
        try:
            options = document["tests"][-1].get("Options") or {}
            first.options = {str(name): str(value) for name, value in options.items()}
        except (LookupError, TypeError, AttributeError):
            pass  # the summary is what counts
        for one in document["summary"]:
            if isinstance(one, dict) and one.get("operation") in ("read", "write"):
                values = [number(one.get(name)) for name in ("TestID", "bwMeanMIB", "bwMaxMIB", "OPsMean")]
                if (after := latest.mean(one["operation"], values[0] or 0.0, *values[1:])) is not latest:
                    self.others.append(latest := after)

    def judge(self, verdict: Verdict, scope: Scope) -> None:
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
        """Return mean and maximum of the only table, by operation; nothing unless all of its rows are known to be there."""
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
