"""What the templates of the site lay out, in words and coordinates; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.report.intervals_column import ticks
from campaign.results_site.campaigns import ListedCampaign
from campaign.results_site.history import History, Point, dated
from campaign.statistics.change_points import LEAST, ChangePoint

CHANGES_ON_PAGE = 20
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
    """The pages of histories; plain: makes a name part of an address."""
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
    """The first page. compared: of a campaign, the one before it that it is compared with."""
    names = {each.directory: each.name for each in entries}
    changes = [
        (each.points[change.at].started, f"history/{page.name}.html#cell-{number}", _subject(page, each), words)
        for page in pages
        for number, each in enumerate(page.histories, 1)
        for change, words in zip(each.changes, _changes(each, names), strict=True)
    ]
    changes.sort(key=lambda each: -each[0])
    return {
        "changes": [each[1:] for each in changes[:CHANGES_ON_PAGE]],
        "changes_left_out": max(0, len(changes) - CHANGES_ON_PAGE),
        "campaigns": [_listed(each, compared.get(each.directory)) for each in reversed(entries)],
        "pages": [
            (page, len(page.histories), page.campaigns, sum(bool(each.changes) for each in page.histories))
            for page in pages
        ],
        "least": LEAST,
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
    """The page of the files of a campaign. files: their names, of `figures` and `tables`."""
    own = {name: [file for file in files["figures"] if file.rpartition(".")[0] == name] for name in entry.figures}
    figures = [(title, own[name]) for name, title in entry.figures.items() if own[name]]
    return {**_listed(entry, before), "figures": figures, "tables": files["tables"]}


def history_table(page: Page) -> pd.DataFrame:
    """The numbers of a page: one row a composition."""
    rows = [
        (each.name, each.metric.name, each.metric.unit, point.campaign, point.started, value)
        for each in page.histories
        for point in each.points
        for value in point.values
    ]
    return pd.DataFrame(rows, columns=["cell", "metric", "unit", "campaign", "started_s", "value"])


def history(page: Page, entries: Sequence[ListedCampaign]) -> dict[str, Any]:
    """A page of histories."""
    names = {each.directory: each.name for each in entries}
    return {
        "page": page,
        "cells": [
            {
                "name": each.name,
                "says": says(each, names),
                "picture": _picture(each, names),
                "unit": each.metric.unit,
                "heading": each.metric.heading,
                "rows": [_row(point, names) for point in reversed(each.points[-POINTS_IN_TABLE:])],
                "earlier": max(0, len(each.points) - POINTS_IN_TABLE),
            }
            for each in page.histories
        ],
    }


def says(each: History, names: Mapping[str, str]) -> list[str]:
    """What became of a cell, as sentences. names: of campaigns, by directory."""
    if told := _changes(each, names):
        return told
    count = len(each.points)
    if count >= LEAST:
        return [f"No change in {count} campaigns."]
    before = wording.plural(count - 1, "earlier campaign")
    if each.last is None:
        return [f"Not tested against {before}: one composition each, or hosts of their own."]
    # The interval is of this cell alone.
    adjusted = " over all cells (Holm)" if (each.last.low - 1) * (each.last.high - 1) > 0 else ""
    return [f"Not significant{adjusted} against {before}: {_change(each, each.last)}."]


def _changes(each: History, names: Mapping[str, str]) -> list[str]:
    told = []
    for change in each.changes:
        point = each.points[change.at]
        since = f"since {names[point.campaign]} of {point.date}"
        if len(each.points) < LEAST:
            since = (
                f"in {names[point.campaign]} of {point.date}, against {wording.plural(change.at, 'earlier campaign')}"
            )
        told.append(f"{_change(each, change)} {since}.")
    return told


def _change(each: History, change: ChangePoint) -> str:
    value, low, high = (100 * (ratio - 1) for ratio in (change.ratio, change.low, change.high))
    subject = each.metric.performance[:1].upper() + each.metric.performance[1:]
    return f"{subject} {wording.with_interval(value, low, high, wording.percent)}"


def _subject(page: Page, each: History) -> str:
    return f"{page.configuration}, {each.name}"


def _row(point: Point, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        point.campaign,
        names[point.campaign],
        point.date,
        wording.rate(point.value),
        wording.between(min(point.values), max(point.values), wording.rate),
        str(len(point.values)),
    )


def _picture(each: History, names: Mapping[str, str]) -> dict[str, Any]:
    """Coordinates: a dot a composition, a line through campaigns, an upright line where it changed."""
    values = np.array([value for point in each.points for value in point.values])
    scale = ticks(float(values.min()), float(values.max()))
    low, high = min(scale[0], float(values.min())), max(scale[-1], float(values.max()))
    start = each.points[0].started
    span = max(each.points[-1].started - start, 1.0)

    def x(seconds: float) -> float:
        return round(_LEFT + 8 + (seconds - start) / span * (_WIDTH - _LEFT - _RIGHT - 16), 1)

    def y(value: float) -> float:
        return round(float(_TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)), 1)

    line = [f"{x(point.started):g} {y(point.value):g}" for point in each.points]
    dots = [f"M{x(point.started):g} {y(value):g}h0" for point in each.points for value in point.values]
    return {
        "width": f"{_WIDTH:g}",
        "height": f"{_HEIGHT:g}",
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "ground": _HEIGHT - _BOTTOM,
        "ticks": [(y(tick), f"{tick:,.6g}") for tick in scale],
        "line": "M" + "L".join(line),
        "dots": "".join(dots),
        "ends": (dated(start)[:10], dated(start + span)[:10]),
        "marks": [
            (
                round((x(each.points[change.at - 1].started) + x(each.points[change.at].started)) / 2, 1),
                "better" if change.ratio > 1 else "worse",
                f"{100 * (change.ratio - 1):+.1f} %".replace("-", "−"),
            )
            for change in each.changes
        ],
        "alt": " ".join(says(each, names)),
    }
