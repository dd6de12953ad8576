"""IOR 3 and 4: its printed table, or its document (-O summaryFormat=JSON).

Rates are in MiB/s, and the mean over repetitions is read: IOR names the largest first. What a host has just written it may read
from its own page cache: unless tasks read what another host wrote (-C), the rate of reading can be that of memory. `Finished`
is the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import LABEL, Documents, F, Format, Reading, Scope, Verdict, agree, number

_MIB = 2**20 / 1e9
_ROW = re.compile(rf"(write|read)((?:\s+(?:{F}|-|NA)){{7,12}})\s+(\d{{1,6}})\s*$")
_MEAN = re.compile(
    rf"(write|read)\s+({F})\s+({F})\s+({F})\s+({F})\s+({F})\s+({F})\s+({F})\s+{F}\s+({F})\s+(?:NA|{F})\s"
)
_OPTION = re.compile(r"(tasks|nodes|repetitions|ordering inter file)\s*: (.{1,60}?)\s*$")
_BEGIN = re.compile(r"IOR-\d[\w.+-]*: MPI Coordinated Test")
_WRONG = re.compile(r"incorrect data on|data check error", re.IGNORECASE)


class Ior:
    def __init__(self) -> None:
        self.documents = Documents()
        self.begun = self.ended = 0
        self.at_once = False
        self.begin()

    def begin(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.means: dict[str, tuple[float, float, float | None]] = {}
        self.options: dict[str, str] = {}
        self.finished = self.wrong = False

    def feed(self, line: str) -> None:
        if (document := self.documents.feed(line)) is not None:
            self.document(document)
        elif _BEGIN.match(line):
            self.at_once = self.at_once or self.begun > self.ended
            self.begun += 1
            self.begin()  # the last counts
        elif found := _MEAN.match(line):
            self.means[found[1]] = float(found[4]), float(found[2]), float(found[8])
        elif found := _ROW.match(line):
            if (rate := number(found[2].split()[0])) is not None:
                self.rates.setdefault(found[1], []).append(rate)
        elif found := _OPTION.match(line):
            self.options[found[1]] = found[2]
        elif _WRONG.search(line):
            self.wrong = True
        elif line.startswith("Finished "):
            self.finished = True
            self.ended += 1

    def document(self, document: Any) -> None:
        if not isinstance(document, dict) or not isinstance(document.get("summary"), list):
            return
        self.begin()
        try:
            for one in document["summary"]:
                mean, most = number(one.get("bwMeanMIB")), number(one.get("bwMaxMIB"))
                if one.get("operation") in ("read", "write") and mean is not None and most is not None:
                    self.means[one["operation"]] = mean, most, number(one.get("OPsMean"))
            options: Mapping[str, Any] = document["tests"][-1].get("Options") or {}
            self.options = {str(name): str(value) for name, value in options.items()}
        except (LookupError, TypeError, AttributeError):
            pass  # the summary is what counts
        self.finished = bool(self.means)

    def reading(self, scope: Scope) -> Reading:
        verdict = Verdict()
        if not self.means:
            verdict.incomplete("no summary of IOR's reading or writing in the output")
        elif not self.finished:
            verdict.incomplete("the output ends before 'Finished'")
        if self.at_once:
            verdict.invalid("several tests ran at once in place of one: IOR was built without MPI")
        if self.wrong:
            verdict.invalid("IOR read other data than was written")
        for name, (mean, most, operations) in self.means.items():
            if not all(math.isfinite(value) for value in (mean, most, operations or 0.0, *self.rates.get(name, ()))):
                verdict.nan(f"a rate of {name} is not a number")
                continue
            rows = self.rates.get(name, [])
            # Rows have four digits, and whole numbers above 10,000.
            if mean <= 0 or mean > most * 1.001 or (rows and not agree(sum(rows) / len(rows), mean, 0.002, 0.5)):
                verdict.invalid(
                    f"the mean rate of {name}, {mean:g} MiB/s, is not that of its repetitions; a line is torn"
                )
            verdict.metrics[f"{name}_bandwidth_gb_per_s"] = mean * _MIB
            verdict.metrics[f"{name}_bandwidth_max_gb_per_s"] = most * _MIB
            verdict.metrics[f"{name}_operations_per_s"] = operations
        self.remarks(scope, verdict)
        return verdict.reading()

    def remarks(self, scope: Scope, verdict: Verdict) -> None:
        tasks = number(self.options.get("tasks"))
        if scope.ranks is not None and tasks is not None and tasks != scope.ranks:
            verdict.flag(f"IOR used {tasks:g} tasks, the run {scope.ranks} devices")
        if len(self.means) == 2 and self.options.get("ordering inter file") == "no tasks offsets":
            verdict.flag("tasks read what they wrote themselves: the rate of reading may be that of the page cache")


FORMAT = Format(
    Ior,
    needles=(
        b"MPI Coordinated Test",
        b"Finished",
        b"tasks ",
        b"ordering inter file",
        b"incorrect data",
        b"ata check error",
    ),
    rows=re.compile(rb"\n" + LABEL + rb"(?:write|read)[ \t]+[-+\d.nai]"),
    document=b'"bwMeanMIB"',
    line_max=4 << 10,
)
