"""Figure: speed of the reference over the time of the campaign, with a test for drift of the system."""

import numpy as np
import pandas as pd

from campaign.analysis.statistics import verdict
from campaign.analysis.statistics.drift import Drift, estimate_drift, is_adjusted
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, describe_lease_coverage, nothing
from campaign.spec.run_numbers import BLOCK_ORDERS

TITLE = "Drift over the campaign"
SECTION = (
    "Was the system the same from the first composition to the last? The reference is one cell, measured "
    "in every composition."
)
METHOD = (
    "the drift of the reference is a linear trend over compositions, each counted once (t test); no other figure includes these "
    "runs"
)
PLACE = 42
UNITS = {"relative": "", "deviation": ""}


def draw(data: FigureData) -> Drawing:
    """Draw the speed of the reference over the time of the campaign, with its trend."""
    reference = data.protocol.get("reference")
    if not reference:
        return nothing("the campaign measures no reference (protocol: reference)")
    estimate = estimate_drift(data.reference, higher_is_better=data.metric.is_higher_better)
    rows = estimate.leases
    if rows.empty:
        return nothing("no run of the reference is valid")
    rows = rows.assign(relative=np.exp(-rows["deviation"]))
    runs, kinds = int(rows["runs"].sum()), rows["hardware"].nunique()
    caption = (
        f"{data.metric.label.capitalize()} of {reference['workload']} (batch "
        f"{reference['batch']}, {reference['precision']}) on one device, relative to the middle of the campaign"
        f"{_format_kinds(kinds)}: {wording.pluralize(runs, 'run')} in {wording.pluralize(len(rows), 'composition')}. "
        "Line: linear trend with its 95 % interval."
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_drift(rows, estimate, data.reference),
        {
            "Composition": columns.text_column("lease_id"),
            "Attachment": columns.text_column("attach"),
            "Hours after the first": lambda row: f"{row['time_h']:.2f}",
            "Runs": columns.count_column("runs"),
            "Relative to the middle of the campaign": lambda row: wording.format_percent(
                100 * (row["relative"] - 1), 2
            ),
        },
        data=rows.assign(time_s=3600 * rows["time_h"]).drop(columns=["cost", "time_h"]),
        caption=caption,
        findings=(_describe_drift(estimate, data),),
        coverage=describe_lease_coverage(data.leases, rows["lease_id"], "measured the reference"),
        alarm=estimate.is_significant,
    )


def _format_kinds(count: int) -> str:
    """Return a clause on how many kinds of device are compared separately, or an empty string for one."""
    return "" if count == 1 else f", separately for {count} kinds of device"


def _describe_drift(estimate: Drift, data: FigureData) -> str:
    """Return a sentence on whether the system drifted, by how much, and which drift would have been detected."""
    span_text = (
        f"{wording.pluralize(len(estimate.leases), 'composition')} in {wording.format_seconds(3600 * estimate.span_h)}"
    )
    if not estimate.is_known:
        return f"Whether the system drifted is unknown: too few compositions measured the reference ({span_text})."
    value, low, high = (wording.format_percent(change_pct, 1) for change_pct in estimate.change_pct)
    if not estimate.is_significant:
        return (
            f"No significant drift: the speed of the reference changed by {value} [{low} to {high}] over {span_text}. A change of "
            f"{wording.format_percent(estimate.detectable_pct, 1)} would be detected in 80 of 100 such campaigns."
        )
    noise = wording.format_percent(100 * estimate.noise, 1)
    return (
        f"The system drifted: the speed of the reference changed by {value} [{low} to {high}] over {span_text}, while its noise "
        f"between compositions is {noise}. {_describe_consequence(data)}"
    )


def _describe_consequence(data: FigureData) -> str:
    """Return a sentence on how a drift affects comparisons of this campaign."""
    if is_adjusted({"protocol": data.protocol}):
        return "Comparisons between compositions are adjusted for it."
    if data.protocol.get("lease_order") in BLOCK_ORDERS:
        return "Compositions were measured in random blocks, so the drift widens intervals but is not mistaken for an effect."
    return f"{verdict.FIXED_LEASE_ORDER_CAVEAT} 'protocol: reference: adjust' removes the drift from comparisons."


def _draw_drift(rows: pd.DataFrame, estimate: Drift, runs: pd.DataFrame) -> str:
    """Draw the speed of the reference per composition, with the trend and its interval. Return SVG.

    Every other composition is shaded, from its first to its last run of the reference.

    Args:
        rows: reference by composition.
        estimate: estimate of the drift.
        runs: runs of the reference.
    """
    figure, ((axes,),) = plot.create_grid(1, height_in=2.6)
    valid = runs[runs["status"] == "ok"]
    first = valid["started"].min()
    for place, (_, lease) in enumerate(valid.groupby("lease_id", sort=False)):
        # Every other composition is shaded, from its first run of the reference to its last.
        ends = [(lease[name] - first) / 3600 for name in ("started", "ended")]
        if place % 2 == 0:
            axes.axvspan(ends[0].min(), ends[1].max(), color=plot.INK, alpha=0.08, linewidth=0)
    for place, (attach, group) in enumerate(rows.groupby("attach", sort=True)):
        look = plot.choose_series_look(place)
        axes.plot(
            group["time_h"], 100 * (group["relative"] - 1), look.marker, color=look.colour, label=f"{attach} device"
        )
    if estimate.is_known:
        time = np.linspace(rows["time_h"].min(), rows["time_h"].max(), 50)
        middle, low, high = (100 * (values - 1) for values in estimate.predict_trend(time))
        axes.plot(time, middle, color=plot.INK, linewidth=1.2, label="trend")
        axes.fill_between(time, low, high, color=plot.INK, alpha=0.15, linewidth=0)
    axes.axhline(0, color=plot.INK, linewidth=0.6, linestyle=":")
    axes.set_xlabel("time (h)")
    axes.set_ylabel("difference from the middle (%)")
    plot.add_legend(figure, axes.get_legend_handles_labels()[0])
    return plot.to_svg(figure)
