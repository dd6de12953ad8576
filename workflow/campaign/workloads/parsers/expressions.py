"""Expression parsers of a workload file, which read numbers from a log, and hints if nothing is found.

`take: all`, `mean` and `sum` need eight bytes of memory per match, the others none.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from campaign.common.wording import plural
from campaign.spec.fields import AxisName, FileModel
from campaign.spec.metric import MEASURED_BY_CAMPAIGN
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, format_of, is_timestamped, read_tests, without_label
from campaign.workloads.parsers.reading import (
    NO_END_MARK,
    Documents,
    LogReading,
    ReadingStatus,
    Scope,
    describe_unended,
    found_at,
)

_PLAIN = re.compile(r"[A-Za-z0-9_ /=:,;<>%&!@#~'\"-]+")
_FOLDS: Mapping[str, Callable[[float, float], float]] = {
    "last": lambda _, new: new,
    "first": lambda old, _: old,
    "only": lambda old, _: old,
    "min": min,
    "max": max,
}
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_SPACES = re.compile("[\u00a0\u2009\u202f]")
_GROUPS_AFTER = re.compile(r"(?:[,']\d{3})+(?![,']?\d)(?:\.\d+)?")
_GROUPS_BEFORE = re.compile(r"(?<!\d)\d{1,3}(?:[,']\d{3})*[,']$")
_GROUPED_MAX = 40
_SEPARATORS = (",", ";", "\t")
_DURATION = re.compile(r"(?:(\d{1,6})-(?=\d{1,2}:\d\d:))?(?:(\d{1,6}):(?=[0-5]\d:))?(\d{1,6}):([0-5]\d(?:\.\d+)?)")
_PARTS_BEFORE = re.compile(r"(?:\d+[-:])*\d*$")
_SEPARATED = re.compile(r"\S *[,;\t] *\S")
_PARTS_AFTER = re.compile(r"\d*(?::\d+)*(?:\.\d+)?")
_SHOWN = 60
_LINES = 5
_WIDTH = 160
_RATE = re.compile(
    r"\d\s*(?:im(?:a)?g(?:e)?s?|samples?|seq(?:uence)?s?|tokens?|it|steps?|examples?)\s*/\s*s|throughput|[KMGT]i?B/s|[GT]flop|"
    r"per second|bandwidth|latency|\bstep[ _:=]*\d|\bloss\b",
    re.IGNORECASE,
)


class Parser(FileModel):
    """Parser that reads one number from the output of a program."""

    metric: AxisName
    """`throughput_per_s`, `step_time_s` (every match is a step), `loss`, or another name that ends in its unit."""
    regex: str | None = None
    """Regular expression with one group, matched line by line."""
    json_key: str | None = None
    """Instead of `regex`: a place in the JSON documents of the log, be they a line, many lines, or the whole log. Keys and numbers
    of elements (from 0) have dots between them, `*` is every element, such as in `jobs.0.read.bw_bytes`."""
    csv_column: Annotated[str, Field(min_length=1)] | None = None
    """Instead of `regex`: name of a column of a table in the log. The line that has this name in a cell is the header, and each
    line with as many cells below it is a match. Cells are separated by the comma, semicolon or tab of the header."""
    take: Literal["last", "first", "min", "max", "mean", "sum", "all", "only"] = "last"
    """Match that counts if there are several. Use `all` for step times; `only` makes a run `invalid` that has more than one."""
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of matches at the beginning of the log that are left out as warm-up, before `take` applies."""
    form: Literal["number", "duration"] = "number"
    """`duration`: the match is a time such as `1:02:03.5` (h:mm:ss), `02:03` (m:ss) or `2-03:00:00` (with days). The number is its
    seconds."""
    thousands: Literal[",", ".", " ", "'"] | None = None
    """Character between groups of three digits, as in `1,234.5`; with `.`, a comma is the decimal point. Nothing is guessed:
    without it, a run that prints such a character in one number is recorded as `incomplete`."""
    units: dict[str, float] = Field(default_factory=dict)
    """Unit behind the number -> factor to the metric's unit, such as `{MB/s: 0.001, GB/s: 1}`, where the match holds both. A run
    that prints one number with another unit, or with none, is recorded as `incomplete`."""
    scale: float = 1.0
    """Factor to the metric's unit."""
    scope: Literal["total", "per_device"] = "total"
    """Scope of the printed rate: all devices together (`total`), or one device."""
    required: bool = True
    """True if a run without this number is recorded as `incomplete`."""

    @model_validator(mode="after")
    def _one_way(self) -> Parser:
        """Check that the parser has one valid source (expression, key or column), and options that fit it.

        Raises ValueError otherwise.
        """
        if sum(place is not None for place in (self.regex, self.json_key, self.csv_column)) != 1:
            raise ValueError("give exactly one of 'regex', 'json_key' and 'csv_column'")
        if self.form == "duration" and (self.thousands or self.units):
            key = "thousands" if self.thousands else "units"
            raise ValueError(
                f"'form: duration' reads h:mm:ss, which has no '{key}'; remove '{key}', or 'form' for a plain number"
            )
        if self.scale == 0:
            raise ValueError("'scale' makes every number 0; write the factor to the metric's unit, such as 0.001")
        if 0.0 in self.units.values():
            raise ValueError("'units' makes a number 0; write the factor to the metric's unit, such as 0.001")
        if self.regex is not None:
            try:
                groups = re.compile(self.regex).groups
            except re.error as error:
                raise ValueError(
                    f"'{self.regex}' is not a regular expression ({error}); literal brackets are written \\( and \\)"
                ) from error
            if groups != 1:
                raise ValueError(f"'{self.regex}' has {groups} groups; exactly one must hold the number")
        return self

    @property
    def place(self) -> str:
        """Description of the parser for messages, made of its metric and pattern."""
        return f"{self.metric} ({self.pattern})"

    @property
    def pattern(self) -> str:
        """Expression, key or column that the parser searches for."""
        return self.regex or self.json_key or self.csv_column or ""


