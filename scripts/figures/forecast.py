"""Figure: forecast and actual duration of each lease."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    APPARATUS,
    Drawing,
    FigureData,
    describe_lease_coverage,
    describe_undrawn,
    nothing,
)

TITLE = "Forecasts of durations"
SECTION = "How long was each lease expected to take, and how long did it take, from the request to the release?"
RESTS_ON = ("fabric",)
PART = APPARATUS
WITH = "composition-times"
PLACE = 200
UNITS = {"runs_expected": "", "uses": ""}

_MAX_LEASES = 40
_SECONDS = ["expected_s", "low_s", "high_s", "actual_s"]
_COLUMNS = ["lease", "configuration", "runs_expected", "runs", "uses", "basis", "resumed", *_SECONDS]


def draw(data: FigureData) -> Drawing:
    """Draw the expected and the actual duration of each lease, the longest lease first."""
    rows = pd.DataFrame(list(data.context.get("forecast", ())), columns=_COLUMNS)
    if rows.empty:
        return nothing("no lease was measured with a forecast")
    rows = rows.astype(dict.fromkeys(_SECONDS, "float64"))
    if rows["expected_s"].isna().all():
        return nothing("the duration of every lease was unknown before it was measured")
    # Leases that were resumed, composed twice or left incomplete did other work than was forecast.
    rows["judged"] = (rows["runs"] == rows["runs_expected"]) & (rows["uses"] == 1) & ~rows["resumed"].astype(bool)
    rows["error_pct"] = 100 * (rows["actual_s"] / rows["expected_s"].where(rows["expected_s"] > 0) - 1)
    inside = (rows["low_s"] <= rows["actual_s"]) & (rows["actual_s"] <= rows["high_s"])
    rows["inside"] = inside.astype("object").where(rows["low_s"].notna(), None)
    rows["longest"] = rows["expected_s"].fillna(rows["actual_s"])
    rows = rows.sort_values(["longest", "lease"], ascending=[False, True], kind="stable", ignore_index=True).drop(
        columns="longest"
    )
    excluded_count = int((~rows["judged"]).sum())
    exclusion_text = (
        f" Not judged: {wording.pluralize(excluded_count, 'lease')} (*) resumed, composed again or incomplete."
    )
    omitted_leases_text = describe_undrawn(len(rows) - _MAX_LEASES, "lease", "table")
    caption = (
        f"Expected duration with its interval (line) and actual duration (open) of {wording.pluralize(len(rows), 'lease')}, "
        "longest first. Intervals reflect the errors of earlier forecasts."
        f"{exclusion_text if excluded_count else ''}{omitted_leases_text}"
    )
    planned_leases = pd.DataFrame({"lease_id": data.cells["lease"].unique() if "lease" in data.cells else ()})
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_forecasts(rows.head(_MAX_LEASES).to_dict("records")),
        {
            "Lease": columns.text_column("lease"),
            "Runs": columns.count_column("runs"),
            "Expected": columns.duration_column("expected_s"),
            "Interval": lambda row: (
                "unknown"
                if pd.isna(row["low_s"])
                else wording.format_range(row["low_s"], row["high_s"], wording.format_seconds)
            ),
            "Actual": columns.duration_column("actual_s"),
            "Error": columns.percent_column("error_pct", 0),
            "Expected from": columns.text_column("basis"),
        },
        caption=caption,
        findings=_describe_accuracy(rows[rows["judged"]]),
        coverage=describe_lease_coverage(
            planned_leases, rows.loc[rows["expected_s"].notna(), "lease"], "were measured with a forecast"
        ),
    )


def _draw_forecasts(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Draw one line per lease, the first on top, over a logarithmic time axis. Return SVG."""
    figure, [[axes]] = plot.create_grid(1, height_in=0.9 + 0.26 * max(3, len(rows)))
    expected_look, actual_look = plot.choose_series_look(0), plot.choose_series_look(1)
    for place, row in enumerate(rows):
        if not math.isnan(row["low_s"]):
            axes.plot([row["low_s"], row["high_s"]], [place, place], color=expected_look.colour, linewidth=1.6)
        axes.plot([row["expected_s"]], [place], **_build_dot_style(expected_look, is_filled=True))
        axes.plot([row["actual_s"]], [place], **_build_dot_style(actual_look, is_filled=False))
    plot.set_logarithmic(axes)
    plot.label_panel_lines(axes, [_format_label(row) for row in rows])
    axes.set_xlabel("duration of the lease (s)")
    axes.set_ylabel("lease")
    handles = [
        plot.build_ink_key(
            "expected, with interval", **{**_build_dot_style(expected_look, is_filled=True), "linestyle": "-"}
        ),
        plot.build_ink_key("actual", **_build_dot_style(actual_look, is_filled=False)),
    ]
    plot.add_legend(figure, handles)
    return plot.to_svg(figure)


def _build_dot_style(look: plot.SeriesLook, *, is_filled: bool) -> dict[str, Any]:
    """Return the marker style for a look."""
    return {
        "color": look.colour,
        "linestyle": "",
        "zorder": 3,
        "marker": look.marker,
        "markersize": 5,
        "markerfacecolor": look.colour if is_filled else "none",
    }


def _describe_accuracy(judged_rows: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences on how many forecasts were correct, and on leases without a forecast.

    Args:
        judged_rows: rows of leases that were measured without interruption.
    """
    if judged_rows.empty:
        return ("No lease was measured without interruption, so no forecast can be judged.",)
    sentences = []
    forecasts = judged_rows[judged_rows["low_s"].notna()]
    if len(forecasts):
        inside = int(forecasts["inside"].astype(bool).sum())
        error = wording.format_percent(float(forecasts["error_pct"].abs().median()), 0)
        sentences.append(
            f"The actual duration was within the interval of {inside} of {wording.pluralize(len(forecasts), 'forecast')}. The "
            f"median error is {error} of the expected duration."
        )
    if unknown_count := len(judged_rows) - len(forecasts):
        sentences.append(
            f"{wording.pluralize(unknown_count, 'lease')} had no forecast, because the duration was unknown before."
        )
    return tuple(sentences)


def _format_label(row: Mapping[Any, Any]) -> str:
    """Format the label of a lease with its number of runs. A star marks leases that are not judged."""
    return f"{row['lease']} ({wording.pluralize(int(row['runs']), 'run')}){'' if row['judged'] else ' *'}"
