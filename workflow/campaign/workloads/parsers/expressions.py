"""Expression parsers of a workload file, which read numbers from a log, and hints if nothing is found.

`take: all`, `mean` and `sum` need eight bytes of memory per match. The other values need no memory per match.
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

from campaign.common.wording import pluralize
from campaign.spec.fields import AxisName, FileModel
from campaign.spec.metric import MEASURED_BY_CAMPAIGN
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, has_timestamps, load_format, read_tests, strip_line_prefix
from campaign.workloads.parsers.reading import (
    NO_END_MARK,
    JsonDocumentFinder,
    LogReading,
    ReadingStatus,
    RunContext,
    describe_unended_line,
    find_values,
)

_LITERAL_TEXT = re.compile(r"[A-Za-z0-9_ /=:,;<>%&!@#~'\"-]+")
_FOLDS: Mapping[str, Callable[[float, float], float]] = {
    "last": lambda _, new: new,
    "first": lambda old, _: old,
    "only": lambda old, _: old,
    "min": min,
    "max": max,
}
_CHARACTER_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_SPACES = re.compile("[\u00a0\u2009\u202f]")
_GROUPS_AFTER = re.compile(r"(?:[,']\d{3})+(?![,']?\d)(?:\.\d+)?")
_GROUPS_BEFORE = re.compile(r"(?<!\d)\d{1,3}(?:[,']\d{3})*[,']$")
_MAX_GROUPED_CHARS = 40
_SEPARATORS = (",", ";", "\t")
_DURATION = re.compile(r"(?:(\d{1,6})-(?=\d{1,2}:\d\d:))?(?:(\d{1,6}):(?=[0-5]\d:))?(\d{1,6}):([0-5]\d(?:\.\d+)?)")
_PARTS_BEFORE = re.compile(r"(?:\d+[-:])*\d*$")
_CELL_LINE = re.compile(r"\S *[,;\t] *\S")
_PARTS_AFTER = re.compile(r"\d*(?::\d+)*(?:\.\d+)?")
_MAX_SHOWN_CHARS = 60
_MAX_HINT_LINES = 5
_MAX_HINT_CHARS = 160
_RATE_LIKE = re.compile(
    r"\d\s*(?:im(?:a)?g(?:e)?s?|samples?|seq(?:uence)?s?|tokens?|it|steps?|examples?)\s*/\s*s|throughput|[KMGT]i?B/s|[GT]flop|"
    r"per second|bandwidth|latency|\bstep[ _:=]*\d|\bloss\b",
    re.IGNORECASE,
)


class Parser(FileModel):
    """Parser that reads one number from the output of a program."""

    metric: AxisName
    """Metric: `throughput_per_s`, `step_time_s` (every match is a step), `loss`, or another name that ends in its unit."""
    regex: str | None = None
    """Regular expression with one group, matched line by line."""
    json_key: str | None = None
    """Instead of `regex`: path in the JSON documents of the log, which may be one line, many lines or the whole log. The path has
    keys and element numbers (from 0) with dots between them; `*` is every element. Example: `jobs.0.read.bw_bytes`."""
    csv_column: Annotated[str, Field(min_length=1)] | None = None
    """Instead of `regex`: name of a column of a table in the log. The line with this name in a cell is the header. Each line
    below it with the same number of cells is a match. Cells are separated by commas, semicolons or tabs, as in the header."""
    take: Literal["last", "first", "min", "max", "mean", "sum", "all", "only"] = "last"
    """Match that counts if there are several. Use `all` for step times. With `only`, a run with several matches is `invalid`."""
    skip: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Number of matches at the beginning of the log that are left out as warm-up, before `take` applies."""
    form: Literal["number", "duration"] = "number"
    """Form of the match. `duration` is a time such as `1:02:03.5` (h:mm:ss), `02:03` (m:ss) or `2-03:00:00` (with days), which is
    converted to seconds."""
    thousands: Literal[",", ".", " ", "'"] | None = None
    """Character between groups of three digits, as in `1,234.5`. With `.`, the decimal point is a comma. The character is never
    guessed: without this key, a run that prints a number with such a character is recorded as `incomplete`."""
    units: dict[str, float] = Field(default_factory=dict)
    """Factors to the metric's unit by printed unit, such as `{MB/s: 0.001, GB/s: 1}`, for matches that contain a number and its
    unit. A run that prints a number with another unit, or without a unit, is recorded as `incomplete`."""
    scale: float = 1.0
    """Factor to the metric's unit."""
    scope: Literal["total", "per_device"] = "total"
    """Scope of the printed rate: all devices together (`total`) or one device (`per_device`)."""
    required: bool = True
    """If true, a run without this number is recorded as `incomplete`."""

    @model_validator(mode="after")
    def _require_valid_source(self) -> Parser:
        """Check that the parser has exactly one valid source (expression, key or column), and only options that fit it.

        Raises ValueError otherwise.
        """
        if sum(source is not None for source in (self.regex, self.json_key, self.csv_column)) != 1:
            raise ValueError("give exactly one of 'regex', 'json_key' and 'csv_column'")
        if self.form == "duration" and (self.thousands or self.units):
            key = "thousands" if self.thousands else "units"
            raise ValueError(
                f"'form: duration' reads h:mm:ss and cannot be combined with '{key}'; remove '{key}', or 'form' for a plain number"
            )
        if self.scale == 0:
            raise ValueError(
                "'scale' is 0, so every number would be 0; give the factor to the metric's unit, such as 0.001"
            )
        if 0.0 in self.units.values():
            raise ValueError("'units' has the factor 0; give the factor to the metric's unit, such as 0.001")
        if self.regex is not None:
            try:
                groups = re.compile(self.regex).groups
            except re.error as error:
                raise ValueError(
                    f"'{self.regex}' is not a valid regular expression ({error}); write \\( and \\) for literal parentheses"
                ) from error
            if groups != 1:
                raise ValueError(
                    f"'{self.regex}' has {groups} groups; it must have exactly one, which matches the number"
                )
        return self

    @property
    def description(self) -> str:
        """Description of the parser in messages: its metric and its pattern."""
        return f"{self.metric} ({self.pattern})"

    @property
    def pattern(self) -> str:
        """Regular expression, JSON key or CSV column for which the parser searches."""
        return self.regex or self.json_key or self.csv_column or ""


