"""Base classes of log parsers, the reading that they return, and helpers for numbers, matrices and JSON documents."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

ReadingStatus = Literal["ok", "nan", "invalid", "incomplete"]
F = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|NaN|NAN|Inf|INF)"
"""Regular expression of a floating-point number, including NaN and infinity."""

LINE_PREFIX = (
    rb"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z )?(?: *\d{1,6}: |\[[^\]\s]{1,60}\](?:<std(?:out|err)>)?:? ?)?[ \t]*"
)
"""Regular expression of the prefix of a line: the time of `kubectl logs --timestamps` and the label of the rank."""

NO_END_MARK = "the log has no end mark, so it may be cut off"
"""Flag for logs without an end mark, whose completeness only the exit code of the program can prove."""

_MAX_SHOWN_CHARS = 60
_MAX_NAMED_VALUES = 12
_MAX_MATCHES_PER_NAME = 100_000  # kept per name to limit memory: the first ones and the last
_STATUSES_WORST_FIRST: tuple[ReadingStatus, ...] = ("incomplete", "invalid", "nan")


def describe_unended_line(line: str) -> str:
    """Build the message about a last line that is left out because it may be cut off.

    Such a line does not end in a line feed, and nothing proves that it is complete.
    """
    return (
        f"the last line has no line feed and is left out because it may be cut off: '{line.strip()[:_MAX_SHOWN_CHARS]}'; "
        "add a line feed if the log is complete"
    )


@dataclass(frozen=True)
class RunContext:
    """Facts about a run that are known before its log is read. Unknown facts are None.

    Attributes:
        ranks: number of ranks.
        hosts: number of hosts.
        batch: samples per device and step.
        batch_global: samples per step on all devices together.
        warmup_steps: number of warm-up steps.
        measured_steps: number of steps to measure.
        test: test of the log that counts, by its number from 1, or 'last'. If None, the log must have exactly one test.
        ended_normally: True if the exit code shows that the program ended normally. Its last line is then complete,
            even without a line feed.
    """

    ranks: int | None = None
    hosts: int | None = None
    batch: int | None = None
    batch_global: int | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None
    test: int | Literal["last"] | None = None
    ended_normally: bool = False


@dataclass(frozen=True)
class PairMatrix:
    """Matrix of numbers for pairs, such as bandwidths between devices. Pairs that were not measured are None.

    `unit` is written as in the suffix of a metric name, such as `gb_per_s` or `us`.
    """

    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass
class MatrixBuilder:
    """Builder of a PairMatrix whose rows are added one by one.

    `is_damaged` is True if a row does not fit the columns, because lines were damaged or mixed up.
    """

    unit: str
    columns: tuple[str, ...] = ()
    row_labels: list[str] = field(default_factory=list)
    rows: list[tuple[float | None, ...]] = field(default_factory=list)
    is_damaged: bool = False

    @property
    def is_complete(self) -> bool:
        """True if the matrix has as many rows as columns and no damaged row."""
        return not self.is_damaged and len(self.rows) == len(self.columns)

    def add_row(self, label: str, cells: Sequence[float | None]) -> None:
        """Add a row. A row that is too short, too long or repeated is left out and marks the matrix as damaged."""
        if len(cells) != len(self.columns) or label in self.row_labels:
            self.is_damaged = True
        else:
            self.row_labels.append(label)
            self.rows.append(tuple(cells))

    def build(self, is_masked: Callable[[bool, float], bool] | None = None) -> PairMatrix:
        """Build the matrix from the rows added so far. Cells that are masked or not finite become None.

        Args:
            is_masked: predicate that tells whether a cell was not measured, given whether it is on the diagonal, and its value.
        """
        is_masked = is_masked or (lambda diagonal, value: False)
        values = (
            tuple(
                None if value is None or not math.isfinite(value) or is_masked(row == column, value) else value
                for column, value in enumerate(cells)
            )
            for row, cells in enumerate(self.rows)
        )
        return PairMatrix(self.unit, tuple(self.row_labels), self.columns, tuple(values))


@dataclass(frozen=True)
class Curve:
    """Curve of a number over the message size (bytes), in ascending order of size."""

    unit: str
    points: tuple[tuple[int, float], ...]

    @property
    def peak(self) -> float:
        """Largest value of the curve."""
        return max(value for _, value in self.points)


@dataclass(frozen=True)
class LogReading:
    """Numbers, status and flags read from a log for one test.

    Attributes:
        status: `ok`, or the most serious problem.
        problem: reason why the status is not `ok`.
        throughput_per_s: samples per second of all ranks together.
        step_times_s: step times by rank and step.
        metrics: numbers by name. Each name ends in the unit.
        matrices: matrices over pairs by name.
        curves: curves over message sizes by name.
        steady: start and end (Unix seconds) of the period in which all ranks were measured, or None.
        flags: remarks that readers of the numbers should know.
        program: name of the program or test, such as `osu_bw`, if the log states it.
        settings: settings with which the program was started according to the log, named as in `SETTINGS` of
            importing/stated_settings.py.
        rounded: True for numbers as printed, False for numbers from a file of the program, which may have more
            digits.
    """

    status: ReadingStatus = "ok"
    problem: str = ""
    throughput_per_s: float | None = None
    step_times_s: tuple[tuple[float, ...], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: Mapping[str, PairMatrix] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    steady: tuple[float, float] | None = None
    flags: tuple[str, ...] = ()
    program: str = ""
    settings: Mapping[str, float | str] = field(default_factory=dict)
    rounded: bool = True

    def without_cut_off_flag(self) -> LogReading:
        """Return a copy of the reading without the flag that the log may be cut off.

        Use this method only if the exit code shows that the program ended normally.
        """
        return replace(self, flags=tuple(flag for flag in self.flags if flag != NO_END_MARK))

    def has_equal_numbers(self, reading: LogReading) -> bool:
        """Return True if another reading has the same status and the same numbers."""
        first_values, second_values = (
            (r.status, r.throughput_per_s, r.metrics, r.curves, r.matrices) for r in (self, reading)
        )
        return first_values == second_values

    @property
    def has_numbers(self) -> bool:
        """True if the reading has a rate, metric, curve or matrix."""
        return self.throughput_per_s is not None or bool(self.metrics or self.curves or self.matrices)

    def matches_full_log(self, full_reading: LogReading) -> bool:
        """Return True if a reading of the full log has the same numbers as this reading without the last line.

        The status may differ if this reading is `incomplete`, since the last line may make it `ok`.
        """
        own_values, full_values = ((r.metrics, r.curves, r.matrices, r.step_times_s) for r in (self, full_reading))
        return own_values == full_values and (
            self.status == "incomplete" or self.throughput_per_s == full_reading.throughput_per_s
        )

    def is_same_test(self, reading: LogReading) -> bool:
        """Return True if another reading is of the same test, with one from printed output and the other from a file."""
        value_pairs = [
            (self.metrics[name], reading.metrics[name]) for name in self.metrics.keys() & reading.metrics.keys()
        ]
        for name in self.curves.keys() & reading.curves.keys():
            points, other_points = dict(self.curves[name].points), dict(reading.curves[name].points)
            value_pairs += [(value, other_points.get(size, math.nan)) for size, value in points.items()]
        return (
            self.rounded != reading.rounded
            and len(value_pairs) > 1
            and all(is_close(a, b, 0.001, 0.0051) for a, b in value_pairs)
        )


@dataclass(frozen=True)
class LogFormat:
    """Format of one program's logs: the class that reads them, and which lines it needs.

    Lines that contain no needle and do not match `row_pattern` are skipped.

    Attributes:
        reader: constructor of the reader.
        needles: texts of which relevant lines contain at least one.
        row_pattern: pattern that further relevant lines match. It begins with a line feed.
        document_marker: text near the start or end of a log that shows that it has a JSON document, so that all lines must be
            read.
        max_line_chars: length of the longest line that is read.
        program_pattern: pattern for the names of the programs.
        decimals: number of decimals with which each line of numbers ends; None if it varies.
    """

    reader: Callable[[], LogReader]
    needles: Sequence[bytes] = ()
    row_pattern: re.Pattern[bytes] | None = None
    document_marker: bytes | None = None
    max_line_chars: int = 16 << 10
    program_pattern: re.Pattern[str] | None = None
    decimals: int | None = None

    def is_line_complete(self, line: str) -> bool:
        """Return True if a last line without a line feed is certainly complete.

        Such a line ends with a closing bracket, or with all the decimals that the program prints.
        """
        ends_with_bracket = line.rstrip().endswith(("}", "]"))
        return ends_with_bracket or (
            self.decimals is not None and re.search(rf"\.\d{{{self.decimals}}}$", line) is not None
        )


def parse_number(value: Any) -> float | None:
    """Convert a JSON value or a text to a float. Returns None for booleans and for anything that is not a number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def parse_size(text: Any) -> float | None:
    """Convert a size such as `4k`, `1 MiB` or `262144 bytes` to bytes, by powers of 1024. Returns None for any other text."""
    match = _SIZE_PATTERN.fullmatch(str(text).strip().lower())
    size = parse_number(match[1]) if match else None
    return None if match is None or size is None else size * 1024 ** " kmgt".index(match[2] or " ")


