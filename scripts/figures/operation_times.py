"""Figure: durations of single operations of the fabric, with recordings of the same kind of fabric for comparison."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from campaign.analysis.tables.leases import summarize_operation_times
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import APPARATUS, Drawing, FigureData, describe_lease_coverage, nothing

TITLE = "Fabric operations"
SECTION = "How long does the fabric take to attach and to detach a device, and how much does that vary?"
RESTS_ON = ("fabric",)
PART = APPARATUS
WITH = "composition-times"
PLACE = 191

_NAMES = {
    "attach": "attach a device",
    "detach": "detach a device",
    "inventory": "read the fabric",
    "read_back": "read back",
    "visible": "until visible",
    "request": "change the fabric",
    "rest": "rest of composing",
}
_MAX_POINTS = 400
_POINT_SPREAD = 0.3


def draw(data: FigureData) -> Drawing:
    """Draw the durations of each fabric operation as dots, with median and 5 to 95 % range."""
    if data.operations.empty:
        return nothing("no lease recorded the durations of its fabric operations")
    recorded_times = (data.context.get("system") or {}).get("times") or {}
    rows = summarize_operation_times(data.operations, recorded_times.get("operations", ()))
    source = (
        f" Grey: recorded elsewhere ({recorded_times['source']})." if rows["recorded_median_s"].notna().any() else ""
    )
    caption = f"Each dot is one operation; lines span the 5th to 95th percentile, ticks are medians.{source}"
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_operations(rows, data.operations),
        {
            "Operation": _format_operation,
            "Operations": columns.count_column("operations"),
            "Median": columns.duration_column("median_s"),
            "5 to 95 %": columns.interval_column("low_s", "high_s", wording.format_seconds),
            "Longest": columns.duration_column("longest_s"),
            "Recorded elsewhere: median": columns.duration_column("recorded_median_s"),
            "Recorded elsewhere: 5 to 95 %": lambda row: (
                wording.format_range(row["recorded_low_s"], row["recorded_high_s"], wording.format_seconds)
                if row["recorded_median_s"] >= 0
                else wording.NO_VALUE
            ),
        },
        caption=caption,
        findings=_describe_device_operations(rows),
        coverage=describe_lease_coverage(data.leases, data.operations["lease_id"].unique(), "had recorded operations"),
    )


def _format_operation(row: Mapping[Any, Any]) -> str:
    """Format the name of an operation, with the kind of device if it is not a GPU."""
    name = _NAMES.get(row["operation"], row["operation"])
    return f"{name} ({row['device']})" if row["device"] not in ("", "gpu") else name


def _describe_device_operations(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the median times to attach and to detach a device, as sentences in one text."""
    sentences = []
    for row in rows[rows["operation"].isin(["attach", "detach"])].to_dict("records"):
        kind = "device" if row["device"] in ("", "gpu") else row["device"]
        spread = wording.format_range(row["low_s"], row["high_s"], wording.format_seconds)
        sentences.append(
            f"{row['operation'].capitalize()}ing a {kind} takes {wording.format_seconds(row['median_s'])} (median; 5 to 95 %: "
            f"{spread})."
        )
    return (" ".join(sentences),) if sentences else ()


def _draw_operations(rows: pd.DataFrame, operations: pd.DataFrame) -> str:
    """Draw a row of dots per operation. Return SVG.

    Args:
        rows: summary of each operation, one row per line of the figure.
        operations: single operations with their duration in seconds.
    """
    figure, [[axes]] = plot.create_grid(1, height_in=0.8 + 0.5 * max(2, len(rows)))
    look = plot.choose_series_look(0)
    tick: dict[str, Any] = {"color": plot.INK, "marker": "|", "markersize": 8, "linestyle": ""}
    for place, row in enumerate(rows.to_dict("records")):
        is_operation = (operations["operation"] == row["operation"]) & (operations["device"] == row["device"])
        values = np.sort(operations.loc[is_operation, "seconds"].to_numpy(dtype=float))
        values = values[np.linspace(0, len(values) - 1, min(len(values), _MAX_POINTS)).round().astype(int)]
        # The golden ratio spreads the dots over the height: neighbours in time do not overlap, and the picture is deterministic.
        offsets = (np.arange(len(values)) * 0.618034) % 1 - 0.5
        dots = {"color": look.colour, "marker": "o", "markersize": 2.5, "linestyle": "", "alpha": 0.7}
        axes.plot(values, place + _POINT_SPREAD * offsets, **dots)
        axes.plot([row["low_s"], row["high_s"]], [place - 0.28] * 2, color=plot.INK, marker="", linewidth=1.2)
        axes.plot([row["median_s"]], [place - 0.28], **tick)
        if row["recorded_median_s"] >= 0:
            width = row["recorded_high_s"] - row["recorded_low_s"]
            axes.barh(place + 0.28, width, 0.13, left=row["recorded_low_s"], color="#999999", linewidth=0)
            axes.plot([row["recorded_median_s"]], [place + 0.28], **tick)
    plot.label_panel_lines(
        axes, [f"{_format_operation(row)} (n = {row['operations']:,})" for row in rows.to_dict("records")]
    )
    axes.set_xlim(left=0.0)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("operation")
    handles: list[Any] = [
        plot.build_ink_key("one operation", color=look.colour, marker="o", markersize=3, linestyle=""),
        plot.build_ink_key("5 to 95 %, median", marker="|", linewidth=1.2),
    ]
    if rows["recorded_median_s"].notna().any():
        handles.append(Patch(color="#999999", linewidth=0, label="recorded elsewhere, 5 to 95 %"))
    plot.add_legend(figure, handles)
    return plot.to_svg(figure)
