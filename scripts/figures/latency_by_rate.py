"""Figure: latencies of requests against the offered rate, by configuration."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from campaign import wording
from campaign.report import plot
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.report.served import (
    EXPLAINED,
    NO_RATE,
    NO_REQUESTS,
    SHORT,
    Served,
    percentile_words,
    scaled,
    served,
    too_late,
)
from campaign.statistics import serving
from campaign.statistics.latency_percentiles import percentiles

TITLE = "Serving: latency by rate"
SECTION = (
    "How do latencies grow with the rate of requests? Near its capacity, a server answers the median request quickly and the "
    "slowest ones late."
)
PLACE = 6
UNITS = {"percent": "", "rate_per_s": "", "value": "ms", "low": "ms", "high": "ms"}

_DRAWN = {50.0: "--", 99.0: "-"}


def draw(data: FigureData) -> Drawing:
    if data.requests.empty:
        return nothing(NO_REQUESTS)
    found = served(data)
    if found.cells.empty:
        return nothing(NO_RATE)
    rows = _rows(found)
    by = ["latency", *(name for name in serving.series_columns(rows) if name not in ("configuration", "batch"))]
    panels = plot.panels(rows, by, of_axes=["latency"])
    caption = (
        "Median (dashed) and 99th percentile (solid) of latencies; bands are 95 % intervals over compositions, or over requests "
        "within the composition where there is one. An open triangle: the percentile is at least so much, and nothing bounds it "
        f"from above. {EXPLAINED} Horizontal lines: limits of the objectives.{panels.sentence()} {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(panels, found)
    named = [name for name in serving.series_columns(rows) if name != "batch"]
    table = page_table(
        rows,
        {
            "Cell": lambda row: wording.describe(row, named),
            "Requests/s": lambda row: wording.number(row["rate_per_s"]),
            "Latency": lambda row: f"p{row['percent']:g} {SHORT[row['latency']]} (ms)",
            "Value [95 %]": percentile_words,
            "Requests": lambda row: wording.count(row["n_requests"]),
            "Compositions": lambda row: wording.count(row["n_compositions"]),
        },
    )
    findings = (*too_late(found), *_findings(rows))
    covered = coverage_of_cells(found.cells, rows["cell_id"].unique())
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _rows(found: Served) -> pd.DataFrame:
    """One row a cell, latency and percentile."""
    own = found.requests[found.requests["cell_id"].isin(found.cells["cell_id"])]
    cells = found.cells[["cell_id", *serving.series_columns(found.cells), "rate_per_s", "n_ok"]]
    rows = cells.merge(percentiles(own, found.latencies, list(_DRAWN)), on="cell_id")
    order = rows["latency"].map({name: place for place, name in enumerate(found.latencies)})
    return rows.assign(_place=order).sort_values("_place", kind="stable", ignore_index=True).drop(columns="_place")


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    """What the highest rate does to the tail, of each latency."""
    sentences = []
    for latency, own in rows[(rows["percent"] == 99.0)].groupby("latency", sort=False):
        known = own[own["low"].notna()]
        if known.empty:
            continue
        row = known.sort_values(["rate_per_s", "low"], kind="stable").iloc[-1]
        sentences.append(
            f"At the highest rate ({wording.number(row['rate_per_s'])} requests/s), p99 {SHORT[str(latency)]} of "
            f"{row['configuration']} is {percentile_words(row)} ms."
        )
    return tuple(sentences)


def _picture(panels: plot.Panels, found: Served) -> str:
    names = list(dict.fromkeys(name for panel in panels.shown for name in panel.rows["configuration"]))[
        : plot.MOST_SERIES
    ]
    looks = {name: plot.look(place) for place, name in enumerate(names)}
    figure, axes = plot.grid(len(panels.shown), height_in=2.6)
    for panel, (only,) in zip(panels.shown, axes, strict=True):
        latency = str(panel.rows["latency"].iloc[0])
        plot.title(only, panel.label.replace(latency, SHORT[latency]))
        scaled(only, "y", panel.rows["value"])
        for name, look in looks.items():
            for percent, dashes in _DRAWN.items():
                own = panel.rows[(panel.rows["configuration"] == name) & (panel.rows["percent"] == percent)]
                _curve(only, own.sort_values("rate_per_s", kind="stable"), look, dashes)
        _limits(only, panel.rows, latency, found)
        only.set_xlabel("offered requests/s")
        only.set_ylabel(f"{SHORT[latency]} (ms)")
        only.set_xlim(left=0)
    plot.legend(
        figure,
        [Line2D([], [], color=look.colour, marker=look.marker, label=name) for name, look in looks.items()]
        + [
            Line2D([], [], color=plot.INK, linestyle=dashes, label=f"p{percent:g}")
            for percent, dashes in _DRAWN.items()
        ],
    )
    return plot.to_svg(figure)


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


def _limits(axes: Axes, rows: pd.DataFrame, latency: str, found: Served) -> None:
    limits = found.objectives.get(str(rows["workload"].iloc[0]), ())
    for each in limits:
        if each.latency == latency:
            axes.axhline(each.limit, color=plot.INK, linewidth=0.9, linestyle=":")
            words = f"limit of p{each.percent:g}"
            axes.annotate(
                words,
                (0.02, each.limit),
                (0, 2),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                fontsize=plot.small_pt(),
            )
