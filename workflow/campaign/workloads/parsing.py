"""Numbers read from what a program prints, by the parsers of its workload file. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from campaign.config.workload_file import Parser

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_TAKE: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "min": min,
    "max": max,
    "mean": lambda values: _total(values) / len(values),
    "sum": lambda values: _total(values),
}


def _total(values: Sequence[float]) -> float:
    # fsum raises where infinities cancel; here that is a number that is not one.
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


def lines_of(log: str) -> list[str]:
    """Lines as a person sees them: carriage returns of progress bars end a line, colours are gone."""
    return _ANSI.sub("", log).replace("\r\n", "\n").replace("\r", "\n").split("\n")


def parse(
    parsers: Sequence[Parser], log: str, ranks: int
) -> tuple[dict[str, float], dict[str, list[float]], list[str]]:
    """(metric -> number, metric -> all numbers for `take: all`, what is required and was not found).

    Numbers are in the metric's unit; a rate per device is multiplied by `ranks`.
    """
    lines = lines_of(log)
    numbers: dict[str, float] = {}
    series: dict[str, list[float]] = {}
    absent: list[str] = []
    for parser in parsers:
        factor = parser.scale * (ranks if parser.scope == "per_device" else 1)
        values = [value * factor for value in _matches(parser, lines)]
        if not values:
            if parser.required:
                absent.append(f"{parser.metric} ({parser.regex or parser.json_key})")
        elif parser.take == "all":
            series[parser.metric] = values
        else:
            numbers[parser.metric] = _TAKE[parser.take](values)
    return numbers, series, absent


def _matches(parser: Parser, lines: Sequence[str]) -> Iterator[float]:
    if parser.regex is not None:
        pattern = re.compile(parser.regex)
        found: Iterator[Any] = (match[1] for line in lines for match in pattern.finditer(line))
    else:
        found = _json_values(parser.json_key or "", lines)
    for text in found:
        try:
            yield float(text)
        except (TypeError, ValueError, OverflowError):
            continue  # a word where a number is expected is not this metric


def _json_values(key: str, lines: Sequence[str]) -> Iterator[Any]:
    for line in lines:
        start = line.find("{")
        if start < 0:
            continue
        try:
            value: Any = json.loads(line[start:])
        except (ValueError, RecursionError):
            continue  # programs print braces for other reasons too
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, bool):
            yield value
