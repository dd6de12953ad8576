"""Parser of nccl-tests and rccl-tests: the printed table in its three layouts, or the file of -J.

Bandwidths are curves over message sizes; the printed average mixes all sizes and is not read. Wrong values make
the run invalid. So do several tests of one rank instead of one test of several ranks, which a build without MPI
runs under mpirun. GB/s are 1e9 bytes/s. busbw is algbw times 2(n-1)/n for all-reduce, (n-1)/n for all-gather,
reduce-scatter, gather, scatter and all-to-all, and 1 otherwise (nccl-tests, doc/PERFORMANCE.md); the algbw of
hypercube counts (n-1)/n of the size. All-to-all and send-receive cannot work in place: their in-place columns,
whose wrong values are N/A, count only if there are no other columns. Sizes are rounded down to a size that the
ranks can share. With -S or -I, the table has additional columns, and only the file of -J is read. Each data type,
operation and repetition (-N) is a test. The file of -J lists one device per process.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
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
)

_CELL = rf"({F}|N/A)"
_ROW = re.compile(
    r"\s*(\d{1,15})\s+(\d{1,15})\s+([a-z]\w{1,20}(?:\s+[a-z]\w{0,20})?)(?:\s+-?\d{1,6})?" + rf"\s+{_CELL}" * 8 + r"\s*$"
)
_RANK = re.compile(r"#\s+Rank\s+(\d{1,6})\s.*\bon\s+\S+\s+device")
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*: (\d{1,18}) (OK|FAILED)")
_SIZES = re.compile(r"minBytes (\d{1,15}) maxBytes (\d{1,15}) step: (\d{1,15})\((factor|bytes)\)")
_REDUCED_SIZE = re.compile(r"Reducing maxBytes to (\d{1,15})")
_COLUMNS = re.compile(r"time\s+algbw\s+busbw\s+(#wrong|error)\s+time\s+algbw\s+busbw\s+(?:#wrong|error)\s*$")
_TITLE = re.compile(r"#\s*Collective test starting: (\w{1,40}?)(?:_mpi)?\s*$")
_MAX_SIZES = 10_000
_ALIGNMENT_BYTES = 16
_MIN_NONZERO_ALGBW = 0.02
_CURVE_NAMES = ("busbw", "algbw", "time", "busbw_in_place", "algbw_in_place", "time_in_place")


@dataclass
class _ProgramRun:
    """Header and end of one run of the program, shared by all of its tables."""

    program: str = ""
    ranks: list[int] = field(default_factory=list)
    out_of_bounds: tuple[int, bool] | None = None
    sizes: tuple[int, int, int, bool] | None = None
    reduced_max_size: int | None = None
    has_one_size: bool = False
    counts_wrong_values: bool = True
    unknown_columns: str = ""
    operations: set[str] = field(default_factory=set)


class NcclTestsReader(LogReader):
    """Reader of one table, with the sizes of one data type, operation and repetition."""

    def __init__(self) -> None:
        super().__init__()
        self.header = _ProgramRun()
        self.operation = ""
        self.last_size = -1
        self.values: dict[str, dict[int, float]] = {name: {} for name in _CURVE_NAMES}
        self.wrong_row_count = 0
        self.is_checked = False
        self.unchecked_sizes: set[int] = set()
        self.inconsistent_rows: list[tuple[int, float, float]] = []

    def read_line(self, line: str) -> None:
        """Store a row, or a line of the header or end. A header after a measurement begins the next test."""
        if self.has_begun and (_RANK.match(line) or _TITLE.match(line) or _SIZES.search(line)):
            return self.start_next_test(line)
        if row := _ROW.match(line):
            cells = [parse_number(cell) for cell in row.groups()[3:]]  # N/A becomes None
            table = self.select_table(int(row[1]), " ".join(row[3].split()))
            table.store_cells(int(row[1]), cells[:3], cells[3], "")
            table.store_cells(int(row[1]), cells[4:7], cells[7], "_in_place")
        elif match := _RANK.match(line):
            self.header.ranks.append(int(match[1]))
        elif match := _TITLE.match(line):
            self.header.program = match[1]
        elif match := _BOUNDS.match(line):
            self.header.out_of_bounds = int(match[1]), match[2] == "OK"
        elif match := _SIZES.search(line):
            self.header.sizes = int(match[1]), int(match[2]), int(match[3]), match[4] == "factor"
            self.header.has_one_size = match[1] == match[2]
        elif match := _REDUCED_SIZE.search(line):
            self.header.reduced_max_size = int(match[1])
        elif "algbw" in line and "busbw" in line:
            columns = _COLUMNS.search(line)
            self.header.counts_wrong_values = columns is not None and columns[1] == "#wrong"
            self.header.unknown_columns = "" if columns else line.strip()[:120]

    @property
    def has_begun(self) -> bool:
        """True if the reader has measurements.

        The headers of several processes without MPI all come before the first measurement.
        """
        return self.header.out_of_bounds is not None or any(self.values.values())

    def select_table(self, size: int, operation: str) -> NcclTestsReader:
        """Return the reader for the table of a row: a new one for another operation, or if the sizes start again.

        Args:
            size: message size (bytes).
            operation: data type and operation.
        """
        # Small sizes that are rounded down repeat within one table.
        is_repeated = size < self.last_size or (self.header.has_one_size and 0 < size == self.last_size)
        table = self.select_reader(is_repeated or (self.last_size >= 0 and operation != self.operation))
        table.header, table.operation, table.last_size = self.header, operation, size
        self.header.operations.add(operation)
        return table

    def store_cells(self, size: int, cells: list[float | None], wrong_values: float | None, suffix: str) -> None:
        """Store the values of one row, either out of place or in place, and check that they agree.

        Args:
            size: message size (bytes).
            cells: time (us), algorithm bandwidth and bus bandwidth (GB/s).
            wrong_values: number of wrong values, or None if they were not checked.
            suffix: suffix of the curves, empty or `_in_place`.
        """
        time_us, algbw, busbw = cells
        if wrong_values is not None:
            self.is_checked = True
            self.wrong_row_count += self.header.counts_wrong_values and (
                wrong_values > 0 or not math.isfinite(wrong_values)
            )
        if len(self.values["busbw"]) >= _MAX_SIZES:
            return
        if time_us is not None and algbw is not None and busbw is not None and size:
            # The numbers of a row that was mixed up with another line do not agree.
            # A time has seven characters, and only two digits if it needs an exponent.
            relative = 0.06 if time_us >= 1e7 else 0.012 + 0.006 / max(time_us, 1e-3)
            absolute = 0.006 if algbw < 1000 else 0.6
            if algbw >= 1 and len(self.inconsistent_rows) < _MAX_SIZES:
                expected_rates = [size / max(time_us, 1e-9) / 1e3 * share for share in self.list_counted_fractions()]
                if not any(is_close(rate, algbw, relative, absolute) for rate in expected_rates):
                    self.inconsistent_rows.append((size, time_us, algbw))
            if suffix and wrong_values is None:
                self.unchecked_sizes.add(size)
            self.values["time" + suffix][size] = time_us
            self.values["algbw" + suffix][size] = algbw
            self.values["busbw" + suffix][size] = busbw

    def list_counted_fractions(self) -> tuple[float, ...]:
        """Return the fractions of the message size that the algorithm bandwidth may count."""
        ranks = len(set(self.header.ranks))
        return ((ranks - 1) / ranks,) if self.header.program == "hypercube_perf" and ranks else (1.0,)

    def read_document(self, document: Any) -> None:
        """Store the results of a JSON document if it is a file of -J, each table in its own reader."""
        if self.has_begun and isinstance(document, dict) and isinstance(document.get("results"), list):
            reader = NcclTestsReader()
            reader.read_document(document)
            self.next_readers += [reader, *reader.next_readers] if reader.from_file else []
            return
        try:
            results = document["results"]
            self.header.program = (
                str(next(iter(document.get("args") or ()), "")).rpartition("/")[2].removesuffix("_mpi")
            )
            devices = document.get("devices") or document.get("config", {}).get("devices") or ()
            self.header.ranks = [device.get("rank", rank) for rank, device in enumerate(devices)]
            config = document.get("config", {})
            self.header.has_one_size = config.get("minimum_bytes") == config.get("maximum_bytes") is not None
            per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
            if 1 < per_process <= _MAX_SIZES and not any(rank % per_process for rank in self.header.ranks):
                self.header.ranks = [rank + thread for rank in self.header.ranks for thread in range(per_process)]
            count = parse_number(document.get("out_of_bounds", {}).get("count"))
            self.header.out_of_bounds = None if count is None else (int(count), count == 0)
            table = self
            for result in results:
                size = int(result["size"])
                reader = table.select_table(size, f"{result.get('type', '')} {result.get('redop', '')}".strip())
                if reader is not table:
                    self.next_readers += [reader] if table is not self else []
                    reader.from_file, table = True, reader
                for key, suffix in (("out_of_place", ""), ("in_place", "_in_place")):
                    if isinstance(measurement := result.get(key), dict):
                        cells = [parse_number(measurement.get(name)) for name in ("time", "alg_bw", "bus_bw")]
                        table.store_cells(size, cells, parse_number(measurement.get("nwrong")), suffix)
            self.from_file = True
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            documents = self.document_finder
            self.__init__()  # type: ignore[misc]
            self.document_finder = documents

    def add_results(self, builder: ReadingBuilder, context: RunContext) -> None:
        """Add the curves of bandwidth and time, the peak bandwidths and the latency of the smallest size."""
        self.program = (
            " ".join((self.header.program, self.operation)) if len(self.header.operations) > 1 else self.header.program
        )
        if self.is_checked and self.values["busbw"]:
            self.drop_unchecked_sizes()
        busbw = self.values["busbw"] or self.values["busbw_in_place"]
        if self.header.unknown_columns:
            builder.mark_invalid(
                f"the table has unknown columns ({self.header.unknown_columns}); write a file with -J and read that file"
            )
        if not busbw:
            builder.mark_incomplete("the output has no row with a size and bandwidths")
        elif self.header.out_of_bounds is None:
            builder.mark_incomplete("the output ends before 'Out of bounds values'")
        elif not self.header.out_of_bounds[1] or self.header.out_of_bounds[0] or self.wrong_row_count:
            builder.mark_invalid(
                f"the results have wrong values: {max(self.header.out_of_bounds[0], self.wrong_row_count)}"
            )
        if self.inconsistent_rows:
            size, time_us, algbw = self.inconsistent_rows[-1]
            builder.mark_invalid(f"a row is inconsistent: {size} bytes in {time_us:g} us is not {algbw:g} GB/s")
        self.check_ranks(context, builder, busbw)
        builder.settings |= {
            "precision": self.operation.partition(" ")[0],
            "message_size": min(busbw) if self.header.has_one_size and len(busbw) == 1 else None,
        }
        if busbw and not self.is_checked:
            builder.add_flag("the results were not checked for wrong values")
        if missing_count := self.count_missing_sizes(busbw):
            builder.add_flag(f"{missing_count} of the planned sizes are missing")
        for name in ("busbw", "algbw"):
            values = [*self.values[name].values(), *self.values[f"{name}_in_place"].values()]
            builder.metrics[f"{name}_peak_gb_per_s"] = max(values, default=None)
        times = self.values["time"] or self.values["time_in_place"]
        builder.metrics["latency_us"] = times[min(times)] if times else None
        for name, points in self.values.items():
            builder.add_curve(name, "us" if name.startswith("time") else "gb_per_s", points)

    def drop_unchecked_sizes(self) -> None:
        """Remove the in-place values that were not checked although others were.

        An operation that cannot work in place prints such values.
        """
        for name in _CURVE_NAMES[3:]:
            for size in self.unchecked_sizes:
                self.values[name].pop(size, None)

    def check_ranks(self, context: RunContext, builder: ReadingBuilder, busbw: dict[int, float]) -> None:
        """Record problems with the ranks, such as a number that differs from the run.

        Other problems are ranks that are listed twice, and a ratio of bus to algorithm bandwidth that is impossible for this
        number of ranks. `busbw` is the bus bandwidth (GB/s) by message size (bytes).
        """
        listed_ranks = self.header.ranks
        ranks = len(set(listed_ranks))
        if len(listed_ranks) > ranks:
            builder.mark_invalid(
                f"the log lists {len(listed_ranks)} ranks, but only {ranks} different ones: either the program was built without "
                "MPI, so that its processes ran independently, or an earlier log was cut off before its rows"
            )
        elif listed_ranks:
            builder.require_equal("number of ranks", float(ranks), context.ranks)
        # For small messages both are printed as 0.00.
        if ranks == 1 or (busbw and not any(busbw.values()) and max(self.algbw_values) >= _MIN_NONZERO_ALGBW):
            builder.mark_invalid("the bus bandwidth is zero at all sizes, as with a single rank")
        busbw_factors = (2 * (ranks - 1) / max(ranks, 1), (ranks - 1) / max(ranks, 1), 1.0)
        if ranks > 1 and not all(
            algbw < 1
            or any(is_close(self.values["busbw"][size], factor * algbw, 0.012, 0.02) for factor in busbw_factors)
            for size, algbw in self.values["algbw"].items()
        ):
            builder.mark_invalid(f"the ratio of bus to algorithm bandwidth is impossible for {ranks} ranks")

    @property
    def algbw_values(self) -> list[float]:
        """All algorithm bandwidths (GB/s), and 0."""
        return [*self.values["algbw"].values(), *self.values["algbw_in_place"].values(), 0.0]

    def count_missing_sizes(self, busbw: dict[int, float]) -> int:
        """Return the number of planned sizes of at least 1 KiB that have no row.

        `busbw` is the bus bandwidth (GB/s) by message size (bytes).
        """
        if self.header.sizes is None:
            return 0
        size, max_size, step, factor = self.header.sizes
        max_size = max_size if self.header.reduced_max_size is None else min(max_size, self.header.reduced_max_size)
        missing_count = size_count = 0
        rounding_bytes = max(len(set(self.header.ranks)), 1) * _ALIGNMENT_BYTES
        sorted_sizes = sorted(busbw)
        while size <= max_size and size_count < _MAX_SIZES:
            position = bisect_right(sorted_sizes, size)
            is_present = position > 0 and sorted_sizes[position - 1] > size - rounding_bytes
            missing_count += not is_present and size >= 1024  # small sizes are rounded to the element and to the ranks
            size_count += 1
            if step < 1 or (factor and (step < 2 or size < 1)):
                break
            size = size * step if factor else size + step
        return missing_count


FORMAT = LogFormat(
    NcclTestsReader,
    needles=(b"# Out of bounds", b"maxBytes ", b"busbw", b"Collective test starting"),
    row_pattern=re.compile(rb"\n" + LINE_PREFIX + rb"(?:#[ \t]+Rank[ \t]+\d|\d+[ \t]+\d+[ \t]+[a-z]\w+[ \t]+[-a-z\d])"),
    document_marker=b'"results"',
    max_line_chars=4 << 10,
    program_pattern=re.compile(r"\w+_perf(?:_mpi)?"),
)
