"""Figure: what each lease was expected to take, and what it took."""

import math
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from campaign import wording
from campaign.report import plot
from campaign.report.figure import Drawing, FigureData, coverage_of_leases, nothing, page_table, without_runs

TITLE = "Forecast and actual duration"
SECTION = (
    "How long was each lease expected to take before it was measured, and how long did it take, from the request to the "
    "release? Earlier forecasts show how far a plan can be trusted."
)
PLACE = 200
UNITS = {"runs_expected": "", "uses": ""}

_MOST = 40
_LEVEL_PCT = 95
_COLUMNS = ["lease", "configuration", "runs_expected", "runs", "uses", "expected_s", "low_s", "high_s", "basis", "resumed",
            "actual_s"]  # fmt: skip


def draw(data: FigureData) -> Drawing:
    rows = pd.DataFrame(list(data.context.get("forecast", ())), columns=_COLUMNS)
    if rows.empty:
        return nothing("no lease was measured with a forecast")
    for name in ("expected_s", "low_s", "high_s", "actual_s"):
        rows[name] = rows[name].astype("float64")
    # What was begun by a process that was killed, composed twice or left incomplete took other than what was forecast.
    rows["judged"] = (rows["runs"] == rows["runs_expected"]) & (rows["uses"] == 1) & ~rows["resumed"].astype(bool)
    rows["error_pct"] = 100 * (rows["actual_s"] / rows["expected_s"].where(rows["expected_s"] > 0) - 1)
    inside = (rows["low_s"] <= rows["actual_s"]) & (rows["actual_s"] <= rows["high_s"])
    rows["inside"] = inside.astype("object").where(rows["low_s"].notna(), None)
    rows = rows.sort_values(["expected_s", "lease"], ascending=[False, True], kind="stable", ignore_index=True)
    findings = _findings(rows)
    apart = int((~rows["judged"]).sum())
    caption = (
        f"Expected duration with its {_LEVEL_PCT} % prediction interval (line) and actual duration (open) of "
        f"{wording.plural(len(rows), 'lease')}, composing and releasing included, the longest first; time is logarithmic. Without "
        "a line the user assumed a time; with neither, it was unknown."
        + (
            f" {wording.plural(apart, 'lease')} marked *: resumed, composed again or incomplete, not judged."
            if apart
            else ""
        )
        + (f" {len(rows) - _MOST} more in the table." if len(rows) > _MOST else "")
        + without_runs(data)
    )
    with plot.style(data.style):
        svg = _picture(rows.head(_MOST))
    table = page_table(
        rows,
        {
            "Lease": lambda row: row["lease"],
            "Runs": lambda row: wording.count(row["runs"]),
            "Expected": lambda row: wording.seconds(row["expected_s"]),
            "95 % interval": lambda row: (
                ("unknown" if pd.isna(row["expected_s"]) else "assumed")
                if pd.isna(row["low_s"])
                else wording.between(row["low_s"], row["high_s"], wording.seconds)
            ),
            "Actual": lambda row: wording.seconds(row["actual_s"]),
            "Error": lambda row: wording.percent(row["error_pct"], 0),
            "Expected from": lambda row: row["basis"],
        },
    )
    leases = pd.DataFrame({"lease_id": data.cells["lease"].unique() if "lease" in data.cells else ()})
    covered = coverage_of_leases(leases, rows["lease"], "were measured with a forecast")
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    judged = rows[rows["judged"]]
    if judged.empty:
        return ("No lease was measured without interruption, so no forecast can be judged.",)
    unknown = judged["expected_s"].isna()
    assumed = judged["low_s"].isna() & ~unknown
    learned = judged[~assumed & ~unknown]
    said = []
    if len(learned):
        inside = int(learned["inside"].astype(bool).sum())
        error = float(learned["error_pct"].abs().median())
        said.append(
            f"{inside} of {wording.plural(len(learned), 'forecast')} correct: the actual duration is within the {_LEVEL_PCT} % "
            f"interval. Median error: {wording.percent(error, 0)} of the expected duration."
        )
    if assumed.any():
        said.append(
            f"No earlier runs were available for {wording.plural(int(assumed.sum()), 'lease')}, so durations were assumed. "
            f"Median error: {wording.percent(float(judged[assumed]['error_pct'].abs().median()), 0)}."
        )
    if unknown.any():
        said.append(
            f"Nothing was known of the duration of {wording.plural(int(unknown.sum()), 'lease')} before they were measured."
        )
    return tuple(said)


def _picture(rows: pd.DataFrame) -> str:
    figure, [[axes]] = plot.grid(1, height_in=0.9 + 0.26 * max(3, len(rows)))
    expected, actual = plot.look(0), plot.look(1)
    for place, row in enumerate(rows.to_dict("records")):
        if not math.isnan(row["low_s"]):
            axes.plot([row["low_s"], row["high_s"]], [place, place], color=expected.colour, linewidth=1.6)
        axes.plot([row["expected_s"]], [place], **_dot(expected, filled=True))
        axes.plot([row["actual_s"]], [place], **_dot(actual, filled=False))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
    axes.xaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("duration of the lease (s)")
    axes.set_ylabel("lease")
    handles = [
        Line2D(
            [], [], color=expected.colour, label=f"expected, {_LEVEL_PCT} % interval", **_mark(expected, filled=True)
        ),
        Line2D([], [], color="none", label="actual", **_mark(actual, filled=False)),
    ]
    plot.legend(figure, handles)
    return plot.to_svg(figure)


def _label(row: Any) -> str:
    return f"{row['lease']} ({wording.plural(int(row['runs']), 'run')})" + ("" if row["judged"] else " *")


def _mark(look: plot.Look, *, filled: bool) -> dict[str, Any]:
    return {
        "marker": look.marker,
        "markersize": 5,
        "markerfacecolor": look.colour if filled else "none",
        "markeredgecolor": look.colour,
    }


def _dot(look: plot.Look, *, filled: bool) -> dict[str, Any]:
    return {"linestyle": "", "zorder": 3, **_mark(look, filled=filled)}