@dataclass(frozen=True)
class Matches:
    """Numbers of matches of one parser in a log.

    Attributes:
        parser: the parser.
        total: number of matches.
        skipped: number of matches that `skip` left out.
        counted: number of values that `take` chose from.
    """

    parser: Parser
    found: int
    skipped: int
    counted: int


@dataclass(frozen=True)
class Parsed:
    """Numbers that the parsers of a workload file found in a log, and their problems.

    Attributes:
        numbers: number by metric, in the unit of the metric.
        series: all numbers by metric, for parsers with `take: all`.
        missing: required numbers that were not found.
        unreadable: parsers with a match that has digits and is no number; for required numbers, also parsers whose
            matches are all words.
        ambiguous: parsers with `take: only` and several matches.
        flags: texts and lines that were left out although numbers were found.
        matches: numbers of matches, one entry per parser in their order.
        unended_message: message for a last line that may be cut off and is left out.
    """

    numbers: dict[str, float]
    series: dict[str, Sequence[float]]
    absent: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    matches: tuple[Matches, ...] = ()
    unended: str = ""

    @property
    def problem(self) -> tuple[ReadingStatus, str]:
        """Status of the run (`ok`, `incomplete` or `invalid`), and the reason why it does not count."""
        told = [f"not found in the output: {', '.join(self.absent)}"] if self.absent else []
        told += [f"matched, but not a number: {', '.join(self.unread)}"] if self.unread else []
        if told:
            return "incomplete", "; ".join(filter(None, [*told, self.unended]))
        if self.repeated:
            return "invalid", f"several matches where 'take: only' expects one: {', '.join(self.repeated)}"
        return "ok", ""


