"""What is read from a program's log, what has to be known of the run to read it, and how a reading is put together."""

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
"""A number in a regular expression, not a number and infinity included."""

LABEL = (
    rb"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z )?(?: *\d{1,6}: |\[[^\]\s]{1,60}\](?:<std(?:out|err)>)?:? ?)?[ \t]*"
)
"""Where a line of bytes begins: behind the time of `kubectl logs --timestamps` and the label of its rank."""

NO_END_MARK = "the log has no end mark: whether it was cut off is not known"
"""The flag of a log of which only the exit code of its program says that it is whole."""

_SHOWN = 60
_MOST_NAMED = 12
_MOST_LINES = 100_000  # of one name that are kept, so that no log takes more memory: the first ones, and the last
_WORST: tuple[ReadingStatus, ...] = ("incomplete", "invalid", "nan")


def describe_unended(line: str) -> str:
    """Return the sentence for a last line that no line feed ends and that nothing proves to be whole."""
    return (
        f"the last line has no line feed and may be cut off, so it is left out: '{line.strip()[:_SHOWN]}'; "
        "add a line feed if the log is whole"
    )


@dataclass(frozen=True)
class Scope:
    """What is known of the run beforehand; None is not known. batch: samples per device and step; batch_global: of all devices.

    test: which of several tests in the log counts, by number from 1, or the last; None where the log has to have one.
    ended: whether the program's exit code says that it came to its end, so that its last line is whole without a line feed.
    """

    ranks: int | None = None
    hosts: int | None = None
    batch: int | None = None
    batch_global: int | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None
    test: int | Literal["last"] | None = None
    ended: bool = False


@dataclass(frozen=True)
class PairMatrix:
    """A number for every pair; None where it was not measured. unit: as a suffix of names is (`gb_per_s`, `us`)."""

    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass
class MatrixRows:
    """A matrix as its rows come. torn: rows and columns do not belong together."""

    unit: str
    columns: tuple[str, ...] = ()
    labels: list[str] = field(default_factory=list)
    rows: list[tuple[float | None, ...]] = field(default_factory=list)
    torn: bool = False

    @property
    def whole(self) -> bool:
        """Whether it has as many rows as columns, and none is torn."""
        return not self.torn and len(self.rows) == len(self.columns)

    def add(self, label: str, cells: Sequence[float | None]) -> None:
        """Take a row; one that is too short, too long or there already tears the matrix."""
        if len(cells) != len(self.columns) or label in self.labels:
            self.torn = True
        else:
            self.labels.append(label)
            self.rows.append(tuple(cells))

    def matrix(self, masked: Callable[[bool, float], bool] | None = None) -> PairMatrix:
        """The matrix without what is no number. masked: what else was not measured, by being on the diagonal, and its value."""
        masked = masked or (lambda diagonal, value: False)
        values = (
            tuple(
                None if value is None or not math.isfinite(value) or masked(row == column, value) else value
                for column, value in enumerate(cells)
            )
            for row, cells in enumerate(self.rows)
        )
        return PairMatrix(self.unit, tuple(self.labels), self.columns, tuple(values))


@dataclass(frozen=True)
class Curve:
    """A number for every message size in bytes, sizes ascending."""

    unit: str
    points: tuple[tuple[int, float], ...]

    @property
    def peak(self) -> float:
        return max(value for _, value in self.points)