@dataclass(frozen=True)
class MatchCounts:
    """Counts of the matches of one parser in a log.

    Attributes:
        parser: the parser.
        total: number of matches.
        skipped: number of matches that were left out because of `skip`.
        counted: number of values from which `take` chose.
    """

    parser: Parser
    total: int
    skipped: int
    counted: int


@dataclass(frozen=True)
class ParsedNumbers:
    """Numbers that the parsers of a workload file found in a log, and problems with finding them.

    Attributes:
        numbers: number by metric, in the unit of the metric.
        series: all found numbers by metric, for parsers with `take: all`.
        missing: required numbers that were not found.
        unreadable: parsers with a match that has digits but is not a number. If the number is required, also parsers all of whose
            matches are words.
        ambiguous: parsers with `take: only` that have several matches.
        flags: texts and lines that were left out although numbers were found.
        matches: counts of matches, one entry per parser, in the order of the parsers.
        unended_message: message about a last line that was left out because it may be cut off.
    """

    numbers: dict[str, float]
    series: dict[str, Sequence[float]]
    missing: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    matches: tuple[MatchCounts, ...] = ()
    unended_message: str = ""

    @property
    def problem(self) -> tuple[ReadingStatus, str]:
        """Status of the run (`ok`, `incomplete` or `invalid`), and the reason if it is not `ok`."""
        problems = [f"the output has no match for {', '.join(self.missing)}"] if self.missing else []
        problems += [f"a match is not a number: {', '.join(self.unreadable)}"] if self.unreadable else []
        if problems:
            return "incomplete", "; ".join(filter(None, [*problems, self.unended_message]))
        if self.ambiguous:
            return "invalid", f"'take: only' allows one match, but there are several: {', '.join(self.ambiguous)}"
        return "ok", ""


