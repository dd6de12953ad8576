"""What is read from a program's log, what has to be known of the run to read it, and how a reading is put together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from campaign.workloads.load.request_latencies import Request

ReadingStatus = Literal["ok", "nan", "invalid", "incomplete"]
F = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf|NaN|NAN|Inf|INF)"
"""A number in a regular expression, not a number and infinity included."""

LABEL = rb"(?: *\d{1,6}: |\[[^\]\s]{1,60}\](?:<std(?:out|err)>)?:? ?)?[ \t]*"
"""Where a line of bytes begins: behind the label of its rank."""

_WORST: tuple[ReadingStatus, ...] = ("incomplete", "invalid", "nan")


@dataclass(frozen=True)
class Scope:
    """What is known of the run beforehand; None is not known. batch: samples per device and step; batch_global: of all devices."""

    ranks: int | None = None
    hosts: int | None = None
    batch: int | None = None
    batch_global: int | None = None
    warmup_steps: int | None = None
    measured_steps: int | None = None


@dataclass(frozen=True)
class Matrix:
    """A number for every pair; None where it was not measured. unit: as a suffix of names is (`gb_per_s`, `us`)."""

    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True)
class Curve:
    """A number for every message size in bytes, sizes ascending."""

    unit: str
    points: tuple[tuple[int, float], ...]

    @property
    def peak(self) -> float:
        return max(value for _, value in self.points)


@dataclass(frozen=True)
class Reading:
    """What a log says. problem: why it is not `ok`; throughput_per_s: samples per second of all ranks together.

    step_times_s: [rank][step]. metrics: unit in the name. requests: of a client whose file has them one by one. flags: what a
    reader of the numbers should know. program: the name of the program that the log is of, where it says one (`osu_bw`).
    """

    status: ReadingStatus = "ok"
    problem: str = ""
    throughput_per_s: float | None = None
    step_times_s: tuple[tuple[float, ...], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    steady: tuple[float, float] | None = None
    requests: tuple[Request, ...] = ()
    flags: tuple[str, ...] = ()
    program: str = ""


class Reader(Protocol):
    """Reads one log, line by line."""

    def feed(self, line: str) -> None:
        """One line, without its end, terminal codes and label of its rank."""

    def reading(self, scope: Scope) -> Reading:
        """What the lines so far say. Whatever they hold, this gives a reading and raises nothing."""


@dataclass(frozen=True)
class Format:
    """How to read one program's logs. Lines with none of `needles`, in which `rows` is not found either, say nothing.

    rows: of bytes, begins with a line feed. document: text near the beginning of a log of which every line counts. programs: names
    of the programs that it reads.
    """

    reader: Callable[[], Reader]
    needles: Sequence[bytes] = ()
    rows: re.Pattern[bytes] | None = None
    document: bytes | None = None
    line_max: int = 16 << 10
    programs: re.Pattern[str] | None = None


def number(value: Any) -> float | None:
    """A number of a JSON document, of a string or none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ELEMENT = re.compile(r'\s*(?:$|["{}\[\],:\d]|-\d|-?Infinity|NaN|null|true|false)')
_DOCUMENT_BYTES = 16 << 20
_OPENED_AT_ONCE = 20


class Documents:
    """Finds the JSON documents in a log line by line: a line that is one, or lines from one that begins it to one that ends it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._bytes = self._depth = 0

    def feed(self, line: str) -> Any:
        """The document that ends in this line; None where none does."""
        if not self._lines and "{" not in line and "[" not in line:
            return None
        if self._lines and not self._goes_on(line):
            self._forget()
        if not self._lines:
            line = line.strip() if line.strip() == "[" else line[line.find("{") :] if "{" in line else ""
            if not line.rstrip().endswith(("{", "[", ",")):
                return _document(line) if line else None
        self._lines.append(line)
        self._bytes += len(line)
        bare = _STRING.sub("", line)
        opened = sum(map(bare.count, "{[")) - sum(map(bare.count, "}]"))
        self._depth += opened
        if self._depth > 0 and opened <= _OPENED_AT_ONCE and self._bytes <= _DOCUMENT_BYTES:
            return None
        text = "\n".join(self._lines)
        self._forget()
        return _document(text)

    def _goes_on(self, line: str) -> bool:
        """Whether a line can be the next of a document; programs print braces for other reasons, too."""
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
        self.matrices: dict[str, Matrix] = {}
        self.curves: dict[str, Curve] = {}
        self.requests: tuple[Request, ...] = ()

    def incomplete(self, problem: str) -> None:
        self._problems.setdefault("incomplete", problem)

    def invalid(self, problem: str) -> None:
        self._problems.setdefault("invalid", problem)

    def nan(self, problem: str) -> None:
        self._problems.setdefault("nan", problem)

    def flag(self, text: str) -> None:
        if text not in self.flags:
            self.flags.append(text)

    def expect(self, what: str, printed: float | None, known: float | None) -> None:
        """What the program says of its run has to be what the run was given."""
        if printed is not None and known is not None and printed != known:
            self.invalid(f"the program says {what} {printed:g}, the run has {known:g}")

    def curve(self, name: str, unit: str, points: Mapping[int, float]) -> None:
        """Take it, unless it is empty or not all of it is numbers."""
        if not all(map(math.isfinite, points.values())):
            self.nan(f"{name} is not a number")
        elif points:
            self.curves[name] = Curve(unit, tuple(sorted(points.items())))

    def matrix(self, name: str, matrix: Matrix) -> None:
        """Take it, with its smallest and largest number as metrics, unless it has none."""
        if cells := pairs(matrix.values):
            self.matrices[name] = matrix
            self.metrics[f"{name}_min_{matrix.unit}"] = min(cells)
            self.metrics[f"{name}_max_{matrix.unit}"] = max(cells)

    def reading(self, throughput_per_s: float | None = None, program: str = "") -> Reading:
        """All of it; a rate of a run that is incomplete is none, and numbers that are not finite are none."""
        if throughput_per_s is not None and not (math.isfinite(throughput_per_s) and throughput_per_s > 0):
            self.nan(f"the rate is {throughput_per_s:g}")
            throughput_per_s = None
        status: ReadingStatus = next((status for status in _WORST if status in self._problems), "ok")
        numbers = {name: value for name, value in self.metrics.items() if value is not None and math.isfinite(value)}
        return Reading(
            status=status,
            problem=self._problems.get(status, ""),
            throughput_per_s=None if status == "incomplete" else throughput_per_s,
            metrics=numbers,
            matrices=self.matrices,
            curves=self.curves,
            requests=self.requests,
            flags=tuple(self.flags),
            program=program,
        )


def pairs(values: Sequence[Sequence[float | None]]) -> list[float]:
    """All numbers of a matrix."""
    return [value for row in values for value in row if value is not None]