@dataclass(frozen=True)
class LogReading:
    """What a log says. problem: why it is not `ok`; throughput_per_s: samples per second of all ranks together.

    step_times_s: [rank][step]. metrics: unit in the name. flags: what a
    reader of the numbers should know. program: the name of the program or test that the log is of, where it says one (`osu_bw`).
    settings: how the log states that its program was started, by the names of `SETTINGS` in importing/stated_settings.py.
    rounded: whether the numbers are those that were printed, and not those of a file of the program, which may have more digits.
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

    def of_ended(self) -> LogReading:
        """The reading of a program whose exit code says that it came to its end."""
        return replace(self, flags=tuple(flag for flag in self.flags if flag != NO_END_MARK))

    def equals(self, other: LogReading) -> bool:
        """Whether both have the same numbers."""
        one, two = ((r.status, r.throughput_per_s, r.metrics, r.curves, r.matrices) for r in (self, other))
        return one == two

    @property
    def has_numbers(self) -> bool:
        return self.throughput_per_s is not None or bool(self.metrics or self.curves or self.matrices)

    def agrees(self, whole: LogReading) -> bool:
        """Return whether the other reading, of the log with its last line, has the same numbers, be it only now `ok`."""
        one, two = ((r.metrics, r.curves, r.matrices, r.step_times_s) for r in (self, whole))
        return one == two and (self.status == "incomplete" or self.throughput_per_s == whole.throughput_per_s)

    def same(self, other: LogReading) -> bool:
        """Whether both are of one test, which a program printed and wrote to a file, too."""
        both = [(self.metrics[name], other.metrics[name]) for name in self.metrics.keys() & other.metrics.keys()]
        for name in self.curves.keys() & other.curves.keys():
            one, two = dict(self.curves[name].points), dict(other.curves[name].points)
            both += [(value, two.get(size, math.nan)) for size, value in one.items()]
        return self.rounded != other.rounded and len(both) > 1 and all(agree(a, b, 0.001, 0.0051) for a, b in both)


@dataclass(frozen=True)
class Format:
    """How to read one program's logs. Lines with none of `needles`, in which `rows` is not found either, say nothing.

    rows: of bytes, begins with a line feed. document: text near the beginning of a log of which every line counts. programs: names
    of the programs that it reads. decimals: number of decimals with which every line of numbers ends; None if it varies.
    """

    reader: Callable[[], LogReader]
    needles: Sequence[bytes] = ()
    rows: re.Pattern[bytes] | None = None
    document: bytes | None = None
    line_max: int = 16 << 10
    programs: re.Pattern[str] | None = None
    decimals: int | None = None

    def proves_whole(self, line: str) -> bool:
        """Return whether a last line without a line feed shows by itself that nothing of it is missing."""
        closed = line.rstrip().endswith(("}", "]"))
        return closed or (self.decimals is not None and re.search(rf"\.\d{{{self.decimals}}}$", line) is not None)


def number(value: Any) -> float | None:
    """A number of a JSON document, of a string or none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def size_bytes(text: Any) -> float | None:
    """Return the bytes of a size such as `4k`, `1 MiB` or `262144 bytes`, by powers of 1024; None if it is none."""
    found = _SIZE.fullmatch(str(text).strip().lower())
    size = number(found[1]) if found else None
    return None if found is None or size is None else size * 1024 ** " kmgt".index(found[2] or " ")


_SIZE = re.compile(r"([\d.]{1,20})\s*([kmgt]?)(?:i?b|bytes)?")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ELEMENT = re.compile(r'\s*(?:$|["{}\[\],:\d]|-\d|-?Infinity|NaN|null|true|false)')
_DOCUMENT_BYTES = 16 << 20
_OPENED_AT_ONCE = 20


class Documents:
    """Finds the JSON documents in a log line by line: a line that is one, or lines from one that begins it to one that ends it."""

    def __init__(self, longest: int = _DOCUMENT_BYTES) -> None:
        self._longest = longest
        self._cut = False
        self._lines: list[str] = []
        self._bytes = self._depth = 0

    def feed(self, line: str) -> Any:
        """The document that ends in this line; None where none does."""
        if not self._lines and "{" not in line and "[" not in line:
            return None
        if self._lines and not self._goes_on(line):
            self._cut = self._cut or self._lines[0].startswith('{"')
            self._forget()
        if not self._lines:
            line = line.strip() if line.strip() == "[" else line[line.find("{") :] if "{" in line else ""
            if not line.rstrip().endswith(("{", "[", ",")):
                return self._read(line) if line else None
        self._lines.append(line)
        self._bytes += len(line)
        bare = _STRING.sub("", line)
        opened = sum(map(bare.count, "{[")) - sum(map(bare.count, "}]"))
        self._depth += opened
        if self._depth > 0 and opened <= _OPENED_AT_ONCE and self._bytes <= self._longest:
            return None
        text = "\n".join(self._lines)
        self._forget()
        return self._read(text)

    @property
    def torn(self) -> bool:
        """Whether a document began and did not come to its end."""
        return self._cut or bool(self._lines)

    def _read(self, text: str) -> Any:
        document = _document(text)
        self._cut = self._cut or (document is None and text.startswith(('{"', "{\n")))
        return document

    def _goes_on(self, line: str) -> bool:
        """Whether a line can be the next of a document; programs print braces for other reasons, too."""
        if line.startswith('{"') and self._lines[0].startswith('{"'):
            return False  # a document a line, of which the one before was cut off
        if line.startswith("{"):
            return self._lines[-1].rstrip().endswith(("[", ",", ":"))
        return _ELEMENT.match(line) is not None

    def _forget(self) -> None:
        self._lines, self._bytes, self._depth = [], 0, 0


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def found_at(document: Any, path: str) -> Iterator[Any]:
    """Values at a path: keys and numbers of elements with dots between them, `*` for every element. A key may hold dots itself."""
    if isinstance(document, list):
        head, _, rest = path.partition(".")
        chosen = document if head == "*" else document[int(head) :][:1] if head.isdecimal() else []
        for element in chosen:
            yield from found_at(element, rest) if rest else (element,)
    elif isinstance(document, dict):
        parts = path.split(".")
        for cut in range(len(parts), 0, -1):
            if (key := ".".join(parts[:cut])) in document:
                rest = ".".join(parts[cut:])
                yield from found_at(document[key], rest) if rest else (document[key],)
                return


