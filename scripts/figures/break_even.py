"""Figure: job length from which recomposing pays, compared with the composition at hand."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import break_even, comparable_cells, verdict
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    APPARATUS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)
from campaign.spec.metric import THROUGHPUT

TITLE = "When recomposing pays"
SECTION = (
    "From what job length is it worth to compose a faster configuration, instead of using the composition at hand?"
)
RESTS_ON = ("fabric", "links", "devices")
PART = APPARATUS
PLACE = 192
METHOD = "composing pays for a job that gains more time than composing and releasing take; the composition at hand costs neither"

_LENGTH = plot.IntervalColumns("break_even_s", "break_even_low_s", "break_even_high_s")
_MAX_LINES = 30
_MAX_FINDINGS = 3


def draw(data: FigureData) -> Drawing:
    """Draw the break-even job length of each pair of configurations, with a mark per cell."""
    if data.metric != THROUGHPUT:
        return nothing(f"the duration of a job follows from throughput, but the primary metric is {data.metric.label}")
    rows = break_even.compare_recomposed_cells(data.cells, data.leases, data.baseline, data.design)
    if rows.empty:
        return nothing("no configuration with known composition times can be compared with a composition at hand")
    rows = rows.assign(pair=rows["configuration"] + " instead of " + rows["against_configuration"])
    paying_rows = rows[np.isfinite(rows["break_even_s"])]
    if paying_rows.empty:
        return nothing("no configuration is faster than the compositions at hand")
    label_columns = select_distinguishing_columns(
        rows, ["workload", "batch", "precision", *comparable_cells.list_option_columns(rows)]
    )
    pairs = list(dict.fromkeys(paying_rows["pair"]))
    caption = (
        "Job length on the composition at hand from which composing, running and releasing the faster one takes less time. "
        f"{describe_marks('mark', paying_rows['n_ok'], paying_rows['method'])}"
    )
    hidden_count = len(rows) - len(paying_rows)
    hidden_text = (
        f"{wording.pluralize(hidden_count, 'cell')} without a gain {'is' if hidden_count == 1 else 'are'} not drawn."
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_lengths(paying_rows, pairs[:_MAX_LINES]),
        {
            "Composed": columns.text_column("configuration"),
            "At hand": columns.text_column("against_configuration"),
            "Cell": columns.description_column(label_columns),
            **columns.ratio_columns("Throughput ratio"),
            "Saved per hour": lambda row: (
                wording.format_seconds(row["saving_s_per_h"]) if row["saving_s_per_h"] > 0 else wording.NO_VALUE
            ),
            "Composing and releasing": columns.duration_column("overhead_s"),
            "95 % interval": columns.interval_column("overhead_low_s", "overhead_high_s", wording.format_seconds),
            "Pays from": lambda row: _format_length(row["break_even_s"]),
            "95 % interval  ": lambda row: _format_bounds(row["break_even_low_s"], row["break_even_high_s"]),
            **verdict.P_COLUMN,
            **columns.RUN_COLUMNS,
        },
        caption=caption,
        limits=(hidden_text if hidden_count else "", plot.describe_cut_intervals(paying_rows, _LENGTH)),
        findings=_describe_lengths(rows, data, label_columns),
        coverage=describe_cell_coverage(data.cells, rows["cell_id"]),
    )


def _describe_lengths(rows: pd.DataFrame, data: FigureData, label_columns: list[str]) -> tuple[str, ...]:
    """Return a sentence per configuration with fabric devices; those with the longest time to compose come first.

    At hand is the configuration with the most devices among those with fewer. All cells count, also those without a gain:
    otherwise chance would select the cells that gain.
    """
    rows = rows[(rows["attach"] != "local") & (rows["against_devices"] < rows["devices"])]
    most_devices = rows.groupby("configuration")["against_devices"].transform("max")
    rows = rows[rows["against_devices"] == most_devices].sort_values("overhead_s", ascending=False, kind="stable")
    sentences = []
    for pair, group in rows.groupby("pair", sort=False):
        if len(group) == 1:
            row = group.to_dict("records")[0]
            length = tuple(float(row[name]) for name in ("break_even_s", "break_even_low_s", "break_even_high_s"))
            subject = wording.format_axes(row, label_columns)
        else:
            length = break_even.compute_average_break_even_s(group, data.leases, data.design)
            subject = f"mean of {len(group)} cells"
        sentences.append(_describe_length(str(pair), *length, subject))
    return tuple(sentences[:_MAX_FINDINGS])


def _describe_length(pair: str, value: float, low: float, high: float, subject: str) -> str:
    """Return a sentence on the job length from which a pair of configurations pays. It is not certain without an upper bound."""
    if math.isnan(low) or math.isnan(high):
        if math.isinf(value):
            return f"Composing {pair} does not pay (composed once, not tested; {subject})."
        length = wording.format_seconds(value)
        return f"Composing {pair} pays from jobs of {length} on (composed once, not tested; {subject})."
    if math.isinf(low):
        return f"Composing {pair} never pays ({subject})."
    if math.isinf(high):
        shortest = wording.format_seconds(low)
        return f"Composing {pair} may never pay, and does not pay for jobs below {shortest} (95 %; {subject})."
    bounds = wording.format_range(low, high, wording.format_seconds)
    return f"Composing {pair} pays from jobs of {wording.format_seconds(value)} on (95 % interval {bounds}; {subject})."


def _format_length(seconds: float) -> str:
    """Format a job length, 'never' if it is infinite."""
    return "never" if math.isinf(seconds) else wording.format_seconds(seconds)


def _format_bounds(low: float, high: float) -> str:
    """Format the interval of a job length, whose upper end may be infinite."""
    if math.isnan(low) or math.isnan(high):
        return wording.NO_VALUE
    if math.isinf(high):
        return f"from {wording.format_seconds(low)} on, or never" if math.isfinite(low) else "never"
    return wording.format_range(low, high, wording.format_seconds)


def _draw_lengths(rows: pd.DataFrame, pairs: list[str]) -> str:
    """Draw a line per pair of configurations with a mark per cell, on a logarithmic axis of seconds. Return SVG."""
    looks = plot.assign_looks(rows["workload"])
    figure, [[axes]] = plot.create_grid(1, height_in=0.9 + 0.34 * max(2, len(pairs)))
    right = float(rows["break_even_s"].max())
    for place, pair in enumerate(pairs):
        marks = rows[rows["pair"] == pair].to_dict("records")
        for position, row in enumerate(marks):
            y = place + 0.6 * ((position + 0.5) / len(marks) - 0.5)
            _draw_mark(axes, y, row, looks[row["workload"]], right)
    plot.set_logarithmic(axes)
    plot.label_panel_lines(axes, pairs)
    axes.set_xlabel("job length at hand (s)")
    axes.set_ylabel("composed, instead of")
    plot.add_legend(figure, plot.build_legend_keys(looks, linestyle=""))
    return plot.to_svg(figure)


def _draw_mark(axes: Any, y: float, row: Mapping[Any, Any], look: plot.SeriesLook, right: float) -> None:
    """Draw the length of one cell and its interval; an interval without upper end reaches ten times the longest length."""
    value, low, high = row["break_even_s"], row["break_even_low_s"], min(row["break_even_high_s"], 10 * right)
    if not (math.isnan(low) or math.isnan(high)):
        axes.plot([max(low, value / 100), high], [y, y], color=look.colour, marker="", linewidth=0.9)
    axes.plot([value], [y], color=look.colour, marker=look.marker, linestyle="", markersize=4.5)
