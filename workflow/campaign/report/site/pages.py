"""What the templates of the site lay out, in words and coordinates; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.tables.io import neutralize_formulas
from campaign.common import wording
from campaign.report.intervals_column import ticks
from campaign.report.site.campaigns import ListedCampaign
from campaign.report.site.history import History, Point, dated

POINTS_IN_TABLE = 20
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480.0, 208.0, 62.0, 14.0, 22.0, 30.0


@dataclass(frozen=True)
class Page:
    """The histories of one configuration on one system. name: of its files in history/."""

    name: str
    system: str
    configuration: str
    histories: tuple[History, ...]

    @property
    def campaigns(self) -> int:
        return len({point.campaign for each in self.histories for point in each.points})


def history_pages(found: Sequence[History], plain: Callable[[str], str]) -> list[Page]:
    """Group histories into one page per system and configuration."""
    of: dict[tuple[str, str], list[History]] = defaultdict(list)
    for each in found:
        of[str(each.key["system"]), each.configuration].append(each)
    pages, taken = [], set[str]()
    for (system, configuration), own in of.items():
        name = plain(f"{system} {configuration}")
        while name in taken:
            name += "-2"
        taken.add(name)
        pages.append(Page(name, system, configuration, tuple(own)))
    return pages


def index(
    entries: Sequence[ListedCampaign], compared: Mapping[str, ListedCampaign], pages: Sequence[Page]
) -> dict[str, Any]:
    """Build the context of the index page."""
    return {
        "campaigns": [_listed(each, compared.get(each.directory)) for each in reversed(entries)],
        "pages": [(page, len(page.histories), page.campaigns) for page in pages],
    }


def _listed(entry: ListedCampaign, before: ListedCampaign | None) -> dict[str, Any]:
    start, end = dated(entry.started), dated(entry.ended)
    return {
        "entry": entry,
        "dates": start[:10] if start[:10] == end[:10] else f"{start[:10]} to {end[:10]}",
        "time": start[11:],
        "workloads": ", ".join(entry.workloads),
        "headline": entry.headline,
        "before": before and f"{before.name} of {dated(before.started)}",
    }


def campaign(
    entry: ListedCampaign, before: ListedCampaign | None, files: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Build the context of the page that lists a campaign's files."""
    own = {name: [file for file in files["figures"] if file.rpartition(".")[0] == name] for name in entry.figures}
    figures = [(title, own[name]) for name, title in entry.figures.items() if own[name]]
    return {**_listed(entry, before), "figures": figures, "tables": files["tables"]}


def history_table(page: Page) -> pd.DataFrame:
    """Return the numbers of a history page, one row per cell and campaign."""
    rows = [
        (each.name, each.metric.name, each.metric.unit, *astuple(point))
        for each in page.histories
        for point in each.points
    ]
    columns = ["cell", "metric", "unit", "campaign", "started_s", "mean", "ci_low", "ci_high", "runs"]
    return neutralize_formulas(pd.DataFrame(rows, columns=columns))


def history(page: Page, entries: Sequence[ListedCampaign]) -> dict[str, Any]:
    """Build the context of a history page."""
    names = {each.directory: each.name for each in entries}
    return {
        "page": page,
        "cells": [
            {
                "name": each.name,
                "picture": _picture(each),
                "unit": each.metric.unit,
                "heading": each.metric.heading,
                "rows": [_row(point, names) for point in reversed(each.points[-POINTS_IN_TABLE:])],
                "earlier": max(0, len(each.points) - POINTS_IN_TABLE),
            }
            for each in page.histories
        ],
    }


def _row(point: Point, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        point.campaign,
        names[point.campaign],
        point.date,
        wording.format_rate(point.mean),
        wording.format_range(point.low, point.high, wording.format_rate),
        str(point.runs),
    )


def _picture(each: History) -> dict[str, Any]:
    """Compute the coordinates of a chart with a dot and an interval per campaign, and a line through the dots."""
    values = np.array([(point.mean, point.low, point.high) for point in each.points])
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    scale = ticks(least, most)
    low, high = min(scale[0], least), max(scale[-1], most)
    start = each.points[0].started
    span = max(each.points[-1].started - start, 1.0)

    def x(seconds: float) -> float:
        return round(_LEFT + 8 + (seconds - start) / span * (_WIDTH - _LEFT - _RIGHT - 16), 1)

    def y(value: float) -> float:
        return round(float(_TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)), 1)

    dots = [f"{x(point.started):g} {y(point.mean):g}" for point in each.points]
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
            for point in each.points
            if np.isfinite(point.low) and np.isfinite(point.high)
        ),
        "ends": (dated(start)[:10], dated(start + span)[:10]),
    }
