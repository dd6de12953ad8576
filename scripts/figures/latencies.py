"""Figure: latencies of requests to services, against the offered rate and of single requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from campaign import wording
from campaign.report import columns, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, telling
from campaign.report.service_requests import (
    EXPLAINED,
    NO_REQUESTS,
    SHORT,
    ServiceRequests,
    percentile_words,
    scaled,
    service_requests,
    too_late,
)
from campaign.statistics import comparable_cells, serving
from campaign.statistics.latency_percentiles import percentiles

TITLE = "Serving: latencies"
SECTION = "How do latencies grow with the rate of requests, and how are those of single requests distributed?"
PART = ANSWERS
WITH = "highest-rate"
METHOD = (
    "95 % intervals are over compositions, or over requests within the composition where there is one, and "
    "account for requests that "
    "resemble their neighbours; where nothing bounds a percentile from above, it is at least the lower end of its interval"
)
PLACE = 6
UNITS = {"percent": "", "rate_per_s": "", "value": "ms", "low": "ms", "high": "ms"}

_BY_RATE = {50.0: "--", 99.0: "-"}
_DISTRIBUTED = ("ttft_ms", "tpot_ms")
_CURVE_POINTS = 400
_LEAST_SHARE = 0.001  # of requests: the quickest one says nothing, and takes half of a logarithmic axis


def draw(data: FigureData) -> Drawing:
    if data.requests.empty:
        return nothing(NO_REQUESTS)
    found = service_requests(data)
    named = comparable_cells.naming_columns(data.cells)
    cells = data.cells[["cell_id", *named, "n_ok", "state"]].merge(
        found.cells[["cell_id", "rate_per_s"]], on="cell_id", how="left"
    )
    rows = cells.merge(percentiles(found.requests, found.latencies), on="cell_id")
    if rows.empty:
        return nothing("no request was counted")
    panels, at = _panels(rows, found)
    of_rates = (
        "By rate: median (dashed) and 99th percentile (solid), bands are 95 % intervals, an open triangle is a "
        "percentile that is "
        "at least so much and that nothing bounds from above, and horizontal lines are limits of the objectives. "
    )
    caption = (
        f"{of_rates if len(found.cells) else ''}Share of requests that take at most so long, over all runs of a "
        f"cell{at}; a curve ends "
        f"below 1 where some fail. {EXPLAINED}{panels.sentence()}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels, found),
        {
            "Cell": columns.described(telling(rows, [name for name in named if name not in ("batch", serving.RATE)])),
            "Requests/s": columns.number("rate_per_s"),
            "Latency": lambda row: f"p{row['percent']:g} {SHORT[row['latency']]} (ms)",
            "Value [95 %]": percentile_words,
            "Requests": columns.count("n_requests"),
            "Compositions": columns.count("n_compositions"),
        },
        caption=caption,
        limits=panels.limits(),
        findings=(*too_late(found), *_at_the_highest_rate(rows), *_tails(rows, named)),
        coverage=coverage_of_cells(data.cells, rows["cell_id"].unique()),
    )


def _panels(rows: pd.DataFrame, found: ServiceRequests) -> tuple[plot.Panels, str]:
    """Panels by rate, then panels of distributions; and for the caption, at which rate these are."""
    of_series = [name for name in serving.series_columns(rows) if name not in ("configuration", "batch")]
    by_rate = rows[rows["rate_per_s"].notna() & rows["percent"].isin(list(_BY_RATE))]
    order = by_rate["latency"].map({name: place for place, name in enumerate(found.latencies)})
    by_rate = by_rate.assign(_place=order).sort_values("_place", kind="stable").drop(columns="_place")
    at, common = "", rows
    if len(by_rate):
        # Of all series the cells at one rate, the highest that every one was measured at.
        series = rows["cell_id"].map(found.cells.set_index("cell_id")["series"])
        everywhere = series.groupby(rows["rate_per_s"]).nunique()
        rate = float(everywhere[everywhere == everywhere.max()].index.max())
        common, at = (
            rows[rows["rate_per_s"].isna() | (rows["rate_per_s"] == rate)],
            f", at {wording.number(rate)} requests/s",
        )
    single = common[(common["percent"] == 50.0) & common["latency"].isin(_DISTRIBUTED)]
    groups = [
        _titled(plot.panels(own.assign(panel=kind), ["latency", *of_series], of_axes=["latency"]), kind)
        for kind, own in (("by rate", by_rate), ("distribution", single))
        if len(own)
    ]
    shown = tuple(panel for each in groups for panel in each.shown)
    return replace(groups[0], shown=shown, left_out=sum(each.left_out for each in groups)), at


def _titled(panels: plot.Panels, kind: str) -> plot.Panels:
    """Panels that say which latency they are of, and what of it they show."""
    titled = [
        replace(panel, label=", ".join(filter(None, [SHORT[panel.rows["latency"].iloc[0]], kind, panel.label])))
        for panel in panels.shown
    ]
    return replace(panels, shown=tuple(titled))


def _at_the_highest_rate(rows: pd.DataFrame) -> tuple[str, ...]:
    """What the highest rate does to the tail, of each latency."""
    known = rows[(rows["percent"] == 99.0) & rows["rate_per_s"].notna() & rows["low"].notna()]
    last = known.sort_values(["rate_per_s", "low"], kind="stable").groupby("latency", sort=False).tail(1)
    return tuple(
        f"At the highest rate ({wording.number(row['rate_per_s'])} requests/s), p99 {SHORT[row['latency']]} of "
        f"{row['configuration']} is {percentile_words(row, ' ms')}."
        for row in sorted(last.to_dict("records"), key=lambda row: list(SHORT).index(row["latency"]))
    )


def _tails(rows: pd.DataFrame, named: list[str]) -> tuple[str, ...]:
    """The longest tail of each latency."""
    sentences = []
    for latency in _DISTRIBUTED:
        wide = rows[rows["latency"] == latency].pivot(index="cell_id", columns="percent", values="value")
        wide = wide[np.isfinite(wide[99.0])] if 99.0 in wide else wide[:0]
        if wide.empty:
            continue
        ratio = wide[99.0] / wide[50.0]
        row = rows[rows["cell_id"] == ratio.idxmax()].iloc[0]
        different = [name for name in named if name == "configuration" or rows[name].nunique() > 1]
        sentences.append(
            f"Longest tail of {SHORT[latency]}: the 99th percentile is {wording.times(ratio.max())} the median "
            f"({wording.describe(row, different)})."
        )
    unknown = rows[(rows["percent"] == 99.0) & rows["high"].isna()]["cell_id"].nunique()
    if unknown:
        cells = wording.plural(unknown, "cell")
        sentences.append(f"Requests are too few to bound the 99th percentile from above in {cells}; longer runs help.")
    return tuple(sentences)


def _picture(panels: plot.Panels, found: ServiceRequests) -> str:
    names = list(dict.fromkeys(plot.in_panels(panels, "configuration")))[: plot.MOST_SERIES]
    looks = plot.looks(names)

    def paint(axes: Axes, rows: pd.DataFrame) -> None:
        latency = str(rows["latency"].iloc[0])
        (_by_rate if rows["panel"].iloc[0] == "by rate" else _distribution)(axes, rows, latency, looks, found)

    lines = [plot.ink_key(f"p{percent:g}", linestyle=dashes) for percent, dashes in _BY_RATE.items()]
    return plot.multiples(panels, paint, [*plot.keys(looks), *(lines if len(found.cells) else [])], height_in=2.6)


def _distribution(
    axes: Axes, rows: pd.DataFrame, latency: str, looks: dict[str, plot.Look], found: ServiceRequests
) -> None:
    own = found.requests[found.requests["cell_id"].isin(rows["cell_id"])]
    for row in rows[rows["configuration"].isin(list(looks))].to_dict("records"):
        times_ms = own.loc[own["cell_id"] == row["cell_id"], latency].dropna()
        plot.shares(axes, times_ms, looks[row["configuration"]], _LEAST_SHARE, _CURVE_POINTS)
    scaled(axes, "x", own[latency].dropna())
    axes.set_xlabel(f"{SHORT[latency]} (ms)")
    axes.set_ylabel("share of requests")


def _by_rate(axes: Axes, rows: pd.DataFrame, latency: str, looks: dict[str, plot.Look], found: ServiceRequests) -> None:
    for name, look in looks.items():
        for percent, dashes in _BY_RATE.items():
            own = rows[(rows["configuration"] == name) & (rows["percent"] == percent)]
            _curve(axes, own.sort_values("rate_per_s", kind="stable"), look, dashes)
    how: dict[str, Any] = {"textcoords": "offset points", "fontsize": plot.small_pt()}
    for each in found.objectives.get(str(rows["workload"].iloc[0]), ()):
        if each.latency == latency:
            axes.axhline(each.limit, color=plot.INK, linewidth=0.9, linestyle=":")
            at = (0.02, each.limit)
            axes.annotate(f"limit of p{each.percent:g}", at, (0, 2), xycoords=axes.get_yaxis_transform(), **how)
    scaled(axes, "y", rows["value"])
    axes.set_xlabel("offered requests/s")
    axes.set_ylabel(f"{SHORT[latency]} (ms)")
    axes.set_xlim(left=0)


def _curve(axes: Axes, rows: pd.DataFrame, look: plot.Look, dashes: str) -> None:
    how: dict[str, Any] = {"color": look.colour}
    finite = rows[rows["value"] < float("inf")]
    axes.plot(finite["rate_per_s"], finite["value"], marker=look.marker, linestyle=dashes, markersize=4, **how)
    known = finite[finite["low"].notna() & (finite["high"] < float("inf"))]
    axes.fill_between(known["rate_per_s"], known["low"], known["high"], alpha=0.18, linewidth=0, **how)
    # A band of one rate has no width.
    axes.vlines(known["rate_per_s"], known["low"], known["high"], linewidth=1.0, **how)
    open_ = rows[(rows["low"] < float("inf")) & ~(rows["high"] < float("inf"))]
    axes.plot(open_["rate_per_s"], open_["low"], marker="^", markerfacecolor="none", linestyle="", **how)
