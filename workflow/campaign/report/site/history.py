"""Cells that several campaigns on one system measured, each as a line over campaigns. Pure.

A cell is the same where shape of the configuration, workload, program, batch, precision, options and metric are, whatever its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from campaign.analysis.compare.campaign_spread import CampaignSpread, estimate_campaign_spread
from campaign.analysis.statistics.comparable_cells import SHAPE, option_columns
from campaign.analysis.tables.measured_programs import hash_program, read_programs
from campaign.common import wording
from campaign.spec.metric import Metric, from_document, metric_of

KEY = ("system", "metric", "unit", "better", *SHAPE, "workload", "program", "batch", "precision", "options", "nth")
"""What makes a cell the same in several campaigns; nth: of several equal cells of one campaign."""


@dataclass(frozen=True)
class Point:
    """A campaign in a history. started: Unix seconds. mean, low, high: of the cell with its 95 % interval, nan if it has none."""

    campaign: str
    started: float
    mean: float
    low: float
    high: float
    runs: int

    @property
    def date(self) -> str:
        return dated(self.started)


@dataclass(frozen=True)
class History:
    """A cell over campaigns, the oldest first."""

    key: Mapping[str, Any]
    configuration: str
    metric: Metric
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """The cell in words, without its configuration."""
        options = [self.key["options"]] if self.key["options"] else []
        axes = wording.format_axes(self.key, ("workload", "batch", "precision"))
        return ", ".join([axes, *options]) + (f" ({self.key['nth'] + 1})" if self.key["nth"] else "")


def dated(seconds: float) -> str:
    """Format a time in UTC, such as '2026-11-26 12:21'."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def measured_cells(cells: pd.DataFrame, context: Mapping[str, Any]) -> pd.DataFrame:
    """Return the measured cells of one campaign: KEY, configuration, mean, ci_low, ci_high and n_ok.

    Args:
        cells: cells table of the campaign.
        context: context document of the campaign.
    """
    metric = metric_of(context)
    measured = cells[cells["mean"].notna()]
    rows = measured[["configuration", *SHAPE, "workload", "batch", "precision", "mean", "ci_low", "ci_high", "n_ok"]]
    system = measured["system"].astype("object")
    programs = {name: hash_program(program) for name, program in read_programs(context).items()}
    names = option_columns(measured)
    rows = rows.assign(
        system=system.where(system != "", str(context["campaign"].get("system", ""))),
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        program=[programs.get(name, "") for name in measured["workload"]],
        # Of whole rows: without a column, pandas before version 3 has no rows.
        options=[_describe_options({name: row[name] for name in names}) for row in measured.to_dict("records")],
    )
    return rows.assign(nth=rows.groupby([name for name in KEY if name != "nth"], sort=False).cumcount())


def _describe_options(row: Mapping[Any, Any]) -> str:
    texts = {str(name): f"{value:g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    return ", ".join(
        wording.format_axis_value(name, text) for name, text in sorted(texts.items()) if text not in ("", "nan")
    )


def histories(measured: Sequence[tuple[str, float, pd.DataFrame]]) -> list[History]:
    """Build the history of each cell that at least two campaigns measured.

    measured: name, start and `select_measured_cells` of each campaign.
    """
    frames = [rows.assign(campaign=name, started=started) for name, started, rows in measured]
    if not frames:
        return []
    rows = pd.concat(frames, ignore_index=True).sort_values("started", kind="stable")
    found = [
        _history(dict(zip(KEY, key, strict=True)), group)
        for key, group in rows.groupby(list(KEY), sort=False)
        if len(group) > 1
    ]
    return sorted(found, key=lambda each: (str(each.key["system"]), each.configuration, each.name))


def spread_before(measured: Sequence[tuple[str, float, pd.DataFrame]], place: int) -> CampaignSpread:
    """Return how much the campaigns before one differ in the cells of this one.

    Args:
        measured: name, start and `measured_cells` of each campaign, the oldest first.
        place: place of the campaign in `measured`.
    """
    rows = pd.concat([rows.assign(campaign=name) for name, _, rows in measured[: place + 1]], ignore_index=True)
    rows = rows.assign(cell=rows.groupby(list(KEY), sort=False).ngroup())
    cells = rows.loc[rows["campaign"] == measured[place][0], "cell"]
    earlier = rows[rows["cell"].isin(cells) & (rows["campaign"] != measured[place][0])]
    return estimate_campaign_spread(earlier[["cell", "campaign", "mean"]])


def _history(key: Mapping[str, Any], rows: pd.DataFrame) -> History:
    metric = from_document({"name": key["metric"], "unit": key["unit"], "better": key["better"]})
    columns = rows[["campaign", "started", "mean", "ci_low", "ci_high", "n_ok"]]
    points = tuple(Point(*values) for values in columns.itertuples(index=False, name=None))
    return History(key, str(rows["configuration"].iloc[-1]), metric, points)
