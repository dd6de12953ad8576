"""Figure: the highest rate of requests at which each configuration holds the objectives of a service."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    Served,
    limit_words,
    objective_words,
    per_s,
    served,
    too_late,
)
from campaign.statistics import comparisons, serving, verdict

TITLE = "Serving: highest rate that holds"
SECTION = (
    "How many requests per second does each configuration serve before it misses its objectives? The rate is where the measured "
    "percentile crosses its limit, and it holds only if every lower rate does."
)
PLACE = 5
UNITS = {
    "rate": "per_s",
    "rate_low": "per_s",
    "rate_high": "per_s",
    "lowest": "per_s",
    "largest": "per_s",
    "limit": "ms",
}


def draw(data: FigureData) -> Drawing:
    if data.requests.empty:
        return nothing(NO_REQUESTS)
    found = served(data)
    if found.cells.empty:
        return nothing(NO_RATE)
    rows = _rows(data, found)
    if rows.empty:
        return nothing("no workload file of a service has an 'objective'")
    by = [name for name in serving.series_columns(rows) if name not in ("configuration", "batch")]
    panels = plot.panels(rows, by)
    limits = "; ".join(f"{name}: {objective_words(each)}" for name, each in found.objectives.items() if each)
    caption = (
        f"Highest rate at which all of these hold: {limits}. {EXPLAINED} Lines: 95 % interval, over compositions, or over requests "
        "within the composition where there is one. An arrow: at least (to the right) or at most (to the left) so many. "
        f"{_compositions(rows)} {verdict.counted(rows[rows['configuration'] != data.baseline], data.protocol, data.baseline)}"
        f"{panels.sentence()} {measured_as(data, found.cells)}"
    )
    with plot.style(data.style):
        svg = _picture(panels, data.baseline)
    table = page_table(
        rows,
        {
            "Configuration": lambda row: row["configuration"],
            "Workload": lambda row: wording.describe(row, by),
            "Requests/s that hold": said,
            "Decided by": lambda row: limit_words(row["decides"], row["limit"]),
            "Per device": lambda row: per_s(row["rate"] / row["ranks"]),
            f"Against {data.baseline}": lambda row: wording.times(row["ratio"]),
            "95 % interval": lambda row: wording.between(row["ratio_low"], row["ratio_high"], wording.times),
            **verdict.COLUMNS,
            "Measured rates": lambda row: f"{row['n_rates']} from {per_s(row['lowest'])} to {per_s(row['largest'])}",
            "Requests a rate": lambda row: f"{wording.count(row['n_requests'])} or more",
        },
    )
    findings = (*_findings(rows, data.baseline), *too_late(found))
    covered = coverage_of_cells(found.cells, found.requests["cell_id"].unique())
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _rows(data: FigureData, found: Served) -> pd.DataFrame:
    rows = serving.highest_rates(found.requests, found.cells, data.runs, found.objectives)
    if rows.empty:
        return rows
    each = serving.of_compositions(found.requests, found.cells, data.runs, found.objectives)
    by = comparisons.design(each, data.protocol, column="rate")
    return serving.against_baseline(rows, data.baseline, by)


def said(row: Any, unit: str = "") -> str:
    """The highest rate of a row, with what is known of it: '38 [35, 41]', 'at least 40: no measured rate fails'."""
    low, high = row["rate_low"], row["rate_high"]
    if row["found"] == "none fails":
        certain = "" if low == row["largest"] else f", {_certain(low)}"
        return f"at least {per_s(row['largest'])}{unit}: no measured rate fails{certain}"
    if row["found"] == "none holds":
        certain = (
            ""
            if high == row["lowest"]
            else f", certainly none from {per_s(high)} on"
            if high == high
            else ", which is not certain"
        )
        return f"below {per_s(row['lowest'])}{unit}: no measured rate holds{certain}"
    if row["found"] == "not known":
        return f"not known from {wording.plural(int(row['n_requests']), 'request')} a rate"
    if low == low and high == high:
        return f"{per_s(row['rate'])} [{per_s(low)}, {per_s(high)}]"
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
        ends = [ordered.iloc[0]] if len(ordered) == 1 else [ordered.iloc[0], ordered.iloc[-1]]
        sentences += [_sentence(row, own, baseline) for row in ends]
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
    of = "every objective" if row["found"] == "none fails" else limit_words(row["decides"], row["limit"])
    text = f"{wording.describe(row, named)} holds {of}: {held}"
    if row["configuration"] in baseline.split(", ") or row["ratio"] != row["ratio"]:
        return f"{text}."
    low, high = row["ratio_low"], row["ratio_high"]
    ratio = verdict.measured(row, (row["ratio"], low, high), wording.times)
    return f"{text}; {ratio} the rate of {baseline}{verdict.doubt(row, 100 * (low - 1), 100 * (high - 1))}."


def _picture(panels: plot.Panels, baseline: str) -> str:
    names = list(dict.fromkeys(name for panel in panels.shown for name in panel.rows["configuration"]))
    baselines = set(baseline.split(", "))
    figure, axes = plot.grid(len(panels.shown), height_in=0.9 + 0.3 * max(2, min(len(names), plot.MOST_PANELS * 2)))
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        own = panel.rows.to_dict("records")
        for place, row in enumerate(own):
            look = plot.look(names.index(row["configuration"]))
            _point(only, place, row, look)
            if row["configuration"] in baselines and row["rate"] == row["rate"]:
                only.axvline(row["rate"], color=plot.INK, linewidth=0.9, linestyle=":")
        only.set_yticks(range(len(own)), [str(row["configuration"]) for row in own])
        only.set_ylim(len(own) - 0.4, -0.6)
        only.set_xlim(0, 1.08 * float(panel.rows[["rate", "rate_high", "largest"]].max().max()))
        only.set_xlabel("requests/s that hold")
        if plot.is_left(position):
            only.set_ylabel("configuration")
        else:
            only.tick_params(labelleft=len(own) != len(names))
    if baselines & set(names):
        plot.legend(figure, [Line2D([], [], color=plot.INK, linestyle=":", label=f"baseline {baseline}")])
    return plot.to_svg(figure)


def _point(axes: Axes, y: int, row: Any, look: plot.Look) -> None:
    how: dict[str, Any] = {"color": look.colour, "linestyle": ""}
    low, high = row["rate_low"], row["rate_high"]
    if row["found"] == "crossed":
        axes.plot([row["rate"]], [y], marker=look.marker, **how)
        ends = [low if low == low else 0.0, high if high == high else row["largest"]]
        axes.plot(ends, [y, y], color=look.colour, linewidth=1.2, linestyle="-" if low == low and high == high else ":")
        return
    if row["found"] == "not known":
        axes.text(0.02, y, "not known", transform=axes.get_yaxis_transform(), va="center", fontsize=plot.small_pt())
        return
    above = row["found"] == "none fails"
    at = row["largest"] if above else row["lowest"]
    axes.plot([at], [y], marker=">" if above else "<", markerfacecolor="none", **how)
    words = "no measured rate fails" if above else "no measured rate holds"
    align = "right" if above else "left"
    axes.annotate(
        words,
        (at, y),
        (-8 if above else 8, 0),
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize=plot.small_pt(),
    )
