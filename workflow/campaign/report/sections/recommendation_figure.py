"""The figure of the section 'What to build': predicted against measured, each configuration left out in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.insight.recommend.advise import Advice
from campaign.insight.recommend.document import ModelSaid
from campaign.insight.recommend.step_model import TRUSTED_PCT
from campaign.report import columns, plot
from campaign.report.figure import Drawing, Figure, FigureData, nothing

TITLE = "Predicted against measured"
SECTION = "How well does the model predict a configuration that was left out of the fit?"
_POINTS = 4000  # of one panel; more only make the file larger


def figure(advice: Advice) -> Figure:
    """The figure of an advice; of the data that other figures read it takes the style alone."""
    return Figure("predictions", TITLE, SECTION, lambda data: draw(advice, data))


def draw(advice: Advice, data: FigureData) -> Drawing:
    """Panels by workload and device model; the table has a row for each configuration."""
    if len(data.draws):
        return nothing("all cells are predictions of this model")
    told = advice.checks[advice.checks["error_pct"].notna()].reset_index(drop=True)
    models = [each for each in advice.document.models if each.error_median_pct is not None]
    if told.empty or not models:
        return nothing("too few configurations were measured for a model that can be checked")
    untold = len(advice.checks) - len(told)
    alone = f" {wording.plural(untold, 'cell')} left out: no other configuration allows a prediction." if untold else ""
    caption = (
        "Throughput that the model predicts for each cell, fitted without the cell’s configuration, against the mean that was "
        f"measured; on the line they are equal, the dotted ones are {TRUSTED_PCT:.0f}\u202f% off.{alone}"
    )
    return plot.drawn(
        data,
        _by_configuration(told),
        lambda: _picture(told, models),
        {
            "Configuration": columns.text("configuration"),
            "Workload": columns.text("workload"),
            "Device": columns.text("device"),
            "Cells": columns.count("cells"),
            "Error, median": columns.percent("median"),
            "Lowest": columns.percent("lowest"),
            "Highest": columns.percent("highest"),
            f"More than {TRUSTED_PCT:.0f}\u202f% off": _far,
        },
        data=told,
        caption=caption,
        findings=tuple(each.sentence for each in models),
    )


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
    looks = plot.looks(told["attach"])
    several = len({each.device for each in models}) > 1
    shown = list(dict.fromkeys((each.workload, each.device) for each in models))
    panels = [
        plot.Panel(
            f"{workload} on {device}" if several else workload,
            told[(told["workload"] == workload) & (told["device"] == device)].head(_POINTS),
        )
        for workload, device in shown[: plot.MOST_PANELS]
    ]
    return plot.multiples(
        plot.Panels(tuple(panels), "", 0),
        lambda axes, own: _panel(axes, own, looks),
        plot.keys(looks, linestyle=""),
        "measured (samples/s)",
        "predicted (samples/s)",
        height_in=2.9,
    )


def _panel(axes: Any, own: pd.DataFrame, looks: dict[str, plot.Look]) -> None:
    both = own[["measured_per_s", "predicted_per_s"]].to_numpy(dtype=float)
    ends = np.array([both.min() / 1.15, both.max() * 1.15])
    axes.plot(ends, ends, color=plot.INK, marker="", linewidth=0.8)
    for factor in (1 - TRUSTED_PCT / 100, 1 + TRUSTED_PCT / 100):
        axes.plot(ends, ends * factor, color=plot.INK, marker="", linewidth=0.6, linestyle=":")
    for name, rows in own.groupby("attach", sort=False):
        look = looks[str(name)]
        how = {"color": look.colour, "marker": look.marker, "markersize": 4, "linestyle": ""}
        axes.plot(rows["measured_per_s"], rows["predicted_per_s"], **how)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    plot.logarithmic(axes, "xy")
