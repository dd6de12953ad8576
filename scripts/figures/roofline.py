"""Figure: efficiency of cells against the ratio of all-reduce time to compute time, to show whether links bound them."""

from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.common import wording
from campaign.observe.links.alpha_beta_model import predict_allreduce_s
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, describe_cell_coverage, describe_marks, nothing
from campaign.report.link_selection import select_shown_links
from campaign.spec.metric import THROUGHPUT

TITLE = "Bound by devices or by links"
SECTION = (
    "Do links limit training? Left of 1, the all-reduce of a step can overlap with computing completely; right of 1, it "
    "cannot."
)
RESTS_ON = ("links",)
METHOD = "the bound by links uses the all-reduce time of a step's gradients, from the ring model of the measured links"
PLACE = 145
UNITS = {"allreduce": "s", "compute": "s", "intensity": ""}
UNITS |= dict.fromkeys(("bound", "unoverlapped", "efficiency_low", "efficiency_high"), "pct")
_EFFICIENCY = plot.IntervalColumns("efficiency_pct", "efficiency_low", "efficiency_high")
_CURVE_POINTS = 100


def draw(data: FigureData) -> Drawing:
    """Draw the efficiency of cells against the ratio of all-reduce time to compute time, with the bound that links set."""
    if data.metric.name != THROUGHPUT.name:
        return nothing("computing time follows from throughput, but the campaign has another primary metric")
    if "allreduce_bytes_per_step" not in data.runs:
        return nothing("no workload reported the all-reduced bytes per step")
    rows = _tabulate_efficiencies(data)
    if rows.empty:
        return nothing("no cell has both a measured all-reduce and a counterpart on one device")
    panels = plot.split_into_panels(rows, ["workload", *comparable_cells.list_option_columns(rows)])
    caption = (
        "Efficiency relative to one device, by the ratio of all-reduce time to computing time. "
        f"{describe_marks('point', rows['n_ok'], rows['method'])} "
        f"Solid: complete overlap; dashed: no overlap.{panels.format_common_sentence()}"
    )
    label_columns = ["configuration", "workload", "batch", "precision", *comparable_cells.list_option_columns(rows)]
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_panels(panels),
        {
            "Cell": columns.description_column(label_columns),
            "Computing (ms)": columns.number_column("compute", factor=1e3),
            "All-reduce (ms)": columns.number_column("allreduce", factor=1e3),
            "Ratio": columns.number_column("intensity"),
            "Bound by links": columns.percent_column("bound"),
            "Without overlap": columns.percent_column("unoverlapped"),
            "Efficiency": columns.percent_column("efficiency_pct"),
            "95 % interval": columns.interval_column("efficiency_low", "efficiency_high", wording.format_percent),
            **columns.RUN_COLUMNS,
        },
        caption=caption,
        limits=panels.list_limits(),
        findings=_describe_link_bounds(rows),
        coverage=describe_cell_coverage(
            data.cells, rows["cell_id"], "no all-reduce was measured, or only one device was used"
        ),
    )


def _tabulate_efficiencies(data: FigureData) -> pd.DataFrame:
    """Build one row per measured cell of several ranks, with its efficiency and its bound.

    The efficiency is against one local device. The bound follows from the measured links.
    """
    equal = ["workload", "batch", "precision", "device", *comparable_cells.list_option_columns(data.cells)]
    cells = data.cells[data.cells["n_ok"] > 0].reset_index(drop=True)
    is_single_device = (cells["ranks"] == 1) & (cells["attach"] == "local") & (cells["devices_per_host"] == 1)
    rows = comparable_cells.compare_with_reference(
        cells, equal, is_single_device, data.design, is_scaled_by_devices=True
    )
    models = {
        links.configuration: (links.document["model"] or {}).get("allreduce")
        for links in select_shown_links(data.links)
    }
    models = {name: model for name, model in models.items() if model}
    size = data.runs[data.runs["status"] == "ok"].groupby("cell_id")["allreduce_bytes_per_step"].first()
    rows = rows.assign(size_bytes=rows["cell_id"].map(size))
    rows = rows[(rows["ranks"] > 1) & rows["ratio"].notna() & (rows["size_bytes"] > 0)]
    rows = rows[rows["configuration"].isin(list(models))].reset_index(drop=True)
    seconds = [
        float(predict_allreduce_s(np.array([row["size_bytes"]]), row["ranks"], model["alpha_us"], model["gb_per_s"])[0])
        for row in rows.to_dict("records")
        for model in [models[row["configuration"]]]
    ]
    rows = rows.assign(allreduce=seconds, compute=rows["batch"] / rows["against_mean"])
    rows = rows[rows["allreduce"] > 0].reset_index(drop=True)
    intensity = rows["allreduce"] / rows["compute"]
    return rows.assign(
        intensity=intensity,
        bound=100 / np.maximum(1.0, intensity),
        unoverlapped=100 / (1.0 + intensity),
        efficiency_pct=100 * rows["ratio"] / rows["ranks"],
        efficiency_low=100 * rows["ratio_low"] / rows["ranks"],
        efficiency_high=100 * rows["ratio_high"] / rows["ranks"],
    )


