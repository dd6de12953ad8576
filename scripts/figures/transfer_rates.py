"""Figure: traffic of PCIe, NVLink, network and storage during runs, by configuration and workload."""

from dataclasses import replace

import pandas as pd

from campaign.analysis.statistics import comparisons, verdict
from campaign.analysis.statistics.comparisons import Design
from campaign.report import bars
from campaign.report.bars import Quantity
from campaign.report.figure import Drawing, FigureData, nothing

TITLE = "Transfer rates"
SECTION = "How much data do the links transfer during the measured time, according to their counters?"
RESTS_ON = ("links",)
WITH = "utilisation"
PLACE = 155
COUNTERPARTS = {
    "Falcon: Fig. 12": "PCIe traffic of fabric GPUs, both directions together",
}

QUANTITIES = (
    Quantity("pcie_all_gb_per_s", "PCIe traffic of all devices in both directions", "GB/s"),
    Quantity("pcie_rx_mean_gb_per_s", "PCIe received per device", "GB/s"),
    Quantity("pcie_tx_mean_gb_per_s", "PCIe sent per device", "GB/s"),
    Quantity("nvlink_rx_mean_gb_per_s", "NVLink received per device", "GB/s"),
    Quantity("nvlink_tx_mean_gb_per_s", "NVLink sent per device", "GB/s"),
    Quantity("network_rx_mean_gb_per_s", "network received per host", "GB/s"),
    Quantity("network_tx_mean_gb_per_s", "network sent per host", "GB/s"),
    Quantity("loopback_rx_mean_gb_per_s", "network traffic between processes of a host", "GB/s"),
    Quantity("disk_read_mean_gb_per_s", "disk read rate per host", "GB/s"),
    Quantity("disk_written_mean_gb_per_s", "disk write rate per host", "GB/s"),
    Quantity("input_gb_per_s", "sample read rate of all devices", "GB/s"),
)
_DESCRIPTION = "Rates are means over the measured time."
_SHORT_SAMPLE_FLAG = "telemetry: PCIe rates are from looks of 20 ms"


def draw(data: FigureData) -> Drawing:
    """Draw the mean rates of PCIe, NVLink, network and storage during runs, by configuration and workload."""
    runs = data.runs
    # NaN if a counter is missing, so that quantities that were not counted are left out.
    sums = {
        name: runs[name] if name in runs else float("nan")
        for name in ("pcie_rx_mean_gb_per_s", "pcie_tx_mean_gb_per_s")
    }
    total = (sums["pcie_rx_mean_gb_per_s"] + sums["pcie_tx_mean_gb_per_s"]) * runs["ranks"]
    runs = runs.assign(pcie_all_gb_per_s=total)
    rows = bars.summarize_by_cell(replace(data, runs=runs), QUANTITIES)
    if rows.empty:
        return nothing("no run was sampled with a counter of PCIe, NVLink, network or storage")
    has_short_samples = bool(runs["flags"].str.contains(_SHORT_SAMPLE_FLAG, regex=False).any())
    remarks = "PCIe rates of some runs come from 20 ms samples instead of counters." if has_short_samples else ""
    design = comparisons.build_design(runs, data.protocol, column="pcie_all_gb_per_s")
    return bars.build_bar_drawing(data, rows, _DESCRIPTION, remarks, _describe_traffic_ratio(rows, design))


def _describe_traffic_ratio(rows: pd.DataFrame, design: Design) -> tuple[str, ...]:
    """Return a sentence on the ratio of PCIe traffic between the busiest and the least busy workload.

    It refers to the configuration with the highest traffic, and is left out if that ran a single workload.

    Args:
        rows: rates with their intervals.
        design: design of the experiment for ratios of PCIe traffic.
    """
    chosen_rows = bars.select_most_sampled(rows)
    pcie_rows = chosen_rows[chosen_rows["quantity"] == QUANTITIES[0].label]
    if pcie_rows.empty:
        return ()
    busiest = pcie_rows.loc[pcie_rows["mean"].idxmax(), "configuration"]
    group = pcie_rows[(pcie_rows["configuration"] == busiest) & (pcie_rows["mean"] > 0)]
    if group["workload"].nunique() < 2:
        return ()
    highest, lowest = group.loc[group["mean"].idxmax()], group.loc[group["mean"].idxmin()]
    comparison = comparisons.compute_ratios(pd.Series([highest["cell_id"]]), pd.Series([lowest["cell_id"]]), design)
    names = highest["workload"], lowest["workload"]
    return (
        verdict.describe_extreme_ratio(
            comparison,
            len(group),
            f"{names[0]} has {{}} the PCIe traffic of {names[1]} on {busiest}",
            f"difference of PCIe traffic between {names[0]} and {names[1]} on {busiest}",
        ),
    )
