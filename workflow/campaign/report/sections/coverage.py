"""Section of the report on coverage: the outcome of each planned cell, and the failed runs with their logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign.analysis.statistics.comparable_cells import list_naming_columns
from campaign.analysis.tables.cells import CELL_STATES, count_texts
from campaign.common import wording
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.run_numbers import format_run_number

# With more planned cells, the table has a row per configuration and workload instead of per cell.
MAX_CELLS_ON_PAGE = 200
# Each failed run has a row with the path of its log.
MAX_FAILED_ON_PAGE = 500


def build_coverage_table(cells: pd.DataFrame, metric: Metric = THROUGHPUT) -> dict[str, Any]:
    """Build the table of planned cells that are incomplete or have outliers.

    If there are too many cells, rows are grouped by configuration and workload. Failed runs are listed by `list_failed_runs`.
    """
    if len(cells) > MAX_CELLS_ON_PAGE:
        return _build_grouped_table(cells)
    cells = cells.assign(flags=select_specific_flags(cells))
    cells = cells.assign(why=[_describe_reasons(row) for row in cells.to_dict("records")])
    is_incomplete = (cells["state"] != "measured") | (cells["n_missing"] > 0)
    listed_cells = cells[is_incomplete | (cells["n_outliers"] > 0)]
    axes = list_naming_columns(cells)
    rows = [
        (
            wording.format_axes(row, axes),
            row["state"],
            f"{row['n_ok']} of {row['n_planned']}",
            wording.format_rate(row["mean"]),
            "; ".join(part for part in (row["why"], _describe_outliers(row)) if part),
        )
        for row in listed_cells.to_dict("records")
    ]
    mean = f"Mean ({metric.unit})" if metric.unit else "Mean"
    return {"unit": "cell", "headings": ("Cell", "State", "Runs", mean, "Reasons and flags"), "rows": rows}


def list_failed_runs(runs: pd.DataFrame, cells: pd.DataFrame) -> dict[str, Any]:
    """List all failed runs of planned cells with their logs, grouped by status and reason, in plan order."""
    axes = list_naming_columns(cells)
    failed_rows = runs[~runs["status"].isin(("ok", "implied"))]
    failed_rows = failed_rows[failed_rows["cell_id"].astype(object).isin(cells["cell_id"])]
    failed_cells = cells[cells["cell_id"].isin(failed_rows["cell_id"])]
    words = {row["cell_id"]: wording.format_axes(row, axes) for row in failed_cells.to_dict("records")}
    places = {name: place for place, name in enumerate(words)}
    failed_rows = failed_rows.assign(place=failed_rows["cell_id"].map(places)).sort_values(
        ["place", "repetition"], kind="stable"
    )
    shown_rows = failed_rows.head(MAX_FAILED_ON_PAGE)
    groups = []
    for (status, reason), group_rows in shown_rows.groupby(["status", "failure_reason"], sort=False):
        heading = ": ".join(filter(None, [wording.format_status_counts(f"{status} x{len(group_rows)}"), str(reason)]))
        rows = [
            (
                words[cell],
                "; ".join(map(format_run_number, cell_rows["repetition"])),
                ", ".join(cell_rows["log"].replace("", "no program was started")),
            )
            for cell, cell_rows in group_rows.groupby("cell_id", sort=False)
        ]
        groups.append((heading, rows))
    return {"groups": groups, "total": f"{len(failed_rows):,}", "left_out": f"{len(failed_rows) - len(shown_rows):,}"}


def _build_grouped_table(cells: pd.DataFrame) -> dict[str, Any]:
    state_names = list_states(cells)
    headings = ("Configuration and workload", "State", "Cells", *map(str.capitalize, state_names), "Reasons and flags")
    rows = []
    for (configuration, workload), group in cells.groupby(["configuration", "workload"], sort=False):
        counts = group["state"].value_counts()
        states = [name for name in state_names if name in counts]
        is_incomplete = (group["n_failed"] + group["n_implied"] + group["n_missing"]) > 0
        reasons = (
            [_describe_reasons(row) for row in group[is_incomplete].to_dict("records")] if is_incomplete.any() else []
        )
        rows.append(
            (
                f"{configuration}, {workload}",
                states[0] if len(states) == 1 else "partly",
                f"{len(group):,}",
                *(f"{int(counts.get(name, 0)):,}" for name in state_names),
                count_texts(reasons),
            )
        )
    return {"unit": "configuration and workload", "headings": headings, "rows": rows}


def list_states(cells: pd.DataFrame) -> list[str]:
    """List the states to count, with `implied` only if a cell has this state."""
    present_states = set(cells["state"])
    return [name for name in CELL_STATES if name != "implied" or name in present_states]


def count_states(cells: pd.DataFrame) -> list[tuple[str, str]]:
    """Count cells by state."""
    counts = cells["state"].value_counts()
    return [(name, f"{int(counts.get(name, 0)):,}") for name in list_states(cells)]


def _describe_reasons(row: Mapping[Any, Any]) -> str:
    """Describe the failures, missing runs, flags and stop reason of a cell."""
    parts = [
        f"{'' if row['n_failed'] else 'not run: '}{wording.format_status_counts(row['failures'])}"
        if row["failures"]
        else "",
        f"missing: {row['missing_reasons']}" if row["n_missing"] else "",
        f"flags: {row['flags']}" if row["flags"] else "",
        f"measured window: {row['window']}" if row.get("window") else "",
        f"ended: {row['stopped']}" if row["stopped"] else "",
    ]
    return "; ".join(part for part in parts if part)


def select_specific_flags(cells: pd.DataFrame) -> list[str]:
    """Select the flags of each cell that not all measured cells share."""
    flags = [text.split(", ") if text else [] for text in cells["flags"]]
    flags_of_run_cells = [
        set(cell_flags) for cell_flags, missing in zip(flags, cells["state"] == "missing", strict=True) if not missing
    ]
    common_flags = set.intersection(*flags_of_run_cells) if len(flags_of_run_cells) > 1 else set()
    return [", ".join(flag for flag in cell_flags if flag not in common_flags) for cell_flags in flags]


def _describe_outliers(row: Mapping[Any, Any]) -> str:
    """Describe which runs of a cell are outliers."""
    word = "outlier" if row["n_outliers"] == 1 else "outliers"
    return f"{word} (kept): {wording.use_minus_signs(row['outliers'])}" if row["n_outliers"] else ""
