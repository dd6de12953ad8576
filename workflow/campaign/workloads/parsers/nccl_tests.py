"""Parser of nccl-tests and rccl-tests: the printed table in its three layouts, or the file of -J.

Bandwidths are curves over message sizes; the printed average mixes all sizes and is not read. Wrong values make
the run invalid. So do several one-rank tests in place of one test of several ranks, which is what a build
without MPI does under mpirun. GB/s are 1e9 bytes. busbw is algbw times 2(n-1)/n for all-reduce, (n-1)/n for
all-gather, reduce-scatter, gather, scatter and all-to-all, else 1 (nccl-tests, doc/PERFORMANCE.md); hypercube
counts (n-1)/n of the size in its algbw. All-to-all and send-receive cannot work in place: their in-place
columns, whose values are N/A, are no result and count only if there are no others. Sizes are rounded down to
what the ranks can share. With -S or -I the table has further columns: then only -J is read. Each data type,
operation and repetition (-N) is a test. The file of -J lists one device per process.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from campaign.workloads.parsers.reading import LABEL, F, Format, LogReader, Scope, Verdict, agree, number

_CELL = rf"({F}|N/A)"
_ROW = re.compile(
    r"\s*(\d{1,15})\s+(\d{1,15})\s+([a-z]\w{1,20}(?:\s+[a-z]\w{0,20})?)(?:\s+-?\d{1,6})?" + rf"\s+{_CELL}" * 8 + r"\s*$"
)
_RANK = re.compile(r"#\s+Rank\s+(\d{1,6})\s.*\bon\s+\S+\s+device")
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*: (\d{1,18}) (OK|FAILED)")
_SIZES = re.compile(r"minBytes (\d{1,15}) maxBytes (\d{1,15}) step: (\d{1,15})\((factor|bytes)\)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,15})")
_COLUMNS = re.compile(r"time\s+algbw\s+busbw\s+(#wrong|error)\s+time\s+algbw\s+busbw\s+(?:#wrong|error)\s*$")
_TITLE = re.compile(r"#\s*Collective test starting: (\w{1,40}?)(?:_mpi)?\s*$")
_MOST_SIZES = 10_000
_ALIGNED = 16
_ROUNDED_TO_ZERO = 0.02
_NAMES = ("busbw", "algbw", "time", "busbw_in_place", "algbw_in_place", "time_in_place")


@dataclass
class _ProgramRun:
    """Header and end of one run of the program, shared by all of its tables."""

    program: str = ""
    ranks: list[int] = field(default_factory=list)
    bounds: tuple[int, bool] | None = None
    sizes: tuple[int, int, int, bool] | None = None
    largest: int | None = None
    one_size: bool = False
    counted_wrong: bool = True
    odd_columns: str = ""
    operations: set[str] = field(default_factory=set)


class NcclTests(LogReader):
    """Reader of one table, with the sizes of one data type, operation and repetition."""

    def __init__(self) -> None:
        super().__init__()
        self.run = _ProgramRun()
        self.operation = ""
        self.last_size = -1
        self.values: dict[str, dict[int, float]] = {name: {} for name in _NAMES}
        self.wrong = 0
        self.checked = False
        self.unchecked: set[int] = set()
        self.torn: list[tuple[int, float, float]] = []

    def line(self, line: str) -> None:
        """Store a row, or a line of the header or end. A header after a measurement begins the next test."""
        if self.begun and (_RANK.match(line) or _TITLE.match(line) or _SIZES.search(line)):
            return self.another(line)
        if row := _ROW.match(line):
            cells = [number(cell) for cell in row.groups()[3:]]  # N/A becomes None
            table = self.table_of(int(row[1]), " ".join(row[3].split()))
            table.take(int(row[1]), cells[:3], cells[3], "")
            table.take(int(row[1]), cells[4:7], cells[7], "_in_place")
        elif found := _RANK.match(line):
            self.run.ranks.append(int(found[1]))
        elif found := _TITLE.match(line):
            self.run.program = found[1]
        elif found := _BOUNDS.match(line):
            self.run.bounds = int(found[1]), found[2] == "OK"
        elif found := _SIZES.search(line):
            self.run.sizes = int(found[1]), int(found[2]), int(found[3]), found[4] == "factor"
            self.run.one_size = found[1] == found[2]
        elif found := _REDUCED.search(line):
            self.run.largest = int(found[1])
        elif "algbw" in line and "busbw" in line:
            columns = _COLUMNS.search(line)
            self.run.counted_wrong = columns is not None and columns[1] == "#wrong"
            self.run.odd_columns = "" if columns else line.strip()[:120]

    @property
    def begun(self) -> bool:
        """True if the reader has measurements.

        The headers of several processes without MPI all come before the first measurement.
        """
        return self.run.bounds is not None or any(self.values.values())

    def table_of(self, size: int, operation: str) -> NcclTests:
        """Return the reader for the table of a row: a new one for another operation, or if the sizes start again.

        Args:
            size: message size (bytes).
            operation: data type and operation.
        """
        # Small sizes that are rounded down repeat within one table.
        repeated = size < self.last_size or (self.run.one_size and 0 < size == self.last_size)
        table = self.fresh(repeated or (self.last_size >= 0 and operation != self.operation))
        table.run, table.operation, table.last_size = self.run, operation, size
        self.run.operations.add(operation)
        return table

    def take(self, size: int, cells: list[float | None], wrong: float | None, place: str) -> None:
        """Store the values of one row, either out of place or in place, and check that they agree.

        Args:
            size: message size (bytes).
            cells: time (us), algorithm bandwidth and bus bandwidth (GB/s).
            wrong_values: number of wrong values, or None if they were not checked.
            suffix: suffix of the curves, empty or `_in_place`.
        """
        time_us, algbw, busbw = cells
        if wrong is not None:
            self.checked = True
            self.wrong += self.run.counted_wrong and (wrong > 0 or not math.isfinite(wrong))
        if len(self.values["busbw"]) >= _MOST_SIZES:
            return
        if time_us is not None and algbw is not None and busbw is not None and size:
            # The numbers of a row that was mixed up with another line do not agree.
            # A time has seven characters, and only two digits if it needs an exponent.
            relative = 0.06 if time_us >= 1e7 else 0.012 + 0.006 / max(time_us, 1e-3)
            absolute = 0.006 if algbw < 1000 else 0.6
            if algbw >= 1 and len(self.torn) < _MOST_SIZES:
                shares = [size / max(time_us, 1e-9) / 1e3 * share for share in self.shares()]
                if not any(agree(rate, algbw, relative, absolute) for rate in shares):
                    self.torn.append((size, time_us, algbw))
            if place and wrong is None:
                self.unchecked.add(size)
            self.values["time" + place][size] = time_us
            self.values["algbw" + place][size] = algbw
            self.values["busbw" + place][size] = busbw

    def shares(self) -> tuple[float, ...]:
        """Return the fractions of the message size that the algorithm bandwidth may count."""
        ranks = len(set(self.run.ranks))
        return ((ranks - 1) / ranks,) if self.run.program == "hypercube_perf" and ranks else (1.0,)

    def document(self, document: Any) -> None:
        """Store the results of a JSON document if it is a file of -J, each table in its own reader."""
        if self.begun and isinstance(document, dict) and isinstance(document.get("results"), list):
            after = NcclTests()
            after.document(document)
            self.others += [after, *after.others] if after.from_file else []
            return
        try:
            results = document["results"]
            self.run.program = str(next(iter(document.get("args") or ()), "")).rpartition("/")[2].removesuffix("_mpi")
            devices = document.get("devices") or document.get("config", {}).get("devices") or ()
            self.run.ranks = [device.get("rank", rank) for rank, device in enumerate(devices)]
            config = document.get("config", {})
            self.run.one_size = config.get("minimum_bytes") == config.get("maximum_bytes") is not None
            per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
            if 1 < per_process <= _MOST_SIZES and not any(rank % per_process for rank in self.run.ranks):
                self.run.ranks = [rank + thread for rank in self.run.ranks for thread in range(per_process)]
            count = number(document.get("out_of_bounds", {}).get("count"))
            self.run.bounds = None if count is None else (int(count), count == 0)
            table = self
            for result in results:
                size = int(result["size"])
                after = table.table_of(size, f"{result.get('type', '')} {result.get('redop', '')}".strip())
                if after is not table:
                    self.others += [after] if table is not self else []
                    after.from_file, table = True, after
                for key, place in (("out_of_place", ""), ("in_place", "_in_place")):
                    if isinstance(found := result.get(key), dict):
                        cells = [number(found.get(name)) for name in ("time", "alg_bw", "bus_bw")]
                        table.take(size, cells, number(found.get("nwrong")), place)
            self.from_file = True
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            documents = self.documents
            self.__init__()  # type: ignore[misc]
            self.documents = documents

    def judge(self, verdict: Verdict, scope: Scope) -> None:
        """Add the curves of bandwidth and time, the peak bandwidths and the latency of the smallest size."""
        self.program = (
            " ".join((self.run.program, self.operation)) if len(self.run.operations) > 1 else self.run.program
        )
        if self.checked and self.values["busbw"]:
            self.drop_unchecked()
        busbw = self.values["busbw"] or self.values["busbw_in_place"]
        if self.run.odd_columns:
            verdict.invalid(
                f"columns that are not known ({self.run.odd_columns}): have the program write a file with -J, and read that"
            )
        if not busbw:
            verdict.incomplete("no row of sizes and bandwidths in the output")
        elif self.run.bounds is None:
            verdict.incomplete("the output ends before 'Out of bounds values'")
        elif not self.run.bounds[1] or self.run.bounds[0] or self.wrong:
            verdict.invalid(f"wrong values: {max(self.run.bounds[0], self.wrong)}")
        if self.torn:
            size, time_us, algbw = self.torn[-1]
            verdict.invalid(f"a row contradicts itself: {size} bytes in {time_us:g} us are not {algbw:g} GB/s")
        self.check_ranks(scope, verdict, busbw)
        verdict.settings |= {
            "precision": self.operation.partition(" ")[0],
            "message_size": min(busbw) if self.run.one_size and len(busbw) == 1 else None,
        }
        if busbw and not self.checked:
            verdict.flag("the values were not checked")
        if missing := self.missing(busbw):
            verdict.flag(f"{missing} sizes could not be read")
        for name in ("busbw", "algbw"):
            values = [*self.values[name].values(), *self.values[f"{name}_in_place"].values()]
            verdict.metrics[f"{name}_peak_gb_per_s"] = max(values, default=None)
        times = self.values["time"] or self.values["time_in_place"]
        verdict.metrics["latency_us"] = times[min(times)] if times else None
        for name, points in self.values.items():
            verdict.curve(name, "us" if name.startswith("time") else "gb_per_s", points)

    def drop_unchecked(self) -> None:
        """Remove the in-place values that were not checked although others were.

        An operation that cannot work in place prints such values.
        """
        for name in _NAMES[3:]:
            for size in self.unchecked:
                self.values[name].pop(size, None)

    def check_ranks(self, scope: Scope, verdict: Verdict, busbw: dict[int, float]) -> None:
        """Record problems with the ranks, such as a number other than planned.

        Further problems are ranks listed twice, and a ratio of bus and algorithm bandwidth that no operation of so many
        ranks has. `busbw` is the bus bandwidth (GB/s) by message size (bytes).
        """
        listed = self.run.ranks
        ranks = len(set(listed))
        if len(listed) > ranks:
            verdict.invalid(
                f"{len(listed)} ranks are listed, of which {ranks} differ: several processes that do not know of each other "
                "printed, as those of a program that was built without MPI, or a log was cut off before its rows"
            )
        elif listed:
            verdict.expect("the ranks are", float(ranks), scope.ranks)
        # For small messages both are printed as 0.00.
        if ranks == 1 or (busbw and not any(busbw.values()) and max(self.algbw) >= _ROUNDED_TO_ZERO):
            verdict.invalid("no bus bandwidth at any size, as with one rank")
        known = (2 * (ranks - 1) / max(ranks, 1), (ranks - 1) / max(ranks, 1), 1.0)
        if ranks > 1 and not all(
            algbw < 1 or any(agree(self.values["busbw"][size], factor * algbw, 0.012, 0.02) for factor in known)
            for size, algbw in self.values["algbw"].items()
        ):
            verdict.invalid(f"bus and algorithm bandwidth are in a ratio that no operation of {ranks} ranks has")

    @property
    def algbw(self) -> list[float]:
        """All algorithm bandwidths (GB/s), and 0."""
        return [*self.values["algbw"].values(), *self.values["algbw_in_place"].values(), 0.0]

    def missing(self, busbw: dict[int, float]) -> int:
        """Return the number of planned sizes of at least 1 KiB that have no row.

        `busbw` is the bus bandwidth (GB/s) by message size (bytes).
        """
        if self.run.sizes is None:
            return 0
        size, last, step, factor = self.run.sizes
        last = last if self.run.largest is None else min(last, self.run.largest)
        missing = asked = 0
        rounded = max(len(set(self.run.ranks)), 1) * _ALIGNED
        ordered = sorted(busbw)
        while size <= last and asked < _MOST_SIZES:
            at = bisect_right(ordered, size)
            near = at > 0 and ordered[at - 1] > size - rounded
            missing += not near and size >= 1024  # small sizes are rounded to the element and to the ranks
            asked += 1
            if step < 1 or (factor and (step < 2 or size < 1)):
                break
            size = size * step if factor else size + step
        return missing


FORMAT = Format(
    NcclTests,
    needles=(b"# Out of bounds", b"maxBytes ", b"busbw", b"Collective test starting"),
    rows=re.compile(rb"\n" + LABEL + rb"(?:#[ \t]+Rank[ \t]+\d|\d+[ \t]+\d+[ \t]+[a-z]\w+[ \t]+[-a-z\d])"),
    document=b'"results"',
    line_max=4 << 10,
    programs=re.compile(r"\w+_perf(?:_mpi)?"),
)