def agree(one: float, other: float, relative: float, absolute: float = 0.0) -> bool:
    """Whether two finite numbers are the same but for rounding."""
    return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= relative * max(one, other) + absolute


class Verdict:
    """What a log says, as it is found; and what speaks against it: the worst decides, and of several the first."""

    def __init__(self) -> None:
        self._problems: dict[ReadingStatus, str] = {}
        self.flags: list[str] = []
        self.metrics: dict[str, float | None] = {}
        self.matrices: dict[str, PairMatrix] = {}
        self.curves: dict[str, Curve] = {}
        self.settings: dict[str, float | str | None] = {}

    def incomplete(self, problem: str) -> None:
        self._problems.setdefault("incomplete", problem)

    def invalid(self, problem: str) -> None:
        self._problems.setdefault("invalid", problem)

    def nan(self, problem: str) -> None:
        self._problems.setdefault("nan", problem)

    def flag(self, text: str) -> None:
        if text not in self.flags:
            self.flags.append(text)

    def no_end(self) -> None:
        """Say that nothing in the log tells whether it is whole."""
        self.flag(NO_END_MARK)

    def expect(self, what: str, printed: float | None, known: float | None) -> None:
        """What the program says of its run has to be what the run was given."""
        if printed is not None and known is not None and printed != known:
            self.invalid(f"the program says {what} {printed:g}, the run has {known:g}")

    def processes(self, program: str, printed: float | None, scope: Scope) -> None:
        """Flag a program that had another number of processes than the run has devices, as it may be meant."""
        if printed is not None and scope.ranks is not None and printed != scope.ranks:
            self.flag(f"{program} used {printed:g} processes, the run {scope.ranks} devices")

    def finite(self, numbers: Mapping[str, float]) -> None:
        """Name every one that is not a number."""
        for name, value in numbers.items():
            if not math.isfinite(value):
                self.nan(f"{name} is {value:g}")

    def curve(self, name: str, unit: str, points: Mapping[int, float]) -> None:
        """Take it, unless it is empty or not all of it is numbers."""
        if not all(map(math.isfinite, points.values())):
            self.nan(f"{name} is not a number")
        elif points:
            self.curves[name] = Curve(unit, tuple(sorted(points.items())))

    def matrix(self, name: str, matrix: PairMatrix) -> None:
        """Take it, with its smallest and largest number as metrics, unless it has none."""
        if cells := pairs(matrix.values):
            self.matrices[name] = matrix
            self.metrics[f"{name}_min_{matrix.unit}"] = min(cells)
            self.metrics[f"{name}_max_{matrix.unit}"] = max(cells)

    def reading(self, throughput_per_s: float | None = None, program: str = "", *, rounded: bool = True) -> LogReading:
        """The reading of all that was found, without the rate of an incomplete run and numbers that are not finite."""
        if throughput_per_s is not None and not (math.isfinite(throughput_per_s) and throughput_per_s > 0):
            self.nan(f"the rate is {throughput_per_s:g}")
            throughput_per_s = None
        status: ReadingStatus = next((status for status in _WORST if status in self._problems), "ok")
        numbers = {name: value for name, value in self.metrics.items() if value is not None and math.isfinite(value)}
        return LogReading(
            status=status,
            problem=self._problems.get(status, ""),
            throughput_per_s=None if status == "incomplete" else throughput_per_s,
            metrics=numbers,
            matrices=self.matrices,
            curves=self.curves,
            flags=tuple(self.flags),
            program=program,
            settings={name: value for name, value in self.settings.items() if value not in (None, "")},
            rounded=rounded,
        )


