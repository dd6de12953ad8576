"""Figure: the highest rate of requests at which each configuration holds the objectives of a service."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from campaign import wording
from campaign.report import columns, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, first_and_last, nothing, telling
from campaign.report.service_requests import (
    EXPLAINED,
    NO_OBJECTIVE,
    ServiceRequests,
    limit_words,
    objective_words,
    per_s,
    service_requests,
    too_late,
    why_no_rates,
)
from campaign.statistics import comparisons, serving, verdict

TITLE = "Serving: highest rate that holds"
SECTION = (
    "How many requests per second does each configuration serve before it misses its objectives? A rate "
    "holds only if every lower rate does."
)
PART = ANSWERS
METHOD = "intervals are over compositions, or over requests within the composition where there is one"
PLACE = 5
UNITS = {**dict.fromkeys(("rate", "rate_low", "rate_high", "lowest", "largest"), "per_s"), "limit": "ms"}


def draw(data: FigureData) -> Drawing:
    if why := why_no_rates(data):
        return nothing(why)
    found = service_requests(data)
    rows = _rows(data, found)
    if rows.empty:
        return nothing(NO_OBJECTIVE)
    by = [name for name in serving.series_columns(rows) if name not in ("configuration", "batch")]
    panels = plot.panels(rows, by)
    limits = "; ".join(f"{name}: {objective_words(each)}" for name, each in found.objectives.items() if each)
    caption = (
        f"Highest rate at which all of these hold: {limits}. {EXPLAINED} Lines: 95 % interval. An arrow: at least "
        f"(to the right) or at "
        f"most (to the left) so many. {_compositions(rows)}{panels.sentence()}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels, data.baseline),
        {
            "Configuration": columns.text("configuration"),
            "Workload": columns.described(telling(rows, by)),
            "Requests/s that hold": said,
            "Decided by": lambda row: limit_words(row["decides"], row["limit"]),
            "Per device": lambda row: per_s(row["rate"] / row["ranks"]),
            **columns.ratio(f"Against {data.baseline}", "95 % interval"),
            **verdict.P,
            "Measured rates": lambda row: f"{row['n_rates']} from {per_s(row['lowest'])} to {per_s(row['largest'])}",
            "Requests a rate": lambda row: f"{wording.count(row['n_requests'])} or more",
        },
        caption=caption,
        limits=panels.limits(),
        findings=(*_findings(rows, data.baseline), *too_late(found)),
        coverage=coverage_of_cells(found.cells, found.requests["cell_id"].unique()),
    )


def _rows(data: FigureData, found: ServiceRequests) -> pd.DataFrame:
    rows = serving.highest_rates(found.requests, found.cells, data.runs, found.objectives)
    if rows.empty:
        return rows
    each = serving.of_compositions(found.requests, found.cells, data.runs, found.objectives)
    by = comparisons.design(each, data.protocol, column="rate")
    return serving.against_baseline(rows, data.baseline, by)


def said(row: Any, unit: str = "") -> str:
    """The highest rate of a row, with what is known of it: '38 [35, 41]', 'at least 40, certain up to 33'."""
    low, high = row["rate_low"], row["rate_high"]
    if row["found"] == "none fails":
        return f"at least {per_s(row['largest'])}{unit}{'' if low == row['largest'] else f', {_certain(low)}'}"
    if row["found"] == "none holds":
        bound = f"certainly below {per_s(high)}" if high == high else "which is not certain"
        return f"below {per_s(row['lowest'])}{unit}{'' if high == row['lowest'] else f', {bound}'}"
    if row["found"] == "not known":
        return f"not known from {wording.plural(int(row['n_requests']), 'request')} a rate"
    if low == low and high == high:
        return f"{per_s(row['rate'])} [{per_s(low)}, {per_s(high)}]{unit}"
    end = f"at most {per_s(high)}" if high == high else f"perhaps even {per_s(row['largest'])}"
    return f"about {per_s(row['rate'])}{unit}, {end}, {_certain(low)}"


def _certain(low: float) -> str:
    return f"certain up to {per_s(low)}" if low == low else "no measured rate is certain to hold"


def _compositions(rows: pd.DataFrame) -> str:
    counts = sorted(set(rows["n_compositions"].astype(int)))
    ends = " to ".join(dict.fromkeys(f"{n:,}" for n in (counts[0], counts[-1])))
    return f"{ends} {'composition' if counts == [1] else 'compositions'} each."


def _findings(rows: pd.DataFrame, baseline: str) -> tuple[str, ...]:
    """The best and the worst series of each workload, what they are against the baseline, and curves that are not monotone."""
    sentences = []
    for _, own in rows.groupby("workload", sort=False):
        place = own["rate"].mask(own["found"] == "none fails", np.inf).mask(own["found"] == "none holds", 0.0)
        ordered = own.assign(_place=place).sort_values("_place", ascending=False, kind="stable")
        sentences += [_sentence(row, own, baseline) for row in first_and_last(ordered)]
    for row in rows[rows["again"] != ""].to_dict("records"):
        sentences.append(
            f"{row['configuration']} holds at {row['again']} requests/s although it fails at a lower rate; only rates below the "
            "first failure count."
        )
    for row in rows[rows["n_without_requests"] > 0].to_dict("records"):
        lost = wording.plural(int(row["n_without_requests"]), "run")
        sentences.append(
            f"{row['configuration']}: {lost} failed before the end of the load, and percentiles are of the others."
        )
    return tuple(sentences)


def _sentence(row: Any, rows: pd.DataFrame, baseline: str) -> str:
    named = [name for name in serving.series_columns(rows) if name == "configuration" or rows[name].nunique() > 1]
    number = int(row["n_compositions"])
    compositions = "within one composition" if number == 1 else f"{number:,} compositions"
    low, high = row["rate_low"], row["rate_high"]
    held = f"{said(row, ' requests/s')} ({compositions})"
    if row["found"] == "crossed" and low == low and high == high:
        held = wording.with_interval(row["rate"], low, high, lambda rate: f"{per_s(rate)} requests/s", compositions)
    name, limit = wording.describe(row, named), limit_words(row["decides"], row["limit"])
    text = {
        "none fails": f"{name} holds every objective at all measured rates: {held}",
        "none holds": f"{name} holds {limit} at no measured rate: {held}",
        "not known": f"Highest rate at which {name} holds {limit}: {held}",
    }.get(row["found"], f"{name} holds {limit} up to {held}")
    if row["configuration"] in baseline.split(", ") or row["ratio"] != row["ratio"]:
        return f"{text}."
    low, high = row["ratio_low"], row["ratio_high"]
    ratio = verdict.measured(row, (row["ratio"], low, high), wording.times)
    return f"{text}; {ratio} the rate of {baseline}{verdict.doubt(row, 100 * (low - 1), 100 * (high - 1))}."


def _picture(panels: plot.Panels, baseline: str) -> str:
    looks = plot.looks(plot.in_panels(panels, "configuration"))
    baselines = set(baseline.split(", "))

    def paint(axes: Axes, rows: pd.DataFrame) -> None:
        own = rows.to_dict("records")
        for place, row in enumerate(own):
            _point(axes, place, row, looks[row["configuration"]])
            if row["configuration"] in baselines and row["rate"] == row["rate"]:
                axes.axvline(row["rate"], color=plot.INK, linewidth=0.9, linestyle=":")
        plot.label_lines(axes, [str(row["configuration"]) for row in own], grid="y")
        axes.set_xlim(0, 1.08 * float(rows[["rate", "rate_high", "largest"]].max().max()))

    handles = [plot.ink_key(f"baseline {baseline}", linestyle=":")] if baselines & set(looks) else []
    height_in = 0.9 + 0.3 * max(2, min(len(looks), plot.MOST_PANELS * 2))
    return plot.multiples(panels, paint, handles, "requests/s that hold", "configuration", height_in)


def _point(axes: Axes, y: int, row: Any, look: plot.Look) -> None:
    how: dict[str, Any] = {"color": look.colour, "linestyle": ""}
    beside: dict[str, Any] = {"va": "center", "fontsize": plot.small_pt()}
    low, high = row["rate_low"], row["rate_high"]
    if row["found"] == "crossed":
        axes.plot([row["rate"]], [y], marker=look.marker, **how)
        ends = [low if low == low else 0.0, high if high == high else row["largest"]]
        axes.plot(ends, [y, y], color=look.colour, linewidth=1.2, linestyle="-" if low == low and high == high else ":")
    elif row["found"] == "not known":
        axes.text(0.02, y, "not known", transform=axes.get_yaxis_transform(), **beside)
    else:
        at, sign, marker, align, words = (
            (row["largest"], -1, ">", "right", "no measured rate fails")
            if row["found"] == "none fails"
            else (row["lowest"], 1, "<", "left", "no measured rate holds")
        )
        axes.plot([at], [y], marker=marker, markerfacecolor="none", **how)
        axes.annotate(words, (at, y), (8 * sign, 0), textcoords="offset points", ha=align, **beside)
