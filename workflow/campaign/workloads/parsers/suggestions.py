"""Where nothing was found in a log: the lines that look as if something should have been. Pure but for reading the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, Scope, format_of, read_log
from campaign.workloads.parsers.expressions import Parser, needle

_LINES = 5
_WIDTH = 160
_RATE = re.compile(
    r"\d\s*(?:im(?:a)?g(?:e)?s?|samples?|seq(?:uence)?s?|tokens?|it|steps?|examples?)\s*/\s*s|throughput|[KMGT]i?B/s|[GT]flop|"
    r"per second|bandwidth|latency|\bstep[ _:=]*\d|\bloss\b",
    re.IGNORECASE,
)


def hints(log: Log, parser: str | None, parsers: Sequence[Parser]) -> list[str]:
    """Sentences for whoever wonders why nothing was found, from the most to the least certain."""
    if not any(log.chunks()):
        return ["the log is empty: did the program write to a file of its own?"]
    others = [name for name in PARSERS if name != parser and _reads(name, log)]
    found = [f"the log reads like one of {PARSERS[name]}: try the parser '{name}'" for name in others]
    for words, lines in _near(log, parser, parsers):
        found += [f"{words}:", *(f"  {line[:_WIDTH]}" for line in lines)]
    return found or ["no line of the log has a number that looks like a rate, a time or a bandwidth"]


def _reads(name: str, log: Log) -> bool:
    reading = read_log(name, log, Scope())
    return reading.status == "ok" and bool(
        reading.throughput_per_s is not None or reading.metrics or reading.matrices or reading.curves
    )


def _near(log: Log, parser: str | None, parsers: Sequence[Parser]) -> Iterator[tuple[str, list[str]]]:
    if parser is not None:
        form = format_of(parser)
        if form.needles and (lines := _first(log.lines(form.needles))):
            yield f"lines that '{parser}' looked at", lines
            return
    for one in parsers:
        literal = needle(one)
        if literal.strip() and (lines := _first(log.lines([literal.encode()]))):
            yield f"lines with '{literal}', which '{one.regex or one.json_key}' does not match whole", lines
    if lines := _first(line for line in log.lines() if _RATE.search(line)):
        yield "lines that look like numbers of a measurement", lines


def _first(lines: Iterator[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        if line.strip() and (text := line.strip()) not in found:
            found.append(text)
        if len(found) == _LINES:
            break
    return found
