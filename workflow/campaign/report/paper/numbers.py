"""Numbers of a campaign as tables in LaTeX, which are comparisons and cells with 95 % intervals, and all rows as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.comparable_cells import list_naming_columns
from campaign.analysis.statistics.software_options import compare_software_options
from campaign.analysis.tables.io import Tables, neutralize_formulas
from campaign.common import intervals, wording
from campaign.common.errors import convert_os_error
from campaign.report.paper.latex import format_table
from campaign.spec.metric import Metric, read_primary_metric


def write_numbers(tables: Tables, out: Path) -> list[Path]:
    """Write numbers.tex, comparisons.csv and cells.csv into an existing directory, and return their paths.

    Raises ConfigError if a file cannot be written.
    """
    comparison_rows = compare_cells(tables)
    texts = {
        "numbers.tex": format_numbers(tables, comparison_rows),
        "comparisons.csv": neutralize_formulas(comparison_rows).to_csv(index=False, lineterminator="\n"),
        "cells.csv": neutralize_formulas(tables.cells).to_csv(index=False, lineterminator="\n"),
    }
    try:
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise convert_os_error(error, out) from error
    return [out / name for name in texts]


def compare_cells(tables: Tables) -> pd.DataFrame:
    """Collect the comparisons of the figures, one row per pair of cells.

    A pair that several figures compare is listed with the first of them. `figure` is the title of the figure, and `comparison`
    describes the cells. The other columns are those of `campaign.analysis.statistics.comparable_cells`.
    """
    cells, design, metric = tables.cells, tables.design, read_primary_metric(tables.context)
    figures = {
        "Scaling": comparable_cells.compare_device_counts(cells, design, metric),
        "Node spread": comparable_cells.compare_host_counts(cells, design),
        "Precision": comparable_cells.compare_precisions(cells, design),
        "Local, hybrid and fabric": comparable_cells.compute_attachment_overhead(
            cells, str(tables.context["campaign"].get("baseline", "")), design
        ),
        "Part of a host": comparable_cells.compare_partial_hosts(cells, design),
        "Systems": comparable_cells.compare_systems(cells, design),
        "Software optimisations": compare_software_options(cells, design),
    }
    columns = ["cell_id", "against_cell", "ratio", "ratio_low", "ratio_high", "p", "p_holm", "tested"]
    columns += ["compositions", "against_compositions", "method"]
    tables_by_figure = [
        rows[rows["ratio"].notna() & (rows["method"] != intervals.NO_INTERVAL_REFERENCE)]
        .reindex(columns=columns)
        .assign(figure=title)
        for title, rows in figures.items()
        if len(rows)
    ]
    if not tables_by_figure:
        return pd.DataFrame(columns=["figure", "comparison", *columns])
    pairs = pd.concat(tables_by_figure).drop_duplicates(["cell_id", "against_cell"], ignore_index=True)
    return pairs.assign(comparison=_describe_pairs(cells, pairs))[["figure", "comparison", *columns]]


def _describe_pairs(cells: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Describe pairs of cells by their differences, with shared properties in parentheses.

    An example is '2x2-local against 1x4-local (bert, batch 8)'.
    """
    names = [name for name in list_naming_columns(cells) if cells[name].nunique(dropna=False) > 1]
    by_id = cells.set_index("cell_id")
    words = []
    for cell_id, against_id in zip(pairs["cell_id"], pairs["against_cell"], strict=True):
        cell, against = by_id.loc[cell_id], by_id.loc[against_id]
        different = [name for name in names if cell[name] != against[name]]
        shared_text = wording.format_axes(cell, [name for name in names if name not in different and cell[name] != ""])
        description = f"{wording.format_axes(cell, different)} against {wording.format_axes(against, different)}"
        words.append(description + (f" ({shared_text})" if shared_text else ""))
    return words


def format_numbers(tables: Tables, comparison_rows: pd.DataFrame) -> str:
    """Format the comparisons and all cells as tables in LaTeX."""
    metric = read_primary_metric(tables.context)
    unit = f" ({metric.unit})" if metric.unit else ""
    conditions = " ".join(f"{text[:1].upper()}{text[1:]}." for text in tables.context.get("conditions", ()))
    parts = []
    if len(comparison_rows):
        title = (
            f"Ratios of {metric.performance_name} with 95 % intervals; above 1 is "
            "better. p-values are adjusted over the comparisons of "
            f"each figure (Holm). {_describe_scaling(metric)}. {conditions}"
        )
        compared_headings = ("Comparison", "Figure", "Ratio", "p (Holm)", "Compositions", "Interval")
        compared_rows = [_format_comparison_row(row) for row in comparison_rows.to_dict("records")]
        parts.append(format_table("comparisons", title, compared_headings, compared_rows, "comparisons.csv"))
    if len(tables.cells):
        names = [name for name in list_naming_columns(tables.cells) if tables.cells[name].nunique(dropna=False) > 1]
        compositions = dict(zip(tables.design.cells, tables.design.compositions, strict=True))
        title = f"All cells: mean {metric.label}{unit} with its 95 % interval. {conditions}"
        headings = ("Cell", "Mean", "Runs", "Compositions", "Failures")
        rows = [_format_cell_row(row, names, compositions) for row in tables.cells.to_dict("records")]
        parts.append(format_table("cells", title, headings, rows, "cells.csv"))
    return "\n".join(parts) or "% The campaign has no planned cells.\n"


def _describe_scaling(metric: Metric) -> str:
    """Describe the null hypotheses of p-values, and the meaning of ratios in the figure on scaling."""
    if not metric.has_efficiency:
        return f"The null hypothesis is equal {metric.performance_name}"
    total = f"In scaling, ratios are those of {metric.total_performance_name}. " if metric.is_per_device else ""
    return f"{total}The null hypothesis is the ideal speed-up in scaling, and equal {metric.performance_name} elsewhere"


def _format_comparison_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    return (
        row["comparison"],
        row["figure"],
        wording.format_with_interval(row["ratio"], row["ratio_low"], row["ratio_high"], wording.format_ratio),
        verdict.format_p_value(row["p_holm"]),
        f"{row['compositions']} / {row['against_compositions']}",
        row["method"].removesuffix(", 95 %"),
    )


def _format_cell_row(row: Mapping[Any, Any], names: list[str], compositions: Mapping[str, int]) -> tuple[str, ...]:
    mean_text = wording.format_with_interval(row["mean"], row["ci_low"], row["ci_high"], wording.format_rate)
    return (
        wording.format_axes(row, [name for name in names or ["configuration"] if row[name] != ""]),
        mean_text if row["n_ok"] else row["state"],
        str(row["n_ok"]),
        str(compositions.get(row["cell_id"], 0)),
        wording.format_status_counts(row["failures"]) if row["failures"] else "",
    )
