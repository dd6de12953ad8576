"""Histories of cells that several campaigns on one system measured. Pure.

Cells of two campaigns are the same if the shape of the configuration, workload, program, batch, precision, options and metric are
equal. Names do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from campaign.analysis.compare.campaign_spread import CampaignSpread, estimate_campaign_spread
from campaign.analysis.statistics.comparable_cells import HARDWARE_COLUMNS, list_option_columns
from campaign.analysis.tables.measured_programs import hash_program, read_programs
from campaign.common import wording
from campaign.spec.metric import Metric, from_document, read_primary_metric

KEY_COLUMNS = (
    "system",
    "metric",
    "unit",
    "better",
    *HARDWARE_COLUMNS,
    "workload",
    "program",
    "batch",
    "precision",
    "options",
    "nth",
)
"""Columns that identify a cell in several campaigns. `nth` numbers equal cells of one campaign."""


@dataclass(frozen=True)
class Point:
    """Result of a cell in one campaign.

    Args:
        campaign: directory of the campaign in the site.
        started: start of the campaign in Unix seconds.
        mean: mean of the cell.
        low: lower end of its 95 % interval, nan without an interval.
        high: upper end of its 95 % interval, nan without an interval.
        runs: number of valid runs.
    """

    campaign: str
    started: float
    mean: float
    low: float
    high: float
    runs: int

    @property
    def date(self) -> str:
        return format_date(self.started)


@dataclass(frozen=True)
class History:
    """Results of a cell over campaigns, the oldest first."""

    key: Mapping[str, Any]
    configuration: str
    metric: Metric
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """Description of the cell without its configuration."""
        options = [self.key["options"]] if self.key["options"] else []
        axes = wording.format_axes(self.key, ("workload", "batch", "precision"))
        return ", ".join([axes, *options]) + (f" ({self.key['nth'] + 1})" if self.key["nth"] else "")


def format_date(seconds: float) -> str:
    """Format a time in UTC, such as '2026-11-26 12:21'."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def select_measured_cells(cells: pd.DataFrame, context: Mapping[str, Any]) -> pd.DataFrame:
    """Return the measured cells of one campaign: `KEY_COLUMNS`, configuration, mean, ci_low, ci_high and n_ok.

    Args:
        cells: cells table of the campaign.
        context: context document of the campaign.
    """
    metric = read_primary_metric(context)
    cells_with_mean = cells[cells["mean"].notna()]
    rows = cells_with_mean[
        ["configuration", *HARDWARE_COLUMNS, "workload", "batch", "precision", "mean", "ci_low", "ci_high", "n_ok"]
    ]
    system = cells_with_mean["system"].astype("object")
    programs = {name: hash_program(program) for name, program in read_programs(context).items()}
    names = list_option_columns(cells_with_mean)
    rows = rows.assign(
        system=system.where(system != "", str(context["campaign"].get("system", ""))),
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        program=[programs.get(name, "") for name in cells_with_mean["workload"]],
        # Whole rows are converted, because pandas before version 3 returns no rows if there is no column.
        options=[_describe_options({name: row[name] for name in names}) for row in cells_with_mean.to_dict("records")],
    )
    return rows.assign(nth=rows.groupby([name for name in KEY_COLUMNS if name != "nth"], sort=False).cumcount())


def _describe_options(row: Mapping[Any, Any]) -> str:
    texts = {str(name): f"{value:g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    return ", ".join(
        wording.format_axis_value(name, text) for name, text in sorted(texts.items()) if text not in ("", "nan")
    )


def build_histories(measured_campaigns: Sequence[tuple[str, float, pd.DataFrame]]) -> list[History]:
    """Build the history of each cell that at least two campaigns measured.

    Args:
        measured_campaigns: name, start and result of `select_measured_cells` of each campaign.
    """
    frames = [rows.assign(campaign=name, started=started) for name, started, rows in measured_campaigns]
    if not frames:
        return []
    rows = pd.concat(frames, ignore_index=True).sort_values("started", kind="stable")
    history_list = [
        _build_history(dict(zip(KEY_COLUMNS, key, strict=True)), group)
        for key, group in rows.groupby(list(KEY_COLUMNS), sort=False)
        if len(group) > 1
    ]
    return sorted(history_list, key=lambda history: (str(history.key["system"]), history.configuration, history.name))


def estimate_spread_before(measured_campaigns: Sequence[tuple[str, float, pd.DataFrame]], index: int) -> CampaignSpread:
    """Estimate the variation between the campaigns before a given one, in the cells of the given one.

    Args:
        measured_campaigns: name, start and result of `select_measured_cells` of each campaign, the oldest first.
        index: index of the given campaign in `measured`.
    """
    rows = pd.concat(
        [rows.assign(campaign=name) for name, _, rows in measured_campaigns[: index + 1]], ignore_index=True
    )
    rows = rows.assign(cell=rows.groupby(list(KEY_COLUMNS), sort=False).ngroup())
    cells = rows.loc[rows["campaign"] == measured_campaigns[index][0], "cell"]
    earlier = rows[rows["cell"].isin(cells) & (rows["campaign"] != measured_campaigns[index][0])]
    return estimate_campaign_spread(earlier[["cell", "campaign", "mean"]])


def _build_history(key: Mapping[str, Any], rows: pd.DataFrame) -> History:
    metric = from_document({"name": key["metric"], "unit": key["unit"], "better": key["better"]})
    columns = rows[["campaign", "started", "mean", "ci_low", "ci_high", "n_ok"]]
    points = tuple(Point(*values) for values in columns.itertuples(index=False, name=None))
    return History(key, str(rows["configuration"].iloc[-1]), metric, points)
