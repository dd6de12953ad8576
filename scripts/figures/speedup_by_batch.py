"""Figure: speed-up of each number of devices over the smallest one, by batch."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Speed-up by batch"
SECTION = "Does a larger batch scale better? It computes longer between two gradient exchanges."
PART = ANSWERS
WITH = "scaling"
PLACE = 20
UNITS = {"efficiency_low": "pct", "efficiency_high": "pct"}
COUNTERPARTS = {
    "FASTER: Fig. 7 (by batch)": "speed-up of BERT-Large by batch",
    "Dell: Figs 9 to 11 (by batch)": "throughput by batch",
}


_SPEEDUP = plot.IntervalColumns("ratio", "ratio_low", "ratio_high")


def draw(data: FigureData) -> Drawing:
    """Draw the speed-up over the smallest number of devices, by batch, with a line per number of devices."""
    if not data.metric.has_efficiency:
        return nothing(f"{data.metric.label} has no known ideal speed-up (`scaling` of the metric)")
    rows = comparable_cells.compare_speedups_by_batch(data.cells, data.design, data.metric)
    if rows.empty:
        return nothing("no two batches were measured at the same two numbers of devices")
    panel_columns = [*comparable_cells.PANEL_COLUMNS, *comparable_cells.list_option_columns(rows)]
    panels = plot.split_into_panels(rows, panel_columns, series=("batch", "ranks"))
    rows, effects = comparable_cells.adjust_as_one_family(
        rows, comparable_cells.estimate_batch_effect(rows, data.design)
    )
    caption = (
        "Speed-up over the smallest number of devices at the same batch. "
        f"{describe_marks('point', rows['n_ok'], rows['method'])} Dotted: ideal.{panels.format_common_sentence()}"
    )
    series = comparable_cells.compare_device_counts(data.cells, data.design, data.metric)
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_panels(panels),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, panel_columns)),
            "Batch": columns.count_column("batch"),
            "Devices": columns.count_column("ranks"),
            "Devices compared with": columns.number_column("against_ranks"),
            **columns.ratio_columns("Speed-up", "95 % interval"),
            **verdict.P_AGAINST_IDEAL_COLUMN,
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), plot.describe_cut_intervals(rows, _SPEEDUP)),
        findings=_describe_batch_effect(effects, panel_columns, data.design),
        coverage=describe_cell_coverage(
            comparable_cells.select_varied_cells(series[series["compact"]], [*panel_columns, "ranks"], "batch")
        ),
        minor=not verdict.has_significant_difference(effects),
    )


def _describe_batch_effect(effects: pd.DataFrame, panel_columns: list[str], design: Design) -> tuple[str, ...]:
    """Return sentences on the change of speed-ups from the smallest to the largest batch."""
    if effects.empty:
        return ()
    label_columns = [
        column
        for column in [*panel_columns, "ranks"]
        if effects[column].nunique() > 1 or column in ("workload", "ranks")
    ]
    bounds = {"ratio": "change_pct", "ratio_low": "change_low", "ratio_high": "change_high"}
    changes = effects.assign(**{name: 1 + effects[column] / 100 for name, column in bounds.items()})
    effect = verdict.summarize_effects(
        changes,
        design,
        label_columns,
        "From the smallest to the largest batch, the speed-up changes by {}",
        "change of the speed-up from the smallest to the largest batch",
        lambda ratio: 100 * (ratio - 1),
        wording.format_percent,
    )
    return (effect,)


def _draw_panels(panels: plot.Panels) -> str:
    """Draw one panel per workload, with a line per number of devices and its ideal. Return SVG."""
    looks = plot.assign_looks(sorted(set(plot.collect_panel_values(panels, "ranks"))))

    def draw_panel(axes: Any, rows: pd.DataFrame) -> None:
        """Draw a line per number of devices over the batches, and its ideal."""
        batches = sorted(rows["batch"].unique())
        place = {batch: index for index, batch in enumerate(batches)}
        for count, device_rows in rows.groupby("ranks", sort=True):
            look = looks[count]
            sorted_rows = device_rows.sort_values("batch")
            line = sorted_rows[sorted_rows["ratio"].notna()]
            axes.axhline(sorted_rows["ideal"].iloc[0], color=look.colour, linestyle=":", linewidth=0.9)
            axes.plot(line["batch"].map(place), line["ratio"], color=look.colour)
            plot.draw_points(axes, line, line["batch"].map(place), _SPEEDUP, look)
        for batch, gap_rows in rows[rows["n_ok"] == 0].groupby("batch", sort=True):
            plot.mark_gap(
                axes,
                place[batch],
                ", ".join(dict.fromkeys(plot.describe_gap(row) for row in gap_rows.to_dict("records"))),
            )
        axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
        axes.set_xlim(-0.4, len(batches) - 0.6)
        axes.set_ylim(0, 1.05 * max(rows["ideal"].max(), plot.compute_range(rows, _SPEEDUP)[1]))

    handles = [
        *plot.build_legend_keys(looks, lambda count: wording.format_axis_value("ranks", count)),
        plot.build_ink_key("ideal", linestyle=":"),
    ]
    return plot.draw_multiples(panels, draw_panel, handles, "batch per device (samples)", "speed-up (×)")
