"""Figure: utilisation, memory, power and temperature of devices and hosts, by configuration and workload."""

from campaign.report import bars
from campaign.report.bars import Quantity
from campaign.report.figure import Drawing, FigureData, nothing

TITLE = "Utilisation"
SECTION = "How busy were devices and hosts?"
RESTS_ON = ("devices",)
PLACE = 150
COUNTERPARTS = {
    "Falcon: Figs 9, 10, 13, 14": "utilisation of GPUs, GPU memory, CPU and host memory, by model and configuration",
}

QUANTITIES = (
    Quantity("device_utilisation_mean_pct", "device utilisation", "%"),
    Quantity("device_memory_access_mean_pct", "time with device memory in use", "%"),
    Quantity("device_memory_peak_mib", "peak device memory", "GiB", 1024.0),
    Quantity("device_memory_reserved_peak_mib", "peak device memory including the driver's", "GiB", 1024.0),
    Quantity("device_power_mean_w", "power per device", "W"),
    Quantity("device_temperature_peak_c", "peak device temperature", "°C"),
    Quantity("device_power_capped_share_pct", "time at the power limit (normal under load)", "%"),
    Quantity("device_slowed_share_pct", "time throttled by heat or board protection", "%"),
    Quantity("cpu_utilisation_mean_pct", "CPU utilisation", "%"),
    Quantity("cpu_socket_utilisation_max_pct", "CPU utilisation of the busiest socket", "%"),
    Quantity("host_memory_used_peak_mib", "peak host memory", "GiB", 1024.0),
)
_DESCRIPTION = "Values are per device or per host, over the measured time."
_REMARK = "A device counts as busy while any program runs on it, even one that only waits."


def draw(data: FigureData) -> Drawing:
    """Draw utilisation, memory, power and temperature of devices and hosts, by configuration and workload."""
    rows = bars.summarize_by_cell(data, QUANTITIES)
    if rows.empty:
        return nothing("no run was long enough to be sampled")
    remark = _REMARK if QUANTITIES[0].label in set(rows["quantity"]) else ""
    return bars.build_bar_drawing(data, rows, _DESCRIPTION, remark)