def read_expressions(parsers: Sequence[Parser], log: Log, context: RunContext) -> LogReading:
    """Parse a log with the expression parsers of a workload file, and return its reading.

    If no parser reads the rate, it is computed from all step times. Of every other series, the last number counts.
    """
    if problem := log.find_encoding_problem():
        return LogReading("incomplete", problem)
    parsed_numbers = run_parsers(parsers, log, context.ranks or 1, ended_normally=context.ended_normally)
    if parsed_numbers.problem[1]:
        return LogReading(*parsed_numbers.problem)
    numbers, series = parsed_numbers.numbers, parsed_numbers.series
    steps = tuple(series.pop("step_time_s", ()))
    is_finite = all(map(math.isfinite, steps))
    throughput = numbers.pop("throughput_per_s", None)
    if throughput is None and steps:
        duration_s = math.fsum(steps) if is_finite else math.nan
        throughput = (context.batch_global or 0) * len(steps) / duration_s if duration_s else math.inf
    non_finite_names = [name for name, value in numbers.items() if not math.isfinite(value)]
    if throughput is not None and not math.isfinite(throughput):
        non_finite_names.append("throughput_per_s")
        throughput = None
    numbers |= {name: values[-1] for name, values in series.items()}
    return LogReading(
        status="nan" if non_finite_names else "ok",
        problem=f"values are not finite: {', '.join(non_finite_names)}" if non_finite_names else "",
        throughput_per_s=throughput,
        step_times_s=(steps,) if steps and is_finite else (),
        metrics={name: value for name, value in numbers.items() if math.isfinite(value)},
        flags=(
            *parsed_numbers.flags,
            *_flag_excess_steps(parsed_numbers.matches, context.measured_steps),
            *([parsed_numbers.unended_message] if parsed_numbers.unended_message else []),
            NO_END_MARK,
        ),
    )


def _flag_excess_steps(matches: Sequence[MatchCounts], measured_steps: int | None) -> Iterator[str]:
    """Yield a flag if the log has more step times than steps to measure, for instance because it includes warm-up steps."""
    for counts in matches:
        if counts.parser.metric == "step_time_s" and measured_steps is not None and counts.counted > measured_steps:
            yield (
                f"the log has {pluralize(counts.counted, 'step')} instead of the {measured_steps} to measure; if the first "
                f"steps are warm-up, set 'skip: {counts.skipped + counts.counted - measured_steps}' in the parser"
            )


