"""Cells that several campaigns on one system measured: what each campaign found, and whether the cell changed. Pure.

A cell is the same where shape of the configuration, workload, batch, precision, options and metric are, whatever its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from campaign import wording
from campaign.documents.metric import Metric, from_document, metric_of
from campaign.statistics import change_points, comparisons
from campaign.statistics.change_points import ChangePoint
from campaign.statistics.comparable_cells import SHAPE, option_columns
from campaign.statistics.intervals import SIGNIFICANT, holm
from campaign.tables.io import Tables

KEY = ("system", "metric", "unit", "better", *SHAPE, "workload", "batch", "precision", "options", "nth")
"""What makes a cell the same in several campaigns; nth: of several equal cells of one campaign."""
COLUMNS = (*KEY, "configuration", "cell_id", "lease_id", "value")


@dataclass(frozen=True)
class Point:
    """A campaign in a history. started: Unix seconds. values: of its compositions, in the metric's unit; value: of them all."""

    campaign: str
    started: float
    cell_id: str
    values: tuple[float, ...]
    value: float

    @property
    def date(self) -> str:
        return dated(self.started)


@dataclass(frozen=True)
class History:
    """A cell over time, oldest campaign first. changes: of performance; with fewer than `change_points.LEAST` campaigns, that
    of the last against all before it. last: this comparison, significant or not; None where none could be made."""

    key: Mapping[str, Any]
    configuration: str
    metric: Metric
    points: tuple[Point, ...]
    changes: tuple[ChangePoint, ...] = ()
    last: ChangePoint | None = None

    @property
    def name(self) -> str:
        """The cell in words, without its configuration."""
        options = [self.key["options"]] if self.key["options"] else []
        axes = wording.describe(self.key, ("workload", "batch", "precision"))
        return ", ".join([axes, *options]) + (f" ({self.key['nth'] + 1})" if self.key["nth"] else "")


def dated(seconds: float) -> str:
    """A time for people: '2026-11-26 12:21' (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def compositions(tables: Tables) -> pd.DataFrame:
    """What a campaign measured of each cell on each composition, COLUMNS."""
    by, metric, cells = tables.design, metric_of(tables.context), tables.cells
    known = {name: cells[name] for name in ("cell_id", "configuration", *SHAPE, "workload", "batch", "precision")}
    own = cells["system"] if "system" in cells else pd.Series("", index=cells.index)
    named = pd.DataFrame(known).assign(
        system=own.astype("object").where(own != "", str(tables.context["campaign"].get("system", ""))),
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        options=[_options(row) for row in cells[option_columns(cells)].to_dict("records")],
    )
    named["nth"] = named.groupby([name for name in KEY if name != "nth"], sort=False, dropna=False).cumcount()
    cost = by.means.value * by.cost[by.means.cell]
    rows = pd.DataFrame(
        {
            "cell_id": np.asarray(by.cells, dtype=object)[by.means.cell],
            "lease_id": by.means.lease,
            "value": 1 / cost if by.higher else cost,
        }
    )
    return named.merge(rows, on="cell_id")[list(COLUMNS)]


def _options(row: Mapping[Any, Any]) -> str:
    said = {str(name): f"{value:g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    return ", ".join(wording.axis(name, text) for name, text in sorted(said.items()) if text not in ("", "nan"))


def histories(measured: Sequence[tuple[str, float, pd.DataFrame]], tables_of: Callable[[str], Tables]) -> list[History]:
    """The cells of two campaigns or more, with their changes.

    measured: name, start and `compositions` of each campaign; tables_of: its tables, by name.
    """
    frames = [rows.assign(campaign=name, started=started) for name, started, rows in measured]
    if not frames:
        return []
    rows = pd.concat(frames, ignore_index=True)
    rows[["options", "unit"]] = rows[["options", "unit"]].fillna("")
    found = [
        history
        for key, group in rows.sort_values("started", kind="stable").groupby(list(KEY), sort=False, dropna=False)
        if len((history := _history(dict(zip(KEY, key, strict=True)), group)).points) > 1
    ]
    found.sort(key=lambda each: [str(each.key["system"]), each.configuration, each.name])
    return _with_changes(found, tables_of)


def _history(key: Mapping[str, Any], rows: pd.DataFrame) -> History:
    metric = from_document({"name": key["metric"], "unit": key["unit"], "better": key["better"]})
    measured: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for campaign, started, cell_id, value in rows[["campaign", "started", "cell_id", "value"]].itertuples(index=False):
        measured[campaign, started, cell_id].append(value)
    points = []
    for (campaign, started, cell_id), values in measured.items():
        value = 1 / np.mean(1 / np.array(values)) if metric.higher else np.mean(values)
        points.append(Point(campaign, started, cell_id, tuple(values), float(value)))
    return History(key, str(rows["configuration"].iloc[-1]), metric, tuple(points))


def _with_changes(found: Sequence[History], tables_of: Callable[[str], Tables]) -> list[History]:
    logs = [[np.log(p.values) * (1 if each.metric.higher else -1) for p in each.points] for each in found]
    groups = [(each.key["system"], each.configuration) for each in found]
    known = [
        replace(each, changes=changes)
        for each, changes in zip(found, change_points.change_points(logs, groups), strict=True)
    ]
    latest: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, each in enumerate(known):
        if len(each.points) < change_points.LEAST:
            latest[each.points[-1].campaign, each.metric.name].append(place)
    for (campaign, _), places in latest.items():
        for place, last in zip(places, _last([known[p] for p in places], tables_of, campaign), strict=True):
            changed = (last,) if last and last.p < SIGNIFICANT else ()
            known[place] = replace(known[place], last=last, changes=changed)
    return known


def _last(found: Sequence[History], tables_of: Callable[[str], Tables], last: str) -> list[ChangePoint | None]:
    """The last campaign of each history against all earlier ones, as `campaign compare` holds two against each other: p is
    adjusted over the cells (Holm)."""
    sides: dict[str, dict[str, str]] = defaultdict(dict)  # campaign -> cell -> its side of a comparison
    for number, each in enumerate(found):
        for point in each.points:
            side = "last" if point.campaign == last else "before"
            sides[point.campaign][point.cell_id] = f"{side} {number}"
    runs = pd.concat([_runs(tables_of(campaign).runs, campaign, of) for campaign, of in sides.items()])
    about = tables_of(last).context["campaign"]
    # Blocks of one campaign are none of another.
    by = comparisons.of_campaign(runs.reset_index(drop=True), {"metric": about.get("metric"), "protocol": {}})
    last_ids, before_ids = (pd.Series([f"{side} {n}" for n in range(len(found))]) for side in ("last", "before"))
    held = comparisons.among_each_other(
        comparisons.ratios(last_ids, before_ids, by), [each.configuration for each in found]
    )
    p = holm(held.p())
    told = zip(*held.of.bounds(), p, held.tested, strict=True)
    return [
        ChangePoint(len(each.points) - 1, *(float(number) for number in (ratio, low, high, p))) if tested else None
        for each, (ratio, low, high, p, tested) in zip(found, told, strict=True)
    ]


def _runs(runs: pd.DataFrame, campaign: str, sides: Mapping[str, str]) -> pd.DataFrame:
    own = runs[runs["cell_id"].isin(list(sides))]
    side = own["cell_id"].map(sides).astype("str")
    return own.assign(
        cell_id=side,
        campaign=side.str.split(" ").str[0],
        configuration=side.str.split(" ").str[0] + " " + own["configuration"].astype("str"),
        lease_id=f"{campaign} " + own["lease_id"].astype("str"),
    )
