"""Figure: effect of software options, such as ways to share work among devices, accumulation and compilation."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, software_options, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import bars, columns, plot
from campaign.report.bars import BarGroups, Bars, compute_panel_height_in, group_bars
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    describe_undrawn,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Software optimisations"
SECTION = (
    "How much of the cost of a slow link can software recover? The plain variant is ddp without further options in "
    "the highest precision."
)
PART = ANSWERS
PLACE = 70
UNITS = {"variant_place": ""}
COUNTERPARTS = {
    "Falcon: Fig. 16": "DP, DDP, mixed precision, sharding",
}


def draw(data: FigureData) -> Drawing:
    """Draw the performance by configuration and software option, with the speed-up over the plain variant above each bar."""
    rows = software_options.compare_software_options(data.cells, data.design)
    if rows.empty:
        return nothing("no measured cell has a counterpart with another software option")
    rows = comparable_cells.add_description_columns(rows)
    other_options = [
        name
        for name in comparable_cells.list_option_columns(rows)
        if name.removeprefix("option_") not in software_options.PLAIN_OPTIONS
    ]
    panel_columns = ["workload", "batch", "device", *other_options]
    shown_rows = bars.select_configurations(rows)
    panels = plot.split_into_panels(shown_rows, panel_columns)
    remainder_text = describe_undrawn(
        rows["configuration"].nunique() - shown_rows["configuration"].nunique(), "configuration"
    )
    caption = (
        f"{data.metric.label.capitalize()} by configuration and option. "
        f"{describe_marks('bar', rows['n_ok'], rows['interval_method'])} Above a bar: "
        f"its speed-up over the plain variant.{panels.format_common_sentence()}"
    )
    drawn_configurations = plot.collect_panel_values(panels, "configuration")
    places = dict(
        zip(
            plot.collect_panel_values(panels, "variant"),
            plot.collect_panel_values(panels, "variant_place"),
            strict=True,
        )
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: Bars(sorted(places, key=places.__getitem__), _format_speedup).draw_multiples(
            panels,
            _group_bars,
            "configuration",
            data.metric.axis_label,
            compute_panel_height_in(2.6, drawn_configurations),
            rotation=90,
        ),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, panel_columns)),
            "Configuration": columns.text_column("configuration"),
            "Options": columns.text_column("variant"),
            **columns.rate_columns(data.metric.heading),
            "Compared with": columns.text_column("against_variant", wording.NO_VALUE),
            **columns.ratio_columns("Speed-up"),
            **verdict.P_COLUMN,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), remainder_text, plot.describe_cut_intervals(shown_rows, plot.RATE)),
        findings=_describe_speedups(rows, panel_columns, data.design, data.metric.performance_name),
        coverage=describe_cell_coverage(software_options.select_cells_with_options(data.cells)[0]),
    )


def _describe_speedups(rows: pd.DataFrame, panel_columns: list[str], design: Design, measure: str) -> tuple[str, ...]:
    """Return sentences per variant on the mean and the range of its speed-ups over the plain variant."""
    sentences = []
    label_columns = select_distinguishing_columns(rows, ["configuration", *panel_columns], "configuration")
    compared_rows = rows[rows["ratio"].notna() & (rows["variant"] != rows["against_variant"])]
    for (variant, against), cells in compared_rows.sort_values("variant_place", kind="stable").groupby(
        ["variant", "against_variant"], sort=False
    ):
        sentences.append(
            verdict.summarize_effects(
                cells,
                design,
                label_columns,
                f"{variant} reaches {{}} the {measure} of {against}",
                f"difference between {variant} and {against}",
            )
        )
    return tuple(sentences) or ("No variant has a measured counterpart of the plain variant.",)


def _group_bars(cells: pd.DataFrame) -> BarGroups:
    """Group the bars of a panel by configuration, with one bar per variant."""
    return group_bars(cells.sort_values("variant_place", kind="stable"), "configuration", "variant")


def _format_speedup(row: Any) -> str:
    """Format the speed-up above a bar. The plain variant has none."""
    return (
        wording.format_ratio(row["ratio"])
        if row["variant"] != row["against_variant"] and pd.notna(row["ratio"])
        else ""
    )
