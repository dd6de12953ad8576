"""Contexts of the templates of the site, with texts and coordinates. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.tables.io import neutralize_formulas
from campaign.common import wording
from campaign.report.intervals_column import choose_ticks
from campaign.report.site.campaigns import ListedCampaign
from campaign.report.site.history import History, Point, format_date

MAX_POINTS_IN_TABLE = 20
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480.0, 208.0, 62.0, 14.0, 22.0, 30.0


@dataclass(frozen=True)
class Page:
    """Page with the histories of one configuration on one system. `name` is the name of its files in history/."""

    name: str
    system: str
    configuration: str
    histories: tuple[History, ...]

    @property
    def campaigns(self) -> int:
        return len({point.campaign for history in self.histories for point in history.points})


def build_history_pages(histories: Sequence[History], to_address: Callable[[str], str]) -> list[Page]:
    """Group histories into one page per system and configuration."""
    histories_by_configuration: dict[tuple[str, str], list[History]] = defaultdict(list)
    for item in histories:
        histories_by_configuration[str(item.key["system"]), item.configuration].append(item)
    pages, used_names = [], set[str]()
    for (system, configuration), group in histories_by_configuration.items():
        name = to_address(f"{system} {configuration}")
        while name in used_names:
            name += "-2"
        used_names.add(name)
        pages.append(Page(name, system, configuration, tuple(group)))
    return pages


def build_index_context(
    entries: Sequence[ListedCampaign], predecessors: Mapping[str, ListedCampaign], pages: Sequence[Page]
) -> dict[str, Any]:
    """Build the context of the index page."""
    return {
        "campaigns": [_build_entry_context(entry, predecessors.get(entry.directory)) for entry in reversed(entries)],
        "pages": [(page, len(page.histories), page.campaigns) for page in pages],
    }


def _build_entry_context(entry: ListedCampaign, predecessor: ListedCampaign | None) -> dict[str, Any]:
    start, end = format_date(entry.started), format_date(entry.ended)
    return {
        "entry": entry,
        "dates": start[:10] if start[:10] == end[:10] else f"{start[:10]} to {end[:10]}",
        "time": start[11:],
        "workloads": ", ".join(entry.workloads),
        "headline": entry.headline,
        "before": predecessor and f"{predecessor.name} of {format_date(predecessor.started)}",
    }


def build_campaign_context(
    entry: ListedCampaign, predecessor: ListedCampaign | None, files: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Build the context of the page that lists a campaign's files."""
    files_by_figure = {
        name: [file for file in files["figures"] if file.rpartition(".")[0] == name] for name in entry.figures
    }
    figures = [(title, files_by_figure[name]) for name, title in entry.figures.items() if files_by_figure[name]]
    return {**_build_entry_context(entry, predecessor), "figures": figures, "tables": files["tables"]}


def build_history_table(page: Page) -> pd.DataFrame:
    """Return the numbers of a history page, one row per cell and campaign."""
    rows = [
        (item.name, item.metric.name, item.metric.unit, *astuple(point))
        for item in page.histories
        for point in item.points
    ]
    columns = ["cell", "metric", "unit", "campaign", "started_s", "mean", "ci_low", "ci_high", "runs"]
    return neutralize_formulas(pd.DataFrame(rows, columns=columns))


def build_history_context(page: Page, entries: Sequence[ListedCampaign]) -> dict[str, Any]:
    """Build the context of a history page."""
    names = {item.directory: item.name for item in entries}
    return {
        "page": page,
        "cells": [
            {
                "name": item.name,
                "picture": _compute_chart(item),
                "unit": item.metric.unit,
                "heading": item.metric.heading,
                "rows": [_format_point(point, names) for point in reversed(item.points[-MAX_POINTS_IN_TABLE:])],
                "earlier": max(0, len(item.points) - MAX_POINTS_IN_TABLE),
            }
            for item in page.histories
        ],
    }


def _format_point(point: Point, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        point.campaign,
        names[point.campaign],
        point.date,
        wording.format_rate(point.mean),
        wording.format_range(point.low, point.high, wording.format_rate),
        str(point.runs),
    )


def _compute_chart(history: History) -> dict[str, Any]:
    """Compute the coordinates of a chart with a dot and an interval per campaign, and a line through the dots."""
    values = np.array([(point.mean, point.low, point.high) for point in history.points])
    minimum, maximum = float(np.nanmin(values)), float(np.nanmax(values))
    scale = choose_ticks(minimum, maximum)
    low, high = min(scale[0], minimum), max(scale[-1], maximum)
    start = history.points[0].started
    span = max(history.points[-1].started - start, 1.0)

    def x(seconds: float) -> float:
        return round(_LEFT + 8 + (seconds - start) / span * (_WIDTH - _LEFT - _RIGHT - 16), 1)

    def y(value: float) -> float:
        return round(float(_TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)), 1)

    dots = [f"{x(point.started):g} {y(point.mean):g}" for point in history.points]
    return {
        "width": f"{_WIDTH:g}",
        "height": f"{_HEIGHT:g}",
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "ground": _HEIGHT - _BOTTOM,
        "ticks": [(y(tick), f"{tick:,.6g}") for tick in scale],
        "line": "M" + "L".join(dots),
        "dots": "".join(f"M{dot}h0" for dot in dots),
        "intervals": "".join(
            f"M{x(point.started):g} {y(point.low):g}V{y(point.high):g}"
            for point in history.points
            if np.isfinite(point.low) and np.isfinite(point.high)
        ),
        "ends": (format_date(start)[:10], format_date(start + span)[:10]),
    }
