"""Figure: how many requests per second meet all objectives, against the offered rate."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from campaign import wording
from campaign.report import columns, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, first_and_last, nothing
from campaign.report.service_requests import EXPLAINED, NO_OBJECTIVE, ServiceRequests, service_requests, why_no_rates
from campaign.statistics import serving

TITLE = "Serving: goodput"
SECTION = "How many of the requests meet every limit of their objectives?"
PART = ANSWERS
WITH = "highest-rate"
METHOD = (
    "intervals are over compositions, or over requests within the composition where there is one; goodput as in "
    "DistServe (Zhong et "
    "al., OSDI 2024) is the highest rate that holds, per device"
)
PLACE = 7
UNITS = {
    **dict.fromkeys(("rate_per_s", "share", "share_low", "share_high"), ""),
    **dict.fromkeys(("goodput", "goodput_low", "goodput_high"), "per_s"),
}

_GOODPUT = plot.Columns("goodput", "goodput_low", "goodput_high")


def draw(data: FigureData) -> Drawing:
    if why := why_no_rates(data):
        return nothing(why)
    found = service_requests(data)
    rows = _rows(found)
    if rows.empty:
        return nothing(NO_OBJECTIVE)
    by = [name for name in serving.series_columns(rows) if name not in ("configuration", "batch")]
    panels = plot.panels(rows, by)
    caption = (
        "Requests per second that meet the limits of all objectives, against the offered rate; 95 % intervals. "
        "Dotted: every request "
        f"meets them. {EXPLAINED}{panels.sentence()}"
    )
    named = [name for name in serving.series_columns(rows) if name != "batch"]
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels),
        {
            "Cell": columns.described(named),
            "Offered requests/s": columns.number("rate_per_s"),
            "Meet all limits": lambda row: wording.percent(100 * row["share"]),
            "95 % interval": columns.between("share_low", "share_high", lambda share: wording.percent(100 * share)),
            "Goodput (requests/s)": columns.number("goodput"),
            "Requests": columns.count("n_requests"),
            "Failed requests": columns.count("n_errors"),
        },
        caption=caption,
        limits=panels.limits(),
        findings=_findings(rows),
        coverage=coverage_of_cells(found.cells, rows["cell_id"]),
    )


def _rows(found: ServiceRequests) -> pd.DataFrame:
    """One row a cell with a rate whose workload has objectives."""
    cells = found.cells[found.cells["workload"].map(lambda name: bool(found.objectives.get(str(name))))]
    own = found.requests[found.requests["cell_id"].isin(cells["cell_id"])]
    shares = serving.met(own, cells, found.objectives)
    rows = cells[["cell_id", *serving.series_columns(cells), "rate_per_s", "n_ok"]].merge(shares, on="cell_id")
    goodput = {name: rows["rate_per_s"] * rows[name] for name in ("share", "share_low", "share_high")}
    return rows.assign(**{name.replace("share", "goodput"): each for name, each in goodput.items()})


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    """The largest goodput of each configuration, the best and the worst."""
    best = rows.sort_values("goodput", ascending=False, kind="stable").drop_duplicates(serving.series_columns(rows))
    named = [name for name in serving.series_columns(rows) if name == "configuration" or rows[name].nunique() > 1]
    return tuple(
        f"Largest goodput of {wording.describe(row, named)}: "
        f"{wording.with_interval(row['goodput'], row['goodput_low'], row['goodput_high'])} requests/s, at "
        f"{wording.number(row['rate_per_s'])} offered."
        for row in first_and_last(best)
    )


def _picture(panels: plot.Panels) -> str:
    looks = plot.looks(list(dict.fromkeys(plot.in_panels(panels, "configuration")))[: plot.MOST_SERIES])

    def paint(axes: Axes, rows: pd.DataFrame) -> None:
        for name, look in looks.items():
            own = rows[rows["configuration"] == name].sort_values("rate_per_s", kind="stable")
            plot.points(axes, own, own["rate_per_s"], _GOODPUT, look)
            axes.plot(own["rate_per_s"], own["goodput"], color=look.colour)
        most = float(rows["rate_per_s"].max())
        axes.plot([0, most], [0, most], color=plot.INK, linestyle=":", linewidth=0.9)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)

    return plot.multiples(panels, paint, plot.keys(looks), "offered requests/s", "goodput (requests/s)", height_in=2.6)
