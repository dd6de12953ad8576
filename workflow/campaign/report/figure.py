"""What a figure is given, what it gives back, and the files of both; the figures themselves are in scripts/figures/.

Files of a figure: `<name>.svg` (stands alone), `<name>.csv` (the numbers drawn) and `<name>.json` (words for the page).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from campaign.errors import RecordError
from campaign.paths import REPORTS
from campaign.report.figure_units import with_units
from campaign.tables.io import Tables
from campaign.tables.leases import leases_table

# A table in the page is for reading; beyond this many rows a reader wants the CSV.
ROWS_ON_PAGE = 150


@dataclass(frozen=True)
class FigureData:
    """Everything a figure may read. Frames as made in campaign.tables; `leases` is leases_table's, `telemetry` that of
    `campaign.tables.time_series`; context: the report's document (`campaign.report.page_document`)."""

    runs: pd.DataFrame
    cells: pd.DataFrame
    leases: pd.DataFrame
    baseline: str
    protocol: Mapping[str, Any]
    links: tuple[Mapping[str, Any], ...] = ()
    """What was measured of links: lease_id, lease, configuration, when, document (`campaign.observe.links`)."""
    telemetry: pd.DataFrame = field(default_factory=pd.DataFrame)
    context: Mapping[str, Any] = field(default_factory=dict)
    style: Path = REPORTS / "style.mplstyle"


@dataclass(frozen=True)
class Drawing:
    """A figure as drawn. Without `svg` it is a table, where there are rows; otherwise `empty_reason` says why there is nothing.

    caption: number of runs, interval, protocol. alt and findings: what there is to see, as sentences, alarms first. data: the
    numbers drawn, for the CSV. headings and rows: the same for people, as text. coverage: how much of what the figure is about was
    measured (`campaign.report.figure_coverage`), counted before anything is left out for want of a number.
    """

    svg: str | None
    caption: str = ""
    alt: str = ""
    findings: tuple[str, ...] = ()
    data: pd.DataFrame = field(default_factory=pd.DataFrame)
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    empty_reason: str = ""
    coverage: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure's name (that of its files), its anchor in the page, title, introduction to its section, and how it is drawn."""

    name: str
    anchor: str
    title: str
    section: str
    draw: Callable[[FigureData], Drawing]


def nothing(reason: str) -> Drawing:
    """The drawing of a figure for which the campaign has no cells; `reason` completes 'left out because ...'."""
    return Drawing(svg=None, empty_reason=reason)


def page_document(figure: Figure, drawing: Drawing) -> dict[str, Any]:
    """What the page says about a figure, JSON-serialisable; the picture itself is a file of its own."""
    return {
        "anchor": figure.anchor,
        "title": figure.title,
        "section": figure.section,
        "shown": drawing.svg is not None or bool(drawing.rows),
        "picture": drawing.svg is not None,
        "reason": drawing.empty_reason,
        "coverage": drawing.coverage,
        "caption": drawing.caption,
        "alt": drawing.alt,
        "findings": list(drawing.findings),
        "headings": list(drawing.headings),
        "rows": [list(row) for row in drawing.rows[:ROWS_ON_PAGE]],
        "rows_left_out": max(0, len(drawing.rows) - ROWS_ON_PAGE),
    }


def page_table(rows: pd.DataFrame, columns: Mapping[str, Callable[[Any], str]]) -> dict[str, Any]:
    """headings and rows of a Drawing: each column is its heading and what it says of a row."""
    said = [tuple(say(row) for say in columns.values()) for row in rows.to_dict("records")]
    return {"headings": tuple(columns), "rows": tuple(said)}


def data_of(tables: Tables, style: Path | None = None) -> FigureData:
    """What figures read, from the tables of a campaign."""
    campaign = tables.context["campaign"]
    given = {"style": style} if style else {}
    return FigureData(
        tables.runs,
        tables.cells,
        leases_table(tables.leases),
        campaign["baseline"],
        campaign["protocol"],
        tuple(tables.links),
        tables.telemetry,
        tables.context,
        **given,
    )


def write(figure: Figure, data: FigureData, directory: Path) -> None:
    """Draw one figure and write its files into a directory. With nothing to show, the picture says so."""
    from campaign.report.svg import notice

    drawing = figure.draw(data)
    instead = "the table says it" if drawing.rows else f"left out because {drawing.empty_reason}"
    picture = drawing.svg or notice(figure.anchor, f"{figure.title}: {instead}")
    words = json.dumps(page_document(figure, drawing), indent=1, sort_keys=True, ensure_ascii=False)
    out = directory / figure.name
    try:
        out.with_suffix(".svg").write_text('<?xml version="1.0" encoding="utf-8"?>\n' + picture, encoding="utf-8")
        with_units(drawing.data).to_csv(out.with_suffix(".csv"), index=False, lineterminator="\n")
        out.with_suffix(".json").write_text(words + "\n", encoding="utf-8")
    except OSError as error:
        raise RecordError(f"figure {figure.anchor} could not be written ({error.strerror or error})") from error