def read_expressions(parsers: Sequence[Parser], log: Log, scope: Scope) -> LogReading:
    """Read a log with the parsers of a workload file.

    Without a metric for the rate, the rate is computed from all step times. Of other series, the last number
    counts.
    """
    if why := log.encoding_problem():
        return LogReading("incomplete", why)
    parsed = parse(parsers, log, scope.ranks or 1, ended=scope.ended)
    if parsed.problem[1]:
        return LogReading(*parsed.problem)
    numbers, series = parsed.numbers, parsed.series
    steps = tuple(series.pop("step_time_s", ()))
    finite = all(map(math.isfinite, steps))
    throughput = numbers.pop("throughput_per_s", None)
    if throughput is None and steps:
        duration_s = math.fsum(steps) if finite else math.nan
        throughput = (scope.batch_global or 0) * len(steps) / duration_s if duration_s else math.inf
    wrong = [name for name, value in numbers.items() if not math.isfinite(value)]
    if throughput is not None and not math.isfinite(throughput):
        wrong.append("throughput_per_s")
        throughput = None
    numbers |= {name: values[-1] for name, values in series.items()}
    return LogReading(
        status="nan" if wrong else "ok",
        problem=f"not a finite number: {', '.join(wrong)}" if wrong else "",
        throughput_per_s=throughput,
        step_times_s=(steps,) if steps and finite else (),
        metrics={name: value for name, value in numbers.items() if math.isfinite(value)},
        flags=(
            *parsed.flags,
            *_excess_steps(parsed.matches, scope.measured_steps),
            *([parsed.unended] if parsed.unended else []),
            NO_END_MARK,
        ),
    )


def _excess_steps(matches: Sequence[Matches], measured_steps: int | None) -> Iterator[str]:
    """Yield a flag if more step times count than steps were to be measured, for instance because warm-up is among them."""
    for one in matches:
        if one.parser.metric == "step_time_s" and measured_steps is not None and one.counted > measured_steps:
            yield (
                f"{plural(one.counted, 'step')} were found, and {measured_steps} were to be measured; if the first ones are "
                f"warm-up, leave them out by 'skip: {one.skipped + one.counted - measured_steps}' of the parser"
            )


def parse(parsers: Sequence[Parser], log: Log, ranks: int, *, ended: bool = False) -> Parsed:
    """Run the parsers of a workload file on a log, and return the numbers and the problems.

    In a last line without a line feed, a number at the very end may be cut off. It is left out unless the program
    ended normally.

    Args:
        parsers: parsers to run.
        log: log to read.
        ranks: number of ranks. Rates with `scope: per_device` are multiplied by it.
        ended_normally: True if the exit code shows that the program came to its end.
    """
    found = [_ParserState(parser, parser.scale * (ranks if parser.scope == "per_device" else 1)) for parser in parsers]
    in_lines = [(one, needle(one.parser)) for one in found if one.parser.regex is not None]
    in_documents = [one for one in found if one.parser.json_key is not None]
    in_tables = [one for one in found if one.parser.csv_column is not None]
    needles = [literal.encode() for _, literal in in_lines if literal]
    documents = Documents()
    # A document may have many lines, and each of them may be needed.
    wanted = needles if len(needles) == len(found) else ()
    unended = "" if ended else log.unended_line()
    for line in log.lines(wanted, whole=bool(unended)) if found else ():
        for one, literal in in_lines:
            if literal in line:
                one.look(line)
        for one in in_tables:
            one.look_in_table(without_label(line))
        if in_documents and (document := documents.feed(without_label(line))) is not None:
            for one in in_documents:
                one.take_all(found_at(document, one.parser.json_key or ""))
    left_out = bool(unended.strip())
    if unended:
        for one, _ in in_lines:
            left_out = not one.look_before_end(unended) and left_out
        # The line is read from the log again, since `unended_line` may be only a part of it.
        last = next(iter(deque(log.lines(), maxlen=1)), "") if in_documents else ""
        if in_documents and (document := documents.feed(without_label(last))) is not None:
            left_out = False
            for one in in_documents:
                one.take_all(found_at(document, one.parser.json_key or ""))
    required = [one for one in found if one.parser.required and not one.count]
    # Otherwise a number with an undeclared separator or unit would be missing among those that count.
    unread = [(one, one.unread or one.word) for one in found if one.unread or (one in required and one.word)]
    several = [one for one in found if one.parser.take == "only" and one.count > 1]
    return Parsed(
        numbers={one.parser.metric: one.result() for one in found if one.count and one.parser.take != "all"},
        series={one.parser.metric: one.values for one in found if one.count and one.parser.take == "all"},
        absent=tuple(one.absent for one in required if not one.unread and not one.word),
        unread=tuple(f"{one.parser.place} matched '{text}'{one.expected_form}" for one, text in unread),
        repeated=tuple(f"{one.parser.place} matched {one.count} times" for one in several),
        flags=tuple(
            f"{one.parser.metric}: {plural(one.words, 'word')} in place of a number left out, such as '{one.word}'"
            for one in found
            if one.words and one not in required
        )
        + tuple(
            f"{one.parser.metric}: {plural(one.table.torn, 'line')} left out, "
            f"with another number of cells than the header, such as '{one.table.torn_line}'"
            for one in in_tables
            if one.table.torn
        ),
        matches=tuple(Matches(one.parser, one.found, min(one.found, one.parser.skip), one.count) for one in found),
        unended=describe_unended(unended) if left_out else "",
    )