def run_parsers(parsers: Sequence[Parser], log: Log, ranks: int, *, ended_normally: bool = False) -> ParsedNumbers:
    """Apply the parsers of a workload file to a log, and return the numbers found and the problems.

    If the last line has no line feed, a number at its very end may be cut off. Such a number is left out unless the program ended
    normally.

    Args:
        parsers: parsers to run.
        log: log to read.
        ranks: number of ranks. Rates with `scope: per_device` are multiplied by it.
        ended_normally: True if the exit code shows that the program ended normally.
    """
    collectors = [
        _MatchCollector(parser, parser.scale * (ranks if parser.scope == "per_device" else 1)) for parser in parsers
    ]
    line_collectors = [
        (collector, find_literal(collector.parser)) for collector in collectors if collector.parser.regex is not None
    ]
    document_collectors = [collector for collector in collectors if collector.parser.json_key is not None]
    table_collectors = [collector for collector in collectors if collector.parser.csv_column is not None]
    needles = [literal.encode() for _, literal in line_collectors if literal]
    documents = JsonDocumentFinder()
    # A document may have many lines, and each of them may be needed.
    line_needles = needles if len(needles) == len(collectors) else ()
    unended_line = "" if ended_normally else log.read_unended_line()
    for line in log.read_lines(line_needles, only_ended=bool(unended_line)) if collectors else ():
        for collector, literal in line_collectors:
            if literal in line:
                collector.read_line(line)
        for collector in table_collectors:
            collector.read_table_line(strip_line_prefix(line))
        if document_collectors and (document := documents.feed(strip_line_prefix(line))) is not None:
            for collector in document_collectors:
                collector.add_texts(find_values(document, collector.parser.json_key or ""))
    is_left_out = bool(unended_line.strip())
    if unended_line:
        for collector, _ in line_collectors:
            is_left_out = not collector.read_unended_line(unended_line) and is_left_out
        # The line is read from the log again, since `read_unended_line` may be only a part of it.
        last_line = next(iter(deque(log.read_lines(), maxlen=1)), "") if document_collectors else ""
        if document_collectors and (document := documents.feed(strip_line_prefix(last_line))) is not None:
            is_left_out = False
            for collector in document_collectors:
                collector.add_texts(find_values(document, collector.parser.json_key or ""))
    missing = [collector for collector in collectors if collector.parser.required and not collector.number_count]
    # Otherwise a number with an undeclared separator or unit would silently be missing from the result.
    unreadable = [
        (collector, collector.unreadable_text or collector.first_word)
        for collector in collectors
        if collector.unreadable_text or (collector in missing and collector.first_word)
    ]
    ambiguous = [
        collector for collector in collectors if collector.parser.take == "only" and collector.number_count > 1
    ]
    return ParsedNumbers(
        numbers={
            collector.parser.metric: collector.compute_result()
            for collector in collectors
            if collector.number_count and collector.parser.take != "all"
        },
        series={
            collector.parser.metric: collector.values
            for collector in collectors
            if collector.number_count and collector.parser.take == "all"
        },
        missing=tuple(
            collector.missing_description
            for collector in missing
            if not collector.unreadable_text and not collector.first_word
        ),
        unreadable=tuple(
            f"{collector.parser.description} matched '{text}'{collector.format_hint}" for collector, text in unreadable
        ),
        ambiguous=tuple(
            f"{collector.parser.description} matched {collector.number_count} times" for collector in ambiguous
        ),
        flags=tuple(
            f"{collector.parser.metric}: matches left out because they are not numbers: {collector.word_count}, "
            f"such as '{collector.first_word}'"
            for collector in collectors
            if collector.word_count and collector not in missing
        )
        + tuple(
            f"{collector.parser.metric}: {pluralize(collector.column_reader.damaged_line_count, 'line')} left out because the "
            f"number of cells differs from the header, such as '{collector.column_reader.first_damaged_line}'"
            for collector in table_collectors
            if collector.column_reader.damaged_line_count
        ),
        matches=tuple(
            MatchCounts(
                collector.parser,
                collector.match_count,
                min(collector.match_count, collector.parser.skip),
                collector.number_count,
            )
            for collector in collectors
        ),
        unended_message=describe_unended_line(unended_line) if is_left_out else "",
    )


def find_literal(parser: Parser) -> str:
    """Return a text that every line with a match is certain to contain, or an empty string if there is none."""
    if parser.csv_column is not None:
        return ""
    if parser.regex is None:
        keys = [key for key in (parser.json_key or "").split(".") if key != "*" and not key.isdecimal()]
        return f'"{keys[-1]}"' if keys and re.fullmatch(r"[\w-]+", keys[-1], re.ASCII) else ""
    # Groups, classes and escapes are skipped. With alternatives or flags, no text is certain.
    if "|" in parser.regex or "(?" in parser.regex:
        return ""
    literal_parts = _CHARACTER_CLASS.sub("\0", re.sub(r"\\.", "\0", parser.regex))
    while (shorter_parts := re.sub(r"\([^()]*\)", "\0", literal_parts)) != literal_parts:
        literal_parts = shorter_parts
    # A quantifier applies to the character before it.
    literal_parts = re.sub(r".(?:[*+?]|\{[^}]*\})+", "\0", literal_parts)
    return max(_LITERAL_TEXT.findall(literal_parts), key=len, default="")


