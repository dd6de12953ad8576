"""Columns of a figure's table: functions that format a row's value; missing values become empty text or a dash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from campaign.common import wording

Column = Callable[[Any], str]


def text(name: str, none: str = "") -> Column:
    """Return a column with the value of a field as it is, or a placeholder if it is empty."""
    return lambda row: row[name] or none


def described(names: Sequence[str]) -> Column:
    """Return a column with several fields of a row in words: 'bert-base, batch 32, fp16'."""
    return lambda row: wording.format_axes(row, names)


def count(name: str) -> Column:
    """Return a column with the value of a field as a count."""
    return lambda row: wording.format_count(row[name])


def number(name: str, digits: int = 3, factor: float = 1.0) -> Column:
    """Return a column with the value of a field as a number."""
    return lambda row: wording.format_number(factor * row[name], digits)


def percent(name: str, decimals: int = 1) -> Column:
    """Return a column with the value of a field in percent."""
    return lambda row: wording.format_percent(row[name], decimals)


def seconds(name: str) -> Column:
    """Return a column with the value of a field as a duration."""
    return lambda row: wording.format_seconds(row[name])


def between(low: str, high: str, say: Callable[[float], str] = wording.format_number) -> Column:
    """Return a column with an interval by its two ends.

    It has a dash if both ends are equal, as for the ratio of the baseline to itself.
    """
    return lambda row: wording.NO_VALUE if row[low] == row[high] else wording.format_range(row[low], row[high], say)


def rate(heading: str) -> Mapping[str, Column]:
    """Return the columns of a cell's mean and its interval, by heading."""
    return {
        heading: lambda row: wording.format_rate(row["mean"]),
        "95 % interval": between("ci_low", "ci_high", wording.format_rate),
    }


def ratio(heading: str, interval: str = "95 % interval ") -> Mapping[str, Column]:
    """Return the columns of a cell's ratio to its reference and the interval, by heading."""
    return {
        heading: lambda row: wording.format_ratio(row["ratio"]),
        interval: between("ratio_low", "ratio_high", wording.format_ratio),
    }


RUNS: Mapping[str, Column] = {"Runs": count("n_ok")}
RUNS_AND_FAILURES: Mapping[str, Column] = {**RUNS, "Failed": text("failures")}
