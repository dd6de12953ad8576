"""Parser of IOR 3 and 4: the printed table, or the document of -O summaryFormat=JSON.

Rates are in MiB/s. The mean over repetitions is read, although IOR prints the largest rate first. One run of the
program may have several tests (`Test#`). Unless tasks read the data of another host (-C), a host may read from its
page cache, so the read rate can be that of memory. `Finished` is the end mark. IOR inside IO500 may print no
summary. Then the rows of its only table count if each operation of the command line has one row per repetition, or
if the lines `Max Write` and `Max Read` exist.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from campaign.workloads.parsers.reading import (
    LINE_PREFIX,
    F,
    LogFormat,
    LogReader,
    ReadingBuilder,
    RunContext,
    is_close,
    parse_number,
    parse_size,
)

_GB_PER_MIB = 2**20 / 1e9
_ROW = re.compile(rf"(write|read)((?:\s+(?:{F}|-|NA)){{7,12}})\s+(\d{{1,6}})\s*$")
_MAX = re.compile(rf"Max (Write|Read): +({F}) MiB/sec \(")
_COMMAND = re.compile(r"Command line(?: used)? *:(.*)")
_OPTION = re.compile(
    r"\s*(tasks|clients|repetitions|nodes|xfersize|blocksize|ordering inter file) *[:=] *(.{1,60}?)\s*$"
)
_HEADER = re.compile(r"IOR-\d[\w.+-]*: MPI Coordinated Test")
_WRONG_DATA = re.compile(r"incorrect data on|data check error", re.IGNORECASE)


class IorReader(LogReader):
    """Reader of one test of IOR."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = False
        self.end_mark_count = 0
        self.test_number: float | None = None
        self.columns: list[str] = []
        self.tables: list[dict[str, list[float]]] = []  # rates of the repetitions, one table per test
        self.means: dict[str, tuple[float, float, float | None]] = {}
        self.options: dict[str, str] = {}
        self.has_wrong_data = False
        self.maxima: dict[str, float] = {}  # largest rates of the last table
        self.command: list[str] = []

    def read_line(self, line: str) -> None:
        """Store a rate, a summary, an option or the end mark of a test. A second header begins the next test."""
        if _HEADER.match(line):
            if self.has_begun:
                return self.start_next_test(line)
            self.has_begun = True
        elif line.startswith("Operation "):
            self.columns = line.split()
        elif line.startswith("access ") and "bw(MiB/s)" in line:
            self.tables.append({})
            self.maxima = {}
        elif self.columns and line.startswith(("write ", "read ")):
            values = dict(zip(self.columns, line.split(), strict=False))
            numbers = [parse_number(values.get(name)) for name in ("Test#", "Mean(MiB)", "Max(MiB)", "Mean(OPs)")]
            if (reader := self.store_mean(values["Operation"], *numbers)) is not self:
                self.next_readers.append(reader)
        elif match := _ROW.match(line):
            rate = parse_number(match[2].split()[0])
            if rate is None:
                self.note_unreadable(f"a row of {match[1]}", match[2].split()[0])
            elif self.tables:
                self.tables[-1].setdefault(match[1], []).append(rate)
        elif match := _COMMAND.match(line):
            self.command = match[1].split()
        elif match := _MAX.match(line):
            self.maxima[match[1].lower()] = float(match[2])
        elif match := _OPTION.match(line):
            self.options[match[1].replace("clients", "tasks")] = match[2]
        elif _WRONG_DATA.search(line):
            self.has_wrong_data = True
        elif line.startswith("Finished"):
            self.end_mark_count += 1

    def store_mean(
        self,
        operation: str,
        test_number: float | None,
        mean: float | None,
        maximum: float | None,
        operations_per_s: float | None,
    ) -> IorReader:
        """Store one line of the summary in the reader of the test it belongs to, and return that reader.

        Args:
            operation: `write` or `read`.
            test_number: number of the test in this run of IOR.
            mean: mean rate (MiB/s) over all repetitions.
            maximum: largest rate (MiB/s).
            operations_per_s: mean number of operations per second.
        """
        if test_number is None or mean is None or maximum is None:
            self.note_unreadable(f"the summary of {operation}", "the mean, the maximum or the test number is missing")
            return self
        # A repeated operation belongs to another test, whatever its number.
        if self.test_number is None or (self.test_number == test_number and operation not in self.means):
            self.test_number = test_number
            self.means[operation] = mean, maximum, operations_per_s
            return self
        reader = IorReader()
        reader.has_begun, reader.end_mark_count, self.end_mark_count = (
            True,
            self.end_mark_count,
            max(self.end_mark_count, 1),
        )
        reader.columns, reader.tables, reader.options = self.columns, self.tables, self.options
        return reader.store_mean(operation, test_number, mean, maximum, operations_per_s)

    @property
    def rates_by_operation(self) -> dict[str, list[float]]:
        """Rates (MiB/s) of all repetitions, by operation. Empty if it is unknown which table belongs to this test."""
        index = int(self.test_number or 0)
        return self.tables[index] if index < len(self.tables) else {}

    @property
    def only_table_rates(self) -> dict[str, list[float]]:
        """Rates (MiB/s) in the only table, by operation. Empty if the run has several tests, or may have because of a script."""
        return self.tables[0] if len(self.tables) == 1 and "-f" not in self.command else {}

    def read_document(self, document: Any) -> None:
        """Store the summaries in a JSON document if it is a result of IOR, with a separate reader for each test."""
        if not isinstance(document, dict) or not isinstance(document.get("summary"), list):
            return
        latest_reader = first_reader = self.select_reader(self.has_begun)
        first_reader.has_begun, first_reader.end_mark_count = True, 1
        try:
            options = document["tests"][-1].get("Options") or {}
            first_reader.options = {str(name): str(value) for name, value in options.items()}
        except (LookupError, TypeError, AttributeError):
            pass  # only the summary is needed
        for entry in document["summary"]:
            if isinstance(entry, dict) and entry.get("operation") in ("read", "write"):
                values = [parse_number(entry.get(name)) for name in ("TestID", "bwMeanMIB", "bwMaxMIB", "OPsMean")]
                if (
                    reader := latest_reader.store_mean(entry["operation"], values[0] or 0.0, *values[1:])
                ) is not latest_reader:
                    self.next_readers.append(latest_reader := reader)

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the mean and largest bandwidth and the rate of each operation. The mean must match its repetitions."""
        means = self.means or self.compute_means_from_rows(builder)
        if not means:
            builder.mark_incomplete(
                "the output has neither a summary of IOR nor a complete table of its reads or writes"
            )
        elif not self.end_mark_count and (self.only_table_rates.keys() != means.keys() or not self.command):
            builder.mark_incomplete("the output ends before 'Finished'")
        elif not self.end_mark_count:
            builder.flag_missing_end_mark()
        if self.end_mark_count > 1:
            builder.mark_invalid("several tests ran at once instead of one, because IOR was built without MPI")
        if self.has_wrong_data:
            builder.mark_invalid("IOR read data that differs from the written data")
        for name, (mean, maximum, operations_per_s) in means.items():
            rows = self.rates_by_operation.get(name, [])
            if not all(math.isfinite(value) for value in (mean, maximum, operations_per_s or 0.0, *rows)):
                builder.mark_nan(f"a rate of {name} is not a number")
                continue
            # Rows have four digits, and whole numbers above 10,000.
            if mean <= 0 or mean > maximum * 1.001 or (rows and not is_close(sum(rows) / len(rows), mean, 0.002, 0.5)):
                builder.mark_invalid(
                    f"the mean {name} rate of {mean:g} MiB/s does not match its repetitions, so a line is damaged"
                )
            builder.metrics[f"{name}_bandwidth_gb_per_s"] = mean * _GB_PER_MIB
            builder.metrics[f"{name}_bandwidth_max_gb_per_s"] = maximum * _GB_PER_MIB
            builder.metrics[f"{name}_operations_per_s"] = operations_per_s
        self.add_settings(context, builder, means)
        self.program = "" if self.test_number is None else f"test {self.test_number:g}"

    def compute_means_from_rows(self, builder: ReadingBuilder) -> dict[str, tuple[float, float, float | None]]:
        """Compute the mean and maximum (MiB/s) of each operation from the rows of the only table.

        Returns an empty dict unless the table is known to be complete.
        """
        table, repetitions = self.only_table_rates, parse_number(self.options.get("repetitions"))
        planned_operations = {name for name, option in (("write", "-w"), ("read", "-r")) if option in self.command}
        planned_operations = planned_operations or {"write", "read"}
        has_all_maxima = table.keys() == self.maxima.keys()
        has_all_rows = table.keys() == planned_operations and all(len(rates) == repetitions for rates in table.values())
        if not table or not (has_all_maxima or self.end_mark_count or has_all_rows):
            return {}
        for name, maximum in self.maxima.items():
            if not is_close(max(table.get(name, [math.nan])), maximum, 0.001, 0.5):
                builder.mark_invalid(
                    f"no row has the maximum {name} rate of {maximum:g} MiB/s that IOR reports, so a row is damaged or missing"
                )
        return {name: (math.fsum(rates) / len(rates), max(rates), None) for name, rates in table.items()}

    def add_settings(self, context: RunContext, builder: ReadingBuilder, means: Mapping[str, object]) -> None:
        """Add settings, and flags for an unexpected number of processes and for reads possibly from the page cache."""
        builder.settings |= {
            "hosts": parse_number(self.options.get("nodes")),
            "transfer_size": parse_size(self.options.get("xfersize", "")),
            "block_size": parse_size(self.options.get("blocksize", "")),
        }
        builder.check_process_count("IOR", parse_number(self.options.get("tasks", "").partition(" ")[0]), context)
        if len(means) == 2 and self.options.get("ordering inter file") == "no tasks offsets":
            builder.add_flag("tasks read the data that they wrote, so the read rate may be that of the page cache")


FORMAT = LogFormat(
    IorReader,
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
    row_pattern=re.compile(rb"\n" + LINE_PREFIX + rb"(?:write|read)[ \t]+[-+\d.naiN]"),
    document_marker=b'"bwMeanMIB"',
    max_line_chars=4 << 10,
)
