"""Figure: operations of the fabric that failed or were repeated, per thousand."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign.analysis.tables.leases import summarize_fabric_failures
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import APPARATUS, Drawing, FigureData, describe_lease_coverage, nothing

TITLE = "Fabric failures"
SECTION = "How often does an operation that composes or releases fail, and how often is it repeated?"
RESTS_ON = ("fabric",)
PART = APPARATUS
WITH = "composition-times"
PLACE = 193
METHOD = "intervals of failures of the fabric (Clopper and Pearson) assume independent operations"

_RATE = plot.IntervalColumns("per_thousand", "per_thousand_low", "per_thousand_high")
UNITS = {"failures": "", **dict.fromkeys((_RATE.value, _RATE.low, _RATE.high), "")}


def draw(data: FigureData) -> Drawing:
    """Draw the failures per thousand operations of each kind, and the repetitions, with intervals."""
    rows = summarize_fabric_failures(data.leases, data.operations)
    if rows.empty:
        return nothing("no lease recorded operations of the fabric")
    caption = "Events per thousand operations, with 95 % intervals. Repeated operations include those that found the fabric busy."
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_rates(rows),
        {
            "Event": columns.text_column("event"),
            "Operations": columns.count_column("operations"),
            "Events": columns.count_column("failures"),
            "Per 1,000": columns.number_column(_RATE.value),
            "95 % interval": columns.interval_column(_RATE.low, _RATE.high),
        },
        caption=caption,
        findings=tuple(_describe_rate(row) for row in rows.to_dict("records")),
        coverage=describe_lease_coverage(
            data.leases, data.leases.loc[data.leases["operations"] > 0, "lease_id"], "had recorded operations"
        ),
    )


def _describe_rate(row: Mapping[Any, Any]) -> str:
    """Return a sentence on the rate of one event."""
    noun, verb = row["event"].split(" ")
    high, bounds = wording.format_number(row[_RATE.high]), wording.format_range(row[_RATE.low], row[_RATE.high])
    total = wording.pluralize(int(row["operations"]), noun)
    if not row["failures"]:
        return f"None of {total} {'was ' if noun == 'operation' else ''}{verb}: at most {high} per thousand (95 %)."
    verb = f"{'was' if row['failures'] == 1 else 'were'} {verb}" if noun == "operation" else verb
    return f"{row['failures']:,} of {total} {verb}: {wording.format_number(row[_RATE.value])} per thousand [{bounds}]."


def _draw_rates(rows: pd.DataFrame) -> str:
    """Draw a line per event with its rate and interval. Return SVG."""
    figure, [[axes]] = plot.create_grid(1, height_in=0.9 + 0.4 * max(2, len(rows)))
    look = plot.choose_series_look(0)
    for place, row in enumerate(rows.to_dict("records")):
        errors = [[row[_RATE.value] - row[_RATE.low]], [row[_RATE.high] - row[_RATE.value]]]
        axes.errorbar(row[_RATE.value], place, xerr=errors, color=look.colour, marker=look.marker, markersize=4.5)
    plot.label_panel_lines(axes, [f"{row['event']} (n = {row['operations']:,})" for row in rows.to_dict("records")])
    axes.set_xlim(left=0.0)
    axes.set_xlabel("events per 1,000 operations")
    axes.set_ylabel("event")
    return plot.to_svg(figure)