@dataclass
class _MatchCollector:
    """Accumulator for the matches of one parser in a log."""

    parser: Parser
    factor: float
    match_count: int = 0
    number_count: int = 0
    folded_value: float = math.nan
    unreadable_text: str = ""
    first_word: str = ""
    word_count: int = 0
    values: MutableSequence[float] = field(default_factory=lambda: array("d"))

    def __post_init__(self) -> None:
        self._pattern = None if self.parser.regex is None else re.compile(self.parser.regex)
        self.column_reader = _TableColumn(self.parser.csv_column or "")

    @property
    def missing_description(self) -> str:
        """Description of the parser for a missing number, with the number of matches if `skip` left out all of them."""
        if not self.match_count:
            return self.parser.description
        return (
            f"{self.parser.description} after the first {self.parser.skip} matches, which 'skip' leaves out "
            f"(the output has {self.match_count})"
        )

    @property
    def format_hint(self) -> str:
        """Hint on how durations are written if the parser reads one, else an empty string."""
        return " (a duration is written h:mm:ss)" if self.parser.form == "duration" else ""

    def read_line(self, line: str) -> None:
        """Add all matches of the regular expression in a line."""
        if self._pattern is not None:
            self.add_texts(self.complete_match(match) for match in self._pattern.finditer(line))

    def complete_match(self, match: re.Match[str]) -> str | None:
        """Return the text of a match, extended by parts of the same number that the expression failed to include."""
        return _expand_duration(match) if self.parser.form == "duration" else _expand_number(match)

    def read_table_line(self, line: str) -> None:
        """Add the cell in the parser's column if a line is a row of the table."""
        self.add_texts(self.column_reader.read_line(line))

    def read_unended_line(self, line: str) -> bool:
        """Add the matches in a line that may be cut off, except for a number at its very end.

        Returns True if there were matches and all of them were added.
        """
        matches = [] if self._pattern is None else list(self._pattern.finditer(line))
        complete_texts = [self.complete_match(match) for match in matches if match.end(1) < len(line)]
        self.add_texts(complete_texts)
        return bool(complete_texts) and len(complete_texts) == len(matches)

    def add_texts(self, texts: Iterable[Any]) -> None:
        """Convert texts or JSON values to numbers, and add them after the first `skip` ones. None is ignored.

        Values that are not numbers are recorded as words or, if they contain digits, as unreadable.
        """
        for text in texts:
            if text is None:
                continue
            self.match_count += 1
            if self.match_count <= self.parser.skip:
                continue
            if self.parser.form == "duration":
                value = parse_duration_s(text) if isinstance(text, str) else None
            else:
                value = _convert_number(text, self.parser.thousands, self.parser.units)
            if value is not None:
                self.add_value(value * self.factor)
            elif isinstance(text, str | int | float) and any(map(str.isdigit, str(text))):
                self.unreadable_text = self.unreadable_text or str(text)[:_MAX_SHOWN_CHARS]
            else:
                self.word_count += 1
                self.first_word = self.first_word or str(text)[:_MAX_SHOWN_CHARS]

    def add_value(self, value: float) -> None:
        """Add a number to the values, or combine it with the number so far, depending on `take`."""
        self.number_count += 1
        fold = _FOLDS.get(self.parser.take)
        if fold is None:
            self.values.append(value)
        else:
            self.folded_value = value if self.number_count == 1 else fold(self.folded_value, value)

    def compute_result(self) -> float:
        """Return the number that `take` selects from the matches or computes from them."""
        if self.parser.take in _FOLDS:
            return self.folded_value
        try:
            total = math.fsum(self.values)
        except (OverflowError, ValueError):  # too large, or infinities that cancel
            total = sum(self.values)
        return total / (self.number_count if self.parser.take == "mean" else 1)


