"""The figure of the section 'What to build': predicted against measured, each configuration left out in turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from campaign import wording
from campaign.insight.recommend.advise import Advice
from campaign.insight.recommend.candidates import TRUSTED_PCT
from campaign.insight.recommend.document import ModelSaid
from campaign.report import plot
from campaign.report.figure import Drawing, Figure, nothing, page_table

TITLE = "Predicted against measured"
SECTION = "How well does the model predict a configuration that was left out of the fit?"
_POINTS = 4000  # of one panel; more only make the file larger


def figure(advice: Advice) -> Figure:
    """The figure of an advice; of the data that other figures read it takes the style alone."""
    return Figure("predictions", TITLE, SECTION, lambda data: draw(advice, data.style))


def draw(advice: Advice, style: Path) -> Drawing:
    """Panels by workload and device model; the table has a row for each configuration."""
    told = advice.checks[advice.checks["error_pct"].notna()].reset_index(drop=True)
    models = [each for each in advice.document.models if each.error_median_pct is not None]
    if told.empty or not models:
        return nothing("too few configurations were measured for a model that can be checked")
    findings = tuple(each.sentence for each in models)
    with plot.style(style):
        svg = _picture(told, models)
    untold = len(advice.checks) - len(told)
    alone = f" {wording.plural(untold, 'cell')} left out: no other configuration allows a prediction." if untold else ""
    caption = (
        "Throughput that the model predicts for each cell, fitted without the cell’s configuration, against the mean that was "
        f"measured; on the line they are equal, the dotted ones are {TRUSTED_PCT:.0f}\u202f% off.{alone}"
    )
    table = page_table(
        _by_configuration(told),
        {
            "Configuration": lambda row: row["configuration"],
            "Workload": lambda row: row["workload"],
            "Device": lambda row: row["device"],
            "Cells": lambda row: wording.count(row["cells"]),
            "Error, median": lambda row: wording.percent(row["median"]),
            "Lowest": lambda row: wording.percent(row["lowest"]),
            "Highest": lambda row: wording.percent(row["highest"]),
            f"More than {TRUSTED_PCT:.0f}\u202f% off": lambda row: _far(row),
        },
    )
    return Drawing(svg=svg, caption=caption, findings=findings, data=told, **table)


def _by_configuration(told: pd.DataFrame) -> pd.DataFrame:
    return (
        told.groupby(["workload", "device", "configuration"], sort=False)
        .agg(
            cells=("error_pct", "count"),
            median=("error_pct", "median"),
            lowest=("error_pct", "min"),
            highest=("error_pct", "max"),
            far=("reason", lambda given: int((given != "").sum())),
            reasons=("reason", lambda given: "; ".join(each for each in dict.fromkeys(given) if each)),
        )
        .reset_index()
    )


def _far(row: Mapping[Any, Any]) -> str:
    """How many cells, and why."""
    if not row["far"]:
        return wording.NONE
    return f"{wording.plural(row['far'], 'cell')}: {row['reasons']}"


def _picture(told: pd.DataFrame, models: list[ModelSaid]) -> str:
    shown = models[: plot.MOST_PANELS]
    attaches = list(dict.fromkeys(told["attach"]))
    looks = {name: plot.look(position) for position, name in enumerate(attaches)}
    several = len({each.device for each in models}) > 1
    drawn, axes = plot.grid(len(shown), height_in=2.9)
    for position, (model, (only,)) in enumerate(zip(shown, axes, strict=True)):
        own = told[(told["workload"] == model.workload) & (told["device"] == model.device)].head(_POINTS)
        plot.title(only, f"{model.workload} on {model.device}" if several else model.workload)
        _panel(only, own, looks)
        only.set_xlabel("measured (samples/s)")
        if plot.is_left(position):
            only.set_ylabel("predicted (samples/s)")
    handles: list[Any] = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="", label=name) for name, look in looks.items()
    ]
    plot.legend(drawn, handles)
    return plot.to_svg(drawn)


def _panel(axes: Any, own: pd.DataFrame, looks: dict[str, plot.Look]) -> None:
    both = own[["measured_per_s", "predicted_per_s"]].to_numpy(dtype=float)
    ends = np.array([both.min() / 1.15, both.max() * 1.15])
    axes.plot(ends, ends, color=plot.INK, marker="", linewidth=0.8)
    for factor in (1 - TRUSTED_PCT / 100, 1 + TRUSTED_PCT / 100):
        axes.plot(ends, ends * factor, color=plot.INK, marker="", linewidth=0.6, linestyle=":")
    for name, rows in own.groupby("attach", sort=False):
        look = looks[str(name)]
        axes.plot(
            rows["measured_per_s"],
            rows["predicted_per_s"],
            color=look.colour,
            marker=look.marker,
            markersize=4,
            linestyle="",
        )
    for scale, axis in ((axes.set_xscale, axes.xaxis), (axes.set_yscale, axes.yaxis)):
        scale("log")
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=8))
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
