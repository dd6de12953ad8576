"""Figure: how many requests per second meet all objectives, against the offered rate."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from campaign import wording
from campaign.report import plot
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.report.served import EXPLAINED, NO_RATE, NO_REQUESTS, Served, served
from campaign.statistics import serving

TITLE = "Serving: goodput"
SECTION = (
    "How many of the requests meet every limit of their objectives? More requests than a configuration can serve in time make it "
    "useful to fewer users, not to more."
)
PLACE = 7
UNITS = {
    "rate_per_s": "",
    "share": "",
    "share_low": "",
    "share_high": "",
    "goodput": "per_s",
    "goodput_low": "per_s",
    "goodput_high": "per_s",
}

_GOODPUT = plot.Columns("goodput", "goodput_low", "goodput_high")


def draw(data: FigureData) -> Drawing:
    if data.requests.empty:
        return nothing(NO_REQUESTS)
    found = served(data)
    if found.cells.empty:
        return nothing(NO_RATE)
    rows = _rows(found)
    if rows.empty:
        return nothing("no workload file of a service has an 'objective'")
    by = [name for name in serving.series_columns(rows) if name not in ("configuration", "batch")]
    panels = plot.panels(rows, by)
    caption = (
        "Requests per second that meet the limits of all objectives, each by itself, against the offered rate; 95 % intervals over "
        "compositions, or over requests within the composition where there is one. Dotted: every request meets them. "
        f"{EXPLAINED} DistServe (Zhong et al., OSDI 2024) calls the highest rate that holds, per device, goodput; the figure of "
        f"highest rates has it.{panels.sentence()} {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(panels)
    named = [name for name in serving.series_columns(rows) if name != "batch"]
    table = page_table(
        rows,
        {
            "Cell": lambda row: wording.describe(row, named),
            "Offered requests/s": lambda row: wording.number(row["rate_per_s"]),
            "Meet all limits": lambda row: wording.percent(100 * row["share"]),
            "95 % interval": lambda row: wording.between(
                100 * row["share_low"], 100 * row["share_high"], wording.percent
            ),
            "Goodput (requests/s)": lambda row: wording.number(row["goodput"]),
            "Requests": lambda row: wording.count(row["n_requests"]),
            "Failed requests": lambda row: wording.count(row["n_errors"]),
        },
    )
    covered = coverage_of_cells(found.cells, rows["cell_id"])
    return Drawing(svg=svg, caption=caption, findings=_findings(rows), data=rows, coverage=covered, **table)


def _rows(found: Served) -> pd.DataFrame:
    """One row a cell with a rate whose workload has objectives."""
    cells = found.cells[found.cells["workload"].map(lambda name: bool(found.objectives.get(str(name))))]
    own = found.requests[found.requests["cell_id"].isin(cells["cell_id"])]
    shares = serving.met(own, cells, found.objectives)
    rows = cells[["cell_id", *serving.series_columns(cells), "rate_per_s", "n_ok"]].merge(shares, on="cell_id")
    return rows.assign(
        **{
            name.replace("share", "goodput"): rows["rate_per_s"] * rows[name]
            for name in ("share", "share_low", "share_high")
        }
    )


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    """The largest goodput of each configuration, the best and the worst."""
    best = rows.sort_values("goodput", ascending=False, kind="stable").drop_duplicates(serving.series_columns(rows))
    ends = [best.iloc[0]] if len(best) == 1 else [best.iloc[0], best.iloc[-1]]
    named = [name for name in serving.series_columns(rows) if name == "configuration" or rows[name].nunique() > 1]
    return tuple(
        f"Largest goodput of {wording.describe(row, named)}: "
        f"{wording.with_interval(row['goodput'], row['goodput_low'], row['goodput_high'])} requests/s, at "
        f"{wording.number(row['rate_per_s'])} offered."
        for row in ends
    )


def _picture(panels: plot.Panels) -> str:
    names = list(dict.fromkeys(name for panel in panels.shown for name in panel.rows["configuration"]))[
        : plot.MOST_SERIES
    ]
    looks = {name: plot.look(place) for place, name in enumerate(names)}
    figure, axes = plot.grid(len(panels.shown), height_in=2.6)
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        for name, look in looks.items():
            own = panel.rows[panel.rows["configuration"] == name].sort_values("rate_per_s", kind="stable")
            plot.points(only, own, own["rate_per_s"], _GOODPUT, look)
            only.plot(own["rate_per_s"], own["goodput"], color=look.colour)
        _ideal(only, float(panel.rows["rate_per_s"].max()))
        if plot.is_left(position):
            only.set_ylabel("goodput (requests/s)")
    plot.legend(
        figure,
        [Line2D([], [], color=look.colour, marker=look.marker, label=name) for name, look in looks.items()],
    )
    return plot.to_svg(figure)


def _ideal(axes: Axes, most: float) -> None:
    axes.plot([0, most], [0, most], color=plot.INK, linestyle=":", linewidth=0.9)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("offered requests/s")
