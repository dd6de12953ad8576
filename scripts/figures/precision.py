"""Figure: throughput by precision, with the speed-up over the most precise format and marked gaps."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.bars import Bars, group_bars
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Precision"
SECTION = "What do shorter number formats gain, and what do they make possible?"
RESTS_ON = ("devices", "precision")
PART = ANSWERS
PLACE = 60
COUNTERPARTS = {
    "FASTER: Fig. 8": "fp16 compared with tf32 by batch, on 1 and 12 GPUs",
    "Falcon: Fig. 16 (precision)": "mixed precision",
}


def draw(data: FigureData) -> Drawing:
    """Draw the performance by batch and precision, with the speed-up over the most precise format above each bar."""
    rows = comparable_cells.add_description_columns(comparable_cells.compare_precisions(data.cells, data.design))
    if rows.empty:
        return nothing("no measured cell has a counterpart in another precision")
    panel_columns = ["workload", "shape", "attached", "storage", "device", *comparable_cells.list_option_columns(rows)]
    panels = plot.split_into_panels(_order_panels(rows, panel_columns, data.baseline), panel_columns, series=("batch",))
    order_text = "Drawn: compositions like the baseline, then the largest." if panels.left_out else ""
    reference = rows["reference"].iloc[0]
    overview_rows = _select_overview(rows)
    caption = (
        f"{data.metric.label.capitalize()} by batch and precision. "
        f"{describe_marks('bar', rows['n_ok'], rows['interval_method'])} Above a bar: "
        f"its speed-up over {reference}.{panels.format_common_sentence()}"
    )
    names = sorted(set(plot.collect_panel_values(panels, "precision")), key=comparable_cells.rank_precision)
    equal = [*comparable_cells.HARDWARE_COLUMNS, *comparable_cells.list_option_columns(data.cells), "workload", "batch"]
    return plot.build_drawing(
        data,
        rows,
        lambda: Bars(names, _format_speedup).draw_multiples(
            panels,
            lambda cells: group_bars(cells, "batch", "precision", sort=True),
            "batch per device (samples)",
            data.metric.axis_label,
        ),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, panel_columns)),
            "Batch": columns.count_column("batch"),
            "Precision": columns.text_column("precision"),
            **columns.rate_columns(data.metric.heading),
            **columns.ratio_columns("Speed-up"),
            **verdict.P_COLUMN,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        glance=lambda: _draw_overview(overview_rows, reference),
        headline=_describe_overview(overview_rows, data.design, data.metric.performance_name, reference),
        limits=(*panels.list_limits(), order_text, plot.describe_cut_intervals(rows, plot.RATE)),
        findings=_describe_speedups(rows, panel_columns, data.design, data.metric.performance_name),
        coverage=describe_cell_coverage(comparable_cells.select_varied_cells(data.cells, equal, "precision")),
    )


def _order_panels(rows: pd.DataFrame, panel_columns: list[str], baseline: str) -> pd.DataFrame:
    """Order the rows so that the most informative panels are drawn if there are too many.

    Compositions like the baseline come first, then the largest. Otherwise the rows stay as they are.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
        baseline: names of the baseline configurations, separated by commas.
    """
    if rows.groupby(panel_columns, sort=False, dropna=False).ngroups <= plot.MAX_PANELS:
        return rows
    shape = ["shape", "attached", "storage", "device"]
    shape_numbers = rows.groupby(shape, sort=False, dropna=False).ngroup()
    baseline_numbers = shape_numbers[rows["configuration"].isin(baseline.split(", "))]
    order = rows.assign(_other=~shape_numbers.isin(baseline_numbers), _devices=-rows["ranks"])
    return order.sort_values(["_other", "_devices"], kind="stable").drop(columns=["_other", "_devices"])


def _select_overview(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the speed-up on the fewest devices of each workload and precision."""
    compared_rows = rows[rows["ratio"].notna() & (rows["precision"] != rows["reference"])]
    sorted_rows = compared_rows.sort_values(["ranks", "hosts"], kind="stable")
    return sorted_rows.drop_duplicates(["workload", "precision"]).head(plot.MAX_GLANCE_ROWS)


def _describe_overview(rows: pd.DataFrame, design: Design, measure: str, reference: str) -> str:
    """Return a sentence on the speed-ups of the overview."""
    if rows.empty:
        return ""
    names = ", ".join(rows["precision"].unique())
    return verdict.summarize_shown_cells(
        rows,
        design,
        ["workload", "precision", "ranks"],
        f"{names} reaches {{}} the {measure} of {reference}",
        f"difference between {names} and {reference}",
    )


def _draw_overview(rows: pd.DataFrame, reference: str) -> str:
    """Draw the overview of speed-ups, one dot per workload and precision. Return SVG."""
    dots = [
        (
            f"{row['workload']}, {row['precision']}, {wording.format_axis_value('ranks', row['ranks'])}",
            *(row[name] for name in ("ratio", "ratio_low", "ratio_high")),
        )
        for row in rows.to_dict("records")
    ]
    return plot.draw_glance_dots(dots, f"speed-up over {reference}", 1.0)


def _describe_speedups(rows: pd.DataFrame, panel_columns: list[str], design: Design, measure: str) -> tuple[str, ...]:
    """Return sentences per precision on the mean and the range of its speed-ups, and one on cells without a value."""
    sentences = []
    reference = rows["reference"].iloc[0]
    label_columns = select_distinguishing_columns(rows, [*panel_columns, "batch"])
    for name in sorted(set(rows["precision"]) - {reference}, key=comparable_cells.rank_precision):
        compared_rows = rows[(rows["precision"] == name) & rows["ratio"].notna()]
        if len(compared_rows):
            sentences.append(
                verdict.summarize_effects(
                    compared_rows,
                    design,
                    label_columns,
                    f"{name} reaches {{}} the {measure} of {reference}",
                    f"difference between {name} and {reference}",
                )
            )
    gaps = rows[rows["n_ok"] == 0]
    if len(gaps):
        row: Any = gaps.iloc[0]
        cell = wording.format_axes(row, ["precision", *label_columns])
        remainder_text = f" and {wording.pluralize(len(gaps) - 1, 'further cell')}" if len(gaps) > 1 else ""
        sentences.append(f"No value for {cell} ({plot.describe_gap(row)}){remainder_text}.")
    return tuple(sentences)


def _format_speedup(row: Any) -> str:
    """Format the speed-up above a bar. The reference precision has none."""
    return wording.format_ratio(row["ratio"]) if row["precision"] != row["reference"] and pd.notna(row["ratio"]) else ""
