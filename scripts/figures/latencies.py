"""Figure: latencies of requests to services, by the rate at which the client sends them."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.report import bars, columns, plot
from campaign.report.bars import Quantity
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Serving: latencies"
SECTION = "How do the latencies of requests grow with their rate?"
PART = ANSWERS
PLACE = 6

_LATENCIES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2E": "e2e_ms"}
_DASHES = {"p50": "--", "p99": "-"}
_QUANTITIES = [
    Quantity(f"{metric}_{percentile}", f"{percentile} {latency}", "ms")
    for latency, metric in _LATENCIES.items()
    for percentile in _DASHES
]
_DECADE = 10.0


def draw(data: FigureData) -> Drawing:
    """Draw the median and the 99th percentile of each latency against the rate of requests."""
    cells = comparable_cells.select_cells_with_request_rate(data.cells)
    if cells.empty:
        return nothing("no service was measured at a fixed request rate (option rate_per_s)")
    rows = bars.summarize_by_cell(data, _QUANTITIES)
    if len(rows):
        rows = rows.merge(cells[["cell_id", "rate_per_s"]], on="cell_id")
    if rows.empty:
        return nothing("no valid run has a median or 99th percentile of TTFT, TPOT or end-to-end latency")
    rows[["percentile", "latency"]] = rows["quantity"].str.split(" ", expand=True)
    options = [
        name for name in comparable_cells.list_option_columns(rows) if name != comparable_cells.REQUEST_RATE_COLUMN
    ]
    panel_columns = ["workload", "precision", *options]
    panels = plot.split_into_panels(rows, ["latency", *panel_columns])
    cut = next((words for panel in panels.shown if (words := plot.describe_cut_intervals(panel.rows, plot.RATE))), "")
    caption = (
        "Latency by request rate, as reported by the client: median (dashed) and 99th percentile (solid). "
        "TTFT: time to first token; TPOT: time per later output token; E2E: time to the end of the answer. "
        f"{describe_marks('point', rows['n_ok'], rows['interval_method'])}{panels.format_common_sentence()}"
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_panels(panels),
        {
            "Cell": columns.description_column(select_distinguishing_columns(rows, ["configuration", *panel_columns])),
            "Requests/s": columns.number_column("rate_per_s"),
            "Latency": lambda row: f"{row['quantity']} (ms)",
            "Mean": columns.number_column("mean"),
            "95 % interval": columns.interval_column("ci_low", "ci_high"),
            **columns.RUN_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), cut),
        findings=_describe_latency_ranges(rows, select_distinguishing_columns(rows, ["configuration", *panel_columns])),
        coverage=describe_cell_coverage(cells, rows["cell_id"].unique()),
    )


def _describe_latency_ranges(rows: pd.DataFrame, label_columns: list[str]) -> tuple[str, ...]:
    """Return a sentence per latency on the range of its highest percentile, at the highest rate that most configurations have."""
    sentences = []
    for _, latency_rows in rows.groupby("latency", sort=False):
        quantity = str(latency_rows["quantity"].iloc[-1])
        quantity_rows = latency_rows[latency_rows["quantity"] == quantity]
        configurations = quantity_rows.groupby("rate_per_s")["configuration"].nunique()
        rate = configurations[configurations == configurations.max()].index.max()
        ranking = (
            quantity_rows[quantity_rows["rate_per_s"] == rate].sort_values("mean", kind="stable").to_dict("records")
        )
        ends = [
            f"{wording.format_number(row['mean'])} ms ({wording.format_axes(row, label_columns)})"
            for row in (ranking[0], ranking[-1])
        ]
        values = f"from {ends[0]} to {ends[1]}" if len(ranking) > 1 else ends[0]
        sentences.append(f"At {wording.format_number(rate)} requests/s, {quantity} is {values}.")
    return tuple(sentences)


def _draw_panels(panels: plot.Panels) -> str:
    """Draw one panel per latency and workload, with a line per configuration and percentile. Return SVG."""
    looks = plot.assign_looks(
        list(dict.fromkeys(plot.collect_panel_values(panels, "configuration")))[: plot.MAX_SERIES]
    )

    def draw_panel(axes: Axes, rows: pd.DataFrame) -> None:
        """Draw a line per configuration and percentile of one latency."""
        for name, look in looks.items():
            for percentile, dashes in _DASHES.items():
                line_rows = rows[(rows["configuration"] == name) & (rows["percentile"] == percentile)]
                line_rows = line_rows.sort_values("rate_per_s", kind="stable")
                axes.plot(
                    line_rows["rate_per_s"], line_rows["mean"], color=look.colour, linestyle=dashes, linewidth=1.2
                )
                plot.draw_points(axes, line_rows, line_rows["rate_per_s"], plot.RATE, look)
        low, high = plot.compute_range(rows, plot.RATE)
        if rows["mean"].max() / rows["mean"].min() >= _DECADE:
            axes.set_yscale("log")
            plot.set_logarithmic(axes, "y")
            axes.set_ylim(top=1.1 * high)
        else:
            axes.set_ylim(min(0.0, low), 1.05 * high)
        axes.set_xlim(left=0)
        axes.set_ylabel(f"{rows['latency'].iloc[0]} (ms)")

    keys = [plot.build_ink_key(percentile, linestyle=dashes) for percentile, dashes in _DASHES.items()]
    return plot.draw_multiples(
        panels, draw_panel, [*plot.build_legend_keys(looks), *keys], "offered requests/s", height_in=2.6
    )