def needle(parser: Parser) -> str:
    """Return a text that each line with a match must contain, or an empty text if none is certain."""
    if parser.csv_column is not None:
        return ""
    if parser.regex is None:
        keys = [key for key in (parser.json_key or "").split(".") if key != "*" and not key.isdecimal()]
        return f'"{keys[-1]}"' if keys and re.fullmatch(r"[\w-]+", keys[-1], re.ASCII) else ""
    # Groups, classes and escapes are skipped. With alternatives or flags no text is certain.
    if "|" in parser.regex or "(?" in parser.regex:
        return ""
    bare = _CLASS.sub("\0", re.sub(r"\\.", "\0", parser.regex))
    while (shorter := re.sub(r"\([^()]*\)", "\0", bare)) != bare:
        bare = shorter
    # A quantifier applies to the character before it.
    bare = re.sub(r".(?:[*+?]|\{[^}]*\})+", "\0", bare)
    return max(_PLAIN.findall(bare), key=len, default="")


@dataclass
class _ParserState:
    """Collector of the matches of one parser."""

    parser: Parser
    factor: float
    found: int = 0
    count: int = 0
    number: float = math.nan
    unread: str = ""
    word: str = ""
    words: int = 0
    values: MutableSequence[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        self._pattern = None if self.parser.regex is None else re.compile(self.parser.regex)
        self.table = _TableColumn(self.parser.csv_column or "")

    @property
    def absent(self) -> str:
        """Description of the parser, and of the matches that `skip` left out if there are any."""
        if not self.found:
            return self.parser.place
        return (
            f"{self.parser.place} behind the first {self.parser.skip}, which 'skip' leaves out "
            f"({self.found} in the output)"
        )

    @property
    def expected_form(self) -> str:
        """Hint on the format of a duration, or an empty text."""
        return " (a duration is written h:mm:ss)" if self.parser.form == "duration" else ""

    def look(self, line: str) -> None:
        """Add the matches in a line."""
        if self._pattern is not None:
            self.take_all(self.whole(match) for match in self._pattern.finditer(line))

    def whole(self, match: re.Match[str]) -> str | None:
        """Return the text of a match, including the parts of the number that the expression cuts off."""
        return _whole_duration(match) if self.parser.form == "duration" else _whole_number(match)

    def look_in_table(self, line: str) -> None:
        """Add the cell of the column if a line is a row of the table."""
        self.take_all(self.table.feed(line))

    def look_before_end(self, line: str) -> bool:
        """Add the matches of a line that may be cut off, except for a number at its very end. Return True if all were added."""
        matches = [] if self._pattern is None else list(self._pattern.finditer(line))
        whole = [self.whole(match) for match in matches if match.end(1) < len(line)]
        self.take_all(whole)
        return bool(whole) and len(whole) == len(matches)

    def take_all(self, texts: Iterable[Any]) -> None:
        """Convert texts or JSON values to numbers and add them, after those that `skip` leaves out. A text of None is ignored.

        Values that are no numbers are counted as words, or as unreadable if they have digits.
        """
        for text in texts:
            if text is None:
                continue
            self.found += 1
            if self.found <= self.parser.skip:
                continue
            if self.parser.form == "duration":
                value = duration_s(text) if isinstance(text, str) else None
            else:
                value = _number(text, self.parser.thousands, self.parser.units)
            if value is not None:
                self.take(value * self.factor)
            elif isinstance(text, str | int | float) and any(map(str.isdigit, str(text))):
                self.unread = self.unread or str(text)[:_SHOWN]
            else:
                self.words += 1
                self.word = self.word or str(text)[:_SHOWN]

    def take(self, value: float) -> None:
        """Add a number as `take` requires."""
        self.count += 1
        fold = _FOLDS.get(self.parser.take)
        if fold is None:
            self.values.append(value)
        else:
            self.number = value if self.count == 1 else fold(self.number, value)

    def result(self) -> float:
        """Return the number that `take` selects or computes."""
        if self.parser.take in _FOLDS:
            return self.number
        try:
            total = math.fsum(self.values)
        except (OverflowError, ValueError):  # too large, or infinities that cancel
            total = sum(self.values)
        return total / (self.count if self.parser.take == "mean" else 1)


class _TableColumn:
    """Reader of one column of a table in a log, line by line.

    `damaged_line_count` counts the lines after the header that have another number of cells than the header.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._header: list[str] = []
        self._separator = ""
        self.torn = 0
        self.torn_line = ""

    def feed(self, line: str) -> Iterator[str]:
        """Yield the cell of the column if the line is a row. An empty cell is left out."""
        if self._name in line and self._is_header(line):
            return
        if not self._header:
            return
        cells = _cells(line, self._separator)
        if len(cells) == len(self._header):
            chosen = [cell for name, cell in zip(self._header, cells, strict=True) if name == self._name and cell]
            # If two columns have the same name, neither is certain.
            yield from chosen[:1] if len(chosen) < 2 else [" | ".join(chosen)]
        elif len(cells) > 1:
            self.torn += 1
            self.torn_line = self.torn_line or line.strip()[:_SHOWN]

    def _is_header(self, line: str) -> bool:
        """Store the line as the header if it has the name of the column in a cell. Return True if it was stored."""
        for separator in _SEPARATORS:
            cells = _cells(line, separator)
            # A row may contain the name, too.
            if self._name in cells and (
                len(cells) != len(self._header) or all(_number(c, None, {}) is None for c in cells)
            ):
                self._header, self._separator = cells, separator
                return True
        return False


def _cells(line: str, separator: str) -> list[str]:
    """Split a line into cells. Return an empty list if the line is no valid CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return []


def duration_s(text: str) -> float | None:
    """Convert a time such as `1:02:03.5`, `02:03` or `2-03:00:00` to seconds. Return None for another form."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _whole_duration(match: re.Match[str]) -> str | None:
    """Return the matched text, extended by the parts of the time that the expression cuts off."""
    line, (start, end) = match.string, match.span(1)
    if start < 0:
        return None
    before, after = _PARTS_BEFORE.search(line[max(0, start - _GROUPED_MAX) : start]), _PARTS_AFTER.match(line, end)
    return line[start - (len(before[0]) if before else 0) : after.end() if after else end]


def _whole_number(match: re.Match[str]) -> str | None:
    """Return the matched text, extended by the digits that the expression cuts off a number such as `1,010`."""
    line, (start, end) = match.string, match.span(1)
    if (
        end == match.end()
        and re.fullmatch(r"[-+]?\d{1,3}", match[1] or "")
        and (after := _GROUPS_AFTER.match(line, end))
    ):
        end = after.end()
    if start == match.start() and re.match(r"\d{3}(?!\d)", match[1] or ""):
        before = _GROUPS_BEFORE.search(line[max(0, start - _GROUPED_MAX) : start])
        start -= len(before[0]) if before else 0
    return line[start:end] if start >= 0 else None


def _number(found: Any, thousands: str | None, units: Mapping[str, float]) -> float | None:
    """Convert a matched text or JSON value to a number, or return None if it has another form.

    Args:
        value: text or JSON value.
        thousands: character between groups of three digits, or None.
        units: factor by unit that follows the number. If not empty, the value must end in one of the units.
    """
    if isinstance(found, bool | dict | list) or found is None:
        return None
    if isinstance(found, int | float) and not units:
        try:
            return float(found)
        except OverflowError:
            return None
    text, factor = str(found).strip(), 1.0
    if units:
        unit = max((unit for unit in units if text.endswith(unit)), key=len, default=None)
        if unit is None:
            return None
        text, factor = text.removesuffix(unit).rstrip(), units[unit]
    if thousands:
        point = "," if thousands == "." else "."
        text = _SPACES.sub(" ", text)
        grouped = rf"[-+]?\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+(?:{re.escape(point)}\d*)?"
        if re.fullmatch(grouped, text):
            text = text.replace(thousands, "")
        text = text.replace(point, ".") if thousands not in text else ""
    try:
        return float(text) * factor
    except ValueError:
        return None


def misnamed_metrics(parsers: Sequence[Parser], format_location: Callable[[int, str], str]) -> Iterator[str]:
    """Yield an error for each parser whose metric has the name of a column that the tables have for every run.

    Args:
        parsers: parsers of a workload file.
        format_location: function that formats the location of a key of the n-th parser.
    """
    for index, parser in enumerate(parsers):
        if parser.metric in MEASURED_BY_CAMPAIGN:
            yield (
                f"{format_location(index, 'metric')}: '{parser.metric}' is measured by this program for every run, and the table "
                f"would show that number in its place; use another name, such as 'program_{parser.metric}'"
            )


def hints(log: Log, parser: str | None, parsers: Sequence[Parser]) -> list[str]:
    """Collect hints why nothing was found in a log, from the most to the least certain.

    Args:
        log: log without a number.
        parser: name of the built-in parser that was used, or None.
        parsers: expression parsers that were used.
    """
    if not any(log.chunks()):
        return ["the log is empty: did the program write to a file of its own?"]
    if why := log.encoding_problem():
        return [why]
    others = [name for name in PARSERS if name != parser and _reads(name, log)]
    found = [f"the log reads like one of {PARSERS[name]}: try the parser '{name}'" for name in others]
    if any(one.regex and one.regex.startswith("^") for one in parsers) and is_timestamped(log):
        found.append(
            "lines begin with the time that `kubectl logs --timestamps` writes, and an expression begins with ^: leave the option "
            "out, or the ^"
        )
    for words, lines in _near(log, parser, parsers):
        found += [f"{words}:", *(f"  {line[:_WIDTH]}" for line in lines)]
    return found or ["no line of the log has a number that looks like a rate, a time or a bandwidth"]


def _reads(name: str, log: Log) -> bool:
    """Return True if a built-in parser reads numbers from the log without a problem."""
    return any(
        test.status == "ok" and bool(test.throughput_per_s is not None or test.metrics or test.matrices or test.curves)
        for test in read_tests(name, log, Scope())
    )


def _near(log: Log, parser: str | None, parsers: Sequence[Parser]) -> Iterator[tuple[str, list[str]]]:
    """Yield groups of lines that nearly match a parser or look like measurements, each with a heading.

    Args:
        log: log to search.
        parser: name of the built-in parser, or None.
        parsers: expression parsers.
    """
    if parser is not None:
        form = format_of(parser)
        if form.needles and (lines := _first(log.lines(form.needles))):
            yield f"lines that '{parser}' looked at", lines
            return
    for one in parsers:
        if one.csv_column is not None and (lines := _first(line for line in log.lines() if _SEPARATED.search(line))):
            yield f"lines of cells, where '{one.csv_column}' is looked for as the name of a column", lines
        literal = needle(one)
        if literal.strip() and (lines := _first(log.lines([literal.encode()]))):
            yield f"lines with '{literal}', which '{one.pattern}' does not match whole", lines
    if lines := _first(line for line in log.lines() if _RATE.search(line)):
        yield "lines that look like numbers of a measurement", lines


def _first(lines: Iterator[str]) -> list[str]:
    """Return the first lines that are not blank, without repetitions."""
    found: list[str] = []
    for line in lines:
        if line.strip() and (text := line.strip()) not in found:
            found.append(text)
        if len(found) == _LINES:
            break
    return found
