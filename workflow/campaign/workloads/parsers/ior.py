"""IOR 3 and 4: its printed table, or its document (-O summaryFormat=JSON).

Rates are in MiB/s, and the mean over repetitions is read: IOR names the largest first. One run of the program may make several
tests (`Test#`). What a host has just written it may read from its own page cache: unless tasks read what another host wrote
(-C), the rate of reading can be that of memory. `Finished` is the end.
"""

from __future__ import annotations

import math
import re
from typing import Any

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict, agree, number, size_bytes

_MIB = 2**20 / 1e9
_ROW = re.compile(rf"(write|read)((?:\s+(?:{F}|-|NA)){{7,12}})\s+(\d{{1,6}})\s*$")
_OPTION = re.compile(r"\s*(tasks|clients|nodes|xfersize|blocksize|ordering inter file) *[:=] *(.{1,60}?)\s*$")
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

    def line(self, line: str) -> None:
        if _BEGIN.match(line):
            if self.begun:
                return self.another(line)
            self.begun = True
        elif line.startswith("Operation "):
            self.columns = line.split()
        elif line.startswith("access ") and "bw(MiB/s)" in line:
            self.tables.append({})
        elif self.columns and line.startswith(("write ", "read ")):
            values = dict(zip(self.columns, line.split(), strict=False))
            numbers = [number(values.get(name)) for name in ("Test#", "Mean(MiB)", "Max(MiB)", "Mean(OPs)")]
            if (after := self.mean(values["Operation"], *numbers)) is not self:
                self.others.append(after)
        elif found := _ROW.match(line):
            rate = number(found[2].split()[0])
            if self.tables and rate is not None:
                self.tables[-1].setdefault(found[1], []).append(rate)
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
            return self
        if self.number in (None, test):
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
        if not self.means:
            verdict.incomplete("no summary of IOR's reading or writing in the output")
        elif not self.ended:
            verdict.incomplete("the output ends before 'Finished'")
        if self.ended > 1:
            verdict.invalid("several tests ran at once in place of one: IOR was built without MPI")
        if self.wrong:
            verdict.invalid("IOR read other data than was written")
        for name, (mean, most, operations) in self.means.items():
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
        self.remarks(scope, verdict)
        self.program = "" if self.number is None else f"test {self.number:g}"

    def remarks(self, scope: Scope, verdict: Verdict) -> None:
        verdict.settings |= {
            "hosts": number(self.options.get("nodes")),
            "transfer_size": size_bytes(self.options.get("xfersize", "")),
            "block_size": size_bytes(self.options.get("blocksize", "")),
        }
        verdict.processes("IOR", number(self.options.get("tasks", "").partition(" ")[0]), scope)
        if len(self.means) == 2 and self.options.get("ordering inter file") == "no tasks offsets":
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
        b"ordering inter file",
        b"incorrect data",
        b"ata check error",
    ),
    rows=re.compile(rb"\n" + LABEL + rb"(?:write|read)[ \t]+[-+\d.nai]"),
    document=b'"bwMeanMIB"',
    line_max=4 << 10,
)
