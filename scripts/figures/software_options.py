"""Figure: effect of software options, such as ways to share work among devices, accumulation and compilation."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, software_options, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import bars, columns, plot
from campaign.report.bars import BarGroups, Bars, grouped, tall_enough
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, only_in_table, telling

TITLE = "Software optimisations"
SECTION = (
    "How much of the cost of a slow link can software recover, against ddp without further options in "
    "the highest precision?"
)
PART = ANSWERS
PLACE = 70
UNITS = {"variant_place": ""}
COUNTERPARTS = {
    "Falcon: Fig. 16": "DP, DDP, mixed precision, sharding",
}


def draw(data: FigureData) -> Drawing:
    """Draw the performance by configuration and software option, with the speed-up over the plain variant above each bar."""
    rows = software_options.software_options(data.cells, data.design)
    if rows.empty:
        return nothing("no cell was planned with two software options that are otherwise equal, and measured in one")
    rows = comparable_cells.in_words(rows)
    other_options = [
        name
        for name in comparable_cells.option_columns(rows)
        if name.removeprefix("option_") not in software_options.PLAIN
    ]
    panel_columns = ["workload", "batch", "device", *other_options]
    shown_rows = bars.first_configurations(rows)
    panels = plot.panels(shown_rows, panel_columns)
    remainder_text = only_in_table(
        rows["configuration"].nunique() - shown_rows["configuration"].nunique(), "configuration"
    )
    caption = (
        f"{data.metric.label.capitalize()} by configuration and option; {wording.format_run_counts(list(rows['n_ok']))} a bar, "
        f"{wording.describe_intervals(rows['interval_method'])}. Above a bar: its speed-up over the plain one.{panels.sentence()}"
    )
    drawn_configurations = plot.in_panels(panels, "configuration")
    places = dict(zip(plot.in_panels(panels, "variant"), plot.in_panels(panels, "variant_place"), strict=True))
    return plot.drawn(
        data,
        rows,
        lambda: Bars(sorted(places, key=places.__getitem__), _format_speedup).multiples(
            panels, _group_bars, "configuration", data.metric.axis, tall_enough(2.6, drawn_configurations), rotation=90
        ),
        {
            "Workload": columns.described(telling(rows, panel_columns)),
            "Configuration": columns.text("configuration"),
            "Options": columns.text("variant"),
            **columns.rate(data.metric.heading),
            "Against": columns.text("against_variant", wording.NO_VALUE),
            **columns.ratio("Speed-up"),
            **verdict.P,
            **columns.RUNS_AND_FAILURES,
        },
        caption=caption,
        limits=(*panels.limits(), remainder_text, plot.cut(shown_rows, plot.RATE)),
        findings=_describe_speedups(rows, panel_columns, data.design),
        coverage=coverage_of_cells(software_options.planned(data.cells)[0]),
    )


def _describe_speedups(rows: pd.DataFrame, panel_columns: list[str], design: Design) -> tuple[str, ...]:
    """Return a sentence per variant with the mean and the range of its speed-ups over the plain variant."""
    sentences = []
    label_columns = telling(rows, ["configuration", *panel_columns], "configuration")
    compared_rows = rows[rows["ratio"].notna() & (rows["variant"] != rows["against_variant"])]
    for (variant, against), cells in compared_rows.sort_values("variant_place", kind="stable").groupby(
        ["variant", "against_variant"], sort=False
    ):
        sentences.append(f"{variant} against {against}: {verdict.summarize_effects(cells, design, label_columns)}.")
    return tuple(sentences) or ("No variant has a measured plain cell beside it.",)


def _group_bars(cells: pd.DataFrame) -> BarGroups:
    """Group the bars of a panel by configuration, with one bar per variant."""
    return grouped(cells.sort_values("variant_place", kind="stable"), "configuration", "variant")


def _format_speedup(row: Any) -> str:
    """Format the speed-up above a bar. The plain variant has none."""
    return (
        wording.format_ratio(row["ratio"])
        if row["variant"] != row["against_variant"] and pd.notna(row["ratio"])
        else ""
    )
