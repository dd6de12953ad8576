"""Columns of a figure's table: what each says of a row, in words. Of what a row does not know, they say nothing or a dash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from campaign.common import wording

Column = Callable[[Any], str]


def text(name: str, none: str = "") -> Column:
    """The value as it is; `none` for an empty one."""
    return lambda row: row[name] or none


def described(names: Sequence[str]) -> Column:
    """The values of several columns that tell a row from others: 'bert-base, batch 32, fp16'."""
    return lambda row: wording.format_axes(row, names)


def count(name: str) -> Column:
    return lambda row: wording.format_count(row[name])


def number(name: str, digits: int = 3, factor: float = 1.0) -> Column:
    return lambda row: wording.format_number(factor * row[name], digits)


def percent(name: str, decimals: int = 1) -> Column:
    return lambda row: wording.format_percent(row[name], decimals)


def seconds(name: str) -> Column:
    return lambda row: wording.format_seconds(row[name])


def between(low: str, high: str, say: Callable[[float], str] = wording.format_number) -> Column:
    """An interval by its two ends; a dash where it is a point, as of the ratio of the baseline to itself."""
    return lambda row: wording.NO_VALUE if row[low] == row[high] else wording.format_range(row[low], row[high], say)


def rate(heading: str) -> Mapping[str, Column]:
    """The mean of a cell with its interval."""
    return {
        heading: lambda row: wording.format_rate(row["mean"]),
        "95 % interval": between("ci_low", "ci_high", wording.format_rate),
    }


def ratio(heading: str, interval: str = "95 % interval ") -> Mapping[str, Column]:
    """The ratio of a cell to what it is compared with, and its interval."""
    return {
        heading: lambda row: wording.format_ratio(row["ratio"]),
        interval: between("ratio_low", "ratio_high", wording.format_ratio),
    }


RUNS: Mapping[str, Column] = {"Runs": count("n_ok")}
RUNS_AND_FAILURES: Mapping[str, Column] = {**RUNS, "Failed": text("failures")}
