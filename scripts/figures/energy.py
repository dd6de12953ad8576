"""Figure: energy per sample and per step, by configuration and workload."""

from dataclasses import replace

import pandas as pd

from campaign.report import bars, plot
from campaign.report.bars import Quantity
from campaign.report.figure import ANSWERS, Drawing, FigureData, nothing

TITLE = "Energy"
SECTION = "How much energy does the same work need? A waiting device still draws power."
RESTS_ON = ("devices",)
PART = ANSWERS
PLACE = 170

QUANTITIES = (
    Quantity("energy_per_sample_j", "device energy per sample", "J"),
    Quantity("energy_per_step_j", "device energy per step", "J"),
    Quantity("host_energy_per_sample_j", "processor energy per sample", "J"),
    Quantity("device_power_mean_w", "power per device", "W"),
)
_DESCRIPTION = "Energies cover the measured time."
_REMARKS = "A step is one step of all devices together. Device energy excludes hosts, fabric and cooling."


def draw(data: FigureData) -> Drawing:
    """Draw the energy per sample and per step of devices and processors, and the power per device, by configuration."""
    runs = data.runs
    if "energy_per_sample_j" not in runs or not runs["energy_per_sample_j"].notna().any():
        return nothing("no device or program reported power or energy")
    derived_columns = {"energy_per_step_j": runs["energy_per_sample_j"] * runs["batch_global"]}
    if "host_energy_j" in runs and "energy_j" in runs:
        samples = runs["energy_j"] / runs["energy_per_sample_j"].where(runs["energy_per_sample_j"] > 0)
        derived_columns["host_energy_per_sample_j"] = runs["host_energy_j"] / samples
    rows = bars.summarize_by_cell(replace(data, runs=runs.assign(**derived_columns)), QUANTITIES)
    drawing = bars.build_bar_drawing(data, rows, _DESCRIPTION, _REMARKS)
    per_sample = rows[rows["quantity"] == QUANTITIES[0].label] if len(rows) else rows
    if per_sample.empty:
        return drawing
    other_findings = bars.describe_ranges(rows[rows["quantity"] != QUANTITIES[0].label])
    with plot.use_style(data.style):
        return replace(
            drawing,
            glance=_draw_overview(per_sample),
            findings=(*_describe_energy_per_sample(per_sample), *other_findings),
        )


def _describe_energy_per_sample(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence per workload on its device energy per sample, because samples of different workloads differ in size."""
    if rows["workload"].nunique() == 1:
        return bars.describe_ranges(rows)
    ranges = [(name, bars.describe_ranges(group)[0]) for name, group in rows.groupby("workload", sort=False)]
    return tuple(f"{name}: {sentence[0].lower()}{sentence[1:]}" for name, sentence in ranges[: plot.MAX_PANELS])


def _draw_overview(rows: pd.DataFrame) -> str:
    """Draw the overview: the energy per sample of each configuration with the first workload. Return SVG.

    Args:
        rows: cells with their device energy per sample.
    """
    first = rows.iloc[0]
    shown_rows = rows[rows["workload"] == first["workload"]].drop_duplicates("configuration").to_dict("records")
    label = "{configuration}, {workload}"
    dots = [(label.format_map(row), row["mean"], row["ci_low"], row["ci_high"]) for row in shown_rows]
    return plot.draw_glance_dots(dots, f"device energy ({first['unit']} per sample)", 0.0)
