"""Figure: share of a device's arithmetic that a step reaches, and the bytes that ranks exchange per step."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, comparisons
from campaign.common import wording
from campaign.report import bars, columns, plot
from campaign.report.bars import BarGroups, Bars, group_bars
from campaign.report.figure import (
    APPARATUS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Work and bytes of a step"
SECTION = "How much does a step compute and communicate, and which share of its peak does a device reach?"
RESTS_ON = ("devices",)
METHOD = "the arithmetic of a training step is three times that of its forward pass, which is counted exactly"
PART = APPARATUS
WITH = "workload-characteristics"
PLACE = 215
UNITS = {"parameters": ""}

# Counted by the workload, equal for all runs of a cell.
_COUNTS = ("parameters", "flops_per_step", "allreduce_bytes_per_step", "flops_per_allreduce_byte")
_GFLOP_PER_TFLOP = 1e3  # GFLOP per TFLOP


def draw(data: FigureData) -> Drawing:
    """Draw the arithmetic rate that each device reaches at the largest batch, with its share of the dense peak."""
    if "achieved_tflops" not in data.runs or not data.runs["achieved_tflops"].notna().any():
        return nothing("no workload reported the arithmetic of its steps")
    rows = comparable_cells.add_description_columns(_tabulate_arithmetic(data))
    panel_columns = ["workload", *comparable_cells.list_option_columns(rows)]
    panels = plot.split_into_panels(rows, panel_columns)
    caption = (
        f"Arithmetic rate per device at the largest batch. {describe_marks('bar', rows['n_ok'], rows['interval_method'])} Above a "
        f"bar: share of the device's dense peak, if known.{panels.format_common_sentence()}"
    )
    names = sorted(set(plot.collect_panel_values(panels, "precision")), key=comparable_cells.rank_precision)
    return plot.build_drawing(
        data,
        rows,
        lambda: Bars(names, _format_peak_share).draw_multiples(
            panels,
            _group_bars,
            lambda cells: f"configuration (batch {cells['batch'].max()})",
            "GFLOP/s per device",
            bars.compute_panel_height_in(2.4, set(plot.collect_panel_values(panels, "configuration"))),
            rotation=60,
        ),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, panel_columns)),
            "Configuration": columns.text_column("configuration"),
            "Batch": columns.count_column("batch"),
            "Precision": columns.text_column("precision"),
            "Parameters": lambda row: wording.format_number(row["parameters"] / 1e6) + " M",
            "GFLOP per step": columns.number_column("flops_per_step", factor=1e-9),
            "All-reduced per step": lambda row: _format_megabytes(row["allreduce_bytes_per_step"]),
            "FLOP per byte": columns.number_column("flops_per_allreduce_byte"),
            "GFLOP/s per device": columns.number_column("mean"),
            "95 % interval": columns.interval_column("ci_low", "ci_high"),
            "Share of the peak": columns.percent_column("mfu_pct"),
            **columns.RUN_COLUMNS,
        },
        caption=caption,
        limits=(*panels.list_limits(), plot.describe_cut_intervals(rows, plot.RATE)),
        findings=_describe_arithmetic(rows, panel_columns),
        coverage=describe_cell_coverage(data.cells, rows["cell_id"]),
    )


def _tabulate_arithmetic(data: FigureData) -> pd.DataFrame:
    """Build one row per cell with known arithmetic. It has the counts per step, and the mean rate in GFLOP/s with its interval."""
    ok = data.runs[(data.runs["status"] == "ok") & data.runs["achieved_tflops"].notna()]
    groups = ok.groupby("cell_id", sort=False)
    rate = _GFLOP_PER_TFLOP * groups["achieved_tflops"].mean()
    cells = data.cells[data.cells["cell_id"].isin(rate.index)].drop(columns=["mean", "sd", "ci_low", "ci_high"])
    ids = cells["cell_id"]
    cells = cells.assign(mean=ids.map(rate), sd=ids.map(_GFLOP_PER_TFLOP * groups["achieved_tflops"].std()))
    design = comparisons.build_design(ok, data.protocol, column="achieved_tflops", higher_is_better=False)
    counts = {name: ids.map(groups[name].first()) if name in ok else float("nan") for name in (*_COUNTS, "mfu_pct")}
    return bars.add_intervals(cells.assign(unit="GFLOP/s", **counts).reset_index(drop=True), design)


def _describe_arithmetic(rows: pd.DataFrame, panel_columns: list[str]) -> tuple[str, ...]:
    """Return sentences on the highest arithmetic rate, and on the range of arithmetic per byte exchanged."""
    best: Any = rows.loc[rows["mean"].idxmax()]
    axes = [*panel_columns, "configuration", "batch", "precision"]
    sentences = [
        f"The highest arithmetic rate of a device is {wording.format_number(best['mean'])} GFLOP/s "
        f"({wording.format_axes(best, axes)})."
    ]
    dense = rows.dropna(subset=["flops_per_allreduce_byte"])
    if dense["workload"].nunique() > 1:
        ranking = dense.sort_values("flops_per_allreduce_byte", kind="stable")
        ends: list[Any] = [ranking.iloc[0], ranking.iloc[-1]]
        low_text, high_text = (
            f"{wording.format_number(row['flops_per_allreduce_byte'])} FLOP ({row['workload']}, batch {row['batch']})"
            for row in ends
        )
        sentences.append(f"The arithmetic per all-reduced byte ranges from {low_text} to {high_text}.")
    return tuple(sentences)


def _group_bars(cells: pd.DataFrame) -> BarGroups:
    """Group the bars of the largest batch by configuration, with one bar per precision."""
    return group_bars(cells[cells["batch"] == cells["batch"].max()], "configuration", "precision")


def _format_peak_share(row: Any) -> str:
    """Format the share of the peak above a bar, or an empty string if the peak is unknown."""
    return wording.format_percent(row["mfu_pct"]) if pd.notna(row["mfu_pct"]) else ""


def _format_megabytes(size_bytes: float) -> str:
    """Format bytes in MB, or a placeholder if the number is unknown."""
    return wording.NO_VALUE if pd.isna(size_bytes) else f"{wording.format_number(size_bytes / 1e6)} MB"
