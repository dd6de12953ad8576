"""A picture of what was expected, with its interval, and of what it took: one line a row, over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from campaign.report import plot

LEVEL_PCT = 95


class Line(NamedTuple):
    """Not a number: nothing expected, no interval, or nothing taken."""

    label: str
    expected: float
    low: float
    high: float
    actual: float


def picture(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """SVG; the first line is on top."""
    figure, [[axes]] = plot.grid(1, height_in=0.9 + 0.26 * max(3, len(lines)))
    expected, actual = plot.look(0), plot.look(1)
    for place, line in enumerate(lines):
        if not math.isnan(line.low):
            axes.plot([line.low, line.high], [place, place], color=expected.colour, linewidth=1.6)
        axes.plot([line.expected], [place], **_dot(expected, filled=True))
        axes.plot([line.actual], [place], **_dot(actual, filled=False))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
    axes.xaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    handles = [
        Line2D(
            [], [], color=expected.colour, label=f"expected, {LEVEL_PCT} % interval", **_mark(expected, filled=True)
        ),
        Line2D([], [], color="none", label="actual", **_mark(actual, filled=False)),
    ]
    plot.legend(figure, handles)
    return plot.to_svg(figure)


def _mark(look: plot.Look, *, filled: bool) -> dict[str, Any]:
    return {
        "marker": look.marker,
        "markersize": 5,
        "markerfacecolor": look.colour if filled else "none",
        "markeredgecolor": look.colour,
    }


def _dot(look: plot.Look, *, filled: bool) -> dict[str, Any]:
    return {"linestyle": "", "zorder": 3, **_mark(look, filled=filled)}