class _TableColumn:
    """Reader of one column of a table in a log, line by line.

    `damaged_line_count` counts the lines after the header whose number of cells differs from the header's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._header: list[str] = []
        self._separator = ""
        self.damaged_line_count = 0
        self.first_damaged_line = ""

    def read_line(self, line: str) -> Iterator[str]:
        """Yield the cell in the column if a line is a row of the table. Empty cells are left out."""
        if self._name in line and self._read_header(line):
            return
        if not self._header:
            return
        cells = _split_cells(line, self._separator)
        if len(cells) == len(self._header):
            column_cells = [cell for name, cell in zip(self._header, cells, strict=True) if name == self._name and cell]
            # If two columns have the same name, neither is certain.
            yield from column_cells[:1] if len(column_cells) < 2 else [" | ".join(column_cells)]
        elif len(cells) > 1:
            self.damaged_line_count += 1
            self.first_damaged_line = self.first_damaged_line or line.strip()[:_MAX_SHOWN_CHARS]

    def _read_header(self, line: str) -> bool:
        """Store a line as the header of the table if one of its cells is the column's name. Returns True if it was stored."""
        for separator in _SEPARATORS:
            cells = _split_cells(line, separator)
            # A row may contain the name, too.
            if self._name in cells and (
                len(cells) != len(self._header) or all(_convert_number(cell, None, {}) is None for cell in cells)
            ):
                self._header, self._separator = cells, separator
                return True
        return False


def _split_cells(line: str, separator: str) -> list[str]:
    """Split a line into cells at a separator. Returns an empty list if the line is not valid CSV."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return []


def parse_duration_s(text: str) -> float | None:
    """Convert a duration such as `1:02:03.5`, `02:03` or `2-03:00:00` to seconds. Returns None for any other form."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _expand_duration(match: re.Match[str]) -> str | None:
    """Return the matched text, extended by parts of the same duration that the expression failed to include."""
    line, (start, end) = match.string, match.span(1)
    if start < 0:
        return None
    text_before, text_after = (
        _PARTS_BEFORE.search(line[max(0, start - _MAX_GROUPED_CHARS) : start]),
        _PARTS_AFTER.match(line, end),
    )
    return line[start - (len(text_before[0]) if text_before else 0) : text_after.end() if text_after else end]


def _expand_number(match: re.Match[str]) -> str | None:
    """Return the matched text, extended by digits that the expression failed to include, as in `1,010`."""
    line, (start, end) = match.string, match.span(1)
    if (
        end == match.end()
        and re.fullmatch(r"[-+]?\d{1,3}", match[1] or "")
        and (digits_after := _GROUPS_AFTER.match(line, end))
    ):
        end = digits_after.end()
    if start == match.start() and re.match(r"\d{3}(?!\d)", match[1] or ""):
        digits_before = _GROUPS_BEFORE.search(line[max(0, start - _MAX_GROUPED_CHARS) : start])
        start -= len(digits_before[0]) if digits_before else 0
    return line[start:end] if start >= 0 else None


def _convert_number(value: Any, thousands: str | None, units: Mapping[str, float]) -> float | None:
    """Convert a matched text or JSON value to a number. Returns None if it does not have the form of one.

    Args:
        value: text or JSON value.
        thousands: character between groups of three digits, or None.
        units: factors by the unit that follows the number. If not empty, the value must end in one of these units.
    """
    if isinstance(value, bool | dict | list) or value is None:
        return None
    if isinstance(value, int | float) and not units:
        try:
            return float(value)
        except OverflowError:
            return None
    text, factor = str(value).strip(), 1.0
    if units:
        unit = max((unit for unit in units if text.endswith(unit)), key=len, default=None)
        if unit is None:
            return None
        text, factor = text.removesuffix(unit).rstrip(), units[unit]
    if thousands:
        decimal_point = "," if thousands == "." else "."
        text = _SPACES.sub(" ", text)
        grouped_pattern = rf"[-+]?\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+(?:{re.escape(decimal_point)}\d*)?"
        if re.fullmatch(grouped_pattern, text):
            text = text.replace(thousands, "")
        text = text.replace(decimal_point, ".") if thousands not in text else ""
    try:
        return float(text) * factor
    except ValueError:
        return None