_SIZE_PATTERN = re.compile(r"([\d.]{1,20})\s*([kmgt]?)(?:i?b|bytes)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ELEMENT = re.compile(r'\s*(?:$|["{}\[\],:\d]|-\d|-?Infinity|NaN|null|true|false)')
_MAX_DOCUMENT_BYTES = 16 << 20
_MAX_BRACKETS_OPENED_PER_LINE = 20


class JsonDocumentFinder:
    """Finder of JSON documents in a log whose lines are fed to it one by one.

    A document is a single line, or extends from a line that opens it to a line that closes it.
    """

    def __init__(self, max_bytes: int = _MAX_DOCUMENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._has_cut_off_document = False
        self._lines: list[str] = []
        self._bytes = self._depth = 0

    def feed(self, line: str) -> Any:
        """Add the next line of the log. Returns the document that ends with this line, or None."""
        if not self._lines and "{" not in line and "[" not in line:
            return None
        if self._lines and not self._is_continued_by(line):
            self._has_cut_off_document = self._has_cut_off_document or self._lines[0].startswith('{"')
            self._reset()
        if not self._lines:
            line = line.strip() if line.strip() == "[" else line[line.find("{") :] if "{" in line else ""
            if not line.rstrip().endswith(("{", "[", ",")):
                return self._parse(line) if line else None
        self._lines.append(line)
        self._bytes += len(line)
        structure = _STRING.sub("", line)
        depth_change = sum(map(structure.count, "{[")) - sum(map(structure.count, "}]"))
        self._depth += depth_change
        if self._depth > 0 and depth_change <= _MAX_BRACKETS_OPENED_PER_LINE and self._bytes <= self._max_bytes:
            return None
        text = "\n".join(self._lines)
        self._reset()
        return self._parse(text)

    @property
    def has_incomplete_document(self) -> bool:
        """True if a document has begun but not ended."""
        return self._has_cut_off_document or bool(self._lines)

    def _parse(self, text: str) -> Any:
        """Parse the text of a document, and note if it was cut off."""
        document = _parse_json(text)
        self._has_cut_off_document = self._has_cut_off_document or (document is None and text.startswith(('{"', "{\n")))
        return document

    def _is_continued_by(self, line: str) -> bool:
        """Return True if a line can continue the current document, since braces are also printed for other reasons."""
        if line.startswith('{"') and self._lines[0].startswith('{"'):
            return False  # one document per line, and the previous one was cut off
        if line.startswith("{"):
            return self._lines[-1].rstrip().endswith(("[", ",", ":"))
        return _ELEMENT.match(line) is not None

    def _reset(self) -> None:
        """Discard the lines of the current document collected so far."""
        self._lines, self._bytes, self._depth = [], 0, 0


def _parse_json(text: str) -> Any:
    """Parse a text as JSON. Returns None if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def find_values(document: Any, path: str) -> Iterator[Any]:
    """Yield the values at a path in a JSON document.

    A path consists of keys and element numbers (from 0) separated by dots; `*` stands for every element. A key may
    contain dots.
    """
    if isinstance(document, list):
        head, _, remaining_path = path.partition(".")
        elements = document if head == "*" else document[int(head) :][:1] if head.isdecimal() else []
        for element in elements:
            yield from find_values(element, remaining_path) if remaining_path else (element,)
    elif isinstance(document, dict):
        parts = path.split(".")
        for key_parts in range(len(parts), 0, -1):
            if (key := ".".join(parts[:key_parts])) in document:
                remaining_path = ".".join(parts[key_parts:])
                yield from find_values(document[key], remaining_path) if remaining_path else (document[key],)
                return


def is_close(first: float, second: float, relative: float, absolute: float = 0.0) -> bool:
    """Return True if two numbers are finite and differ by no more than a relative plus an absolute tolerance."""
    return (
        math.isfinite(first)
        and math.isfinite(second)
        and abs(first - second) <= relative * max(first, second) + absolute
    )


class ReadingBuilder:
    """Builder of a LogReading: collects numbers, flags and problems of one test.

    The most serious problem determines the status. If several problems have this status, the first is reported.
    """

    def __init__(self) -> None:
        self._problems: dict[ReadingStatus, str] = {}
        self.flags: list[str] = []
        self.metrics: dict[str, float | None] = {}
        self.matrices: dict[str, PairMatrix] = {}
        self.curves: dict[str, Curve] = {}
        self.settings: dict[str, float | str | None] = {}

    def mark_incomplete(self, problem: str) -> None:
        """Record a problem that makes the reading `incomplete`: the log has no result or was cut off."""
        self._problems.setdefault("incomplete", problem)

    def mark_invalid(self, problem: str) -> None:
        """Record a problem that makes the reading `invalid`: the log contradicts itself or the run."""
        self._problems.setdefault("invalid", problem)

    def mark_nan(self, problem: str) -> None:
        """Record a problem that makes the reading `nan`: a value is not a finite number."""
        self._problems.setdefault("nan", problem)

    def add_flag(self, text: str) -> None:
        """Add a flag to the reading, unless it already has the same flag."""
        if text not in self.flags:
            self.flags.append(text)

    def flag_missing_end_mark(self) -> None:
        """Add the flag that the log may be cut off, because it has no end mark."""
        self.add_flag(NO_END_MARK)

    def require_equal(self, description: str, printed_value: float | None, expected_value: float | None) -> None:
        """Mark the reading as `invalid` if a value that the program printed differs from the value of the run.

        Unknown values (None) are not compared.

        Args:
            description: name of the value in the message, such as "number of ranks".
            printed_value: value in the log.
            expected_value: value of the run.
        """
        if printed_value is not None and expected_value is not None and printed_value != expected_value:
            self.mark_invalid(f"the {description} is {printed_value:g} in the log, but {expected_value:g} in the run")

    def check_process_count(self, program: str, process_count: float | None, context: RunContext) -> None:
        """Add a flag if the number of processes that a program used differs from the number of ranks of the run.

        It is not an error, because it may be intended.
        """
        if process_count is not None and context.ranks is not None and process_count != context.ranks:
            self.add_flag(f"{program} used {process_count:g} processes, but the run has {context.ranks} devices")

    def require_finite(self, metrics: Mapping[str, float]) -> None:
        """Mark the reading as `nan` if a metric is not finite."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                self.mark_nan(f"{name} is {value:g}")

    def add_curve(self, name: str, unit: str, points: Mapping[int, float]) -> None:
        """Add a curve over message sizes (bytes). Empty curves are left out; values that are not finite are a problem."""
        if not all(map(math.isfinite, points.values())):
            self.mark_nan(f"{name} is not a number")
        elif points:
            self.curves[name] = Curve(unit, tuple(sorted(points.items())))

    def add_matrix(self, name: str, matrix: PairMatrix) -> None:
        """Add a matrix, and its smallest and largest cells as metrics. A matrix without measured cells is left out."""
        if cells := list_measured_values(matrix.values):
            self.matrices[name] = matrix
            self.metrics[f"{name}_min_{matrix.unit}"] = min(cells)
            self.metrics[f"{name}_max_{matrix.unit}"] = max(cells)

    def build(self, throughput_per_s: float | None = None, program: str = "", *, rounded: bool = True) -> LogReading:
        """Build the reading, leaving out numbers that are not finite, and the rate if the run is incomplete.

        Args:
            throughput_per_s: samples per second, or None if the program processes no samples.
            program: name of the program or test.
            rounded: True if the numbers are as printed, False if they are from a file of the program.
        """
        if throughput_per_s is not None and not (math.isfinite(throughput_per_s) and throughput_per_s > 0):
            self.mark_nan(f"the rate is {throughput_per_s:g}")
            throughput_per_s = None
        status: ReadingStatus = next((status for status in _STATUSES_WORST_FIRST if status in self._problems), "ok")
        finite_metrics = {
            name: value for name, value in self.metrics.items() if value is not None and math.isfinite(value)
        }
        return LogReading(
            status=status,
            problem=self._problems.get(status, ""),
            throughput_per_s=None if status == "incomplete" else throughput_per_s,
            metrics=finite_metrics,
            matrices=self.matrices,
            curves=self.curves,
            flags=tuple(self.flags),
            program=program,
            settings={name: value for name, value in self.settings.items() if value not in (None, "")},
            rounded=rounded,
        )


def list_measured_values(rows: Sequence[Sequence[float | None]]) -> list[float]:
    """List the values of all measured cells of a matrix, i.e. those that are not None."""
    return [value for row in rows for value in row if value is not None]


class LogReader(ABC):
    """Base class of readers, each of which reads one test from a log whose lines are fed to it one by one.

    Attributes:
        max_document_bytes: maximum size of a JSON document.
        next_readers: readers of the tests that begin with the line that was fed last, in order.
        unreadable_values: values that should be numbers but are not.
        document_finder: finder of the JSON documents in the lines.
        program: name of the program or test according to the log.
        from_file: True if the numbers are from a file of the program, which may have more digits than its output.
    """

    max_document_bytes = 16 << 20

    def __init__(self) -> None:
        self.next_readers: list[LogReader] = []
        self.unreadable_values: list[str] = []
        self.document_finder = JsonDocumentFinder(self.max_document_bytes)
        self.program, self.from_file = "", False

    def feed(self, line: str) -> Sequence[LogReader]:
        """Read the next line, from which line end, terminal codes and rank label have been removed.

        Returns the readers of further tests that begin with this line. The last of them must get the lines that follow.
        """
        self.next_readers = []
        reads_documents = type(self).read_document is not LogReader.read_document
        if reads_documents and (document := self.document_finder.feed(line)) is not None:
            self.read_document(document)
        else:
            self.read_line(line)
        return self.next_readers

    def select_reader(self, is_used: bool) -> Self:
        """Return the reader for a test that begins: this reader, or a new one if this one already has a test.

        Args:
            is_used: True if this reader already has a test.
        """
        if not is_used:
            return self
        self.next_readers.append(reader := type(self)())
        return reader

    def start_next_test(self, line: str) -> None:
        """Start a new reader for the next test of the same program, beginning with this line."""
        self.select_reader(True).feed(line)

    def note_unreadable(self, name: str, text: Any) -> None:
        """Record a value that should be a number but is not, so that the reading gets a flag with it."""
        if len(self.unreadable_values) < _MAX_NAMED_VALUES:
            self.unreadable_values.append(f"{name}: '{str(text).strip()[:_MAX_SHOWN_CHARS]}'")

    def read_number(self, name: str, value: Any) -> float | None:
        """Convert a JSON value to a float. Returns None if it is not a number; texts are then recorded as unreadable."""
        result = parse_number(value)
        if result is None and isinstance(value, str) and value.strip():
            self.note_unreadable(name, value)
        return result

    def read_line(self, line: str) -> None:  # noqa: B027
        """Read a line with which no JSON document ends. Ignored by readers of programs that only write documents."""

    def read_document(self, document: Any) -> None:  # noqa: B027
        """Read a JSON document that the log contains."""

    def build_reading(self, context: RunContext) -> LogReading:
        """Build the reading of the test from the lines fed so far. Never raises an exception, whatever the lines contain."""
        builder = ReadingBuilder()
        rate = self.add_results(builder, context)
        if self.unreadable_values:
            unreadable_values = ", ".join(dict.fromkeys(self.unreadable_values))
            builder.add_flag(f"values that are not numbers are left out: {unreadable_values}")
        return builder.build(rate, self.program, rounded=not self.from_file)

    @abstractmethod
    def add_results(self, builder: ReadingBuilder, context: RunContext) -> float | None:
        """Add the numbers, flags and problems of the test to the builder.

        Returns the rate (samples per second), or None if the program reports none.
        """


def compile_patterns(**patterns: str) -> Mapping[str, re.Pattern[str]]:
    """Compile the line patterns of a format. Patterns match from the start of a line and have one group per value."""
    return {name: re.compile(pattern) for name, pattern in patterns.items()}


class LineReader(LogReader):
    """Base class of readers for formats that consist of text lines, declared as patterns in `PATTERNS`.

    If several patterns match a line, the first one applies. The name `unread`, declared last, is for lines that
    should have numbers but match no other pattern. Its groups are a label and the text instead of the numbers.

    `matches` holds the values of the lines by name of their pattern, in the order of the log.
    """

    PATTERNS: ClassVar[Mapping[str, re.Pattern[str]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.matches: dict[str, list[tuple[str, ...]]] = {name: [] for name in self.PATTERNS}

    def read_line(self, line: str) -> None:
        """Store the values of a line under the name of the first pattern that matches it."""
        for name, pattern in self.PATTERNS.items():
            if match := pattern.match(line):
                values = tuple(text or "" for text in match.groups())
                if name == "unread":
                    return self.note_unreadable(values[0], values[1])
                if self.begins_next_test(name, values):
                    return self.start_next_test(line)
                if len(self.matches[name]) == _MAX_MATCHES_PER_NAME:
                    self.matches[name].pop()
                self.matches[name].append(values)
                return None
        return None

    def begins_next_test(self, name: str, values: tuple[str, ...]) -> bool:
        """Return True if a line begins the next test. By default, the second line that matches the pattern `begin` does.

        Args:
            name: name of the pattern that the line matches.
            values: values of its groups.
        """
        return name == "begin" and bool(self.matches[name])

    def last_match(self, name: str) -> tuple[str, ...] | None:
        """Return the values in the last line that matched the pattern of this name, or None if no line matched."""
        return self.matches[name][-1] if self.matches[name] else None

    def last_number(self, name: str) -> float | None:
        """Return the first value in the last line that matched the pattern of this name.

        Returns None if no line matched or the value is not a number.
        """
        return parse_number(values[0]) if (values := self.last_match(name)) else None
