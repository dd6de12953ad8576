"""Table of all cells on the page: first rows as text, and all columns as JSON for `reports/cells_table.js`. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from campaign.analysis.statistics import comparable_cells
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report.sections.coverage import select_specific_flags
from campaign.spec.metric import Metric

ROWS_PER_PAGE = 50
_FAILURE_COLUMNS = ("n_failed", "failures", "n_missing", "missing_reasons")
_DIGITS = 6  # of a number in the page; tables/cells.csv has all digits
# A bar ends at this multiple of the largest mean of its workload, so that a wide interval does not shrink all bars.
_BAR_HEADROOM = 1.25


def build_cells_section(cells: pd.DataFrame, metric: Metric, baseline: str, design: Design) -> dict[str, Any]:
    """Build the table of all cells: its columns, its first rows as text, and its data as JSON.

    Efficiency and the ratio to the baseline are those of the figures `scaling` and `overhead`. A column without any value is left
    out.

    Args:
        cells: cells table.
        metric: primary metric of the campaign.
        baseline: baseline configuration of each system, joined by ', '.
        design: design of the campaign.
    """
    columns = _build_columns(cells, metric, baseline, design)
    shown_columns = [column for column in columns if column["kind"] != "bound"]
    largest_means = cells.groupby("workload")["mean"].transform("max") * _BAR_HEADROOM
    return {
        "headings": [column["heading"] for column in shown_columns],
        "rows": [
            [
                (_format_value(columns, column, row), _build_bar(cells, row, largest_means))
                if column["kind"] == "rate"
                else (_format_value(columns, column, row), None)
                for column in shown_columns
            ]
            for row in range(min(len(cells), ROWS_PER_PAGE))
        ],
        "total": len(cells),
        "has_ratio": any(column["kind"] == "ratio" for column in columns),
        "json": _encode_json(
            {
                "rows_per_page": ROWS_PER_PAGE,
                "bar_headroom": _BAR_HEADROOM,
                "columns": [_compress_column(column) for column in columns],
            }
        ),
    }


def _build_columns(cells: pd.DataFrame, metric: Metric, baseline: str, design: Design) -> list[dict[str, Any]]:
    """Build the columns of the table: name, heading, kind and one value per cell, None if the cell has none.

    Kinds are `text`, `count`, `rate`, `percent` and `ratio`. An end of the interval is a `bound`, which the table shows next to the
    rate.
    """
    axes = comparable_cells.list_naming_columns(cells)
    failures = [_describe_failures(row) for row in cells[list(_FAILURE_COLUMNS)].to_dict("records")]
    columns: list[tuple[str, str, str, Any]] = [
        *(
            (axis, axis.removeprefix("option_").capitalize(), "count" if axis == "batch" else "text", cells[axis])
            for axis in axes
        ),
        ("mean", f"{metric.heading} [95\u202f% interval]", "rate", cells["mean"]),
        ("ci_low", "", "bound", cells["ci_low"]),
        ("ci_high", "", "bound", cells["ci_high"]),
        ("efficiency_pct", "Efficiency", "percent", _compute_efficiencies(cells, metric, design)),
        ("ratio_to_baseline", "Relative to baseline", "ratio", _compute_baseline_ratios(cells, baseline, design)),
        ("failures", "Failures", "text", failures),
        ("flags", "Flags", "text", select_specific_flags(cells)),
    ]
    optional_names = {"efficiency_pct", "ratio_to_baseline", "failures", "flags"}
    built_columns = [
        {"name": name, "heading": heading, "kind": kind, "values": [_convert_value(kind, value) for value in values]}
        for name, heading, kind, values in columns
    ]
    return [
        column
        for column in built_columns
        if column["name"] not in optional_names or any(value not in (None, "") for value in column["values"])
    ]


def _convert_value(kind: str, value: Any) -> str | float | int | None:
    if kind == "text":
        return f"{value:g}" if isinstance(value, float) else str(value)
    number = float(f"{float(value):.{_DIGITS}g}")
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def _compute_efficiencies(cells: pd.DataFrame, metric: Metric, design: Design) -> pd.Series[float]:
    """Compute the efficiency of each cell in percent; nan if it has none, as with a given rate of requests."""
    if not metric.has_efficiency:
        return pd.Series(math.nan, index=cells.index)
    compared_rows = comparable_cells.compare_device_counts(cells, design, metric)
    offered_rate_cells = comparable_cells.select_cells_with_request_rate(cells)["cell_id"]
    scaled_cells = cells["cell_id"].where(~cells["cell_id"].isin(offered_rate_cells))
    return scaled_cells.map(compared_rows.set_index("cell_id")["efficiency_pct"])


def _compute_baseline_ratios(cells: pd.DataFrame, baseline: str, design: Design) -> pd.Series[float]:
    """Compute the performance of each cell divided by that of its counterpart with the attachment of the baseline."""
    compared_rows = comparable_cells.compute_attachment_overhead(cells, baseline, design)
    return cells["cell_id"].map(compared_rows.set_index("cell_id")["ratio"])


def _describe_failures(row: Mapping[Any, Any]) -> str:
    """Describe the failed and the missing runs of a cell."""
    parts = [
        f"{'' if row['n_failed'] else 'not run: '}{wording.format_status_counts(row['failures'])}"
        if row["failures"]
        else "",
        f"missing: {row['missing_reasons']}" if row["n_missing"] else "",
    ]
    return "; ".join(filter(None, parts))


def _format_value(columns: list[dict[str, Any]], column: Mapping[str, Any], row: int) -> str:
    """Format one value as `cells_table.js` does."""
    value = column["values"][row]
    match column["kind"]:
        case "text":
            return str(value)
        case "percent":
            return wording.format_percent(value, 0)
        case "ratio":
            return wording.format_ratio(value)
        case "count":
            return wording.format_count(value)
    bounds = [bound["values"][row] for bound in columns if bound["kind"] == "bound"]
    interval = "" if None in bounds else f" [{wording.format_range(bounds[0], bounds[1], wording.format_rate)}]"
    return wording.format_rate(value) + interval


def _build_bar(cells: pd.DataFrame, row: int, largest_means: pd.Series[float]) -> dict[str, str]:
    """Build the paths of a cell's bar and interval, 100 units wide; empty for a missing value."""
    cell, scale = cells.iloc[row], float(largest_means.iloc[row])

    def x(value: float) -> str:
        return f"{min(100.0, 100 * value / scale):.1f}"

    has_mean, has_interval = (
        scale > 0 and all(math.isfinite(cell[name]) for name in names) for names in (("mean",), ("ci_low", "ci_high"))
    )
    return {
        "mean": f"M0 5H{x(cell['mean'])}" if has_mean else "",
        "interval": f"M{x(max(0.0, cell['ci_low']))} 5H{x(cell['ci_high'])}" if has_interval else "",
    }


def _compress_column(column: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the texts of a column by their numbers in the list of its distinct texts."""
    if column["kind"] != "text":
        return dict(column)
    texts = list(dict.fromkeys(column["values"]))
    numbers = {text: number for number, text in enumerate(texts)}
    return {**column, "texts": texts, "values": [numbers[text] for text in column["values"]]}


def _encode_json(document: Mapping[str, Any]) -> Markup:
    """Encode a document as JSON for a script element, which `<` in a text could end."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))
