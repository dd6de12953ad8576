"""Figure: energy per sample and per step, by configuration and workload."""

from dataclasses import replace

from campaign.report import bars
from campaign.report.bars import Quantity
from campaign.report.figure import Drawing, FigureData, nothing

TITLE = "Energy"
SECTION = "How much energy does the same work need? A waiting device still draws power."
RESTS_ON = ("devices",)
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
    return bars.build_bar_drawing(data, rows, _DESCRIPTION, _REMARKS)