def _describe_link_bounds(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return sentences on the number of cells that links bound, and on cells below the rate without overlap."""
    bound_rows = rows[rows["intensity"] > 1]
    worst: Any = rows.loc[rows["intensity"].idxmax()]
    label_columns = [
        "configuration",
        *(name for name in ("workload", "batch", "precision") if rows[name].nunique() > 1),
    ]
    bound_count = f"{len(bound_rows):,}" if len(bound_rows) else "none"
    sentences = [
        f"Links limit {bound_count} of {wording.pluralize(len(rows), 'cell')}: the all-reduce of a step takes up "
        f"to {wording.format_number(worst['intensity'])} times as long as computing ({wording.format_axes(worst, label_columns)})."
    ]
    slow_rows = rows[rows["tested"] & (rows["efficiency_high"] < rows["unoverlapped"])]
    if len(slow_rows):
        case: Any = slow_rows.loc[(slow_rows["efficiency_pct"] / slow_rows["unoverlapped"]).idxmin()]
        efficiency_text = (
            f"{wording.format_percent(case['efficiency_pct'])} instead "
            f"of {wording.format_percent(case['unoverlapped'])}"
        )
        conditions = "; ".join(filter(None, (wording.format_axes(case, label_columns), verdict.describe_basis(case))))
        sentences.append(
            f"In {wording.pluralize(len(slow_rows), 'cell')}, efficiency is below the bound without overlap; the "
            f"{'value' if len(slow_rows) == 1 else 'worst value'} is {efficiency_text} ({conditions}). "
            "Shared cores, input or waiting for the slowest rank may take additional time."
        )
    return tuple(sentences)


def _draw_panels(panels: plot.Panels) -> str:
    """Draw one panel per workload, with a marker per cell and the bounds as lines. Return SVG."""
    looks = plot.assign_looks(sorted(set(plot.collect_panel_values(panels, "configuration"))))

    def draw_panel(axes: Any, panel_rows: pd.DataFrame) -> None:
        """Draw the cells of one workload, and the bounds with and without overlap."""
        ends = panel_rows["intensity"].min() / 2, max(2.0, panel_rows["intensity"].max() * 2)
        across = np.geomspace(*ends, _CURVE_POINTS)
        axes.plot(across, 100 / np.maximum(1.0, across), color=plot.INK, linewidth=1.1)
        axes.plot(across, 100 / (1.0 + across), color=plot.INK, linestyle="--", linewidth=0.9)
        for name, rows in panel_rows.groupby("configuration", sort=False):
            plot.draw_points(axes, rows, rows["intensity"], _EFFICIENCY, looks[name])
        axes.set_xlim(*ends)
        plot.set_logarithmic(axes)
        axes.set_ylim(0, max(110.0, 1.05 * plot.compute_range(panel_rows, _EFFICIENCY)[1]))

    handles = [
        *plot.build_legend_keys(looks, linestyle=""),
        plot.build_ink_key("bound by links", linewidth=1.1),
        plot.build_ink_key("without overlap", linestyle="--", linewidth=0.9),
    ]
    return plot.draw_multiples(
        panels, draw_panel, handles, "all-reduce time / compute time", "efficiency (%)", height_in=2.9
    )
