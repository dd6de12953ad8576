"""Every planned cell and what became of it, as the page says it: the coverage table and the failed runs with their logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from campaign.analysis.statistics.comparable_cells import naming_columns
from campaign.analysis.tables.cells import STATES, tally
from campaign.common import wording
from campaign.spec.metric import THROUGHPUT, Metric

# Up to so many planned cells the page has a row for each of note; beyond, one for each configuration and workload.
CELLS_ON_PAGE = 200
# Failed runs have a row each, with the path of their log.
FAILED_ON_PAGE = 500


def coverage(cells: pd.DataFrame, metric: Metric = THROUGHPUT) -> dict[str, Any]:
    """Build the table of planned cells that are incomplete or have outliers.

    If there are too many cells, rows are grouped by configuration and workload. Failed runs are listed by `list_failed_runs`.
    """
    if len(cells) > CELLS_ON_PAGE:
        return _grouped(cells)
    cells = cells.assign(flags=_own_flags(cells))
    cells = cells.assign(why=[_why(row) for row in cells.to_dict("records")])
    lost = (cells["state"] != "measured") | (cells["n_missing"] > 0)
    told = cells[lost | (cells["n_outliers"] > 0)]
    axes = naming_columns(cells)
    rows = [
        (
            wording.format_axes(row, axes),
            row["state"],
            f"{row['n_ok']} of {row['n_planned']}",
            wording.format_rate(row["mean"]),
            "; ".join(part for part in (row["why"], _outliers(row)) if part),
        )
        for row in told.to_dict("records")
    ]
    mean = f"Mean ({metric.unit})" if metric.unit else "Mean"
    return {"unit": "cell", "headings": ("Cell", "State", "Runs", mean, "Why, and flags"), "rows": rows}


def failed_runs(runs: pd.DataFrame, cells: pd.DataFrame) -> dict[str, Any]:
    """List all failed runs of planned cells with their logs, in plan order, by status and reason."""
    axes = naming_columns(cells)
    failed = runs[~runs["status"].isin(("ok", "implied"))]
    failed = failed[failed["cell_id"].isin(cells["cell_id"])]
    planned = cells[cells["cell_id"].isin(failed["cell_id"])]
    words = {row["cell_id"]: wording.format_axes(row, axes) for row in planned.to_dict("records")}
    places = {name: place for place, name in enumerate(words)}
    failed = failed.assign(place=failed["cell_id"].map(places)).sort_values(["place", "repetition"], kind="stable")
    shown = failed.head(FAILED_ON_PAGE)
    groups = []
    for (status, reason), alike in shown.groupby(["status", "failure_reason"], sort=False):
        said = ": ".join(filter(None, [wording.format_status_counts(f"{status} x{len(alike)}"), str(reason)]))
        rows = [
            (
                words[cell],
                ", ".join(map(str, own["repetition"])),
                ", ".join(own["log"].replace("", "no program was started")),
            )
            for cell, own in alike.groupby("cell_id", sort=False)
        ]
        groups.append((said, rows))
    return {"groups": groups, "total": f"{len(failed):,}", "left_out": f"{len(failed) - len(shown):,}"}


def _grouped(cells: pd.DataFrame) -> dict[str, Any]:
    known = states_of(cells)
    headings = ("Configuration and workload", "State", "Cells", *map(str.capitalize, known), "Why, and flags")
    rows = []
    for (configuration, workload), group in cells.groupby(["configuration", "workload"], sort=False):
        counts = group["state"].value_counts()
        states = [name for name in known if name in counts]
        short = (group["n_failed"] + group["n_implied"] + group["n_missing"]) > 0
        reasons = [_why(row) for row in group[short].to_dict("records")] if short.any() else []
        rows.append(
            (
                f"{configuration}, {workload}",
                states[0] if len(states) == 1 else "partly",
                f"{len(group):,}",
                *(f"{int(counts.get(name, 0)):,}" for name in known),
                tally(reasons),
            )
        )
    return {"unit": "configuration and workload", "headings": headings, "rows": rows}


def states_of(cells: pd.DataFrame) -> list[str]:
    """Return the states to count: `implied` only where there are such cells."""
    there = set(cells["state"])
    return [name for name in STATES if name != "implied" or name in there]


def state_counts(cells: pd.DataFrame) -> list[tuple[str, str]]:
    """Count cells by state."""
    found = cells["state"].value_counts()
    return [(name, f"{int(found.get(name, 0)):,}") for name in states_of(cells)]


def _why(row: Mapping[Any, Any]) -> str:
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


def _own_flags(cells: pd.DataFrame) -> list[str]:
    """Return the flags of each cell, without those that all measured cells share."""
    flags = [each.split(", ") if each else [] for each in cells["flags"]]
    run = [set(of) for of, missing in zip(flags, cells["state"] == "missing", strict=True) if not missing]
    of_all = set.intersection(*run) if len(run) > 1 else set()
    return [", ".join(flag for flag in of if flag not in of_all) for of in flags]


def _outliers(row: Mapping[Any, Any]) -> str:
    """Describe which runs of a cell are outliers."""
    word = "outlier" if row["n_outliers"] == 1 else "outliers"
    return f"{word}, counted: repetition {wording.use_minus_signs(row['outliers'])}" if row["n_outliers"] else ""
