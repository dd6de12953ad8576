"""A picture of what was expected, with its interval, and of what it took: one line a row, over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from campaign.report import plot
from campaign.report.figure import FigureData, coverage_of_leases

LEVEL_PCT = 95


class Line(NamedTuple):
    """What was expected of a row, with its interval, and what it took; nan where that is unknown."""

    label: str
    expected: float
    low: float
    high: float
    actual: float


def lines(rows: pd.DataFrame, label: Callable[[Mapping[Any, Any]], str]) -> list[Line]:
    """A line for each row, with its expected_s, low_s, high_s and actual_s."""
    return [
        Line(label(row), *(row[name] for name in ("expected_s", "low_s", "high_s", "actual_s")))
        for row in rows.to_dict("records")
    ]


def coverage(data: FigureData, shown: Iterable[str], what: str) -> str:
    """How many of the planned leases are shown; what: became of them."""
    planned = pd.DataFrame({"lease_id": data.cells["lease"].unique() if "lease" in data.cells else ()})
    return coverage_of_leases(planned, shown, what)


def picture(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """SVG; the first line is on top."""
    figure, [[axes]] = plot.grid(1, height_in=0.9 + 0.26 * max(3, len(lines)))
    expected, actual = plot.look(0), plot.look(1)
    for place, line in enumerate(lines):
        if not math.isnan(line.low):
            axes.plot([line.low, line.high], [place, place], color=expected.colour, linewidth=1.6)
        axes.plot([line.expected], [place], **_dot(expected, filled=True))
        axes.plot([line.actual], [place], **_dot(actual, filled=False))
    plot.logarithmic(axes)
    plot.label_lines(axes, [line.label for line in lines])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    handles = [
        plot.ink_key(f"expected, {LEVEL_PCT} % interval", **{**_dot(expected, filled=True), "linestyle": "-"}),
        plot.ink_key("actual", **_dot(actual, filled=False)),
    ]
    plot.legend(figure, handles)
    return plot.to_svg(figure)


def _dot(look: plot.Look, *, filled: bool) -> dict[str, Any]:
    return {
        "color": look.colour,
        "linestyle": "",
        "zorder": 3,
        "marker": look.marker,
        "markersize": 5,
        "markerfacecolor": look.colour if filled else "none",
    }