def pairs(values: Sequence[Sequence[float | None]]) -> list[float]:
    """All numbers of a matrix."""
    return [value for row in values for value in row if value is not None]


class LogReader(ABC):
    """Reads one test of a log, line by line. others: tests that begin in the line that was fed last, the latest behind.

    document_bytes: of the longest JSON document. program: the test's own name, where it says one. from_file: whether its numbers
    are those of a file that the program wrote, which may have more digits than what it printed. unread: values that are no numbers.
    """

    document_bytes = 16 << 20

    def __init__(self) -> None:
        self.others: list[LogReader] = []
        self.unread: list[str] = []
        self.documents = Documents(self.document_bytes)
        self.program, self.from_file = "", False

    def feed(self, line: str) -> Sequence[LogReader]:
        """Take one line, without its end, terminal codes and label of its rank.

        Where other tests begin with it, it is theirs, and their readers come back: the last of them takes what follows.
        """
        self.others = []
        reads_documents = type(self).document is not LogReader.document
        if reads_documents and (document := self.documents.feed(line)) is not None:
            self.document(document)
        else:
            self.line(line)
        return self.others

    def fresh(self, taken: bool) -> Self:
        """This reader, or where it has a test already (`taken`), one for the next test of the same program."""
        if not taken:
            return self
        self.others.append(after := type(self)())
        return after

    def another(self, line: str) -> None:
        """Begin the next test of the same program with this line."""
        self.fresh(True).feed(line)

    def leave_out(self, name: str, text: Any) -> None:
        """Note a value that is there and is no number: the reading has a flag that names it."""
        if len(self.unread) < _MOST_NAMED:
            self.unread.append(f"{name}: '{str(text).strip()[:_SHOWN]}'")

    def number_of(self, name: str, value: Any) -> float | None:
        """Return a number of a JSON document; a text that is no number is noted."""
        found = number(value)
        if found is None and isinstance(value, str) and value.strip():
            self.leave_out(name, value)
        return found

    def line(self, line: str) -> None:  # noqa: B027  # of a program that only writes documents none says anything
        """Take a line that ends no JSON document."""

    def document(self, document: Any) -> None:  # noqa: B027
        """Take a JSON document."""

    def reading(self, scope: Scope) -> LogReading:
        """What the lines so far say. Whatever they hold, this gives a reading and raises nothing."""
        verdict = Verdict()
        rate = self.judge(verdict, scope)
        if self.unread:
            verdict.flag(f"no number, and left out: {', '.join(dict.fromkeys(self.unread))}")
        return verdict.reading(rate, self.program, rounded=not self.from_file)

    @abstractmethod
    def judge(self, verdict: Verdict, scope: Scope) -> float | None:
        """Put into the verdict what was found and what speaks against it; gives the rate of samples, None where there is none."""


def lines(**patterns: str) -> Mapping[str, re.Pattern[str]]:
    """Lines of a format: name -> regular expression that matches from the begin of a line, with a group for each value."""
    return {name: re.compile(pattern) for name, pattern in patterns.items()}


class LineReader(LogReader):
    """Reads a format that is lines of text, which `LINES` declares. A line that several expressions match is the first one's.

    found: values of the lines of each name, in the order of the log. The name `unread`, declared last, is of lines that should
    have numbers and that no other name matches: a label, and the text in place of the numbers.
    """

    LINES: ClassVar[Mapping[str, re.Pattern[str]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[tuple[str, ...]]] = {name: [] for name in self.LINES}

    def line(self, line: str) -> None:
        for name, pattern in self.LINES.items():
            if found := pattern.match(line):
                values = tuple(text or "" for text in found.groups())
                if name == "unread":
                    return self.leave_out(values[0], values[1])
                if self.opens(name, values):
                    return self.another(line)
                if len(self.found[name]) == _MOST_LINES:
                    self.found[name].pop()
                self.found[name].append(values)
                return None
        return None

    def opens(self, name: str, values: tuple[str, ...]) -> bool:
        """Whether this line begins the next test; as it stands, a second line `begin` does."""
        return name == "begin" and bool(self.found[name])

    def last(self, name: str) -> tuple[str, ...] | None:
        """Values of the last line of a name."""
        return self.found[name][-1] if self.found[name] else None

    def number(self, name: str) -> float | None:
        """The first value of the last line of a name; None where there is none, or it is no number."""
        return number(values[0]) if (values := self.last(name)) else None