def find_misnamed_metrics(parsers: Sequence[Parser], format_location: Callable[[int, str], str]) -> Iterator[str]:
    """Yield an error message for each parser whose metric has the name of a column that exists for every run.

    Args:
        parsers: parsers of a workload file.
        format_location: function that formats the location of a key of the parser with a given index.
    """
    for index, parser in enumerate(parsers):
        if parser.metric in MEASURED_BY_CAMPAIGN:
            yield (
                f"{format_location(index, 'metric')}: '{parser.metric}' is reserved, because campaign measures it in every run and "
                f"the tables would show that value; use another name, such as 'program_{parser.metric}'"
            )


def collect_hints(log: Log, parser: str | None, parsers: Sequence[Parser]) -> list[str]:
    """Collect hints on why the parsers found nothing in a log, the most certain ones first."""
    if not any(log.read_chunks()):
        return ["the log is empty; does the program write its results to a file?"]
    if problem := log.find_encoding_problem():
        return [problem]
    matching_parsers = [name for name in PARSERS if name != parser and _can_read(name, log)]
    messages = [
        f"the parser '{name}' reads this log ({PARSERS[name]}); use 'parser: {name}'" for name in matching_parsers
    ]
    if any(expression.regex and expression.regex.startswith("^") for expression in parsers) and has_timestamps(log):
        messages.append(
            "lines begin with the time that `kubectl logs --timestamps` adds, so an expression with ^ does not match; remove the "
            "option or the ^"
        )
    for heading, lines in _find_similar_lines(log, parser, parsers):
        messages += [f"{heading}:", *(f"  {line[:_MAX_HINT_CHARS]}" for line in lines)]
    return messages or ["no line of the log looks like a rate, a time or a bandwidth"]


def _can_read(name: str, log: Log) -> bool:
    """Return True if a built-in parser can read numbers from the log without problems."""
    return any(
        test.status == "ok" and bool(test.throughput_per_s is not None or test.metrics or test.matrices or test.curves)
        for test in read_tests(name, log, RunContext())
    )


def _find_similar_lines(log: Log, parser: str | None, parsers: Sequence[Parser]) -> Iterator[tuple[str, list[str]]]:
    """Yield groups of log lines that nearly match a parser or look like measurements, each as (heading, lines)."""
    if parser is not None:
        log_format = load_format(parser)
        if log_format.needles and (lines := _take_first_lines(log.read_lines(log_format.needles))):
            yield f"lines that the parser '{parser}' examined", lines
            return
    for expression in parsers:
        if expression.csv_column is not None and (
            lines := _take_first_lines(line for line in log.read_lines() if _CELL_LINE.search(line))
        ):
            yield f"lines with cells (the header must have the cell '{expression.csv_column}')", lines
        literal = find_literal(expression)
        if literal.strip() and (lines := _take_first_lines(log.read_lines([literal.encode()]))):
            yield f"lines that contain '{literal}' but may not match all of '{expression.pattern}'", lines
    if lines := _take_first_lines(line for line in log.read_lines() if _RATE_LIKE.search(line)):
        yield "lines that look like results of a measurement", lines


def _take_first_lines(lines: Iterator[str]) -> list[str]:
    """Return the first few lines that are not blank, without repetitions."""
    unique_lines: list[str] = []
    for line in lines:
        if line.strip() and (text := line.strip()) not in unique_lines:
            unique_lines.append(text)
        if len(unique_lines) == _MAX_HINT_LINES:
            break
    return unique_lines
