"""Columns of a figure's table: functions that format a value of a row. Missing values become empty text or a dash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from campaign.common import wording

CellFormatter = Callable[[Any], str]


def text_column(name: str, placeholder: str = "") -> CellFormatter:
    """Return a column with the value of a field as it is, or a placeholder if it is empty."""
    return lambda row: row[name] or placeholder


def description_column(names: Sequence[str]) -> CellFormatter:
    """Return a column that joins several fields of a row, such as 'bert-base, batch 32, fp16'."""
    return lambda row: wording.format_axes(row, names)


def count_column(name: str) -> CellFormatter:
    """Return a column with the value of a field as a count."""
    return lambda row: wording.format_count(row[name])


def number_column(name: str, digits: int = 3, factor: float = 1.0) -> CellFormatter:
    """Return a column with the value of a field as a number."""
    return lambda row: wording.format_number(factor * row[name], digits)


def percent_column(name: str, decimals: int = 1) -> CellFormatter:
    """Return a column with the value of a field in percent."""
    return lambda row: wording.format_percent(row[name], decimals)


def duration_column(name: str) -> CellFormatter:
    """Return a column with the value of a field as a duration."""
    return lambda row: wording.format_seconds(row[name])


def interval_column(
    low: str, high: str, format_number: Callable[[float], str] = wording.format_number
) -> CellFormatter:
    """Return a column with an interval. It has a dash if both ends are equal, as for the ratio of the baseline to itself."""
    return lambda row: (
        wording.NO_VALUE if row[low] == row[high] else wording.format_range(row[low], row[high], format_number)
    )


def rate_columns(heading: str) -> Mapping[str, CellFormatter]:
    """Return the columns of a cell's mean and its interval, by heading."""
    return {
        heading: lambda row: wording.format_rate(row["mean"]),
        "95 % interval": interval_column("ci_low", "ci_high", wording.format_rate),
    }


def ratio_columns(heading: str, interval: str = "95 % interval ") -> Mapping[str, CellFormatter]:
    """Return the columns of a cell's ratio to its reference and the interval, by heading."""
    return {
        heading: lambda row: wording.format_ratio(row["ratio"]),
        interval: interval_column("ratio_low", "ratio_high", wording.format_ratio),
    }


RUN_COLUMNS: Mapping[str, CellFormatter] = {"Runs": count_column("n_ok")}
RUN_AND_FAILURE_COLUMNS: Mapping[str, CellFormatter] = {**RUN_COLUMNS, "Failed": text_column("failures")}
